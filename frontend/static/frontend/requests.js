// Requests to this server: their timeouts, what their answers may be, and the newest of several.

/** A timeout for one request: a connection that broke silently never brings an answer. */
export const patience = (ms = 30_000) => AbortSignal.timeout(ms);

export const LOOK_MS = 10_000; // The timeout of a poll, which delays the next ones.

export const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The answer leads to the login. */
export class LoggedOut extends Error {
  constructor() {
    super("this session is logged out");
  }
}

export const JSON_TYPE = "application/json";

/**
 * An answer of one of the pages' addresses; with an `etag` it may be 304, without changes. `ms` is the
 * timeout, `signal` another reason to end it. Throws LoggedOut, or an Error that names the status.
 */
export async function ask(url, accept, { etag = null, signal = null, ms } = {}) {
  const headers = { Accept: accept };
  if (etag) headers["If-None-Match"] = etag;
  const signals = [patience(ms), ...(signal ? [signal] : [])];
  const response = await fetch(url, { headers, redirect: "manual", signal: AbortSignal.any(signals) });
  if (response.type === "opaqueredirect") throw new LoggedOut();
  if (!response.ok && response.status !== 304) throw new Error(`${url} answered ${response.status}`);
  return response;
}

export async function askJson(url, options) {
  return (await ask(url, JSON_TYPE, options)).json();
}

export async function parsed(response) {
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** A page of this server as a document, for its parts. */
export async function askPage(url, options) {
  return parsed(await ask(url, "text/html", options));
}

/**
 * The newest of several requests for one place: answers may arrive in another order than the requests
 * were sent.
 */
export class Newest {
  #controller = null;

  /** A signal for a new request; the request before it ends with an AbortError. */
  signal() {
    this.#controller?.abort();
    this.#controller = new AbortController();
    return this.#controller.signal;
  }
}
