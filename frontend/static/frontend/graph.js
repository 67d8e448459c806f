// Applies the graph's state of a moment to its picture, which the server drew.
//
// Texts and tooltips are the elements with data-part; bars have their full width in data-full.
// A picture of another graph (a restart with a changed pipeline) is fetched anew.

import { inLocalTime } from "./format.js";
import { released } from "./press.js";
import { askPage } from "./requests.js";

export class Graph {
  #scope;
  #fetching = false;

  /** `scope` is the element that holds the picture; it is empty before there is one. */
  constructor(scope) {
    this.#scope = scope;
    localise(scope);
  }

  show(state) {
    const picture = this.#scope.querySelector("#graph");
    if ((picture?.dataset.revision ?? "") !== (state.chains.length ? state.revision : "")) {
      this.#fetch();
      return;
    }
    if (picture === null) return;
    const chains = byData(picture, "chain");
    for (const chain of state.chains) showChain(chains.get(chain.uid), chain);
    const links = byData(picture, "link");
    const labels = byData(picture, "label");
    for (const link of state.links) showLink(links.get(link.key), labels.get(link.key), link);
  }

  async #fetch() {
    if (this.#fetching) return;
    this.#fetching = true;
    try {
      const page = await askPage(location.href);
      const renewed = page.querySelector("[data-scope=graph]");
      await released();
      if (renewed) this.#scope.replaceChildren(...renewed.childNodes);
      localise(this.#scope);
    } catch (error) {
      console.info(`The graph comes with the next snapshot: ${error.message}`);
    } finally {
      this.#fetching = false;
    }
  }
}

/** The times that the server wrote, in the viewer's zone. */
function localise(scope) {
  for (const part of scope.querySelectorAll("[data-part]")) {
    if (part.childElementCount === 0) write(part, part.textContent);
  }
}

function byData(picture, name) {
  const elements = picture.querySelectorAll(`[data-${name}]`);
  return new Map([...elements].map((element) => [element.dataset[name], element]));
}

function showChain(box, chain) {
  set(box, "data-state", chain.state);
  for (const part of box.querySelectorAll("[data-part]")) {
    const name = part.dataset.part;
    if (name === "fill") fillTo(part, chain.fraction);
    else if (name === "busy") fillTo(part, chain.busy);
    else if (name === "bar") set(part, "data-shown", String(chain.load !== ""));
    else if (name === "pressed") showPressed(box, part, chain);
    else if (name === "busiest") set(part, "transform", `translate(${width(chain.busiest, Number(part.dataset.full))} 0)`);
    else write(part, chain[name] ?? "");
  }
}

function showPressed(box, part, chain) {
  const full = Number(box.querySelector("[data-part=busy]").dataset.full);
  set(part, "x", width(chain.busy, full));
  set(part, "width", width(chain.back_pressured, full));
}

function showLink(line, label, link) {
  for (const element of [line, label]) {
    set(element, "data-barrier", link.barrier);
    set(element, "data-slow", link.tone);
    write(element.querySelector("title"), link.title);
  }
  for (const part of label.querySelectorAll("[data-part]")) {
    const name = part.dataset.part;
    if (name === "took_ago") set(part, "data-since", link.since ?? "");
    write(part, link[name] ?? "");
  }
}

function fillTo(element, fraction) {
  set(element, "width", width(fraction, Number(element.dataset.full)));
}

/** To a tenth of a pixel, as the server writes it. */
function width(fraction, full) {
  const value = Math.round(fraction * full * 10) / 10;
  return Number.isInteger(value) ? value.toFixed(1) : String(value);
}

function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function write(element, text) {
  const shown = inLocalTime(text);
  if (element.textContent !== shown) element.textContent = shown;
}
