"""The pages of checkpoints in a real browser: live while one is under way, drill-downs after that.

The job's driver is the test itself: what it would report goes through the coordinator.
"""

import re

import pytest
from playwright.sync_api import Page

from checkpoints.operations import savepoints
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend import flights, rows_checkpoint
from tests.database.frontend.logging_in import log_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]


def drawn(window: Window, section: str) -> None:
    """Wait until a section's picture is there: Plotly is large, and machines are busy."""
    picture = f"{section} [data-figure][data-drawn]"
    window.do(lambda page: page.wait_for_selector(picture, state="attached", timeout=90_000))


def open_acknowledged(window: Window) -> None:
    """Open the page of a checkpoint that 60 subtasks a chain have acknowledged."""
    job = flights.running()
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1), 60)
    log_in(window)
    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    drawn(window, "#timeline")
    drawn(window, "#alignment")


def test_a_checkpoint_under_way_becomes_its_final_form_without_a_reload(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    savepoints.request_checkpoint(None, job.pk)
    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    window.sees("#checkpoint header", "Checkpoint 1 In progress")
    window.sees("#timeline", "No subtask has acknowledged yet")

    flights.drive(job, flights.chain_acknowledged(1, "flights", 0))
    window.sees(".operators", "waiting for flights-1")
    drawn(window, "#timeline")
    # What comes soon after that is drawn as well, though nothing else happens.
    flights.drive(job, flights.chain_acknowledged(1, "hourly", 0))
    window.sees("#acknowledgements", "hourly-0")

    flights.complete(job, 1, arrived_ms=(35.0, 0.0))
    window.sees("#checkpoint header", "Checkpoint 1 Completed")
    window.sees("#checkpoint header", "Roll back to it")
    window.sees("#announcer", "Checkpoint 1 is now: Completed.")
    window.sees("#alignment", "Each row is a receiving subtask")
    assert not window.do(lambda page: page.query_selector(".operators"))
    assert not window.was_reloaded()


def test_sections_show_other_parts_of_themselves_and_the_address_says_which(
    window: Window,
) -> None:
    open_acknowledged(window)

    def click_on_hourly(page: Page) -> None:
        page.locator("#timeline").scroll_into_view_if_needed()
        box = page.locator("#timeline .nsewdrag").first.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 3, box["y"] + box["height"] / 2
        page.mouse.move(x - 5, y)
        page.mouse.move(x, y)
        page.wait_for_selector("#timeline .hoverlayer .hovertext")
        page.mouse.click(x, y)

    def is_chosen() -> bool:
        window.do(click_on_hourly)
        return "chain=hourly" in window.evaluate("location.search")

    # A section above may still come, and move the picture between its measure and the click.
    wait_until(is_chosen, "a click on the chain asks for its subtasks")
    window.sees("#timeline", "Timeline: subtasks of hourly")
    assert window.evaluate("document.activeElement.id") == "timeline"

    window.do(lambda page: page.click(".sortable th:has-text('State size') a"))
    window.sees(".sortable th[aria-sort=descending]", "State size")
    window.sees("#timeline", "Timeline: subtasks of hourly")  # It stays as it was.
    window.do(lambda page: page.select_option("#ack-operator", "totals"))
    window.sees(".sortable caption", "of totals")
    assert "operator=totals" in window.evaluate("location.search")

    window.do(lambda page: page.click("#alignment a:has-text('Time blocked')"))
    window.sees("#alignment a[aria-current]", "Time blocked")
    window.do(lambda page: page.click("#alignment table a >> nth=0"))
    window.sees("#alignment", "each cell a channel")
    drawn(window, "#alignment")

    for _ in range(3):
        window.do(lambda page: page.go_back())
    wait_until(lambda: window.evaluate("location.search") == "", "the address is the first one")
    window.sees("#timeline", "Each row is an operator chain")
    assert not window.was_reloaded()


def test_the_list_follows_the_job_but_not_below_the_pointer(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    window.open(f"/jobs/{job.pk}/checkpoints/")
    window.sees("#checkpoints", "No checkpoint has been triggered yet")
    savepoints.request_checkpoint(None, job.pk)
    window.sees("tbody", "1 In progress")
    flights.complete(job, 1)
    window.sees("tbody", "1 Completed")

    window.do(lambda page: page.focus("tbody a"))
    savepoints.request_checkpoint(None, job.pk)
    window.sees("#newer", "Show newer checkpoints")
    assert re.match(r"1\b", window.content("tbody"))
    window.do(lambda page: page.click("#newer"))
    window.sees("tbody", "2 In progress")


def test_a_section_that_cannot_be_fetched_says_so_and_comes_with_another_try(
    window: Window,
) -> None:
    job = flights.running()
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    log_in(window)
    window.may_complain("ERR_FAILED")
    window.do(lambda page: page.route("**/storage?*", lambda route: route.abort()))
    window.open(f"/jobs/{job.pk}/checkpoints/1/")
    window.sees("#storage", "This section could not be loaded.")
    window.sees("#acknowledgements", "1 to 18 of 18 acknowledgements")
    window.do(lambda page: page.unroute("**/storage?*"))
    window.do(lambda page: page.click("#storage a:has-text('Try again')"))
    window.sees("#storage", "4 files, 160 kB in all")
    # The server's own link for another try: there is no manifest.
    window.sees("#storage", "The manifest cannot be read")
    window.do(lambda page: page.evaluate("document.querySelector('#storage dl').remove()"))
    window.do(lambda page: page.click("#storage a:has-text('Try again')"))
    window.sees("#storage dl", "Manifest")
    assert window.count("#checkpoint") == 1


def test_charts_are_drawn_anew_where_a_phone_is_turned_and_stay_in_their_place(
    window: Window,
) -> None:
    open_acknowledged(window)
    window.await_figures()
    assert window.count(".chart-legend") == 0
    beyond = """Math.max(...[...document.querySelectorAll("[data-drawn]")].map((chart) =>
        chart.querySelector(".main-svg").getBoundingClientRect().bottom
        - chart.getBoundingClientRect().bottom))"""
    for width, legends in ((390, 1), (1280, 0)):
        window.resize(width)
        wait_until(
            lambda legends=legends: min(window.count(".chart-legend"), 1) == legends,
            "the charts are drawn for the new width",
        )
        wait_until(lambda: window.evaluate(beyond) <= 1, "no chart covers what is below it")
        assert window.hides_sideways() == 0
