// A driver's log: searches on, wraps lines or not, and follows what is written; the filter stays.
// Texts of lines are text only, never markup.

import { localise } from "./times.js";
import { patience } from "./requests.js";

const EVERY_MS = 2_000;
const LINES_MAX = 5_000; // On the page while following; the oldest are removed.
const NEAR_END_PX = 40;

const log = document.getElementById("log");
const unfinished = document.getElementById("log-unfinished");
const level = document.getElementById("log-level");
const wrap = document.getElementById("log-wrap");
const followButton = document.getElementById("log-follow");
const note = document.getElementById("log-note");
const earlier = document.getElementById("log-earlier");
const form = document.querySelector("form.log-tools");
let next = log.dataset.next;
let timer = null;
let isLooking = false;

const lines = () => log.querySelectorAll(".line:not(.unfinished)");

function say(text) {
  note.textContent = text;
  note.hidden = !text;
}

/** Points in time in the viewer's zone, to the millisecond. */
function localiseClocks(root) {
  for (const clock of root.querySelectorAll("time.stamp")) {
    const at = new Date(clock.dateTime);
    const two = (number, digits = 2) => String(number).padStart(digits, "0");
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    clock.textContent = `${day} ${time}.${two(at.getMilliseconds(), 3)}`;
  }
  localise(root);
}

