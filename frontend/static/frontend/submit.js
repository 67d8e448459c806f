// The form of a new job: shows only the fields of the chosen kind, and sends the form once. Without
// this script all kinds' fields are shown, and the server takes those of the chosen one.

const form = document.getElementById("submit");
const limit = document.getElementById("file-limit");
const file = form.elements.namedItem("file");

function showKind() {
  const chosen = form.querySelector("[name=kind]:checked")?.value;
  for (const part of form.querySelectorAll(".of-kind[data-kind]")) part.hidden = part.dataset.kind !== chosen;
}

/** Only the settings that the chosen restart strategy uses; the server takes no others. */
function showStrategy() {
  const chosen = form.elements.namedItem("restart_kind").value;
  const settings = document.getElementById("restart-settings");
  for (const part of settings.children) part.hidden = !part.dataset.strategies.split(" ").includes(chosen);
  settings.hidden = ![...settings.children].some((part) => !part.hidden);
}

/** Warn before a large file is sent in vain. */
function checkSize() {
  const bytes = file.files[0]?.size ?? 0;
  const isTooLarge = bytes > Number(limit.dataset.bytesMax);
  const words = `The file is larger than the limit of ${limit.dataset.said}. Choose another one.`;
  file.setCustomValidity(isTooLarge ? words : "");
  limit.textContent = isTooLarge ? words : `At most ${limit.dataset.said}.`;
  limit.classList.toggle("note", isTooLarge);
  limit.dataset.tone = isTooLarge ? "bad" : "";
  return !isTooLarge;
}

form.addEventListener("change", (event) => {
  if (event.target.name === "kind") showKind();
  if (event.target.name === "restart_kind") showStrategy();
  if (event.target === file) checkSize();
});
form.addEventListener("submit", (event) => {
  const button = form.querySelector("button.primary");
  if (!checkSize()) {
    event.preventDefault();
    file.reportValidity();
  } else if (button.getAttribute("aria-busy") === "true") {
    event.preventDefault(); // It is on its way.
  } else {
    button.setAttribute("aria-busy", "true");
  }
});
// Back from the job's page, it may be sent again.
window.addEventListener("pageshow", () => {
  form.querySelector("button.primary").removeAttribute("aria-busy");
  showKind();
  showStrategy();
});
showKind();
showStrategy();
