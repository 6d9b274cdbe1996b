// What is known of sessions and their pauses, put together from the answers of /v1/agentkv/live.
// Why two sources: ledger records tell exactly when what was decided, also of pauses between two
// polls; the list of sessions tells what no record does: the tool, where the KV is, who runs now.
// All times are Unix seconds of the server's clock.

const SAME_PAUSE_S = 1.5;

export class Model {
  sessions = new Map();
  nowS = 0;
  #startedS = 0; #newestS = 0; #seen = new Map(); #number = 0;

  /** Where the next question goes on. */
  get sinceS() { return Math.max(0, this.#newestS - 1); }

  forget() {
    this.sessions.clear(); this.#seen.clear(); this.#newestS = 0;
  }

  /** Takes in an answer; what ended before `keepAfterS` is forgotten. */
  apply(live, limit, keepAfterS) {
    if (this.#startedS && live.started_s !== this.#startedS) this.#closeAll(this.nowS);
    this.#startedS = live.started_s;
    this.nowS = live.now_s;
    for (const record of live.records) {
      const name = [record.kind, record.session_id, record.pause_id, record.t].join("\n");
      if (!this.#seen.has(name)) { this.#seen.set(name, record.t); this.#record(record); }
      this.#newestS = Math.max(this.#newestS, record.t);
    }
    const listed = new Set();
    for (const row of live.sessions) { listed.add(row.session_id); this.#row(row, live.as_of_s); }
    for (const session of this.sessions.values()) {
      if (listed.has(session.id)) continue;
      session.row = null;
      const isGone = live.sessions.length < limit && session.activeS < live.as_of_s;
      if (isGone) this.#end(session, live.as_of_s);
    }
    this.#drop(keepAfterS);
  }

  #session(id, t) {
    let session = this.sessions.get(id);
    if (!session) {
      session = { id, number: this.#number++, pauses: [], endedS: null, activeS: t, row: null, runS: null };
      this.sessions.set(id, session);
    }
    return session;
  }

  #record(record) {
    const session = this.#session(record.session_id, record.t);
    session.activeS = Math.max(session.activeS, record.t);
    if (record.kind === "end") { this.#end(session, record.t); return; }
    session.endedS = null;
    const beganS = record.t - (record.age_s ?? record.wait_s ?? 0);
    const last = session.pauses.at(-1);
    let pause = session.pauses.findLast((each) => each.id === record.pause_id && each.endedS === null);
    if (!pause && isSame(last, beganS) && last.id === null) { pause = last; pause.id = record.pause_id; }
    if (!pause) pause = this.#open(session, record.pause_id, beganS);
    pause.tool = record.tool ?? pause.tool;
    pause.commandClass = record.command_class ?? pause.commandClass;
    if (record.kind === "resume") {
      Object.assign(pause, {
        endedS: record.t, arrivedS: Math.min(record.t, pause.beganS + record.wait_s), waitS: record.wait_s,
        tier: record.tier, recomputed: record.recomputed_tokens, regretS: record.regret_s,
      });
      if (!pause.steps.length) pause.steps.push({ t: pause.beganS, kind: record.action });
    } else {
      note(pause, record.t, record.action);
      if (pause.predictedS === null && record.estimate_p50_s !== undefined && record.estimate_p50_s !== null) {
        pause.predictedS = (record.age_s ?? 0) + record.estimate_p50_s;
      }
    }
  }

  /** A pause that no record and no row was heard of before; one still open is over. */
  #open(session, id, beganS) {
    const last = session.pauses.at(-1);
    if (last && last.endedS === null) last.endedS = last.arrivedS ?? beganS;
    const pause = {
      id, session, beganS, arrivedS: null, endedS: null, waitS: null, tool: null, commandClass: null,
      predictedS: null, steps: [], tier: null, recomputed: null, regretS: null, isAway: false, isDone: false,
      isCut: false,
    };
    session.pauses.push(pause);
    return pause;
  }

  #row(row, asOfS) {
    const session = this.#session(row.session_id, asOfS);
    const last = session.pauses.at(-1);
    session.row = row;
    session.activeS = Math.max(session.activeS, asOfS - (row.idle_s ?? 0));
    session.endedS = null;
    if (row.pause) {
      const beganS = asOfS - row.pause.since_s;
      const pause = isSame(last, beganS) ? last : this.#open(session, null, beganS);
      this.#look(pause, row.pause, asOfS);
    } else if (!last) {
      session.runS ??= session.activeS;
    } else if (last.endedS === null) {
      last.arrivedS ??= asOfS - (row.idle_s ?? 0);
      if (row.state === "running") last.endedS = asOfS;
    }
  }

  #look(pause, row, asOfS) {
    pause.tool = row.tool ?? pause.tool;
    pause.isDone = row.is_tool_done;
    pause.parkedIn = row.parked_in;
    pause.predictedS ??= asOfS - pause.beganS + row.returns_in_s;
    const isBack = pause.isAway && !row.is_given_up;
    pause.isAway = row.is_given_up;
    if (isBack) note(pause, asOfS, "back");
    else if (row.action && pause.steps.at(-1)?.kind !== "back") {
      note(pause, pause.steps.length ? asOfS : pause.beganS, row.action);
    }
  }

  #end(session, t) {
    session.endedS ??= t;
    const last = session.pauses.at(-1);
    if (last && last.endedS === null) { last.endedS = t; last.isCut = true; }
  }

  #closeAll(t) {
    for (const session of this.sessions.values()) { session.row = null; this.#end(session, t); }
    this.#seen.clear();
  }

  #drop(beforeS) {
    for (const [id, session] of this.sessions) {
      const kept = session.pauses.filter((pause) => (pause.endedS ?? Infinity) >= beforeS);
      if (kept.length < session.pauses.length) session.runS = null;
      session.pauses = kept;
      if ((session.endedS ?? Infinity) < beforeS) this.sessions.delete(id);
    }
    for (const [name, t] of this.#seen) if (t < this.#newestS - 10) this.#seen.delete(name);
  }
}

function isSame(pause, beganS) {
  return pause !== undefined && pause.endedS === null && Math.abs(pause.beganS - beganS) < SAME_PAUSE_S;
}

function note(pause, t, kind) {
  if (pause.steps.at(-1)?.kind !== kind) pause.steps.push({ t, kind });
}

/** How a lane looks: [{kind, fromS, toS, pause}], a pause with its steps as one span. */
export function spans(session, nowS) {
  const found = [];
  const endS = session.endedS ?? nowS;
  session.pauses.forEach((pause, index) => {
    const outS = pause.arrivedS ?? pause.endedS ?? nowS;
    found.push({ kind: "pause", fromS: pause.beganS, toS: outS, pause });
    if (pause.isCut) return;
    if (pause.arrivedS !== null) found.push({ kind: "resuming", fromS: outS, toS: pause.endedS ?? nowS });
    const untilS = session.pauses[index + 1]?.beganS ?? endS;
    if (pause.endedS !== null && untilS > pause.endedS) found.push({ kind: "running", fromS: pause.endedS, toS: untilS });
  });
  if (session.runS !== null) {
    const kind = !session.pauses.length && session.row?.state === "resuming" ? "resuming" : "running";
    found.unshift({ kind, fromS: session.runS, toS: session.pauses[0]?.beganS ?? endS });
  }
  return found;
}

/** Seconds that a pause has lasted. */
export const lastedS = (pause, nowS) => pause.waitS ?? (pause.arrivedS ?? pause.endedS ?? nowS) - pause.beganS;

/** The last decision in words. */
export const WORDS = { hold: "held", swap: "swapped", back: "brought back", recompute: "to recompute" };
