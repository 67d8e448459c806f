"""The page in a real browser, over a real web process, PostgreSQL and Redis.

The job's driver is the test itself: what it would report goes through the coordinator.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg2
import pytest
from django.db import connection
from django.db.models import F

from controlplane.accounts.models import Role
from controlplane.base import clock, wakeups
from jobs.models import Driver, Job
from tests import factories
from tests.browser.browser import Window
from tests.browser.server import WebProcess
from tests.database.frontend import documents, flights
from tests.database.frontend.logging_in import log_in
from tests.unit.frontend.test_formatting import ROUGH
from tests.waiting import wait_until
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

pytestmark = [pytest.mark.django_db(transaction=True)]


def open_job(window: Window, job: Job) -> None:
    window.open(f"/jobs/{job.pk}/")


def open_menu(window: Window) -> None:
    """Show what the job page keeps behind its first buttons."""
    window.do(lambda page: page.click("#more-actions summary"))


SAVEPOINTS = "#savepoints"
PROGRESS = "#progress"
OPERATIONS = "[aria-labelledby=operations-title]"
ALIGNMENT = "[aria-labelledby=alignment-title]"


def test_barriers_travel_on_the_page_from_the_button_to_the_charts(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    open_job(window, job)
    window.sees(PROGRESS, "No checkpoint yet, and none is due")
    window.sees(ALIGNMENT, "Once a checkpoint has completed")

    window.click("Take a checkpoint")
    window.sees("#action-result", "Checkpoint requested.")
    window.sees(PROGRESS, "Checkpoint 1 In progress")
    window.sees(PROGRESS, "0 of 18 subtasks acknowledged")
    window.sees(OPERATIONS, "Checkpoint Under way")

    seen = []
    for chain, index in (("flights", 1), ("flights", 0), ("hourly", 0)):
        flights.drive(job, flights.chain_acknowledged(1, chain, index, arrived_ms=()))
        done = job.checkpoints.get().acknowledged_count
        window.sees(PROGRESS, f"{done} of 18 subtasks acknowledged")
        seen.append(window.content("[data-chain=flights] [data-part=says]").split()[0])
    assert seen == ["1/2", "2/2", "2/2"]
    assert "hourly-1" in window.content("[data-chain=hourly] [data-part=missing]")

    rest = [("hourly", 1), ("totals", 0), ("totals", 1)]
    flights.drive(
        job, *(flights.chain_acknowledged(1, *one, arrived_ms=(35.0, 0.0)) for one in rest)
    )
    window.sees(PROGRESS, "Checkpoint 1 Finalizing")
    flights.complete(job, 1)  # What was acknowledged before is known; the manifest is new.
    window.sees(PROGRESS, "Checkpoint 1 Completed")
    window.sees(OPERATIONS, "Checkpoint Done")
    window.sees(".tiles", "number 1")
    window.sees(ALIGNMENT, "Slowest channel: flights-0 →")
    phases = "[data-figure=history] .bars .point"
    wait_until(lambda: window.count(phases) >= 4, "the history has a bar for each phase")

    window.click("Take a checkpoint")  # The next click is another request.
    window.sees(PROGRESS, "Checkpoint 2 In progress")
    before = window.drawn()["history"]
    flights.complete(job, 2)
    window.sees(PROGRESS, "Checkpoint 2 Completed")
    wait_until(lambda: window.drawn()["history"] > before, "the history is drawn again")
    assert not window.was_reloaded()


def test_the_state_of_the_job_changes_on_the_page(window: Window) -> None:
    job = flights.running()
    log_in(window, Role.VIEWER)
    open_job(window, job)
    window.sees("h1", "Running")
    cause = f"slot 1 is gone: <b>{'x' * 20}</b>\nTraceback …"
    Job.objects.filter(pk=job.pk).update(status=JobStatus.RESTARTING, cause=cause)
    factories.exception(job, cause)
    wakeups.publish(wakeups.job(job.pk))
    window.sees("h1", "Restarting")
    announced = "document.getElementById('announcer').textContent"  # It is out of sight.
    assert window.evaluate(announced) == "The job is now: Restarting."
    window.sees(".cause", "slot 1 is gone: <b>xxx")  # Markup is text.
    window.sees("[aria-labelledby=exceptions-title]", "slot 1 is gone: <b>xxx")
    assert window.evaluate("document.title") == "flights · Restarting · Weir"
    assert window.count(".cause b") == 0
    assert not window.was_reloaded()


def test_the_diagnosis_of_the_last_checkpoints_stays_put_while_a_newer_one_differs(
    window: Window,
) -> None:
    job = flights.running(interval_ms=None)
    for number in range(1, 5):
        factories.checkpoint(job, number, status=CheckpointStatus.FAILED, cause="slot 0 was lost")
    log_in(window)
    open_job(window, job)
    diagnosis = "4 of the last 4 checkpoints were slow or failed, and no culprit comes back."
    window.sees(".verdict-diagnosis", diagnosis)
    of_last = window.text(".verdict-headline")
    newer = factories.checkpoint(job, 5, status=CheckpointStatus.PENDING)
    wakeups.publish(wakeups.job(job.pk))
    wait_until(lambda: window.text(".verdict-headline") != of_last, "the newer one is judged")
    assert window.text(".verdict-diagnosis") == diagnosis
    newer.delete()
    factories.checkpoint(job, 5)
    wakeups.publish(wakeups.job(job.pk))
    window.sees(".verdict-diagnosis", "4 of the last 5 checkpoints were slow or failed")
    assert not window.was_reloaded()


def test_a_silent_driver_is_noticed_while_the_page_is_open(window: Window) -> None:
    job = flights.running()
    log_in(window)
    open_job(window, job)
    window.sees(".tiles", "Running")
    Driver.objects.filter(job=job).update(heard_at=F("created_at"))
    window.sees("#job > .attention", "exactly-once sinks commit nothing")  # Without a wake-up.
    window.sees(".tiles", "Silent")


BUTTON = "form[data-action] button.primary"


@contextmanager
def database_set(bad: str, good: str) -> Iterator[None]:
    """The database is so for every connection but the test's own: ``ALTER DATABASE … bad``."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database(), pg_backend_pid()")
        name, own = cursor.fetchone()
    other = psycopg2.connect(**connection.get_connection_params() | {"dbname": "postgres"})
    other.autocommit = True
    with closing(other), other.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" {bad}')
        try:
            _drop_connections(cursor, name, own)
            yield
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" {good}')
            _drop_connections(cursor, name, own)


