// The stream of a job's snapshots. It is closed while the page is hidden, and opened again after a
// failure, which it reports.

const SILENT_AFTER_MS = 25_000; // A snapshot comes every 10 s at least, for the ages in it.
const OPEN_AGAIN_MS = 3_000; // After the browser itself has given up.

/**
 * Call `onSnapshot` for each snapshot, and `onConnection(isConnected, isLoggedOut)` when that
 * changes. `probe` is an address that leads to the login page once the session is over.
 */
export function follow(url, probe, { onSnapshot, onConnection }) {
  let source = null;
  let again = null;
  let silence = null;

  function open() {
    close();
    source = new EventSource(url);
    source.addEventListener("snapshot", take);
    source.addEventListener("away", () => { onConnection(false, false); heardSomething(); });
    source.addEventListener("error", () => {
      onConnection(false, false);
      // After an answer that is no stream (logged out, server starting) the browser never tries again.
      if (source?.readyState !== EventSource.CLOSED) return;
      again = setTimeout(open, OPEN_AGAIN_MS);
      fetch(probe, { redirect: "manual" }).then(
        (answer) => { if (answer.type === "opaqueredirect") onConnection(false, true); },
        () => {},  // Not reachable either, which has been reported.
      );
    });
    heardSomething();
  }

  function close() {
    clearTimeout(again);
    clearTimeout(silence);
    source?.close();
    source = null;
  }

  function take(event) {
    onConnection(true, false);
    heardSomething();
    onSnapshot(JSON.parse(event.data));
  }

  function heardSomething() {
    clearTimeout(silence);
    silence = setTimeout(() => { onConnection(false, false); open(); }, SILENT_AFTER_MS);
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  if (!document.hidden) open();
}
