// The servers that the control plane cannot reach or write to, as its readiness check tells.

import { LOOK_MS, patience } from "./requests.js";

const AWAY = "cannot be reached";
// The checks go on from here.
const REFUSES = "refuses the connection";
const READ_ONLY = "takes no writes";

/**
 * The names of the servers that it cannot reach; none where it is well. Null: the control plane
 * itself cannot be reached.
 */
export async function missingParts() {
  let checks;
  try {
    const answer = await fetch("/readyz", { headers: { Accept: "application/json" }, signal: patience(LOOK_MS) });
    ({ checks } = await answer.json());
  } catch {
    return null;
  }
  const missing = [];
  for (const [name, text] of [["database", "PostgreSQL"], ["redis", "Redis"]]) {
    const said = checks?.[name] ?? "";
    if (said === AWAY || said.startsWith(REFUSES)) missing.push(text);
    else if (said.startsWith(READ_ONLY)) missing.push(`${text} for writes`);
  }
  if (checks?.migrations?.includes("to be applied")) missing.push("a prepared database");
  return missing;
}