def _drop_connections(cursor: "psycopg2.extensions.cursor", database: str, but: int) -> None:
    cursor.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> %s",
        [database, but],
    )


def database_away() -> AbstractContextManager[None]:
    """The database refuses every connection but the test's own."""
    return database_set("ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true")


def read_only_database() -> AbstractContextManager[None]:
    """The database takes no writes, as a standby."""
    setting = "SET default_transaction_read_only ="
    return database_set(f"{setting} on", f"{setting} off")


def test_without_the_server_the_page_says_so_and_comes_back(
    web: WebProcess, window: Window
) -> None:
    window.may_complain(
        "ERR_CONNECTION_REFUSED", "status of 503", "ERR_INCOMPLETE_CHUNKED_ENCODING"
    )
    job = flights.running(interval_ms=None)
    log_in(window)
    open_job(window, job)
    window.sees(PROGRESS, "No checkpoint yet")
    web.stop()
    window.sees("#connection", "No connection to the control plane since")
    assert "sinks commit nothing until the connection is back" in window.text("#connection")
    assert window.count(BUTTON) == 1
    assert window.count(f"{BUTTON}:disabled") == 1
    web.start()
    wait_until(lambda: window.text("#connection") == "", "the page is connected again")
    window.click("Take a checkpoint")
    window.sees(PROGRESS, "Checkpoint 1 In progress")

    with database_away():
        window.sees("#connection", "The control plane cannot reach PostgreSQL since")
        assert window.count(f"{BUTTON}:disabled") == 1
    wait_until(lambda: window.text("#connection") == "", "the page is connected again")
    assert window.count(f"{BUTTON}:disabled") == 0
    assert not window.was_reloaded()

    window.open(f"/jobs/{job.pk}/stop")
    with database_away():
        window.sees("#connection", "The control plane cannot reach PostgreSQL since")
        assert window.count("form.stack button:disabled") == 1
        assert window.open("/jobs/") == 503
        window.sees("#error-page", "This page loads by itself once the database is back.")
        assert not window.was_reloaded()
    window.sees("h1", "Jobs")
    assert job.operations.count() == 1

    window.open(f"/jobs/{job.pk}/stop")
    with read_only_database():
        window.sees("#connection", "The control plane cannot reach PostgreSQL for writes since")
        assert window.count("form.stack button:disabled") == 1
    wait_until(lambda: window.text("#connection") == "", "the page is connected again")
    assert window.count("form.stack button:disabled") == 0


