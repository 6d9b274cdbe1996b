// Asks the server, with the key of this tab, while the tab is visible and only then.
// Why sessionStorage: a key must not outlive its tab. Its name has the path in it, for several
// servers may stand behind one proxy.

const STORE = `agentkv ${location.pathname} `;
const POLL_MS = 2000;
const SLOWEST_MS = 16000;
const TIMEOUT_MS = 10000;

/** `key` and `salt` of this tab. */
export const access = {
  read: (name) => sessionStorage.getItem(STORE + name) ?? "",
  write: (name, value) => {
    if (value) sessionStorage.setItem(STORE + name, value);
    else sessionStorage.removeItem(STORE + name);
  },
};

/** What went wrong, in words for people; `status` is 0 where no answer came. */
export class ServerError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

/** The JSON at a path beside the page. Throws ServerError. */
export async function ask(path) {
  const headers = {};
  if (access.read("key")) headers["Authorization"] = `Bearer ${access.read("key")}`;
  if (access.read("salt")) headers["X-Cache-Salt"] = access.read("salt");
  let response;
  try {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    response = await fetch(path, { headers, signal, cache: "no-store", credentials: "same-origin" });
  } catch {
    throw new ServerError("no answer", 0);
  }
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) return body;
  throw new ServerError(body?.error?.message ?? response.statusText ?? "no answer", response.status);
}

/** Calls `step` every 2 s while the tab is visible; less often while it returns false. */
export class Poll {
  #step; #timer = null; #isBusy = false; #isOn = true; #waitMs = POLL_MS;

  constructor(step) {
    this.#step = step;
    document.addEventListener("visibilitychange", () => this.now());
  }

  /** At once, unless the tab is hidden or polling is off. */
  async now() {
    clearTimeout(this.#timer);
    if (this.#isBusy || !this.#isOn || document.hidden) return;
    this.#isBusy = true;
    // A fault of the page itself is for the browser's log, and the next poll may go well.
    const isGood = await this.#step().catch((error) => { console.error(error); return false; });
    this.#isBusy = false;
    this.#waitMs = isGood ? POLL_MS : Math.min(SLOWEST_MS, this.#waitMs * 1.5);
    clearTimeout(this.#timer);
    if (this.#isOn && !document.hidden) this.#timer = setTimeout(() => this.now(), this.#waitMs);
  }

  switch(isOn) {
    this.#isOn = isOn;
    this.#waitMs = POLL_MS;
    this.now();
  }
}
