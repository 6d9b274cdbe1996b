// Numbers with units, and the making of elements.
// Why textContent only: names of sessions and tools come from users; the server's policy
// (trusted types) refuses anything that would read them as HTML.

/** "31 ms", "12.4 s", "4 min 5 s", "2 h 10 min"; "–" for nothing. */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${precise(value * 1000)} ms`;
  if (value < 99.5) return `${precise(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${count(Math.floor(value / 3600))} h ${Math.floor((value % 3600) / 60)} min`;
}

/** "1.50 GiB" */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? precise(value) : value} ${units[unit]}`;
}

/** "12,345" */
export const count = (value) => value.toLocaleString("en");

/** "42 %" */
export const percent = (share) => `${Math.round(share * 100)} %`;

/** Places for KV, by the server's names for them. */
export const TIERS = { gpu: "GPU pool", dram: "DRAM", ssd: "SSD", redis: "Redis", lmcache: "LMCache", mixed: "pool and DRAM", none: "nowhere" };

/** "14:03:59" */
export const clock = (unixS) => new Date(unixS * 1000).toLocaleTimeString("en-GB");

/** "1 pause", "2 pauses" */
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

const precise = (value) => (value >= 99.5 ? value.toFixed(0) : value.toPrecision(3).replace(/\.?0+$/, ""));

/** An element with attributes and children; strings become text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Sets text only where it differs: an unchanged element costs no layout. */
export function say(element, text) {
  if (element.textContent === text) return;
  if (element.firstChild && text) element.firstChild.data = text;
  else element.textContent = text;
}
