// A page of a job that fetches its value again when the job's stream reports a change.
//
//   <… id="fresh" data-events="/events/jobs/1" data-url="…/data" data-now="…">
//
// The stream reports changes at once; those that it leaves out are found by polling every few
// seconds. The value comes from the page's own data address, which answers 304 without changes.

import { setServerTime, start, tick } from "./clock.js";
import { Connection } from "./connection.js";
import { follow } from "./live.js";
import { released } from "./press.js";
import { LOOK_MS, LoggedOut, JSON_TYPE, ask, askPage, wait } from "./requests.js";

const AT_MOST_EVERY_MS = 500;
const AT_LEAST_EVERY_MS = 3_000; // For changes that the stream leaves out.

export const LATER = Symbol("later"); // A part of the value is not shown yet.

/**
 * Call `show(value)` with what `page.dataset.url` answers, whenever `relevant(snapshot)` changed.
 * Ends once `show` gives false; where it gives LATER it is called again soon, as where it throws.
 */
export function refetch(page, { relevant, show, says }) {
  const { events, url, now } = page.dataset;
  const connection = new Connection(document.getElementById("connection"), says);
  let seen = null;
  let isDue = false;
  let isLooking = false;
  let isOver = false;
  let etag = null;

  /** One at a time: an older answer never comes after a newer one. Failures make the pauses longer. */
  async function look() {
    isLooking = true;
    let failures = 0;
    while (isDue && !isOver && !document.hidden) {
      isDue = false;
      let pause = wait(AT_MOST_EVERY_MS);
      try {
        await lookOnce();
        failures = 0;
      } catch (error) {
        if (error instanceof LoggedOut) connection.set(false, true);
        else isDue = true;
        failures += 1;
        pause = wait(Math.min(AT_MOST_EVERY_MS * failures, AT_LEAST_EVERY_MS));
        console.info(`The update failed, trying again: ${error.message}`);
      }
      await pause;
    }
    isLooking = false;
  }

  async function lookOnce() {
    const response = await ask(url, JSON_TYPE, { etag, ms: LOOK_MS });
    if (response.status === 304) return;
    const value = await response.json();
    if (value.now) setServerTime(value.now);
    await released();
    const shown = await show(value);
    if (shown === LATER) isDue = true;
    else etag = response.headers.get("ETag"); // Of the value that is shown now.
    if (shown === false) isOver = true;
    tick(page);
  }

  function want() {
    if (isOver || document.hidden) return;
    isDue = true;
    if (!isLooking) look();
  }

  setServerTime(now);
  start();
  follow(events, url, {
    onSnapshot: (snapshot) => {
      setServerTime(snapshot.now);
      const current = JSON.stringify(relevant(snapshot));
      if (current !== seen) want();
      seen = current;
    },
    onConnection: (isConnected, isLoggedOut) => connection.set(isConnected, isLoggedOut),
  });
  setInterval(want, AT_LEAST_EVERY_MS);
}

/** Replace an element by the one with its id on the page as it is now. */
export async function renew(id) {
  const page = await askPage(location.href);
  const renewed = page.getElementById(id);
  if (renewed === null) throw new Error(`the page has no ${id} any more`);
  await released();
  document.getElementById(id).replaceWith(document.adoptNode(renewed));
  document.title = page.title;
}
