// Sessions as lanes over time. Each lane is a strip of absolutely placed boxes; time passes by one
// shift of all strips, and only boxes that changed are touched, so that watching stays cheap.
// Pauses are buttons: one stop of the Tab key for each lane, arrow keys within it.

import { TIERS, clock, count, make, plural, say, seconds } from "./format.js";
import { WORDS, lastedS, spans } from "./model.js";

const MAX_LANES = 60;
const MIN_BOX_PX = 3;
const MIN_TICK_PX = 10; // Between short pauses it would only hide them.
const LABEL_PX = 70; // A box narrower than this and than its label has none.
const GRID_PARTS = 5;

export class Lanes {
  #list = document.getElementById("lanes");
  #axis = document.getElementById("axis");
  #empty = document.getElementById("lanes-empty");
  #lanes = new Map(); #windowS = 300; #baseS = 0; #pxPerS = 0; #onPause;

  constructor(onPause) {
    this.#onPause = onPause;
    this.#list.addEventListener("keydown", (event) => this.#steer(event));
  }

  /** Redraws all; also after the width or the window has changed. `widthPx`: of the time axis. */
  draw(model, windowS, widthPx) {
    const px = widthPx / windowS;
    if (px !== this.#pxPerS || windowS !== this.#windowS || !this.#baseS) this.#begin(model.nowS, windowS, px);
    const shown = [...model.sessions.values()]
      .sort((a, b) => b.activeS - a.activeS).slice(0, MAX_LANES)
      .sort((a, b) => (a.endedS !== null) - (b.endedS !== null) || b.number - a.number);
    const ids = new Set(shown.map((session) => session.id));
    for (const [id, lane] of this.#lanes) if (!ids.has(id)) { lane.row.remove(); this.#lanes.delete(id); }
    shown.forEach((session, index) => this.#drawLane(session, index, model.nowS));
    this.#empty.hidden = shown.length > 0;
    const shift = `translateX(${Math.round((this.#baseS - model.nowS) * this.#pxPerS)}px)`;
    for (const lane of this.#lanes.values()) lane.strip.style.transform = shift;
  }

  #begin(nowS, windowS, px) {
    this.#windowS = windowS; this.#pxPerS = px; this.#baseS = nowS;
    for (const lane of this.#lanes.values()) { lane.strip.replaceChildren(); lane.boxes.clear(); }
    const labels = [];
    for (let part = 0; part <= GRID_PARTS; part += 1) {
      const agoS = Math.round(windowS * (1 - part / GRID_PARTS));
      const label = make("span", {}, agoS ? `−${agoS % 60 ? `${agoS} s` : `${agoS / 60} min`}` : "now");
      label.style.left = `${(part * 100) / GRID_PARTS}%`;
      labels.push(label);
    }
    this.#axis.replaceChildren(...labels);
  }

  #drawLane(session, index, nowS) {
    let lane = this.#lanes.get(session.id);
    if (!lane) { lane = newLane(session.id); this.#lanes.set(session.id, lane); }
    if (this.#list.children[index] !== lane.row) this.#list.insertBefore(lane.row, this.#list.children[index] ?? null);
    say(lane.note, describe(session, nowS));
    lane.row.classList.toggle("over", session.endedS !== null);
    const fromS = nowS - this.#windowS;
    const kept = new Set();
    for (const span of spans(session, nowS)) {
      if (span.toS < fromS) continue;
      const key = span.pause ?? `${span.kind} ${span.fromS}`;
      kept.add(key);
      let box = lane.boxes.get(key);
      if (!box) { box = this.#newBox(span); lane.boxes.set(key, box); lane.strip.append(...box.elements); }
      this.#place(box, span, nowS);
    }
    for (const [key, box] of lane.boxes) {
      if (!kept.has(key)) { box.elements.forEach((element) => element.remove()); lane.boxes.delete(key); }
    }
    const stops = lane.strip.querySelectorAll("button");
    if (stops.length && !lane.strip.querySelector("button[tabindex='0']")) stops[stops.length - 1].tabIndex = 0;
  }

  #newBox(span) {
    if (!span.pause) return { elements: [make("i", { class: `box ${span.kind}` })], drawn: "" };
    const button = make("button", { type: "button", class: "box pause", tabindex: "-1" }, make("span"));
    button.addEventListener("click", () => this.#onPause(span.pause, button));
    return { elements: [button, make("i", { class: "tick" })], drawn: "" };
  }

  #place(box, span, nowS) {
    const [element, tick] = box.elements;
    // What is still open reaches beyond now, where the lane ends: it need not grow with each poll.
    const pagesS = Math.ceil((nowS - this.#baseS) / this.#windowS + 0.01) * this.#windowS;
    const toS = span.toS === nowS ? this.#baseS + pagesS : span.toS;
    const fromS = Math.max(span.fromS, this.#baseS + pagesS - 3 * this.#windowS);
    const left = this.#x(fromS);
    const width = Math.max(MIN_BOX_PX, this.#x(toS) - left);
    const paint = span.pause ? paintOf(span.pause, fromS, toS) : "";
    const label = span.pause ? tell(span.pause, nowS) : "";
    const drawn = `${left.toFixed(1)} ${width.toFixed(1)} ${paint} ${label}`;
    if (drawn === box.drawn) return;
    box.drawn = drawn;
    element.style.left = `${left.toFixed(1)}px`;
    element.style.width = `${width.toFixed(1)}px`;
    if (!span.pause) return;
    element.style.background = paint;
    if (element.title !== label) { element.title = label; element.setAttribute("aria-label", label); }
    const tool = span.pause.tool ?? "";
    say(element.firstChild, width >= Math.min(LABEL_PX, 12 + 7 * tool.length) ? tool : "");
    const predicted = span.pause.predictedS;
    tick.hidden = predicted === null || Math.max(width, predicted * this.#pxPerS) < MIN_TICK_PX;
    if (!tick.hidden) tick.style.left = `${this.#x(span.pause.beganS + span.pause.predictedS).toFixed(1)}px`;
  }

  /** Pixels from the left of the strip as it was when `#baseS` was now. */
  #x(t) { return (t - this.#baseS + this.#windowS) * this.#pxPerS; }

  #steer(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step || !event.target.matches(".pause")) return;
    const stops = [...event.target.parentElement.querySelectorAll("button")];
    const place = Math.min(stops.length - 1, Math.max(0, stops.indexOf(event.target) + step));
    event.target.tabIndex = -1;
    stops[place].tabIndex = 0;
    stops[place].focus();
    event.preventDefault();
  }
}

function newLane(id) {
  const note = make("p", { class: "quiet" });
  const strip = make("div", { class: "strip", role: "group", "aria-label": `Pauses of ${id}` });
  const head = make("div", { class: "who" }, make("h3", { title: id }, id), note);
  const row = make("li", {}, head, make("div", { class: "track" }, strip));
  return { row, note, strip, boxes: new Map() };
}

/** The colours of a pause's steps, from left to right. */
function paintOf(pause, fromS, toS) {
  const steps = pause.steps.length ? pause.steps : [{ t: fromS, kind: "hold" }];
  if (steps.length === 1) return `var(--${steps[0].kind}-fill)`;
  const lengthS = Math.max(1e-6, toS - fromS);
  const stops = steps.map(({ t, kind }, index) => {
    const share = (at) => `${Math.min(100, Math.max(0, ((at - fromS) / lengthS) * 100)).toFixed(1)}%`;
    return `var(--${kind}) ${index ? share(t) : "0%"} ${share(steps[index + 1]?.t ?? toS)}`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** A pause in one sentence. */
export function tell(pause, nowS) {
  const isOpen = pause.endedS === null && pause.arrivedS === null;
  const steps = pause.steps.map(({ kind }) => WORDS[kind] ?? kind).join(", then ");
  const parts = [pause.tool ?? "unknown tool", `paused at ${clock(pause.beganS)}`];
  if (pause.predictedS !== null) parts.push(`predicted ${seconds(pause.predictedS)}`);
  // Of an open pause the time is not told: it would change, and be read out, with every poll.
  parts.push(isOpen ? "not back yet" : `waited ${seconds(lastedS(pause, nowS))}`);
  if (steps) parts.push(steps);
  if (pause.tier) parts.push(`found in ${TIERS[pause.tier] ?? pause.tier}`);
  if (pause.isCut) parts.push("the session ended");
  return parts.join(", ");
}

/** What the session does now. */
function describe(session, nowS) {
  if (session.endedS !== null) return `ended at ${clock(session.endedS)}`;
  const row = session.row;
  if (!row) return "";
  const size = row.context_tokens ? ` · ${count(row.context_tokens)} tokens` : "";
  const pause = session.pauses.at(-1);
  if (row.state === "paused" && pause) {
    const kind = pause.steps.at(-1)?.kind ?? "hold";
    const of = pause.predictedS === null ? "" : ` (predicted ${seconds(pause.predictedS)})`;
    const parked = pause.parkedIn ? `, copy in ${pause.parkedIn}` : "";
    const tool = pause.isDone ? "tool done, prefetching" : pause.tool ?? "unknown tool";
    return `${tool} · ${seconds(Math.max(0, lastedS(pause, nowS)))}${of} · ${WORDS[kind]}${parked}`;
  }
  const what = row.state === "resuming" ? "turn waits for its blocks" : "turn runs";
  return `${what} · ${plural(row.num_turns ?? 1, "turn")}${size}`;
}
