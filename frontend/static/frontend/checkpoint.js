// The page of one checkpoint: draws its pictures, fetches its long sections, shows others of them
// without leaving, and follows the checkpoint while it is under way until it has its final form.
//
//   data-figure="…"   where a picture comes from; a click on one of its rows leads on
//   data-part="…"     where a section comes from; data-into links in it show another part of it
//   data-swap         a link or form that shows another part of this page

import { isOwnPath } from "./addresses.js";
import { fill } from "./bind.js";
import { Chart } from "./charts.js";
import { tick } from "./clock.js";
import { released } from "./press.js";
import { LATER, refetch } from "./refetch.js";
import { LoggedOut, Newest, askPage } from "./requests.js";
import { localise } from "./times.js";

const SWAP_EVERY_MS = 2_000; // At most, while acknowledgements come.

const charts = new Map(); // Element -> its chart.
const parts = new WeakMap(); // Section -> the newest request for it.
const announcer = document.getElementById("announcer");
const article = () => document.getElementById("checkpoint");

// Pictures and sections --------------------------------------------------------------------------

function mount(root) {
  for (const element of root.querySelectorAll("[data-figure]")) {
    if (!charts.has(element)) draw(element);
  }
  for (const element of root.querySelectorAll("[data-part]")) {
    if (element.dataset.state === undefined) load(element, element.dataset.part);
  }
}

async function draw(element) {
  const chart = new Chart(element, element.dataset.figure, article().dataset.plotly);
  charts.set(element, chart);
  try {
    await chart.refresh();
  } catch (error) {
    console.info(`A chart could not be loaded: ${error.message}`);
    element.classList.add("failed");
    element.textContent = "The chart could not be loaded; the table below has the numbers.";
    return;
  }
  const links = element.layout?.meta?.links ?? {};
  if (Object.keys(links).length === 0) return;
  element.classList.add("clickable");
  element.on("plotly_click", ({ points: [point] }) => {
    const url = (element.layout?.meta?.links ?? {})[point?.y];
    if (isOwnPath(url)) lead(element, url);
  });
}

function lead(element, url) {
  const part = element.closest("[data-part]");
  if (part) load(part, url);
  else if (element.closest("#timeline")) turnTo(url);
  else location.assign(url);
}

/** Fetch a section into its place; what is there stays until then, and says why if nothing came. */
async function load(part, url) {
  url ||= part.dataset.shown || part.dataset.part; // An empty one is a second try.
  const wanted = new URL(url, location.href);
  wanted.searchParams.set("part", "1");
  if (!parts.has(part)) parts.set(part, new Newest());
  const signal = parts.get(part).signal();
  part.dataset.shown = url;
  part.dataset.state = "loading";
  part.setAttribute("aria-busy", "true");
  try {
    const section = await askReleased(wanted, signal);
    forget(part);
    part.replaceChildren(...section.body.childNodes);
    part.dataset.state = "loaded";
    localise(part);
    mount(part);
  } catch (error) {
    if (signal.aborted) return;
    console.info(`A section could not be loaded: ${error.message}`);
    part.dataset.state = "failed";
    const note = document.createElement("p");
    note.className = "note";
    note.dataset.tone = "warn";
    note.setAttribute("role", "status");
    note.textContent = "This section could not be loaded. ";
    const again = document.createElement("a");
    again.href = url;
    again.textContent = "Try again";
    again.toggleAttribute("data-into", true);
    note.append(again);
    part.replaceChildren(note);
  } finally {
    if (!signal.aborted) part.removeAttribute("aria-busy");
  }
}

/** A page as a document, once it may replace what is shown. */
async function askReleased(url, signal) {
  try {
    const page = await askPage(url, { signal });
    await released();
    signal.throwIfAborted();
    return page;
  } catch (error) {
    if (error instanceof LoggedOut) location.reload(); // The login leads back.
    throw error;
  }
}

/** Pictures that go listen to the window no more. */
function forget(root) {
  for (const element of root.querySelectorAll("[data-figure]")) {
    if (charts.delete(element)) window.Plotly?.purge(element);
  }
}

// Another part of the page -----------------------------------------------------------------------

const pages = new Newest();
const here = () => location.pathname + location.search;
let asked = here(); // The address that is shown, or will be.
let turning = null; // Until the part requested last is shown.

