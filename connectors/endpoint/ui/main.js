// Puts the page together: polls, hands each answer to the model, and has the parts drawn.

import { Charts } from "./charts.js";
import { Detail } from "./detail.js";
import { clock, plural, say } from "./format.js";
import { Lanes } from "./lanes.js";
import { Model } from "./model.js";
import { Pauses } from "./pauses.js";
import { Poll, access, ask } from "./server.js";

const LIMIT = 100;
const KEPT_S = 900;

const byId = (id) => document.getElementById(id);
const model = new Model();
const charts = new Charts();
const detail = new Detail();
const lanes = new Lanes((pause, opener) => detail.show(pause, opener));
const pauses = new Pauses((pause, opener) => detail.show(pause, opener));
const poll = new Poll(step);
let lastGoodS = null;
let [asOfS, isStill] = [null, false];
let axisPx = byId("axis").clientWidth;  // Asked for with every poll it would cost a layout each.

/** One poll; returns whether it was answered. */
async function step() {
  try {
    const live = await ask(`live?since=${model.sinceS}&limit=${LIMIT}`);
    model.apply(live, LIMIT, live.now_s - KEPT_S);
    charts.add(live);
    lastGoodS = Date.now() / 1000;
    tell("live", live.engines.length > 1 ? `Live, ${plural(live.engines.length, "engine")}` : "Live");
    say(byId("clock"), clock(live.now_s));
    // While nothing happens only time passes, and to draw that with every other poll is enough.
    isStill = live.as_of_s === asOfS && !isStill;
    asOfS = live.as_of_s;
    if (!isStill) draw();
    return true;
  } catch (error) {
    if (error.status === undefined) throw error;
    refused(error);
    return false;
  }
}

function draw() {
  const windowS = Number(byId("window").value);
  charts.draw(windowS);
  lanes.draw(model, windowS, axisPx);
  pauses.draw(model);
}

/** The status is read out by screen readers: it changes only when something else is the case. */
function tell(state, text) {
  if (byId("status").dataset.state !== state) byId("status").dataset.state = state;
  say(byId("status"), text);
}

function refused(error) {
  if (error.status === 401) {
    tell("locked", "This server wants an API key");
    say(byId("access-why"), access.read("key")
      ? "The server does not know this key."
      : "What you enter stays in this tab and is forgotten with it.");
    poll.switch(false);
    openAccess(true);
    byId("key").focus();
  } else if (error.status === 0) {
    tell("lost", lastGoodS === null ? "No answer yet, trying again" : `No answer since ${clock(lastGoodS)}, trying again`);
  } else {
    tell("lost", `${error.message} (${error.status})`);
  }
}

function openAccess(isOpen) {
  byId("access").hidden = !isOpen;
  byId("access-open").setAttribute("aria-expanded", String(isOpen));
}

byId("access-open").addEventListener("click", () => {
  openAccess(byId("access").hidden);
  if (!byId("access").hidden) byId("key").focus();
});

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  for (const name of ["key", "salt"]) {
    access.write(name, byId(name).value.trim());
    byId(name).value = "";
  }
  openAccess(false);
  model.forget();
  charts.forget();
  unfreeze();
});

function unfreeze(isFrozen = false) {
  byId("freeze").setAttribute("aria-pressed", String(isFrozen));
  if (isFrozen) tell("frozen", "Frozen");
  poll.switch(!isFrozen);
}

byId("freeze").addEventListener("click", () => unfreeze(byId("freeze").getAttribute("aria-pressed") !== "true"));
byId("window").addEventListener("change", draw);
new ResizeObserver(([axis]) => {
  axisPx = axis.contentRect.width;
  if (model.nowS) draw();
}).observe(byId("axis"));
poll.now();
