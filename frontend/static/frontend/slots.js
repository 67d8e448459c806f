// The page of a job's slots: follows the job.

import { fill } from "./bind.js";
import { refetch } from "./refetch.js";

const page = document.getElementById("slots");

refetch(page, {
  relevant: ({ status, attempt }) => [status, attempt],
  show: (value) => { fill(page, value); },
  says: "this page shows the state at that time.",
});
