// A driver's log: shows the lines with some words, wraps them or not, and follows what is written.
// Lines are text only, never markup.

import { patience } from "./requests.js";

const EVERY_MS = 2_000;
const LINES_MAX = 20_000; // On the page while following; the oldest are removed.
const NEAR_END_PX = 40;

const log = document.getElementById("log");
const unfinished = document.getElementById("log-unfinished");
const filter = document.getElementById("log-filter");
const matches = document.getElementById("log-matches");
const wrap = document.getElementById("log-wrap");
const followButton = document.getElementById("log-follow");
const note = document.getElementById("log-note");
let next = log.dataset.next;
let timer = null;
let isLooking = false;

const lines = () => log.querySelectorAll(".line:not(.unfinished)");

function sift(some, wanted) {
  let matching = 0;
  for (const line of some) {
    line.hidden = wanted !== "" && !line.textContent.toLowerCase().includes(wanted);
    if (!line.hidden) matching += 1;
  }
  return matching;
}

function siftAll() {
  const wanted = filter.value.trim().toLowerCase();
  const all = lines();
  const matching = sift(all, wanted);
  matches.textContent = wanted ? `${matching.toLocaleString("en")} of ${all.length.toLocaleString("en")} lines` : "";
}

function say(text) {
  note.textContent = text;
  note.hidden = !text;
}

function append(part) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  if (part.is_rotated) {
    for (const line of lines()) line.remove();
    say("The log was rotated; the new log begins here.");
  }
  for (const { text, tone } of part.lines) {
    const line = document.createElement("span");
    line.className = "line";
    if (tone) line.dataset.tone = tone;
    line.textContent = `${text}\n`;
    unfinished.before(line);
  }
  const all = lines();
  for (let at = 0; at < all.length - LINES_MAX; at += 1) all[at].remove();
  if (unfinished.textContent !== part.unfinished) unfinished.textContent = part.unfinished;
  next = part.next;
  document.getElementById("log-empty")?.remove();
  const status = document.getElementById("log-status");
  status.textContent = part.status.text;
  status.dataset.tone = part.status.tone;
  document.getElementById("log-where").textContent = part.where;
  if (filter.value) siftAll();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** Fetch the next lines, one request at a time: two would bring the same lines twice. */
async function look() {
  clearTimeout(timer);
  if (isLooking) return; // The request under way schedules the next one.
  isLooking = true;
  let wait = EVERY_MS;
  if (!document.hidden) {
    try {
      const address = `${log.dataset.url}?from=${next}`;
      const response = await fetch(address, { redirect: "manual", signal: patience() });
      if (response.type === "opaqueredirect") {
        say("You are logged out. Reload the page to log in again.");
      } else if (response.status === 404) {
        say("The log no longer exists.");
      } else if (!response.ok) {
        throw new Error(`the log answered ${response.status}`);
      } else {
        const part = await response.json();
        append(part);
        if (!part.is_rotated) say(part.newest > Number(log.dataset.driver) ? `Driver ${part.newest} has taken over; reload the page to see its log.` : "");
        if (part.has_later) wait = 0;
      }
    } catch {
      say("The control plane cannot be reached; following resumes when it is back.");
    }
  }
  isLooking = false;
  if (isFollowing()) timer = setTimeout(look, wait);
}

const isFollowing = () => followButton?.getAttribute("aria-pressed") === "true";

function press(button, isPressed) {
  button.setAttribute("aria-pressed", String(isPressed));
}

filter.addEventListener("input", siftAll);
wrap.addEventListener("click", () => {
  const isWrapped = wrap.getAttribute("aria-pressed") !== "true";
  press(wrap, isWrapped);
  log.dataset.wrap = isWrapped ? "yes" : "no";
});
followButton?.addEventListener("click", () => {
  press(followButton, !isFollowing());
  clearTimeout(timer);
  if (!isFollowing()) return;
  log.scrollTop = log.scrollHeight;
  look();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && isFollowing()) look(); });
document.getElementById("log-tools").hidden = false;
log.scrollTop = log.scrollHeight; // The newest is at the end.
