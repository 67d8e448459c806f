// The page of a job's savepoints: follows savepoints being taken, and redraws the tree.

import { fill } from "./bind.js";
import { localise } from "./times.js";
import { released } from "./press.js";
import { refetch } from "./refetch.js";
import { ask, parsed } from "./requests.js";

const page = document.getElementById("savepoint-page");
const announcer = document.getElementById("announcer");
let states = null; // Of the savepoints by id, to say what changed.
let etag = null; // Of the tree.

async function show(value) {
  fill(page.querySelector("#savepoints"), value);
  offerCopies();
  announce(value.savepoints);
  await drawTree();
}

async function drawTree() {
  const response = await ask(page.dataset.lineage, "text/html", { etag });
  if (response.status === 304) return;
  const isFirst = etag === null;
  const fetched = await parsed(response);
  await released();
  const tree = document.getElementById("lineage");
  // The first tree is the one on the page already; replacing it would lose the focus in it.
  if (!isFirst || !tree.contains(document.activeElement)) {
    tree.replaceWith(document.adoptNode(fetched.getElementById("lineage")));
    localise(page);
  }
  etag = response.headers.get("ETag"); // Of the tree that is shown now.
}

function announce(savepoints) {
  const now = new Map(savepoints.map(({ id, name, status }) => [id, `${name}: ${status.text}`]));
  const news = [...now].filter(([id, said]) => states !== null && states.get(id) !== said);
  if (news.length) announcer.textContent = news.map(([, said]) => said).join(". ");
  states = now;
}

function offerCopies() {
  if (!navigator.clipboard) return; // Not in a page without https: one click selects it all.
  for (const button of page.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
}

page.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2_000);
});

offerCopies();
refetch(page, {
  relevant: ({ status, operations, attempt, progress }) => [
    status,
    operations,
    attempt,
    progress?.kind === "Savepoint" ? progress.acknowledged : null,
  ],
  show,
  says: "this page shows the state at that time.",
});
