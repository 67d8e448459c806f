"""The list of jobs, a driver's log and the form of a new job as scripts make them, in a browser."""

from pathlib import Path

import pytest
from playwright.sync_api import FilePayload

from controlplane.base import clock
from jobs.models import Job
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend import flights
from tests.database.frontend.logging_in import log_in
from tests.waiting import wait_until
from weir.protocol.lifecycle import JobStatus

pytestmark = [pytest.mark.django_db(transaction=True)]
POLLED_S = 60.0  # Some looks at the server, also where the machine is busy.


def search(window: Window, words: str) -> None:
    window.do(lambda page: page.fill("#log-filter", words))


def test_a_log_is_followed_and_sifted(window: Window, home: Path) -> None:
    job = factories.job()
    log = factories.log_of(factories.driver(job), home)
    log.write_text("started\nERROR no disk\nhalf a")
    log_in(window)
    window.open(f"/jobs/{job.pk}/logs/")
    assert window.texts("#log .line") == ["started", "ERROR no disk", "half a"]
    search(window, "error")
    window.sees("#log-matches", "1 of 2 lines")
    assert "started" not in window.texts("#log .line")
    window.click("Follow")
    with log.open("a") as file:
        file.write(" line\n<b>an error</b>\nfine\n")
    window.sees("#log-matches", "2 of 5 lines", POLLED_S)
    search(window, "")
    assert window.texts("#log .line") == [
        "started",
        "ERROR no disk",
        "half a line",
        "<b>an error</b>",
        "fine",
    ]
    log.write_text("anew\n")
    window.sees("#log-note", "The log was rotated", POLLED_S)
    assert window.texts("#log .line") == ["anew"]
    window.click("Wrap lines")
    assert window.evaluate("getComputedStyle(document.querySelector('.line')).whiteSpace") == "pre"
    assert not window.was_reloaded()


def test_the_list_goes_on_showing_what_was_asked_for(window: Window) -> None:
    factories.checkpoint(flights.running("flights"), 1)
    factories.checkpoint(flights.running("payments"), 1)
    log_in(window)
    window.open("/jobs/?state=running&q=fli")
    names = "table.jobs tbody th > a"
    assert window.texts(names) == ["flights"]
    drawn = "document.querySelector('.spark .bars').getAttribute('d').split('M').length - 1"
    assert window.evaluate(drawn) == 1
    factories.checkpoint(flights.running("more-flights"), 1)
    factories.checkpoint(flights.running("more-payments"), 1)
    factories.checkpoint(Job.objects.get(name="flights"), 2)
    window.sees("header p", "2 jobs with “fli”", POLLED_S)
    assert set(window.texts(names)) == {"flights", "more-flights"}
    window.sees(".groups a[aria-current=page]", "2 Running")
    counts = (
        "[...document.querySelectorAll('.spark .bars')]"
        ".map((e) => e.getAttribute('d').split('M').length - 1)"
    )
    # Also in the row that a script made; a look may have come between the rows above.
    wait_until(lambda: sorted(window.evaluate(counts)) == [1, 2], "both are drawn")
    Job.objects.update(status=JobStatus.FINISHED, ended_at=clock.now())
    window.sees(".empty", "No matching jobs", POLLED_S)
    assert not window.was_reloaded()


def choose(window: Window, script: bytes) -> None:
    file: FilePayload = {"name": "a.py", "mimeType": "text/x-python", "buffer": script}
    window.do(lambda page: page.set_input_files("#id_file", file))


def test_a_new_job_s_form_shows_the_chosen_kind_and_leads_to_the_job(window: Window) -> None:
    log_in(window)
    window.open("/jobs/")
    window.follow("Submit a job", within="header.job-head")
    window.sees("h1", "Submit a job")
    # A script hides the others; the heading is there before it runs.
    wait_until(lambda: window.count(".of-kind:not([hidden])") == 1, "one kind is shown")
    window.do(lambda page: page.get_by_label("An uploaded script").check())
    window.evaluate("document.getElementById('file-limit').dataset.bytesMax = 20")
    choose(window, b"#" * 21)
    window.sees("#file-limit", "larger than the limit")
    choose(window, b"print(1)\n")
    window.sees("#file-limit", "At most 10.5 MB.")
    window.fill("name", "flights")
    window.click("Submit the job")
    window.sees(".messages", "The job was submitted")
    assert Job.objects.get().artifact is not None
    window.sees("h1", "flights")
