// On every page: points in time are shown in the viewer's zone, with the absolute one on hover.
//
// An age ("4 s ago", data-age) keeps its text; a point in time (time.at) becomes the local one.

import { absoluteTime, localTime, shortLocalTime } from "./format.js";

export function localise(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const iso = element.getAttribute("datetime");
    const title = iso ? `${localTime(iso)}\n${absoluteTime(iso)}` : "";
    if (title && element.title !== title) element.title = title;
    if (!iso || !element.classList.contains("at")) continue;
    const text = shortLocalTime(iso);
    if (text && element.textContent !== text) element.textContent = text;
  }
}

localise();