def test_cancelling_asks_in_a_dialog_that_the_keyboard_can_leave(window: Window) -> None:
    job = flights.running()
    log_in(window)
    open_job(window, job)
    open_menu(window)
    window.click("Cancel job")
    window.sees("#cancel-dialog", "Cancel flights?")
    window.do(lambda page: page.keyboard.press("Escape"))
    window.sees_nothing("#cancel-dialog")
    assert not job.operations.exists()

    came_back = "document.activeElement.matches('#more-actions summary')"
    wait_until(lambda: window.evaluate(came_back), "the focus is where it came from")
    window.do(lambda page: page.keyboard.press("Enter"))
    window.click("Cancel job")
    window.click("Cancel the job")
    window.sees("#action-result", "The job is being cancelled.")
    window.sees(OPERATIONS, "Cancel Under way")
    wait_until(lambda: not window.can_click("Take a checkpoint"), "nothing can be asked")
    assert not window.was_reloaded()


def test_a_savepoint_is_taken_on_a_page_of_its_own_and_becomes_one_before_the_eyes(
    window: Window,
) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    open_job(window, job)
    window.click("Take a savepoint")
    window.sees("h1", "Take a savepoint of flights?")
    window.fill("name", "first")
    window.fill("labels", "release: 1")
    window.click("Take a savepoint of flights")
    window.sees(".messages", "A savepoint is being taken.")
    window.sees("h1", "Under way")
    flights.drive(job, flights.chain_acknowledged(1, "flights", 0))
    window.sees("#operation", "3 of 18 subtasks acknowledged")
    flights.complete(job, 1)
    window.sees("h1", "Done")
    assert job.savepoints.get().name == "first"

    window.open(f"/jobs/{job.pk}/savepoints/")
    window.sees(SAVEPOINTS, "first Completed")
    window.sees(SAVEPOINTS, "release: 1")
    window.follow("Roll back to it")
    window.sees("h1", "Roll back flights?")
    assert "first" in window.content("select option:checked")


def test_a_rollback_is_confirmed_below_its_preview(window: Window) -> None:
    job = flights.running()
    flights.history(job, 12)
    asked = factories.operation(
        job,
        None,
        "preview",
        parameters={"kind": "rollback", "checkpoint": 10, "rewind_output": True},
        result={"sentences": ["the job goes back to checkpoint 10: 4 s of work are undone"]},
    )
    log_in(window)
    open_job(window, job)
    window.follow("Preview of a rollback to checkpoint 10")
    window.sees(".operation", "4 s of work are undone.")
    window.click("Roll flights back")
    window.sees(".messages", "The job is being rolled back.")
    window.sees("h1", "Rollback to checkpoint 10 Under way")
    open_job(window, job)
    window.sees(OPERATIONS, "Rollback to checkpoint 10 Under way a new driver is taking over")
    rollback = job.operations.exclude(pk=asked.pk).get()
    assert (rollback.kind, rollback.parameters["checkpoint"]) == ("rollback", 10)


def test_a_viewer_gets_the_live_page_without_buttons(window: Window) -> None:
    job = flights.running()
    log_in(window, Role.VIEWER)
    open_job(window, job)
    window.sees("h1", "flights")
    assert window.buttons() == ["Log out"]


