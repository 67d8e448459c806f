// Requests for what changes: how long an answer is waited for, and which of several answers counts.

/** For one request: a connection that broke without a word never brings an answer. */
export const patience = (ms = 30_000) => AbortSignal.timeout(ms);

export const LOOK_MS = 10_000; // The patience with a look that the next ones wait for.

export const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * The newest of several requests for one place: answers may come in another order than they were
 * asked for.
 */
export class Newest {
  #controller = null;

  /** For the request that is made now; the one before it ends with an AbortError. */
  signal() {
    this.#controller?.abort();
    this.#controller = new AbortController();
    return this.#controller.signal;
  }
}
