// Timeouts for requests, and the newest of several requests.

/** A timeout for one request: a connection that broke silently never brings an answer. */
export const patience = (ms = 30_000) => AbortSignal.timeout(ms);

export const LOOK_MS = 10_000; // The timeout of a poll, which delays the next ones.

export const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

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
