"""A headless Chromium in front of the pages, and what its user does there.

Playwright's synchronous interface leaves an event loop marked as running in the thread that called
it, and Django refuses to touch the database in such a thread. So the browser has a thread of its
own: tests and their rows stay in theirs, and hand over what is to be done with the page. What
everybody does has a name here; for all else there is ``do``::

    window.do(lambda page: page.keyboard.press("Escape"))

Nothing on a page may make the browser complain: errors and warnings of its console (breaches of the
content policy are among them), exceptions that no script caught and requests to anywhere but the
server under test fail the test that caused them. No other host can be reached, either.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Playwright,
    Request,
    WebError,
    expect,
    sync_playwright,
)

from tests.waiting import wait_until

T = TypeVar("T")

# The shell is the same engine without a desktop around it, for a third of the processor time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
PATIENCE_S = 120.0  # For a page on a busy machine; how fast it is, the benchmark says.
ARGUMENTS = (
    "--disable-dev-shm-usage",  # Containers have little of it.
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def executable() -> str | None:
    """The system's Chromium; Playwright would download one of its own."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def needs_chromium() -> None:
    """Fail the test where there is no browser to drive."""
    if executable() is None:
        pytest.fail(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")


class Window:
    """One page, logged out at first, with cookies of its own.

    Selectors are CSS. Methods wait at most ``PATIENCE_S``; those that may be asked to wait longer
    or less take ``timeout_s``.
    """

    def __init__(self, chromium: "Chromium", context: BrowserContext, url: str) -> None:
        self.url = url
        self._chromium = chromium
        self._context = context
        self._host = urlsplit(url).netloc
        self._complaints: list[str] = []
        self._expected: tuple[str, ...] = ()
        self._page: Page = chromium.do(self._opened)

    def _opened(self) -> Page:
        self._context.set_default_timeout(PATIENCE_S * 1_000)
        self._context.on("console", self._on_console)
        self._context.on("weberror", self._on_error)
        self._context.on("request", self._on_request)
        return self._context.new_page()

    # What the browser complains of.

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complain(f"{message.text} ({message.location['url']})", message.page)

    def _on_error(self, error: WebError) -> None:
        self._complain(str(error.error), error.page)

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and parts.netloc != self._host:
            self._complain(f"a request to elsewhere: {request.url}")

    def _complain(self, complaint: str, page: Page | None = None) -> None:
        where = "" if page is None else urlsplit(page.url).path
        self._complaints.append(f"{where}: {complaint}")

    def may_complain(self, *of: str) -> None:
        """From now on, complaints with one of these words are what the test is about."""
        self._expected += of

    def complaints(self) -> list[str]:
        """The browser's complaints so far, without the expected ones."""
        self.evaluate("0")  # All that was said before has arrived when this is answered.
        return [
            complaint
            for complaint in self._complaints
            if not any(words in complaint for words in self._expected)
        ]

    # Doing.

    def do(self, action: Callable[[Page], T]) -> T:
        """Do something with Playwright's page, in its thread; what comes back must be plain."""
        return self._chromium.do(lambda: action(self._page))

    def open(self, address: str) -> int:
        """Go to an address on the server, or a whole one; the status of the answer.

        The page is marked, so that ``was_reloaded`` can tell.
        """

        def opened(page: Page) -> int:
            answer = page.goto(address)
            page.evaluate("document.documentElement.dataset.mark = 'not reloaded'")
            return answer.status if answer else 0

        return self.do(opened)

    def leave(self) -> None:
        """Go nowhere, which ends the page's event stream."""
        self.do(lambda page: page.goto("about:blank"))

    def log_in(self, username: str, password: str) -> None:
        """Log in by the form; the list of jobs follows."""

        def logged_in(page: Page) -> None:
            page.goto("/login/")
            page.fill("#id_username", username)
            page.fill("#id_password", password)
            page.click("form.stack button")
            page.wait_for_url("**/jobs/")
            page.evaluate("document.documentElement.dataset.mark = 'not reloaded'")

        self.do(logged_in)

    def click(self, words: str, *, within: str = "body") -> None:
        """Click the button with exactly these words, as soon as it can be clicked."""
        self.do(lambda page: self._button(page, words, within).click())

    def follow(self, words: str, *, within: str = "body") -> None:
        """Follow the link with exactly these words."""
        self.do(
            lambda page: page.locator(within).get_by_role("link", name=words, exact=True).click()
        )

    def fill(self, name: str, value: str) -> None:
        """Write into the field of this name."""
        self.do(lambda page: page.fill(f"[name='{name}']:visible", value))

    def choose(self, name: str, *, value: str) -> None:
        """Choose an option of the field of this name."""
        self.do(lambda page: page.select_option(f"select[name='{name}']", value))

    def resize(self, width: int, height: int = 1_000) -> None:
        """Give the page another size, in pixels."""
        self.do(lambda page: page.set_viewport_size({"width": width, "height": height}))

    def show_dark(self, dark: bool = True) -> None:
        """Prefer dark colours, or light ones."""
        self.do(lambda page: page.emulate_media(color_scheme="dark" if dark else "light"))

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Save what is shown; the whole page however long it is, or what fits in the window."""
        self.do(lambda page: page.screenshot(path=file, full_page=whole))

    # Looking.

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """The value of an expression or function of JavaScript."""
        return self.do(lambda page: page.evaluate(script, argument))

    def text(self, selector: str) -> str:
        """The text of the first such element that is visible; empty if none."""
        texts = self.texts(selector)
        return texts[0] if texts else ""

    def texts(self, selector: str) -> list[str]:
        """The same of every such element that is visible."""
        texts = self.do(lambda page: page.locator(selector).filter(visible=True).all_inner_texts())
        return [" ".join(words.split()) for words in texts]

    def content(self, selector: str) -> str:
        """The text in the first such element, visible or not; that of pictures as well."""
        contents = self.do(lambda page: page.locator(selector).all_text_contents())
        return " ".join(contents[0].split()) if contents else ""

    def count(self, selector: str) -> int:
        """The number of such elements, visible or not."""
        return self.do(lambda page: page.locator(selector).count())

    def buttons(self) -> list[str]:
        """The names of all visible buttons."""
        return [words for words in self.texts("button") if words]

    def can_click(self, words: str) -> bool:
        """Whether the button with these words is enabled."""
        return self.do(lambda page: self._button(page, words).is_enabled())

    def sees(self, selector: str, words: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until these words are visible there."""

        def seen(page: Page) -> None:
            element = page.locator(selector).filter(visible=True).first
            expect(element).to_contain_text(words, use_inner_text=True, timeout=timeout_s * 1_000)

        self.do(seen)

    def sees_nothing(self, selector: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until no such element is visible."""

        def gone(page: Page) -> None:
            visible = page.locator(selector).filter(visible=True)
            expect(visible).to_have_count(0, timeout=timeout_s * 1_000)

        self.do(gone)

    def hides_sideways(self, selector: str = "html") -> int:
        """The pixels of an element's content, or of the page's, that are beyond its right edge."""
        beyond: int = self.evaluate(
            "(at) => document.querySelector(at).scrollWidth"
            " - document.querySelector(at).clientWidth",
            selector,
        )
        return beyond

    def drawn(self) -> dict[str, int]:
        """The number of times each figure has been drawn, by its name."""
        drawn: dict[str, int] = self.evaluate(
            "Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
            ".map((e) => [e.dataset.figure, Number(e.dataset.drawn ?? 0)]))"
        )
        return drawn

    def await_figures(self) -> None:
        """Wait until what comes by a second request is there: each section, and each figure drawn.

        One that says why it could not be drawn is enough.
        """
        script = (
            "document.readyState !== 'loading'"
            " && document.querySelector('main [aria-busy=true]') === null"
            " && [...document.querySelectorAll('[data-figure]')]"
            ".every((e) => e.dataset.drawn || e.offsetParent === null || e.matches('.failed'))"
        )
        # Playwright's own waiting for a script is refused by the pages' content policy.
        wait_until(lambda: self.evaluate(script), "the figures are drawn")

    def described(self) -> str:
        """The page as a screen reader has it, for a message."""
        return self.do(lambda page: f"{page.url}\n{page.locator('body').aria_snapshot()}")

    def was_reloaded(self) -> bool:
        """Whether the page was loaded anew since it was opened."""
        return self.evaluate("document.documentElement.dataset.mark === undefined") is True

    @staticmethod
    def _button(page: Page, words: str, within: str = "body") -> Locator:
        return page.locator(within).get_by_role("button", name=words, exact=True)


class Chromium:
    """The browser and its thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "chromium")
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def do(self, action: Callable[[], T]) -> T:
        """Do something in the browser's thread."""
        return self._thread.submit(action).result()

    def start(self) -> None:
        """Start the driver and the browser, without a sandbox: tests may run as root."""

        def started() -> None:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(
                executable_path=self._path, args=list(ARGUMENTS), chromium_sandbox=False
            )

        self.do(started)

    def stop(self) -> None:
        """End both, and the thread."""

        def stopped() -> None:
            if self._browser is not None:
                self._browser.close()
            if self._playwright is not None:
                self._playwright.stop()

        self.do(stopped)
        self._thread.shutdown()

    @contextmanager
    def window(
        self,
        url: str,
        *,
        width: int = 1280,
        height: int = 1000,
        dark: bool = False,
        scripts: bool = True,
        timezone: str = "Asia/Kolkata",  # Five and a half hours from the server's.
    ) -> Iterator[Window]:
        """A window on the server at ``url``; fails at the end if the browser complained."""

        def opened() -> BrowserContext:
            assert self._browser is not None, "not started"
            return self._browser.new_context(
                base_url=url,
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                java_script_enabled=scripts,
                locale="en-GB",
                timezone_id=timezone,
            )

        context = self.do(opened)
        try:
            window = Window(self, context, url)
            try:
                yield window
            except Exception as error:
                error.add_note(f"The page at that time:\n{window.described()}")
                raise
            if scripts:
                complaints: Sequence[str] = window.complaints()
                window.leave()
                assert not complaints, "\n".join(["the browser complained:", *complaints])
        finally:
            self.do(context.close)


@contextmanager
def chromium() -> Iterator[Chromium]:
    """The system's Chromium, headless."""
    path = executable()
    assert path is not None, f"none of {', '.join(NAMES)} is on {os.environ['PATH']}"
    browser = Chromium(path)
    try:
        browser.start()
        yield browser
    finally:
        browser.stop()
