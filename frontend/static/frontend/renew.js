// Pages without a stream: parts marked data-renew are fetched again every few seconds.
//
// A part is left as it is while the reader is inside it: with an open <details>, or a field or
// button that has the focus.

import { Connection } from "./connection.js";
import { released } from "./press.js";
import { LOOK_MS, LoggedOut, askPage } from "./requests.js";
import { localise } from "./times.js";

const EVERY_MS = 4_000;

const parts = document.querySelectorAll("[data-renew]").length;
const connection = new Connection(
  document.getElementById("connection"),
  "this page shows the state at that time.",
);
const seen = new Map();
let isLooking = false;

/** The part's markup without what is another one each time. */
function markup(part) {
  const copy = part.cloneNode(true);
  for (const token of copy.querySelectorAll("[name=csrfmiddlewaretoken]")) token.remove();
  return copy.innerHTML;
}

function isInUse(part) {
  return part.contains(document.activeElement) || part.querySelector("details[open]") !== null;
}

function replace(page) {
  for (const part of document.querySelectorAll("[data-renew]")) {
    const renewed = page.getElementById(part.id);
    if (renewed === null) continue;
    const current = markup(renewed);
    if (current === seen.get(part.id) || isInUse(part)) continue;
    seen.set(part.id, current);
    const adopted = document.adoptNode(renewed);
    part.replaceWith(adopted);
    localise(adopted);
  }
}

async function look() {
  if (document.hidden || isLooking) return;
  isLooking = true;
  try {
    const page = await askPage(location.href, { ms: LOOK_MS });
    await released();
    replace(page);
    connection.set(true);
  } catch (error) {
    connection.set(false, error instanceof LoggedOut);
  } finally {
    isLooking = false;
  }
}

async function goOn() {
  await look();
  setTimeout(goOn, EVERY_MS);
}

if (parts > 0) {
  document.addEventListener("visibilitychange", look);
  setTimeout(goOn, EVERY_MS);
}
