// The list of jobs, fetched again every few seconds while the page is visible. The address of the
// data has the page's own filters, so the list stays filtered.

import { fill } from "./bind.js";
import { setServerTime, start, tick } from "./clock.js";
import { Connection } from "./connection.js";
import { released } from "./press.js";
import { LOOK_MS, LoggedOut, askJson } from "./requests.js";

const EVERY_MS = 3_000;

const page = document.getElementById("jobs");
const connection = new Connection(
  document.getElementById("connection"),
  "this page shows the state at that time. Jobs keep running, but take no checkpoints until the " +
    "connection is back.",
);

/** Bars, crosses and dashes, as the server drew them. */
function drawSparklines(jobs) {
  const rows = new Map([...page.querySelectorAll("tbody[data-item]")].map((row) => [row.dataset.item, row]));
  for (const { id, spark } of jobs) {
    for (const name of ["bars", "failed", "aborted"]) {
      const path = rows.get(id)?.querySelector(`.spark .${name}`);
      if (path && path.getAttribute("d") !== spark[name]) path.setAttribute("d", spark[name]);
    }
  }
}

let isLooking = false;

async function refresh() {
  if (document.hidden || isLooking) return;
  isLooking = true;
  try {
    const value = await askJson(page.dataset.url, { ms: LOOK_MS });
    if (value.now) setServerTime(value.now);
    await released();
    fill(page, value);
    drawSparklines(value.jobs);
    tick(page);
    connection.set(true);
  } catch (error) {
    connection.set(false, error instanceof LoggedOut);
  } finally {
    isLooking = false;
  }
}

async function goOn() {
  await refresh();
  setTimeout(goOn, EVERY_MS);
}

setServerTime(page.dataset.now);
start();
document.addEventListener("visibilitychange", refresh);
setTimeout(goOn, EVERY_MS);
