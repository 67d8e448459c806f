// Durations and ages that grow while the page is open, by the rules of controlplane/base/formatting.py.

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const DAY = 24 * 60 * MINUTE;

export function roughDuration(milliseconds) {
  const value = Math.max(0, milliseconds);
  const seconds = Math.floor(value / SECOND);
  if (value < MINUTE) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  const minutes = Math.floor(seconds / 60);
  if (value < DAY) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  const hours = Math.floor(seconds / 3_600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function age(milliseconds) {
  return `${roughDuration(milliseconds)} ago`;
}

function pad(number) {
  return String(number).padStart(2, "0");
}

const LOCAL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

export function localTime(iso) {
  const moment = new Date(iso);
  return Number.isNaN(moment.getTime()) ? "" : `${LOCAL.format(moment)} (your time)`;
}

const SHORT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** A point in time as the viewer's clock shows it. */
export function shortLocalTime(iso) {
  const moment = new Date(iso);
  return Number.isNaN(moment.getTime()) ? "" : SHORT.format(moment);
}

const STAMP = /\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC/g;

/** A text with its times as the viewer's clock shows them, in the same form, without a zone. */
export function inLocalTime(text) {
  return text.replace(STAMP, (stamp) => {
    const moment = new Date(`${stamp.slice(0, 10)}T${stamp.slice(11, 19)}Z`);
    const date = [moment.getFullYear(), pad(moment.getMonth() + 1), pad(moment.getDate())].join("-");
    return `${date} ${[moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(pad).join(":")}`;
  });
}

/** The same in UTC, as controlplane/base/formatting.py writes it. */
export function absoluteTime(iso) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime())) return "";
  return `${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}
