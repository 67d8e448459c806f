// Forms on pages of their own: what sends them is disabled while the server cannot be reached.

import { Connection } from "./connection.js";
import { missingParts } from "./readiness.js";
import { wait } from "./requests.js";

const EVERY_MS = 4_000;

const connection = new Connection(
  document.getElementById("connection"),
  "nothing can be sent until the connection is back.",
);

for (;;) {
  await wait(EVERY_MS);
  if (document.hidden) continue;
  const missing = await missingParts();
  connection.set(missing !== null && missing.every((name) => name === "Redis"));
}
