// Sends the page's forms without leaving it; without this script they work as forms do.

import { patience } from "./requests.js";

export function watch(root, result) {
  for (const form of root.querySelectorAll("form[data-confirm]")) {
    form.addEventListener("submit", (event) => {
      const dialog = document.getElementById(form.dataset.confirm);
      if (form.dataset.confirmed) {
        delete form.dataset.confirmed;
        return;
      }
      event.preventDefault();
      event.stopImmediatePropagation();
      dialog.addEventListener("close", () => returnTo(form), { once: true });
      dialog.showModal();
      dialog.querySelector("[data-confirmed]")?.addEventListener("click", () => {
        dialog.close();
        form.dataset.confirmed = "yes";
        form.requestSubmit();
      }, { once: true });
    });
  }
  for (const button of document.querySelectorAll("dialog [data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  for (const form of document.querySelectorAll("form[data-action]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.closest("dialog")?.close();
      send(form, result);
    });
  }
}

/** Return the focus to the button; the browser does not where its menu has closed meanwhile. */
function returnTo(form) {
  const menu = form.closest("details");
  if (menu && !menu.open) menu.querySelector("summary").focus();
}

async function send(form, result) {
  const button = form.querySelector("button:not([data-close])");
  button.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(form.action, {
      method: "POST",
      body: new FormData(form),
      headers: { Accept: "application/json" },
      signal: patience(),
    });
    const isJson = response.headers.get("Content-Type")?.includes("json");
    const answer = isJson ? await response.json() : null;
    // Each key stands for one request; the next click needs another.
    if (answer?.key) form.elements.key.value = answer.key;
    if (answer?.detail) show(result, response.ok ? "good" : "bad", answer.detail);
    else show(result, "bad", `The server refused the request (${response.status}). Reload the page and try again.`);
  } catch {
    // The key stays: a retry is the same request.
    show(result, "bad", "The server could not be reached. Try again: it will not be done twice.");
  } finally {
    button.removeAttribute("aria-busy");
  }
}

function show(element, tone, text) {
  element.dataset.tone = tone;
  element.textContent = text;
  element.hidden = false;
}
