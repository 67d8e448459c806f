// Lets ages and uptimes grow, by the server's clock: the browser's may be wrong.

import { age, roughDuration } from "./format.js";
import { localise } from "./times.js";

const EVERY_MS = 1_000;
const SOON_MS = 2_000; // Nearer than this, saying so would only flicker.
let ahead_ms = 0; // How far this browser's clock is ahead of the server's.

export function setServerTime(iso) {
  const moment = Date.parse(iso);
  if (!Number.isNaN(moment)) ahead_ms = Date.now() - moment;
}

export function tick(root = document) {
  const now = Date.now() - ahead_ms;
  for (const element of root.querySelectorAll("[data-age]")) {
    if (element.dataset.age) write(element, age(now - Date.parse(element.dataset.age)));
  }
  for (const element of root.querySelectorAll("[data-since]")) {
    const { since, until } = element.dataset;
    if (since) write(element, roughDuration((until ? Date.parse(until) : now) - Date.parse(since)));
  }
  for (const element of root.querySelectorAll("[data-in]")) {
    const left = element.dataset.in ? Date.parse(element.dataset.in) - now : 0;
    write(element, left > SOON_MS ? `The next one is due in ${roughDuration(left)}.` : "");
  }
  localise(root);
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function start() {
  tick();
  setInterval(() => tick(), EVERY_MS);
}
