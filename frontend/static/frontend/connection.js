// Says that the page is not up to date any more, since when, and what cannot be reached. Until then
// what would be sent to the server is disabled.

import { missingParts } from "./readiness.js";

const PATIENCE_MS = 2_500; // A stream that is merely opened anew is not worth a word.
const LOOK_AGAIN_MS = 3_000; // What is away may change.

export class Connection {
  #element;
  #then;
  #since = null;
  #timer = null;

  /** `then` says what that means: it follows "No connection to the control plane since 12:03; ". */
  constructor(element, then) {
    this.#element = element;
    this.#then = then;
  }

  set(isConnected, isLoggedOut = false) {
    if (isConnected) {
      clearTimeout(this.#timer);
      this.#since = null;
      this.#element.hidden = true;
      enableButtons();
    } else if (isLoggedOut) {
      clearTimeout(this.#timer);
      this.#since ??= "";
      this.#say("You are logged out. Reload the page to log in again.");
    } else if (this.#since === null) {
      this.#since = new Date().toLocaleTimeString();
      this.#timer = setTimeout(() => this.#tell(), PATIENCE_MS);
    }
  }

  async #tell() {
    const since = this.#since;
    disableButtons();
    const missing = await missingParts();
    if (this.#since !== since || since === null) return; // It is connected again.
    const what = missing?.length
      ? `The control plane cannot reach ${missing.join(" and ")}`
      : "No connection to the control plane";
    // Where nothing is missing any more, the page is about to be connected: it still says what was.
    if (missing?.length !== 0 || this.#element.hidden) this.#say(`${what} since ${since}; ${this.#then}`);
    this.#timer = setTimeout(() => this.#tell(), LOOK_AGAIN_MS);
  }

  #say(text) {
    if (this.#element.textContent !== text) this.#element.textContent = text;
    this.#element.hidden = false;
  }
}

const SENDING = "button:not([type=button])";

function disableButtons() {
  for (const button of document.querySelectorAll(SENDING)) {
    if (button.disabled) continue;
    button.disabled = true;
    button.toggleAttribute("data-waits", true);
  }
}

/** What the page itself disables is told by the next value. */
function enableButtons() {
  for (const button of document.querySelectorAll("button[data-waits]")) {
    button.disabled = false;
    button.removeAttribute("data-waits");
  }
}
