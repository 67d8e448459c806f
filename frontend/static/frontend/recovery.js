// The page of a job's attempts: follows the job, and draws the timeline anew when an attempt changes.

import { fill } from "./bind.js";
import { Chart } from "./charts.js";
import { refetch } from "./refetch.js";

const page = document.getElementById("recovery");
const element = page.querySelector("[data-figure=recovery]");
const chart = element && new Chart(element, page.dataset.figureUrl, page.dataset.plotly);

function show(value) {
  if (chart === null) {
    // The first attempt: the page has another shape from now on.
    if (value.attempts.length > 0) location.reload();
    return;
  }
  fill(page, value);
  draw();
}

function draw() {
  chart?.refresh().catch((error) => console.info(`The timeline was not updated: ${error.message}`));
}

draw();
document.querySelector("tr[data-is-wanted]")?.scrollIntoView({ block: "center" });
refetch(page, {
  relevant: ({ status, attempt, revisions }) => [status, attempt, revisions?.events],
  show,
  says: "this page shows the state at that time.",
});
