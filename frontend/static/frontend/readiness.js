// The servers that the control plane cannot reach, as its readiness check names them.

import { LOOK_MS, patience } from "./requests.js";

const AWAY = "cannot be reached";

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
    if (checks?.[name] === AWAY) missing.push(text);
  }
  return missing;
}
