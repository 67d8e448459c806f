// The page of an operator: follows its job, and draws the charts anew with each sample.

import { fill } from "./bind.js";
import { Chart } from "./charts.js";
import { inspections } from "./inspections.js";
import { refetch } from "./refetch.js";

const page = document.getElementById("operator");
const element = page.querySelector("[data-figure=operator]");
const chart = new Chart(element, page.dataset.figureUrl, page.dataset.plotly);

let drawn = ""; // The newest sample in the charts.

async function draw(newest) {
  if (newest === drawn) return;
  try {
    await chart.refresh();
    drawn = newest;
  } catch (error) {
    console.info(`The charts were not updated: ${error.message}`);
  }
}

draw(null);
inspections(page);
refetch(page, {
  relevant: ({ status, attempt }) => [status, attempt],
  show(value) {
    fill(page, value);
    draw(value.newest); // The values do not wait for it.
  },
  says: "this page shows the state at that time.",
});
