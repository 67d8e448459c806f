// The page of an operation: its steps while it is under way, and its result at the end.

import { fill } from "./bind.js";
import { refetch, renew } from "./refetch.js";

const page = document.getElementById("operation");
const announcer = document.getElementById("announcer");
let step = null;

async function show(value) {
  fill(page, value);
  const current = value.steps.find(({ state }) => state === "current")?.text ?? null;
  if (step !== null && current !== step && current) announcer.textContent = current;
  step = current;
  if (!value.is_over) return true;
  await renew("operation");
  announcer.textContent = `${value.kind}: ${value.status.text}. ${value.result}`;
  return false;
}

if (page.dataset.over === "") {
  refetch(page, {
    relevant: ({ status, operations, progress }) => [
      status,
      operations,
      progress?.is_under_way ? [progress.number, progress.acknowledged] : null,
    ],
    show,
    says: "this page shows the progress at that time.",
  });
}
