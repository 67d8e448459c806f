"""The network traffic of loading a page, as a real Chromium counts it.

Every page is loaded twice in a browser that has nothing yet: with an empty cache, and again. What
counts is what came over the wire, heads of responses included, until nothing came any more; the
event stream is a request, its events are not counted.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.benchmarks.dashboard_pixels import chromium, logged_in
from tests.benchmarks.pages import Address
from tests.benchmarks.report import Row

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

QUIET_S = 1.0  # Nothing came for so long: the page has what it wants.
LOAD_TIMEOUT_S = 15.0
PLOTLY = "plotly"  # In the address of the one large file.


@dataclass
class Load:
    """One load of one page."""

    requests: int = 0
    bytes_own: int = 0
    bytes_plotly: int = 0
    compressed: int = 0  # Answers that came compressed.
    _urls: dict[str, str] = field(default_factory=dict)
    _news: float = 0.0

    def listen(self, session: Any) -> None:
        """Count what a DevTools session of a page tells."""
        session.on("Network.requestWillBeSent", self._asked)
        session.on("Network.responseReceived", self._answered)
        session.on("Network.loadingFinished", self._finished)

    async def until_quiet(self) -> None:
        """Wait until nothing comes any more."""
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        self._news = max(self._news, time.monotonic())
        while time.monotonic() < min(deadline, self._news + QUIET_S):
            await asyncio.sleep(0.05)

    def _asked(self, event: Any) -> None:
        self._news = time.monotonic()
        self._urls[event["requestId"]] = event["request"]["url"]
        self.requests += 1

    def _answered(self, event: Any) -> None:
        headers = {name.lower(): value for name, value in event["response"]["headers"].items()}
        self.compressed += "content-encoding" in headers

    def _finished(self, event: Any) -> None:
        self._news = time.monotonic()
        size = int(event["encodedDataLength"])
        if PLOTLY in self._urls.get(event["requestId"], ""):
            self.bytes_plotly += size
        else:
            self.bytes_own += size


async def measure(
    url: str, cookie: tuple[str, str], pages: Sequence[Address]
) -> dict[str, tuple[Load, Load]]:
    """First and second load of each page."""
    loads: dict[str, tuple[Load, Load]] = {}
    async with chromium() as browser:
        for page in pages:
            async with logged_in(browser, url, cookie) as context:  # With a cache of its own.
                first = await _load(context, url + page.path)
                loads[page.name] = first, await _load(context, url + page.path)
    return loads


async def _load(context: "BrowserContext", url: str) -> Load:
    page = await context.new_page()
    load = Load()
    session = await context.new_cdp_session(page)
    await session.send("Network.enable")
    load.listen(session)
    await page.goto(url, wait_until="load")
    await load.until_quiet()
    await page.close()
    return load


def rows(loads: dict[str, tuple[Load, Load]]) -> list[Row]:
    """The rows of the table."""
    first = {name: load for name, (load, _) in loads.items()}
    largest = max(first, key=lambda name: first[name].bytes_own)
    plotly = max(load.bytes_plotly for load in first.values())
    lines = [
        f"{name}: {once.bytes_own / 1_000:.0f} kB in {once.requests} requests"
        f"{', and Plotly' if once.bytes_plotly else ''}; again "
        f"{(again.bytes_own + again.bytes_plotly) / 1_000:.0f} kB"
        for name, (once, again) in sorted(loads.items(), key=lambda item: -item[1][0].bytes_own)
    ]
    compressed = sum(load.compressed for load in first.values())
    how = "compressed" if compressed else "not compressed"
    return [
        Row(
            what=f"a page load without Plotly, the largest of {len(loads)} ({largest})",
            unit="B",
            weir=first[largest].bytes_own,
            baseline=plotly,
            ratio=first[largest].bytes_own / max(plotly, 1),
            against="Plotly, once per browser",
            target="none",
            met=None,
            note=f"as served: {how}\n" + "\n".join(lines),
        )
    ]
