// Tells screen readers about barrier progress: not each step, but failures and slow channels.

let wasUnderWay = null; // Number of the checkpoint that was under way.
let state = null; // The job's state that was announced last.
let slow = ""; // The slow channel that was announced last.

export function begin(status) {
  state = status;
}

export function announce(element, snapshot) {
  const { status, progress } = snapshot;
  const news = [];
  if (state !== status.text) news.push(`The job is now: ${status.text}.`);
  state = status.text;
  if (progress) {
    if (!progress.is_under_way && wasUnderWay === progress.number && progress.why) {
      news.push(`Checkpoint ${progress.number} ${progress.status.text.toLowerCase()}: ${progress.why}.`);
    }
    wasUnderWay = progress.is_under_way ? progress.number : null;
    const waits = progress.is_under_way ? snapshot.graph.slow : "";
    if (waits && waits !== slow) news.push(`Checkpoint ${progress.number}: ${waits}.`);
    slow = waits;
  }
  if (news.length) element.textContent = news.join(" ");
}
