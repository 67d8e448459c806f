"""From an acknowledgement to its pixel: how soon a browser shows that a subtask acknowledged.

The clock starts when the driver hands the acknowledgement to its gateway client, and stops in
Chromium when the frame that shows it has been put out: after the page's own script changed the
text, in a message posted from that frame's animation callback. Both read the machine's one clock.
Acknowledgements come at random times, so that some meet the feed at rest and some right after it
has sent a snapshot; the measurements of all subtasks come meanwhile, as from a real job.

Beside the browser a plain client of the same event stream says how much of the time is the
browser's.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import psutil

from tests.benchmarks.dashboard_driver import Driver
from tests.benchmarks.report import Row, limit_row
from tests.factories import FLIGHTS

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

P95_MAX_MS = 500.0
POLL_MS = 1_000.0  # What a page that asked every second would take at worst.
PAUSE_S = (0.02, 0.7)  # Between acknowledgements.
SHOWN_TIMEOUT_S = 20.0
PARALLELISMS = (20, 111)  # Of 9 operators: 180 and 1,000 subtasks.

# Notes, for every count of acknowledgements that the page shows, when its frame had been put out.
PROBE = """() => {
  window.seen = [];
  let last = null;
  const read = () => {
    const match = /([\\d,]+) of [\\d,]+ subtasks? acknowledged/.exec(document.body.textContent);
    const count = match === null ? null : Number(match[1].replaceAll(",", ""));
    if (count === last) return;
    last = count;
    requestAnimationFrame(() => {
      const after = new MessageChannel();
      after.port1.onmessage = () => window.seen.push([count, Date.now()]);
      after.port2.postMessage(null);
    });
  };
  new MutationObserver(read).observe(
    document.body, { subtree: true, childList: true, characterData: true, attributes: true });
  read();
}"""


@dataclass(slots=True)
class Sample:
    """The measurements of one round; times in milliseconds."""

    to_event: list[float] = field(default_factory=list)
    to_pixel: list[float] = field(default_factory=list)
    web_cpu: float = 0.0  # Of a core.
    snapshots_per_s: float = 0.0
    snapshot_bytes: int = 0


@asynccontextmanager
async def chromium() -> AsyncIterator["Browser"]:
    """A headless Chromium."""
    from playwright.async_api import async_playwright

    from tests.browser.browser import executable

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def logged_in(
    browser: "Browser", url: str, cookie: tuple[str, str]
) -> AsyncIterator["BrowserContext"]:
    """A browser context that is logged in, with an empty cache."""
    context = await browser.new_context(viewport={"width": 1280, "height": 1000})
    try:
        name, value = cookie
        await context.add_cookies([{"name": name, "value": value, "url": url}])
        yield context
    finally:
        await context.close()


async def measure(
    url: str, cookie: tuple[str, str], web_pid: int, parallelism: int, samples: int
) -> Sample:
    """One job of that parallelism, watched by one browser and one plain client."""
    driver = await asyncio.to_thread(Driver, url, parallelism)
    await asyncio.to_thread(driver.__enter__)
    try:
        async with chromium() as browser, logged_in(browser, url, cookie) as context:
            page = await context.new_page()
            return await _round(driver, page, url, cookie, web_pid, samples)
    finally:
        await asyncio.to_thread(driver.__exit__, None, None, None)


async def _round(
    driver: Driver, page: "Page", url: str, cookie: tuple[str, str], web_pid: int, samples: int
) -> Sample:
    await page.goto(f"{url}/jobs/{driver.job_id}/")
    await page.evaluate(PROBE)
    sample = Sample()
    chance = random.Random(7)
    events: list[tuple[int, float, int]] = []  # Count, wall clock in ms, bytes.
    listening = asyncio.create_task(_listen(url, cookie, driver.job_id, events))
    try:
        process = psutil.Process(web_pid)
        posted: list[tuple[int, float]] = []
        while len(sample.to_pixel) < samples:
            await page.evaluate("window.seen.length = 0")
            events.clear()
            posted = await _checkpoint(driver, page, chance, samples, process, sample)
            seen: list[tuple[int, float]] = await page.evaluate("window.seen")
            for count, at in posted:
                sample.to_pixel.append(_first(seen, count) - at)
                sample.to_event.append(_first([(n, ms) for n, ms, _ in events], count) - at)
        sample.snapshot_bytes = max(size for *_, size in events)
        sample.snapshots_per_s = len(events) / ((events[-1][1] - events[0][1]) / 1_000)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    return sample


async def _checkpoint(
    driver: Driver,
    page: "Page",
    chance: random.Random,
    samples: int,
    process: psutil.Process,
    sample: Sample,
) -> list[tuple[int, float]]:
    """Take a checkpoint, its last acknowledgements one by one: which count was posted when."""
    number = await asyncio.to_thread(driver.trigger)
    waiting = driver.chain_subtasks()
    chance.shuffle(waiting)
    count = 0
    while len(waiting) > samples + 1:
        count += driver.acknowledge(number, waiting.pop())
    await _until_shown(page, count)
    process.cpu_percent()
    posted = []
    while len(waiting) > 1:  # The last one would complete it, which says it in other words.
        count += driver.acknowledge(number, waiting.pop())
        posted.append((count, time.time() * 1_000))
        await asyncio.sleep(chance.uniform(*PAUSE_S))
    await _until_shown(page, count)
    sample.web_cpu = process.cpu_percent() / 100
    driver.acknowledge(number, waiting.pop())
    await page.wait_for_function("() => /Completed|completed/.test(document.body.textContent)")
    return posted


async def _until_shown(page: "Page", count: int) -> None:
    await page.wait_for_function(
        "(count) => window.seen.some(([n]) => n >= count) || count === 0",
        arg=count,
        timeout=SHOWN_TIMEOUT_S * 1_000,
    )


def _first(seen: list[tuple[int, float]], count: int) -> float:
    """When a count, or a larger one, was seen first."""
    return next(at for n, at in seen if n is not None and n >= count)


async def _listen(
    url: str, cookie: tuple[str, str], job_id: str, events: list[tuple[int, float, int]]
) -> None:
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        head = f"GET /events/jobs/{job_id} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        writer.write(f"{head}Cookie: {'='.join(cookie)}\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"data:"):
                at = time.time() * 1_000
                events.append((_acknowledged(json.loads(line[5:])), at, len(line)))
    finally:
        writer.close()


_COUNT = re.compile(r"([\d,]+) of [\d,]+ subtasks? acknowledged")


def _acknowledged(snapshot: Any) -> int:
    """The number of acknowledgements in a snapshot, read from the page's text; -1 without one."""
    match = _COUNT.search(json.dumps(snapshot))
    return int(match[1].replace(",", "")) if match else -1


def rows(samples: dict[int, Sample]) -> list[Row]:
    """The rows of the table, by subtasks per operator."""
    return [_row(parallelism, sample) for parallelism, sample in samples.items()]


def _row(parallelism: int, sample: Sample) -> Row:
    pixel, event = _cuts(sample.to_pixel), _cuts(sample.to_event)
    return limit_row(
        f"an acknowledgement to its pixel, {len(FLIGHTS) * parallelism:,} subtasks: p95",
        "ms",
        pixel[1],
        at_most=P95_MAX_MS,
        baseline=POLL_MS,
        against="asking every second, at worst",
        note=(
            f"{len(sample.to_pixel)} of them; p50 {pixel[0]:.0f} ms, at most "
            f"{max(sample.to_pixel):.0f}; to the event at a plain client p50 {event[0]:.0f}, p95 "
            f"{event[1]:.0f} ms; {sample.snapshots_per_s:.1f} snapshots/s of "
            f"{sample.snapshot_bytes / 1_000:.0f} kB, web process {sample.web_cpu:.0%} of a core"
        ),
    )


def _cuts(values: list[float]) -> tuple[float, float]:
    return median(values), quantiles(values, n=20, method="inclusive")[18]
