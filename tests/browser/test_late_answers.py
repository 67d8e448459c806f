"""Answers that come late, in another order than they were asked for, or only at the second try.

A page shows what was asked for last, and every line once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, Route

from checkpoints.operations import savepoints
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend import flights, rows_checkpoint
from tests.database.frontend.logging_in import log_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]


@contextmanager
def held(window: Window, pattern: str) -> Iterator[Callable[[], int]]:
    """Requests for such addresses wait from now on; gives how many do. At the end they are sent."""
    routes: list[Route] = []

    def hold(route: Route) -> None:
        routes.append(route)

    def waiting() -> int:
        window.evaluate("0")  # What the browser has told is heard while it is asked for something.
        return len(routes)

    window.do(lambda page: page.route(pattern, hold))
    yield waiting

    def release(page: Page) -> None:
        page.unroute(pattern)
        for route in routes:
            with suppress(Error):  # The page gave it up itself, which is as good.
                route.fulfill(response=route.fetch())
        # Another request's whole way: what was answered before has been shown by then.
        page.evaluate("fetch(location.href).then((answer) => answer.text()).then(() => null)")

    window.do(release)


def sort_by(window: Window, column: str) -> None:
    window.do(lambda page: page.click(f".sortable th:has-text('{column}') a"))
    window.sees(".sortable th[aria-sort]", column)


def go_back(window: Window) -> None:
    window.do(lambda page: page.go_back())


def test_going_back_twice_shows_the_first_page_despite_later_answers(window: Window) -> None:
    job = flights.running()
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    log_in(window)
    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    sort_by(window, "Sync")
    between = window.evaluate("location.search")
    sort_by(window, "State size")
    with held(window, f"**/checkpoints/1/{between}") as waiting:
        go_back(window)
        wait_until(lambda: waiting() == 1, "the page between is asked for")
        go_back(window)
        wait_until(lambda: window.evaluate("location.search") == "", "the address is the first one")
        wait_until(lambda: "State" not in window.text("th[aria-sort]"), "the first page is shown")
        shown = window.text(".sortable")
    window.await_figures()
    assert window.text(".sortable") == shown
    assert not window.was_reloaded()


def test_a_section_shows_what_was_chosen_last(window: Window) -> None:
    job = flights.running()
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1), 60)
    log_in(window)
    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    window.sees("#alignment a[aria-current]", "Barrier after the first")
    window.await_figures()  # They push what is below them down, maybe between press and release.
    with held(window, "**/alignment?*blocked*") as waiting:
        window.do(lambda page: page.click("#alignment a:has-text('Time blocked')"))
        wait_until(lambda: waiting() > 0, "the other measure is asked for")
        window.do(lambda page: page.click("#alignment table a >> nth=0"))
        window.sees("#alignment", "each cell a channel")
    window.await_figures()
    assert "each cell a channel" in window.text("#alignment")


def test_what_is_pressed_is_not_replaced_before_it_is_released(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    savepoints.request_checkpoint(None, job.pk)
    flights.drive(job, flights.chain_acknowledged(1, "hourly", 0, arrived_ms=(30.0, 0.0)))
    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    window.sees("#alignment a[aria-current]", "Barrier after the first")
    window.await_figures()
    window.do(lambda page: page.hover("#alignment a:has-text('Time blocked')"))
    answered: list[str] = []
    with held(window, "**/checkpoints/1/data") as waiting:
        wait_until(lambda: waiting() > 0, "the page asks for changes")
        window.do(lambda page: page.mouse.down())
        flights.drive(job, flights.chain_acknowledged(1, "flights", 0))
        window.do(lambda page: page.on("response", lambda answer: answered.append(answer.url)))

    def is_answered() -> bool:
        window.evaluate("0")
        return any(url.endswith("/checkpoints/1/data") for url in answered)

    wait_until(is_answered, "the page has heard of the acknowledgement")
    window.do(lambda page: page.wait_for_timeout(4_000))  # Twice the pause between two updates.
    window.do(lambda page: page.mouse.up())
    window.sees("#alignment a[aria-current]", "Time blocked")
    assert not window.was_reloaded()


def test_a_window_that_is_chosen_while_another_is_on_its_way_is_shown(window: Window) -> None:
    job = flights.running()
    flights.history(job, 60)
    log_in(window)
    window.open(f"/jobs/{job.pk}/")
    window.await_figures()
    with held(window, "**/details?window=200") as waiting:
        factories.checkpoint(job, 100)
        wait_until(lambda: waiting() > 0, "the new checkpoint is asked for")
        window.follow("Last 50")
    window.sees("#history", "50 checkpoints")


def test_a_log_that_is_looked_at_again_has_every_line_once(window: Window, home: Path) -> None:
    job = factories.job()
    log = factories.log_of(factories.driver(job), home)
    log.write_text("first\n")
    log_in(window)
    window.open(f"/jobs/{job.pk}/logs/")
    with held(window, "**/data?from=*") as waiting:
        window.click("Follow")
        wait_until(lambda: waiting() == 1, "the log is looked at")
        with log.open("a") as file:
            file.write("second\n")
        window.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        window.evaluate("fetch(location.href).then(() => null)")
    window.sees("#log", "second")
    with log.open("a") as file:
        file.write("third\n")
    window.sees("#log", "third")
    assert window.texts("#log .line") == ["first", "second", "third"]


def test_the_final_form_of_a_checkpoint_comes_with_the_next_try(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    savepoints.request_checkpoint(None, job.pk)
    window.may_complain("ERR_FAILED")
    refused: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    window.sees("#checkpoint header", "Checkpoint 1 In progress")
    page_alone = "**/checkpoints/1/"
    window.do(lambda page: page.route(page_alone, refuse))
    flights.complete(job, 1)
    before = len(refused)

    def is_refused() -> bool:
        window.evaluate("0")
        return len(refused) > before

    wait_until(is_refused, "the final form is asked for in vain")
    window.do(lambda page: page.unroute(page_alone))
    window.sees("#checkpoint header", "Checkpoint 1 Completed")
    window.sees("#announcer", "Checkpoint 1 is now: Completed.")
    assert not window.was_reloaded()