def test_the_list_follows_the_jobs(window: Window) -> None:
    log_in(window)
    window.sees("#jobs", "No job yet")
    first, second = flights.running("first"), flights.running("second")
    factories.checkpoint(first, 1)
    factories.checkpoint(second, 1)
    window.sees("#jobs", "2 jobs")
    order = "[...document.querySelectorAll('tbody th a')].map((e) => e.textContent)"
    assert set(window.evaluate(order)) == {"first", "second"}
    Job.objects.filter(pk=first.pk).update(
        status=JobStatus.FAILED, cause="no disk", ended_at=clock.now()
    )
    window.sees("#jobs", "The job failed: no disk")
    assert window.evaluate(order) == ["first", "second"]  # It has come to the top.
    assert not window.was_reloaded()


def test_browser_and_server_write_times_alike(window: Window) -> None:
    window.open("/login/")
    written = window.evaluate(
        """
        async (values) => {
          const format = await import("/static/frontend/format.js");
          return values.map((value) => format.roughDuration(value));
        }
        """,
        [value for value, _ in ROUGH],
    )
    assert written == [words for _, words in ROUGH]
    local = """
        async (text) => (await import("/static/frontend/format.js")).inLocalTime(text)
        """  # Five and a half hours ahead.
    text = "hourly-1 stuck in one call since 2026-11-25 20:45:09 UTC; 2 s ago"
    said = "hourly-1 stuck in one call since 2026-11-26 02:15:09; 2 s ago"
    assert window.evaluate(local, text) == said


SPLIT = ("split", "now", "then")
WIDTH = "document.documentElement.scrollWidth"


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(window: Window, width: int, tmp_path: Path) -> None:
    job = flights.running("a-rather-long-name-of-a-job-that-an-admin-chose")
    flights.history(job, 20)
    factories.exception(job, "x" * 400)
    made = factories.savepoint(job, "x" * 80, 21, note="x" * 400, labels={"x" * 100: "x" * 100})
    factories.gate_alignment(made.checkpoint, "hourly", 0, [20.0, 0.0])
    result = {"sentences": ["x" * 400], "sources": [{"splits": [dict.fromkeys(SPLIT, "x" * 400)]}]}
    asked = factories.operation(
        job, None, "preview", parameters={"kind": "rollback", "checkpoint": 20}, result=result
    )
    about = {"restore": f"/{'x' * 200}", "parameters": {"x" * 100: "x" * 100}}
    restore = factories.operation(
        job,
        None,
        "preview",
        parameters={"kind": "restore", **about},
        result=documents.refused_restore(tmp_path / "restore"),
    )
    outputs = [documents.comparison(tmp_path / "compare", is_equal=False, operator="x" * 60)]
    compare = factories.operation(
        job,
        None,
        "compare",
        parameters={"other": "y" * 60, "keys": ["carrier"] * 20},
        result={"outputs": outputs},
    )
    log_in(window)
    window.resize(width)
    page = f"/jobs/{job.pk}/"
    for address in (
        "/jobs/",
        page,
        f"{page}rollback",
        f"{page}fork",
        f"{page}stop",
        f"{page}operations/{asked.pk}",
        f"{page}operations/{restore.pk}",
        f"{page}operations/{compare.pk}",
        f"{page}savepoints/{made.pk}/delete",
    ):
        window.open(address)
        window.await_figures()
        assert window.evaluate(WIDTH) <= width, address


SCRIPT = "document.createElement('script')"


@pytest.mark.parametrize(
    ("doing", "complaint"),
    [
        ("console.error('out of order')", "out of order"),
        ("setTimeout(() => missing())", "missing is not defined"),
        (
            f"document.body.append(Object.assign({SCRIPT}, {{text: '1'}}))",
            "Content Security Policy",
        ),
        ("fetch('https://elsewhere.example/').catch(() => null)", "https://elsewhere.example/"),
    ],
    ids=["console", "exception", "policy", "elsewhere"],
)
def test_what_a_page_must_not_do_is_noticed(window: Window, doing: str, complaint: str) -> None:
    window.open("/login/")
    assert window.complaints() == []
    window.evaluate(doing)
    wait_until(lambda: any(complaint in said for said in window.complaints()), complaint)
    window.may_complain(complaint, "ERR_NAME_NOT_RESOLVED", "elsewhere.example")
