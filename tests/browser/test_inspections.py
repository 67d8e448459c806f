"""Inspections in a real browser: asked for with a click, answered by the driver, drawn and listed.

The job's driver is the test itself.
"""

from typing import Any

import pytest

from jobs.inspections import store
from jobs.models import Job, OutboxCommand
from tests.browser.browser import Window
from tests.browser.test_accessibility import COLOURS, EVERYTHING, violations
from tests.database.frontend import flights, rows_operator
from tests.database.frontend.logging_in import log_in
from tests.waiting import wait_until
from weir.ids import AttemptNumber
from weir.protocol.inspection import Inspected

pytestmark = [pytest.mark.django_db(transaction=True)]


def answer(job: Job, **shown: Any) -> None:
    """Answer the request that is about to come, as the job's driver does."""
    commands = OutboxCommand.objects.filter(job=job, message__type="InspectSubtask")
    wait_until(commands.exists, "the driver is asked")
    asked = commands.get().message
    commands.delete()
    one = Inspected(AttemptNumber(1), asked["request_id"], asked["index"], **shown)
    store.answer(job.pk, [one])


def ask(window: Window, section: str) -> None:
    window.do(lambda page: page.fill(f"{section} input[name=subtask]", "1"))
    window.do(lambda page: page.click(f"{section} button[type=submit]"))


def test_stacks_and_records_are_shown_on_a_click(window: Window) -> None:
    job = flights.running()
    job.subtasks.update(status="running")
    log_in(window)
    window.open(f"/jobs/{job.pk}/operators/hourly/")

    ask(window, "#stacks")
    answer(job, stacks=rows_operator.stacks())
    window.sees("#stacks", "1,180 samples of the last 59 seconds: 29 % at work")
    window.sees("#stacks", "A click on a box shows it larger.")
    window.do(lambda page: page.click("#stacks .barlayer .point >> nth=-1", force=True))
    window.do(lambda page: page.wait_for_selector("[data-zoom-out]:not([hidden])"))
    window.do(lambda page: page.click("[data-zoom-out]"))
    window.do(lambda page: page.wait_for_selector("[data-zoom-out]", state="hidden"))
    window.do(lambda page: page.click("#stacks summary"))
    window.sees("#stacks tbody", "json/__init__.py:346")

    shared = window.do(lambda page: page.url)
    window.open(f"/jobs/{job.pk}/operators/totals/")
    window.open(shared)
    window.sees("#stacks", "1,180 samples of the last 59 seconds: 29 % at work")
    assert OutboxCommand.objects.filter(job=job).count() == 0, "no worker is asked again"
    window.do(lambda page: page.wait_for_selector("#stacks .barlayer .point"))

    ask(window, "#records")
    answer(job, records=rows_operator.records())
    window.sees("#records table", "LGA & <b>Newark</b>")  # Text, not markup.
    assert list(violations(window, EVERYTHING)) == []
    window.show_dark()
    assert list(violations(window, COLOURS)) == []

    ask(window, "#records")
    answer(job, cause="no record passed within 3 seconds")
    window.sees("#records", "hourly-1: no record passed within 3 seconds.")
    assert not window.do(lambda page: page.query_selector("#records table"))
    assert not window.was_reloaded()
