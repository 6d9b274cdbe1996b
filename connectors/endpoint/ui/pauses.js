// The latest pauses as a table: the lanes in words and numbers, for those who cannot see them and
// for narrow screens, where each row becomes a small card.

import { TIERS, clock, count, make, say, seconds } from "./format.js";
import { WORDS, lastedS } from "./model.js";

const MAX_ROWS = 30;
const COLUMNS = ["Began", "Session", "Tool", "Predicted", "Waited", "Decided", "Found in", "Computed again", "Regret"];
const NUMBERS = new Set(["Predicted", "Waited", "Computed again", "Regret"]);

export class Pauses {
  #body = document.querySelector("#pauses tbody");
  #empty = document.getElementById("pauses-empty");
  #rows = new Map(); #onPause;

  constructor(onPause) { this.#onPause = onPause; }

  draw(model) {
    const all = [...model.sessions.values()].flatMap((session) => session.pauses);
    const shown = all.sort((a, b) => b.beganS - a.beganS).slice(0, MAX_ROWS);
    const kept = new Set(shown);
    for (const [pause, row] of this.#rows) if (!kept.has(pause)) { row.remove(); this.#rows.delete(pause); }
    shown.forEach((pause, index) => {
      let row = this.#rows.get(pause);
      if (!row) { row = this.#newRow(pause); this.#rows.set(pause, row); }
      if (this.#body.children[index] !== row) this.#body.insertBefore(row, this.#body.children[index] ?? null);
      values(pause, model.nowS).forEach((text, column) => {
        const cell = row.children[column];
        say(cell.querySelector("button") ?? cell, text);
      });
    });
    this.#empty.hidden = shown.length > 0;
    this.#body.parentElement.hidden = !shown.length;
  }

  #newRow(pause) {
    const cells = COLUMNS.map((name) => {
      const attributes = { "data-label": name, class: NUMBERS.has(name) ? "n" : "" };
      return make("td", attributes);
    });
    const button = make("button", { type: "button", class: "link" });
    button.addEventListener("click", () => this.#onPause(pause, button));
    cells[1].append(button);
    return make("tr", {}, ...cells);
  }
}

function values(pause, nowS) {
  const isOpen = pause.endedS === null && pause.arrivedS === null;
  const found = pause.tier ? (TIERS[pause.tier] ?? pause.tier) : "";
  return [
    clock(pause.beganS),
    pause.session.id,
    pause.tool ?? "unknown",
    seconds(pause.predictedS),
    `${seconds(Math.max(0, lastedS(pause, nowS)))}${isOpen ? " so far" : ""}`,
    pause.steps.map(({ kind }) => WORDS[kind] ?? kind).join(" → "),
    pause.isCut ? "session ended" : found,
    pause.recomputed === null || pause.recomputed === undefined ? "" : `${count(pause.recomputed)} tokens`,
    pause.regretS === null || pause.regretS === undefined ? "" : seconds(pause.regretS),
  ];
}
