// Fills a page's elements from a JSON value. The server rendered the same value into them first.
//
//   data-bind="text:status.text;tone:status.tone;show:cause"   property of the element:path of value
//   data-list="operations" data-key="id"                       one copy of the <template> per item
//   data-bind="text:"                                          the item itself, where it is a text
//
// Text goes in as text only, never as markup; addresses only where they stay on this server.

import { isOwnPath } from "./addresses.js";

const SET = {
  text: (element, value) => {
    const text = value ?? "";
    if (element.textContent !== String(text)) element.textContent = text;
  },
  show: (element, value) => { element.hidden = isEmpty(value); },
  hide: (element, value) => { element.hidden = !isEmpty(value); },
  tone: (element, value) => setData(element, "tone", value),
  state: (element, value) => setData(element, "state", value),
  age: (element, value) => setData(element, "age", value ?? ""),
  since: (element, value) => setData(element, "since", value ?? ""),
  in: (element, value) => setData(element, "in", value ?? ""),
  until: (element, value) => setData(element, "until", value ?? ""),
  chained: (element, value) => element.toggleAttribute("data-chained", Boolean(value)),
  disabled: (element, value) => { element.disabled = !isEmpty(value); },
  title: (element, value) => setAttribute(element, "title", value),
  label: (element, value) => setAttribute(element, "aria-label", value),
  datetime: (element, value) => setAttribute(element, "datetime", value),
  max: (element, value) => setAttribute(element, "max", value),
  value: (element, value) => setAttribute(element, "value", value),
  href: (element, value) => {
    if (isOwnPath(value)) element.setAttribute("href", value);
  },
};

function isEmpty(value) {
  return Array.isArray(value) ? value.length === 0 : !value;
}

function setData(element, name, value) {
  if (element.dataset[name] !== String(value)) element.dataset[name] = value ?? "";
}

function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value ?? "");
}

export function lookUp(value, path) {
  return path ? path.split(".").reduce((part, key) => part?.[key], value) : value;
}

/** Fill `root`, but not what is inside its lists' items or in an element that `skip` matches. */
export function fill(root, value, skip = null) {
  fillElement(root, value);
  for (const child of root.children) {
    if (child.tagName === "TEMPLATE" || (skip && child.matches(skip))) continue;
    if (child.dataset.list !== undefined) {
      fillElement(child, value);
      fillList(child, lookUp(value, child.dataset.list) ?? []);
    } else {
      fill(child, value, skip);
    }
  }
}

function fillElement(element, value) {
  const directives = element.dataset.bind;
  if (!directives) return;
  for (const directive of directives.split(";")) {
    const [what, path] = directive.split(":");
    const bound = lookUp(value, path);
    // A missing value leaves the (hidden) element unchanged.
    if (bound === undefined && what !== "show" && what !== "hide" && what !== "disabled") continue;
    SET[what](element, bound);
  }
}

/**
 * One element per item, after the template: kept by key, so that open and focused elements
 * stay as they are.
 */
function fillList(list, items) {
  const template = [...list.children].find((child) => child.tagName === "TEMPLATE");
  const key = list.dataset.key;
  const present = [...list.children].slice([...list.children].indexOf(template) + 1);
  const byKey = new Map(present.map((child, at) => [key ? child.dataset.item : String(at), child]));
  let before = template;
  items.forEach((item, at) => {
    const name = String(key ? item[key] : at);
    let element = byKey.get(name);
    byKey.delete(name);
    if (!element) {
      element = template.content.firstElementChild.cloneNode(true);
      if (key) element.dataset.item = name;
    }
    fill(element, item);
    if (before.nextElementSibling !== element) before.after(element);
    before = element;
  });
  for (const element of byKey.values()) element.remove();
}