function element(name, className, text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

function lineOf(entry) {
  if (!entry.level && !entry.more) {
    const line = element("p", "line", entry.text);
    line.dataset.end = entry.end;
    if (entry.tone) line.dataset.tone = entry.tone;
    return line;
  }
  const line = element("details", "line");
  line.dataset.end = entry.end;
  if (entry.tone) line.dataset.tone = entry.tone;
  const clock = element(entry.at ? "time" : "span", "stamp", entry.clock);
  if (entry.at) clock.dateTime = entry.at;
  else clock.title = "In the zone of the driver’s machine";
  const summary = element("summary");
  summary.append(clock, element("span", "level", entry.level), element("span", "text", entry.text));
  const rest = element("div", "rest");
  const fields = element("dl");
  for (const [name, value] of entry.fields) {
    const field = element("div");
    field.append(element("dt", "", name), element("dd", "", value));
    fields.append(field);
  }
  const near = element("a", "near", "Show the lines after it");
  near.href = `?driver=${log.dataset.driver}&from=${entry.offset}`;
  rest.append(fields, near);
  line.append(summary, rest);
  if (entry.more) addMore(line, entry.more);
  return line;
}

function addMore(line, text) {
  const rest = line.querySelector(".rest");
  const more = rest.querySelector("pre");
  if (more) {
    more.textContent += `\n${text}`;
    return;
  }
  const made = element("pre", "", text);
  made.tabIndex = 0;
  rest.querySelector("dl").after(made);
}

/** The rest of a line that was there before belongs to it; alone it is shown where it matches. */
function appendRest(entry) {
  const last = unfinished.previousElementSibling;
  if (last?.matches("details") && last.dataset.end === String(entry.offset)) {
    addMore(last, entry.text);
    last.dataset.end = entry.end;
  } else if (entry.matches) {
    unfinished.before(lineOf(entry));
  }
}

function append(part) {
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  if (part.is_rotated) {
    for (const line of lines()) line.remove();
    say("The log was rotated; the new log begins here.");
  }
  for (const entry of part.entries) {
    if (entry.is_rest) {
      appendRest(entry);
    } else {
      const line = lineOf(entry);
      unfinished.before(line);
      localiseClocks(line);
    }
  }
  const all = lines();
  for (let at = 0; at < all.length - LINES_MAX; at += 1) all[at].remove();
  const rest = log.dataset.filters ? "" : part.unfinished;
  if (unfinished.textContent !== rest) unfinished.textContent = rest;
  next = part.next;
  if (lines().length || rest) document.getElementById("log-empty")?.remove();
  const status = document.getElementById("log-status");
  status.textContent = part.status.text;
  status.dataset.tone = part.status.tone;
  document.getElementById("log-where").textContent = part.where;
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

/** Fetch the next lines, one request at a time: two would bring the same lines twice. */
async function look() {
  clearTimeout(timer);
  if (isLooking) return; // The request under way schedules the next one.
  isLooking = true;
  let part = null;
  if (!document.hidden) {
    try {
      const filters = log.dataset.filters ? `&${log.dataset.filters}` : "";
      const address = `${log.dataset.url}?from=${next}${filters}`;
      const response = await fetch(address, { redirect: "manual", signal: patience() });
      if (response.type === "opaqueredirect") {
        say("You are logged out. Reload the page to log in again.");
      } else if (response.status === 404) {
        say("The log no longer exists.");
      } else if (!response.ok) {
        throw new Error(`the log answered ${response.status}`);
      } else {
        part = await response.json();
        say(part.newest > Number(log.dataset.driver) ? `Driver ${part.newest} has taken over; reload the page to see its log.` : "");
      }
    } catch {
      say("The control plane cannot be reached; following resumes when it is back.");
    }
  }
  isLooking = false;
  if (part) append(part); // Outside: an error of this script is none of the connection.
  if (isFollowing()) timer = setTimeout(look, part?.has_later ? 0 : EVERY_MS);
}

/** Search further back, part by part, until lines come, the log begins or the button says stop. */
async function searchOn(link) {
  if (link.dataset.stops) {
    delete link.dataset.stops;
    return;
  }
  link.dataset.stops = "yes";
  link.textContent = "Stop searching";
  let address = link.href;
  try {
    while (address && link.dataset.stops) {
      const response = await fetch(address, { redirect: "manual", signal: patience() });
      if (!response.ok) break; // The page of the link says why.
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const brought = page.querySelectorAll("#log .line:not(.unfinished)");
      const further = page.getElementById("log-earlier");
      localiseClocks(page);
      log.prepend(...brought);
      address = further.querySelector("a")?.href ?? "";
      if (!address || brought.length || !link.dataset.stops) {
        if (lines().length) document.getElementById("log-empty")?.remove();
        else if (!address) document.getElementById("log-empty").textContent = "No line was found.";
        document.getElementById("log-where").textContent = `${lines().length.toLocaleString("en")} lines; now: ${page.getElementById("log-where").textContent}`;
        earlier.replaceChildren(...further.childNodes);
        return;
      }
      earlier.querySelector("span").textContent = further.querySelector("span").textContent;
      link.href = address;
    }
  } catch {
    say("The control plane cannot be reached; search on when it is back.");
  }
  delete link.dataset.stops;
  link.textContent = "Search on, before these";
}

const isFollowing = () => followButton?.getAttribute("aria-pressed") === "true";

function press(button, isPressed) {
  button.setAttribute("aria-pressed", String(isPressed));
}

function follow() {
  press(followButton, !isFollowing());
  clearTimeout(timer);
  if (!isFollowing()) return;
  log.scrollTop = log.scrollHeight;
  look();
}

level.addEventListener("change", () => form.requestSubmit());
form.addEventListener("formdata", (event) => { if (isFollowing()) event.formData.set("follow", "yes"); });
earlier.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || !log.dataset.filters || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  searchOn(link);
});
wrap.addEventListener("click", () => {
  const isWrapped = wrap.getAttribute("aria-pressed") !== "true";
  press(wrap, isWrapped);
  log.dataset.wrap = isWrapped ? "yes" : "no";
});
followButton?.addEventListener("click", follow);
document.addEventListener("visibilitychange", () => { if (!document.hidden && isFollowing()) look(); });
document.getElementById("log-switches").hidden = false;
localiseClocks(log);
log.scrollTop = log.scrollHeight; // The newest is at the end.
if (followButton && "begins" in followButton.dataset) follow();
