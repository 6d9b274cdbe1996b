// What the page has seen of the whole engine since it was opened, as small charts.
// Why SVG by hand: a few paths, no library; their text alternative is the newest value in words.

import { TIERS, bytes, clock, count, make, percent, plural, say } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 56;
const KEPT_S = 900;
const GAP_S = 30;
const SHORTEST_S = 20;

export class Charts {
  #points = []; #tiers = new Map();

  forget() { this.#points = []; }

  add(live) {
    this.#points.push({ t: live.now_s, ...summary(live.engines) });
    while (this.#points[0].t < live.now_s - KEPT_S) this.#points.shift();
  }

  draw(windowS) {
    const last = this.#points.at(-1);
    if (!last) return;
    const seen = this.#points.filter((point) => point.t >= last.t - windowS);
    const sinceS = this.#points[0].t;
    const isShort = last.t - sinceS < windowS;
    say(document.getElementById("charts-note"), isShort ? `Charts begin at ${clock(sinceS)}, when this page was opened.` : "");
    if (isShort) windowS = Math.max(SHORTEST_S, last.t - sinceS);
    const all = last.running + last.resuming + last.kept + last.away;
    show("sessions", count(all), `${last.running} running · ${last.resuming} waiting · ${last.kept + last.away} paused${last.away ? ` (${last.away} away)` : ""}`);
    const most = Math.max(1, ...seen.map((p) => p.running + p.resuming + p.kept + p.away));
    const series = ["running", "resuming", "kept", "away"];
    draw("sessions", seen, windowS, series.map((kind, index) => ({
      kind, value: (p) => series.slice(0, index + 1).reduce((sum, name) => sum + p[name], 0) / most,
    })).reverse(), `Sessions over time, now ${all}, at most ${most}`);
    const used = last.blocks ? last.used / last.blocks : 0;
    show("pool", percent(used), `${count(last.used)} of ${plural(last.blocks, "block")}`);
    draw("pool", seen, windowS, [{ kind: "pool", value: (p) => (p.blocks ? p.used / p.blocks : 0) }], `GPU pool in use by turns, now ${percent(used)}`);
    show("pressure", percent(last.pressure), last.pressure > 0 ? "of wanted blocks only live sessions could give" : "nobody lacks blocks");
    draw("pressure", seen, windowS, [{ kind: "pressure", value: (p) => p.pressure }], `Pressure over time, now ${percent(last.pressure)}`);
    this.#drawTiers(seen, windowS, last);
  }

  #drawTiers(seen, windowS, last) {
    const list = document.getElementById("tiers");
    for (const [name, tier] of Object.entries(last.tiers)) {
      if (!this.#tiers.has(name)) {
        const chart = document.createElementNS(NS, "svg");
        chart.id = `tier-${name}-chart`;
        chart.setAttribute("class", "chart");
        chart.setAttribute("role", "img");
        const row = make("li", {}, make("h4", {}, TIERS[name] ?? name), make("p", { id: `tier-${name}-figure`, class: "small figure" }), make("p", { id: `tier-${name}-note`, class: "quiet" }), chart);
        list.append(row);
        this.#tiers.set(name, row);
      }
      const of = tier.size ? `of ${bytes(tier.size)}` : "in use";
      const most = tier.size || Math.max(1, ...seen.map((p) => p.tiers[name]?.used ?? 0));
      show(`tier-${name}`, bytes(tier.used), tier.isAvailable ? of : `${of}, out of order`);
      draw(`tier-${name}`, seen, windowS, [{ kind: "tier", value: (p) => (p.tiers[name]?.used ?? 0) / most }], `${TIERS[name] ?? name} over time, now ${bytes(tier.used)} ${of}`);
    }
  }
}

/** All engines as one. */
function summary(engines) {
  const sum = { running: 0, resuming: 0, kept: 0, away: 0, used: 0, blocks: 0, pressure: 0, tiers: {} };
  for (const engine of engines) {
    const sessions = engine.sessions ?? {};
    const away = Math.min(engine.pauses_away ?? 0, sessions.paused ?? 0);
    sum.running += sessions.running ?? 0;
    sum.resuming += sessions.resuming ?? 0;
    sum.kept += (sessions.paused ?? 0) - away;
    sum.away += away;
    sum.used += (engine.pool_blocks ?? 0) - (engine.free_blocks ?? 0);
    sum.blocks += engine.pool_blocks ?? 0;
    sum.pressure = Math.max(sum.pressure, engine.pressure ?? 0);
    for (const [name, tier] of Object.entries(engine.tiers ?? {})) {
      const of = (sum.tiers[name] ??= { used: 0, size: 0, isAvailable: true });
      of.used += tier.used_bytes ?? 0;
      of.size += tier.size_bytes ?? 0;
      of.isAvailable &&= tier.is_available;
    }
  }
  return sum;
}

function show(name, figure, note) {
  say(document.getElementById(`${name}-figure`), figure);
  say(document.getElementById(`${name}-note`), note);
}

/** One filled path for each series, the first one behind; values from 0 to 1. */
function draw(name, points, windowS, series, label) {
  const chart = document.getElementById(`${name}-chart`);
  chart.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  chart.setAttribute("preserveAspectRatio", "none");
  chart.setAttribute("aria-label", label);
  while (chart.children.length < series.length) chart.append(document.createElementNS(NS, "path"));
  const endS = points.at(-1).t;
  series.forEach(({ kind, value }, index) => {
    const path = chart.children[index];
    path.setAttribute("class", `area ${kind}`);
    path.setAttribute("d", areas(points, (p) => WIDTH * (1 - (endS - p.t) / windowS), (p) => HEIGHT - 1 - value(p) * (HEIGHT - 2)));
  });
}

/** Steps from point to point, interrupted where nothing was seen for a while. */
function areas(points, x, y) {
  let path = "";
  points.forEach((point, index) => {
    const before = points[index - 1];
    const isNew = !before || point.t - before.t > GAP_S;
    if (isNew && before) path += `V${HEIGHT}Z`;
    path += isNew ? `M${x(point).toFixed(1)} ${HEIGHT}V${y(point).toFixed(1)}` : `H${x(point).toFixed(1)}V${y(point).toFixed(1)}`;
  });
  return `${path}V${HEIGHT}Z`;
}