/** Go to another address of this page, as its links and forms ask for. */
function turnTo(url) {
  history.pushState(null, "", url);
  turning = turn(location.hash.slice(1));
}

/** Show what the address says now, if need be as a page of its own; then focus its section. */
async function turn(section) {
  try {
    if (await swap()) document.getElementById(section)?.focus({ preventScroll: true });
  } catch (error) {
    console.info(`${location.href} is loaded as a page: ${error.message}`);
    location.reload();
  }
}

/**
 * Replace the page by the server's current one; unchanged pictures and sections are kept. False if a
 * later swap began in the meantime.
 */
async function swap() {
  const signal = pages.signal();
  asked = here();
  let page;
  try {
    page = await askReleased(location.href, signal);
  } catch (error) {
    if (signal.aborted) return false;
    throw error;
  }
  const next = page.getElementById("checkpoint");
  if (next === null) throw new Error("it is no page of a checkpoint");
  const shown = article();
  document.adoptNode(next);
  for (const name of ["part", "figure"]) {
    for (const place of next.querySelectorAll(`[data-${name}]`)) {
      const kept = [...shown.querySelectorAll(`[data-${name}]`)].find(
        (element) => element.dataset[name] === place.dataset[name],
      );
      if (kept) place.replaceWith(kept);
    }
  }
  const opened = new Set(
    [...shown.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent),
  );
  for (const summary of next.querySelectorAll("details > summary")) {
    if (opened.has(summary.textContent)) summary.parentElement.open = true;
  }
  forget(shown);
  shown.replaceWith(next);
  tick(next);
  mount(next);
  return true;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-swap], a[data-into]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const part = link.closest("[data-part]");
  if (link.hasAttribute("data-into")) {
    if (!part) return;
    event.preventDefault();
    load(part, link.getAttribute("href"));
  } else {
    event.preventDefault();
    turnTo(link.href);
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-swap]");
  if (!form) return;
  event.preventDefault();
  const url = new URL(form.action);
  for (const [name, value] of new FormData(form)) if (value) url.searchParams.set(name, value);
  turnTo(url.href);
});

document.addEventListener("change", (event) => {
  if (event.target.matches("form[data-swap] select")) event.target.form.requestSubmit();
});

window.addEventListener("popstate", () => {
  if (here() !== asked) turning = turn("");
});
// Some browsers let requests fail as soon as another page is on its way.
window.addEventListener("beforeunload", () => pages.signal());

// While it is under way --------------------------------------------------------------------------

let drawn = 0;
let revision = null;

async function follow(value) {
  for (let awaited = null; awaited !== turning; ) {
    awaited = turning;
    await awaited;
  }
  const page = article();
  if (value.is_under_way) {
    fill(page, value);
    tick(page);
    if (value.revision === revision) return true;
    if (Date.now() - drawn < SWAP_EVERY_MS) return LATER;
    drawn = Date.now();
    // While the reader is in a section, only pictures change.
    if (!page.contains(document.activeElement)) await swap();
    redraw();
    revision = value.revision;
    return true;
  }
  if (!(await swap())) throw new Error("the viewer wants another part of it first");
  redraw();
  announcer.textContent = `Checkpoint ${page.dataset.number} is now: ${value.status.text}.`;
  return false;
}

let isStale = false;
let isRedrawing = false;

/** All pictures and sections anew, one round after the other; what fails stays as it is. */
async function redraw() {
  isStale = true;
  if (isRedrawing) return;
  isRedrawing = true;
  while (isStale) {
    isStale = false;
    const page = article();
    const sections = [...page.querySelectorAll("[data-part]")];
    const outside = [...charts].filter(([element]) => page.contains(element) && !element.closest("[data-part]"));
    const ends = await Promise.allSettled([
      ...sections.map((part) => load(part)),
      ...outside.map(([, chart]) => chart.refresh()),
    ]);
    for (const { reason } of ends) if (reason) console.info(`A chart was not updated: ${reason.message}`);
  }
  isRedrawing = false;
}

mount(document);
if (article().dataset.underWay !== undefined) {
  refetch(article(), {
    relevant: ({ progress, revisions }) => [progress, revisions.checkpoints],
    show: follow,
    says: "this page shows the state at that time.",
  });
}
