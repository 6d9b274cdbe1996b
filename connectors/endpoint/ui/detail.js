// What the ledger says of one pause: predicted, decided and why, returned, what it cost.
// A modal dialog: the browser keeps the focus inside, closes it on Escape and gives the focus back.

import { bytes, clock, count, make, percent, say, seconds } from "./format.js";
import { ask } from "./server.js";

const ACTIONS = ["hold", "swap", "recompute"];
const NOTE = "Costs are seconds of delay; a second of held KV counts as much as others lack its room. "
  + "Regret is the cost above that of the best action, had the wait been known.";

export class Detail {
  #dialog = document.getElementById("detail");
  #title = document.getElementById("detail-title");
  #body = document.getElementById("detail-body");
  #opener = null;

  constructor() {
    document.getElementById("detail-close").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("click", (event) => { if (event.target === this.#dialog) this.#dialog.close(); });
    this.#dialog.addEventListener("close", () => this.#opener?.focus());
  }

  async show(pause, opener) {
    this.#opener = opener;
    say(this.#title, `${pause.tool ?? "Unknown tool"} · ${pause.session.id}`);
    this.#body.replaceChildren(make("p", { class: "quiet" }, "Reading the ledger…"));
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#title.focus();
    try {
      const ledger = await ask(`ledger/${encodeURIComponent(pause.session.id)}`);
      this.#body.replaceChildren(...entry(recordsOf(ledger.records, pause), pause));
    } catch (error) {
      this.#body.replaceChildren(make("p", { class: "notice" }, `The ledger could not be read: ${error.message}`));
    }
  }
}

/** Those of this pause; of a restarted engine the same number means another one. */
function recordsOf(records, pause) {
  const isNear = (record) => record.t >= pause.beganS - 2 && record.t <= (pause.endedS ?? Infinity) + 2;
  return records.filter((record) => record.pause_id === pause.id && isNear(record));
}

function entry(records, pause) {
  const decided = records.filter(({ kind }) => kind === "pause" || kind === "redecide");
  const resume = records.find(({ kind }) => kind === "resume");
  if (!records.length) return [make("p", { class: "empty" }, "The ledger has forgotten this pause, or not met it yet.")];
  const [first, last] = [decided[0], decided.at(-1)];
  const facts = [["Began", clock(pause.beganS)]];
  if (first?.turn !== undefined) facts.push(["After turn", count(first.turn)]);
  if (first?.command_class) facts.push(["Command", first.command_class]);
  if (last) facts.push(["Context", `${count(last.context_tokens ?? 0)} tokens, ${bytes(last.kv_bytes ?? 0)} of its own KV`]);
  if (first) facts.push(["Predicted", predicted(first)]);
  facts.push(["Returned", resume ? `after ${seconds(resume.wait_s)}` : pause.endedS === null ? "not yet" : "no turn followed"]);
  if (resume) facts.push(["Found", found(resume)], ["Regret", regret(resume)]);
  const list = make("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  const events = records.filter(({ kind }) => kind !== "resume").map((record) => step(record, pause));
  return [list, make("h3", {}, "Decisions"), make("ol", { class: "steps" }, ...events), ...costs(decided, resume, pause)];
}

function predicted(record) {
  const range = record.estimate_p90_s === undefined ? "" : `; 8 of 10 within ${seconds(record.estimate_p10_s)} to ${seconds(record.estimate_p90_s)}`;
  const seen = record.num_observed ? `, from ${count(record.num_observed)} seen` : "";
  const sure = record.confidence === undefined || record.confidence === null ? "" : `, confidence ${percent(record.confidence)}`;
  return `${seconds(record.estimate_p50_s)} (median)${range}${seen}${sure}`;
}

function found(resume) {
  const parts = [["in the GPU pool", resume.gpu_hit_tokens], ["in DRAM", resume.dram_hit_tokens], ["computed again", resume.recomputed_tokens]];
  return parts.filter(([, tokens]) => tokens).map(([where, tokens]) => `${count(tokens)} tokens ${where}`).join(", ") || "nothing to reuse";
}

function regret(resume) {
  if (resume.regret_s === null || resume.regret_s === undefined) return "not known";
  if (resume.regret_s <= 0) return "none: nothing was cheaper";
  return `${seconds(resume.regret_s)}; ${resume.best_action} would have been best`;
}

function step(record, pause) {
  const after = record.kind === "pause" ? "at once" : `after ${seconds(Math.max(0, record.t - pause.beganS))}`;
  const what = record.kind === "park" ? `copy in ${record.tier}` : record.action;
  const why = record.kind === "park" ? `${count(record.num_blocks ?? 0)} blocks` : record.reason ?? "";
  return make("li", {}, make("strong", { class: `act ${what}` }, what), make("span", { class: "quiet" }, ` ${after}`), make("p", {}, why));
}

function costs(decided, resume, pause) {
  const rows = decided.map((record) => [record.kind === "pause" ? "expected" : `after ${seconds(Math.max(0, record.t - pause.beganS))}`, record.action, record.costs_s]);
  if (resume) rows.push(["in hindsight", resume.action, resume.hindsight_s]);
  const known = rows.filter(([, , values]) => values);
  if (!known.length) return [];
  const head = make("tr", {}, make("th", { scope: "col" }, "Cost"), ...ACTIONS.map((name) => make("th", { scope: "col", class: "n" }, name)));
  const body = known.map(([label, action, values]) => make("tr", {}, make("th", { scope: "row" }, label),
    ...ACTIONS.map((name) => make("td", { class: name === action ? "n taken" : "n" }, seconds(values[name]), name === action ? make("span", { class: "unseen" }, " (taken)") : null))));
  const table = make("table", { class: "costs" }, make("thead", {}, head), make("tbody", {}, ...body));
  return [make("h3", {}, "Costs"), table, make("p", { class: "quiet" }, NOTE)];
}
