// Inspections of a running operator: asks for stacks or records, waits for the answer, shows it.
//
// Values of records are text only, never markup.

import { Chart } from "./charts.js";
import { LOOK_MS, patience, wait } from "./requests.js";

const EVERY_MS = 500;
const TRIES_MAX = 60; // The server gives up after half of that time.
const CHARACTER_PX = 6.8;
const JSON_ONLY = { Accept: "application/json" };

/** Make the forms of a page ask. */
export function inspections(page) {
  for (const form of page.querySelectorAll("form[data-inspect]")) {
    const show = SHOW[form.dataset.inspect](form.closest("section"), page.dataset.plotly);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      present(form, show, () => ask(form));
    });
    const { shown: url, shownFigure: figure } = form.dataset;
    if (url) present(form, show, async () => ({ url, figure }));
  }
}

/** Ask the workers; the page's address names an inspection of stacks from then on. */
async function ask(form) {
  const asked = await fetchJson(form.action, { method: "POST", body: new FormData(form) });
  if (form.dataset.inspect === "stacks") {
    const address = new URL(window.location.href);
    address.searchParams.set("stacks", asked.id);
    address.hash = "stacks";
    window.history.replaceState(window.history.state, "", address);
  }
  return asked;
}

async function present(form, show, request) {
  const section = form.closest("section");
  const button = form.querySelector("button");
  const said = section.querySelector("[data-said]");
  if (button.getAttribute("aria-busy")) return;
  button.setAttribute("aria-busy", "true");
  said.textContent = "Asking the worker …";
  try {
    const asked = await request();
    const value = await answer(asked.url);
    section.querySelector("[data-result]").hidden = false;
    fillNotes(section, value.notes);
    said.textContent = await show(value, asked);
  } catch (error) {
    said.textContent = error instanceof Refused ? error.message : "The server could not be reached. Try again.";
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** A label as it is: Plotly takes tags in a text for formatting. */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

class Refused extends Error {}

async function fetchJson(url, options = {}) {
  const response = await fetch(url, { ...options, headers: JSON_ONLY, redirect: "manual", signal: patience(LOOK_MS) });
  const isJson = response.headers.get("Content-Type")?.includes("json");
  const value = isJson ? await response.json() : {};
  if (!response.ok) throw new Refused(value.detail ?? "The server refused the request. Reload the page and try again.");
  return value;
}

async function answer(url) {
  for (let tries = 0; tries < TRIES_MAX; tries += 1) {
    const value = await fetchJson(url);
    if (value.is_over) return value;
    await wait(EVERY_MS);
  }
  throw new Refused("No answer came.");
}

function fillNotes(section, notes) {
  const items = notes.map((note) => {
    const item = document.createElement("li");
    item.textContent = note;
    return item;
  });
  section.querySelector("[data-notes]").replaceChildren(...items);
}

function row(values, tag = "td", numbersFrom = Infinity) {
  const element = document.createElement("tr");
  values.forEach((value, at) => {
    const cell = document.createElement(tag);
    if (tag === "th") cell.scope = "col";
    if (at >= numbersFrom) cell.className = "n";
    cell.textContent = value;
    element.append(cell);
  });
  return element;
}

const SHOW = {
  stacks(section, plotly) {
    const element = section.querySelector("[data-figure]");
    const zoomOut = section.querySelector("[data-zoom-out]");
    const calls = section.querySelector("[data-calls]");
    let chart = null;

    /** As much of each label as its box has room for, whenever the chart is drawn. */
    const fitLabels = () => {
      const [trace] = element.data;
      const [from, to] = element.layout.xaxis.range;
      const perShare = element.clientWidth / (to - from) / CHARACTER_PX;
      const text = trace.meta.map((label, at) => {
        const shown = Math.min(trace.base[at] + trace.x[at], to) - Math.max(trace.base[at], from);
        const room = Math.floor(shown * perShare) - 1;
        if (room < 3) return "";
        return label.length <= room ? escaped(label) : `${escaped(label.slice(0, room - 1))}…`;
      });
      if (text.some((one, at) => one !== trace.text[at])) window.Plotly.restyle(element, { text: [text] });
    };

    const zoom = (range) => {
      zoomOut.hidden = range[1] - range[0] >= 1;
      window.Plotly.relayout(element, { "xaxis.range": range });
    };
    zoomOut.addEventListener("click", () => zoom([0, 1]));

    return async (value, { figure }) => {
      section.querySelector("[data-summary]").textContent = value.summary;
      calls.hidden = value.calls.length === 0;
      calls.querySelector("tbody").replaceChildren(
        ...value.calls.map((call) => row([call.function, call.place, call.operator, call.own, call.total], "td", 3)),
      );
      element.hidden = !value.has_figure;
      zoomOut.hidden = true;
      if (!value.has_figure) return value.summary ? "The subtask was not met at work." : "No subtask has answered.";
      const isFirst = chart === null;
      chart ??= new Chart(element, figure, plotly);
      chart.moveTo(figure);
      await chart.refresh();
      if (!element.data) return ""; // Plotly could not be loaded, and the element says so.
      fitLabels();
      if (isFirst) {
        element.on("plotly_afterplot", fitLabels);
        element.on("plotly_click", ({ points: [{ pointNumber, data }] }) => {
          const from = data.base[pointNumber];
          zoom([from, from + data.x[pointNumber]]);
        });
        element.on("plotly_doubleclick", () => zoom([0, 1]));
      }
      return "";
    };
  },

  records(section) {
    return (value) => {
      const tables = value.tables.map(({ caption, columns, rows }) => {
        const scroll = document.createElement("div");
        Object.assign(scroll, { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption });
        const heading = document.createElement("p");
        heading.className = "quiet";
        heading.textContent = caption;
        const table = document.createElement("table");
        table.className = "records";
        table.createTHead().append(row(columns, "th"));
        table.createTBody().append(...rows.map((values) => row(values)));
        scroll.append(table);
        return [heading, scroll];
      });
      section.querySelector("[data-tables]").replaceChildren(...tables.flat());
      return tables.length ? "" : "No record is shown.";
    };
  },
};
