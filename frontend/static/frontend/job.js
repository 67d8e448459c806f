// The page of a job: follows its stream, and fetches what lies behind when a revision changes.

import { watch } from "./actions.js";
import { fill } from "./bind.js";
import { Chart } from "./charts.js";
import { setServerTime, start, tick } from "./clock.js";
import { Connection } from "./connection.js";
import { follow } from "./live.js";
import { announce, begin } from "./progress.js";

const FETCH_EVERY_MS = 2_000; // At most: with a checkpoint a second, every second one is enough.

const page = document.getElementById("job");
const { events, details, history, alignment, plotly, now } = page.dataset;
const scopes = page.querySelectorAll("[data-scope=details]");
const announcer = document.getElementById("announcer");
const connection = new Connection(
  document.getElementById("connection"),
  (since) =>
    `The control plane has not been reached since ${since}; this page shows how things were then. ` +
    "The job goes on without it, but takes no checkpoint, and exactly-once sinks commit nothing " +
    "until it is back.",
);
const charts = [
  new Chart(page.querySelector("[data-figure=history]"), history, plotly),
  new Chart(page.querySelector("[data-figure=alignment]"), alignment, plotly),
];

let shown = page.dataset.revision; // Of the details and figures on the page.
let wanted = shown;
let timer = null;

function show(snapshot) {
  setServerTime(snapshot.now);
  fill(page, snapshot, "[data-scope=details]");
  tick(page);
  announce(announcer, snapshot);
  document.title = `${snapshot.name} · ${snapshot.status.text} · Weir`;
  wanted = `${snapshot.revisions.checkpoints} ${snapshot.revisions.events}`;
  if (wanted !== shown && timer === null) fetchRest();
}

async function fetchRest() {
  const revision = wanted;
  timer = setTimeout(() => {
    timer = null;
    if (wanted !== shown) fetchRest();
  }, FETCH_EVERY_MS);
  try {
    const response = await fetch(details, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`${details} answered ${response.status}`);
    const value = await response.json();
    for (const scope of scopes) fill(scope, value);
    tick(page);
    await drawAll();
    shown = revision;
  } catch (error) {
    console.info(`Details come with the next try: ${error.message}`);
  }
}

function drawAll() {
  return Promise.all(charts.map((chart) => chart.refresh()));
}

setServerTime(now);
begin(page.querySelector("h1 .pill").textContent);
start();
watch(page, document.getElementById("action-result"));
drawAll().catch((error) => console.info(`Charts come with the next try: ${error.message}`));
follow(events, details, {
  onSnapshot: show,
  onConnection: (isConnected, isLoggedOut) => connection.set(isConnected, isLoggedOut),
});
