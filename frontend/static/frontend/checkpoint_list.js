// The list of checkpoints: its newest page follows the job. Rows do not move while they are read.

import { fill } from "./bind.js";
import { setServerTime, start, tick } from "./clock.js";
import { refetch } from "./refetch.js";

const page = document.getElementById("checkpoints");
const table = page.querySelector("table");
const newer = document.getElementById("newer");
let waiting = null;

/** Whether the pointer or the focus is in the table. */
function isRead() {
  return table.matches(":hover") || table.contains(document.activeElement);
}

function isSameRows(value) {
  const shown = [...table.querySelectorAll("tbody tr")].map((row) => row.dataset.item);
  return shown.join() === value.rows.map((row) => row.number).join();
}

function show(value) {
  waiting = null;
  newer.hidden = true;
  fill(page, value);
  tick(page);
}

if (page.dataset.follow === undefined) {
  setServerTime(page.dataset.now);
  start();
} else {
  newer.addEventListener("click", () => { if (waiting) show(waiting); });
  table.addEventListener("mouseleave", () => { if (waiting && !isRead()) show(waiting); });
  refetch(page, {
    relevant: ({ progress, revisions }) => [progress?.number, progress?.acknowledged, progress?.status.value, revisions.checkpoints],
    show: (value) => {
      // Values of the shown rows may change; new rows, which push them down, wait.
      if (!isRead() || isSameRows(value)) return show(value);
      waiting = value;
      newer.hidden = false;
      return undefined;
    },
    says: "the list shows the state at that time.",
  });
}
