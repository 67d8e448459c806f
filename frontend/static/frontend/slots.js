// The page of a job's slots: follows the job.

import { fill } from "./bind.js";
import { refetch } from "./refetch.js";

const page = document.getElementById("slots");

refetch(page, {
  relevant: ({ status, attempt }) => [status, attempt],
  show: (value) => { fill(page, value); },
  says: (since) =>
    `No connection to the control plane since ${since}; this page shows the state at that time.`,
});
