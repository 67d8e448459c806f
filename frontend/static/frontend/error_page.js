// The page of an error: loads its address again once what the server lacked is back.
//
// After an error that is the server's own, nothing is missing, and the page stays as it is. The
// answer to a form is never asked for again.

import { missingParts } from "./readiness.js";
import { wait } from "./requests.js";

const EVERY_MS = 2_000;

const page = document.getElementById("error-page");
const waits = document.getElementById("error-waits");

async function follow() {
  let wasAway = page.dataset.databaseAway !== undefined;
  for (;;) {
    if (waits) waits.hidden = !wasAway;
    await wait(EVERY_MS);
    if (document.hidden) continue;
    const missing = await missingParts();
    if (missing === null || missing.length > 0) wasAway = true;
    else if (wasAway) return location.reload();
    else return undefined;
  }
}

if (page.dataset.isSent === undefined) follow();
