"""The list of jobs, a driver's log and the form of a new job as scripts make them, in a browser."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload

from controlplane.base import clock
from frontend.about.log_search import SEARCHED_BYTES_MAX
from jobs.models import Job
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend import flights
from tests.database.frontend.logging_in import log_in
from tests.waiting import wait_until
from weir.protocol.lifecycle import JobStatus

pytestmark = [pytest.mark.django_db(transaction=True)]
TOLD = "Unable to load native-hadoop library for your platform, using builtin-java classes"
POLLED_S = 60.0  # Some looks at the server, also where the machine is busy.


def test_a_log_is_followed_with_its_filter(window: Window, home: Path) -> None:
    job = factories.job()
    log = factories.log_of(factories.driver(job), home)
    traced = "26/03/01 12:00:00 ERROR Executor: no task\n"
    log.write_text(f"started\nERROR no disk\n{traced}half a")
    log_in(window)
    window.open(f"/jobs/{job.pk}/logs/")
    shown = "#log .line:not(details), #log .text"
    assert window.texts(shown) == ["started", "ERROR no disk", "no task", "half a"]
    window.click("Follow")
    with log.open("a") as file:
        file.write(" line\n<b>an error</b>\nfine\n")
    window.sees("#log", "fine", POLLED_S)
    assert window.texts(shown)[3:] == ["half a line", "<b>an error</b>", "fine"]
    window.do(lambda page: page.select_option("#log-level", "error"))
    window.sees(".log-tools", "Show all", POLLED_S)
    pressed = "document.querySelector('#log-follow').ariaPressed == 'true'"
    wait_until(lambda: window.evaluate(pressed), "what is shown now is followed as well")
    with log.open("a") as file:
        file.write("fine, too\n" + traced.replace("no task", "again") + "\tat a.B(C:1)\n")
    window.sees("#log", "again", POLLED_S)
    assert window.texts(shown) == ["ERROR no disk", "no task", "again"]
    window.do(lambda page: page.click("#log details:last-of-type summary"))
    window.sees("#log details[open] pre", "at a.B(C:1)")
    log.write_text("anew\n")
    window.sees("#log-note", "The log was rotated", POLLED_S)
    assert window.texts(shown) == []
    window.click("Wrap lines")
    assert window.evaluate("getComputedStyle(document.querySelector('.line')).whiteSpace") == "pre"


def test_a_long_line_of_a_log_wraps_on_a_phone(window: Window, home: Path) -> None:
    job = factories.job()
    line = {"at": "2026-03-01T10:20:31+00:00", "level": "warning", "message": TOLD}
    factories.log_of(factories.driver(job), home).write_text(json.dumps(line) + "\n")
    log_in(window)
    window.resize(390)
    window.open(f"/jobs/{job.pk}/logs/")
    window.sees("#log .text", TOLD)
    assert window.hides_sideways("#log") == 0


def test_a_search_in_a_long_log_goes_on_by_itself(window: Window, home: Path) -> None:
    job = factories.job()
    log = factories.log_of(factories.driver(job), home)
    log.write_bytes(b"rare\n" + (b"x" * 1_023 + b"\n") * (SEARCHED_BYTES_MAX * 5 // 2 >> 10))
    log_in(window)
    window.open(f"/jobs/{job.pk}/logs/?q=rare")
    window.sees("#log-empty", "No line was found so far.")
    window.follow("Search on, before these")
    window.sees("#log-earlier", "The beginning of the log", POLLED_S)
    assert window.texts("#log .line:not(.unfinished)") == ["rare"]
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
    window.choose("restart_kind", value="fixed_delay")
    assert window.texts("#restart-settings label") == [
        "Restarts (optional)",
        "Delay (ms) (optional)",
    ]
    window.fill("restart_attempts_max", "7")
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
    assert Job.objects.get().options["restart"] == {"kind": "fixed_delay", "attempts_max": 7}
    window.sees("h1", "flights")
