// The page of a job: follows its stream, and fetches details and figures when a revision changes.

import { watch } from "./actions.js";
import { fill } from "./bind.js";
import { Chart } from "./charts.js";
import { setServerTime, start, tick } from "./clock.js";
import { Connection } from "./connection.js";
import { Graph } from "./graph.js";
import { follow } from "./live.js";
import { closeOnLeave } from "./menu.js";
import { announce, begin } from "./progress.js";
import { Newest, askJson, wait } from "./requests.js";

const FETCH_EVERY_MS = 2_000; // At most: with a checkpoint a second, every second one is enough.

const page = document.getElementById("job");
const { events, alignment, plotly, now } = page.dataset;
const scopes = page.querySelectorAll("[data-scope=details]");
const announcer = document.getElementById("announcer");
const connection = new Connection(
  document.getElementById("connection"),
  "this page shows the state at that time. The job keeps running, but takes no checkpoint, and " +
    "exactly-once sinks commit nothing until the connection is back.",
);
const past = new Chart(page.querySelector("[data-figure=history]"), withWindow(page.dataset.history), plotly);
const charts = [
  past,
  new Chart(page.querySelector("[data-figure=alignment]"), alignment, plotly),
];
const graph = new Graph(page.querySelector("[data-scope=graph]"));

let shown = page.dataset.revision; // The revision of the details and figures on the page.
let wanted = shown;
let isFetching = false;
const rest = new Newest();

function show(snapshot) {
  setServerTime(snapshot.now);
  fill(page, snapshot, "[data-scope]");
  graph.show(snapshot.graph);
  tick(page);
  announce(announcer, snapshot);
  document.title = `${snapshot.name} · ${snapshot.status.text} · Weir`;
  const { checkpoints, events, alerts } = snapshot.revisions;
  wanted = `${checkpoints} ${events} ${alerts}`;
  if (wanted !== shown && !isFetching) fetchRest();
}

/** Fetch details and figures until they are shown; a later call replaces this one. */
async function fetchRest() {
  const revision = wanted;
  const signal = rest.signal();
  isFetching = true;
  const pause = wait(FETCH_EVERY_MS);
  try {
    const address = withWindow(page.dataset.details);
    const value = await askJson(address, { signal });
    for (const scope of scopes) fill(scope, value);
    tick(page);
    // Numbers do not wait for slow charts; the first chart also loads Plotly.
    const isDrawn = await Promise.race([drawAll().then(() => true), pause.then(() => false)]);
    if (isDrawn && !signal.aborted) shown = revision;
  } catch (error) {
    if (!signal.aborted) console.info(`Details could not be loaded, trying again: ${error.message}`);
  }
  await pause;
  if (signal.aborted) return;
  isFetching = false;
  if (wanted !== shown) fetchRest();
}

function drawAll() {
  return Promise.all(charts.map((chart) => chart.refresh()));
}

/** The address with the window of the history that is chosen. */
function withWindow(address) {
  return `${address}?window=${encodeURIComponent(page.dataset.window)}`;
}

/** Another window without loading the page anew; the links work without this as well. */
function chooseWindow(link) {
  page.dataset.window = link.dataset.window;
  for (const other of link.parentElement.children) {
    if (other === link) other.setAttribute("aria-current", "true");
    else other.removeAttribute("aria-current");
  }
  window.history.replaceState(null, "", `?window=${encodeURIComponent(link.dataset.window)}`);
  past.moveTo(withWindow(page.dataset.history));
  shown = ""; // Until it is, also if the first try fails.
  fetchRest();
}

for (const link of page.querySelectorAll(".windows a")) {
  link.addEventListener("click", (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return; // The link is to open in another tab.
    event.preventDefault();
    chooseWindow(link);
  });
}
for (const menu of page.querySelectorAll("details.menu")) closeOnLeave(menu);

setServerTime(now);
begin(page.querySelector("h1 .pill").textContent);
start();
watch(page, document.getElementById("action-result"));
drawAll().catch((error) => console.info(`Charts could not be loaded, trying again: ${error.message}`));
follow(events, page.dataset.details, {
  onSnapshot: show,
  onConnection: (isConnected, isLoggedOut) => connection.set(isConnected, isLoggedOut),
});
