// Says that the page is not up to date any more, and since when.

const PATIENCE_MS = 2_500; // A stream that is merely opened anew is not worth a word.

export class Connection {
  #element;
  #message;
  #since = null;
  #timer = null;

  constructor(element, message) {
    this.#element = element;
    this.#message = message;
  }

  set(isConnected, isLoggedOut = false) {
    if (isConnected) {
      clearTimeout(this.#timer);
      this.#since = null;
      this.#element.hidden = true;
    } else if (isLoggedOut) {
      this.#say("You are logged out. Reload the page to log in again.");
    } else if (this.#since === null) {
      this.#since = new Date().toLocaleTimeString();
      this.#timer = setTimeout(() => this.#say(this.#message(this.#since)), PATIENCE_MS);
    }
  }

  #say(text) {
    clearTimeout(this.#timer);
    this.#since ??= "";
    this.#element.textContent = text;
    this.#element.hidden = false;
  }
}
