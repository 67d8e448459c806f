"""Jobs that ended, or began anew, because that was asked for: nothing looks like a failure."""

from datetime import timedelta

import pytest

from controlplane.base import clock
from jobs.models import Job
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend import flights, rows_recovery
from tests.database.frontend.logging_in import log_in
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus

pytestmark = [pytest.mark.django_db(transaction=True)]

VERDICT = "section.verdict"
RECOVERIES = "[aria-labelledby=recoveries-title]"
COLOURS = (
    "Object.fromEntries(document.querySelector('[data-figure=history]').data"
    ".map((trace) => [trace.name, trace.marker && trace.marker.color]))"
)
DOWN = (
    "document.querySelector('[data-figure=history]').layout.shapes"
    ".map((shape) => [shape.x0, shape.fillcolor])"
)


def colour(window: Window, name: str) -> str:
    return str(
        window.evaluate(
            "(name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()",
            f"--{name}",
        )
    )


def open_on_both(window: Window, path: str) -> None:
    """Open a page as on a phone, where nothing may stick out, then as on a desk."""
    window.resize(390)
    window.open(path)
    window.await_figures()
    assert window.hides_sideways() == 0
    window.resize(1280)
    window.await_figures()


def eventful(name: str) -> Job:
    """A job with two failures and a takeover that was asked for, and checkpoints all along."""
    job = factories.job(name)
    factories.graph(job)
    factories.subtasks(job)
    rows_recovery.eventful(job)
    now = clock.now()
    for number, minutes in enumerate((55, 30, 15, 5), 1):
        factories.checkpoint(job, number, triggered_at=now - timedelta(minutes=minutes))
    return job


def abort(job: Job, number: int, reason: FailureReason) -> None:
    factories.checkpoint(job, number, status=CheckpointStatus.ABORTED, reason=reason)


def test_a_cancelled_job_opens_with_that_and_what_was_aborted_is_grey(window: Window) -> None:
    job = eventful("trips")
    abort(job, 5, FailureReason.JOB_CANCELED)
    by, now = factories.user(), clock.now()
    factories.operation(job, by, "cancel", "succeeded")
    job.attempts.filter(ended_at=None).update(end="canceled", ended_at=now)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.CANCELED, ended_at=now)
    log_in(window)

    open_on_both(window, f"/jobs/{job.pk}/?window=hour")
    window.sees("main", f"Cancelled by {by.username}")
    window.sees("main", "Output since the last completed checkpoint is not committed.")
    window.sees_nothing(VERDICT)
    window.sees("#progress", "Aborted: the job was cancelled.")
    window.sees("#history", "5 checkpoints, none failed, 1 aborted")
    assert window.evaluate(COLOURS)["Aborted"] == colour(window, "quiet") != colour(window, "bad")
    # Up for an hour, but for 3 s and 14 s of failures and 5 s that were asked for.
    window.sees(".tiles", "Ran for 59 min 38 s")
    window.sees(RECOVERIES, "Took over as requested: rolled back to checkpoint 4 by ada.")

    window.open(f"/jobs/{job.pk}/recovery/")
    window.sees("main", "2 failures, 1 planned")
    window.sees("main", "up for 59 min 38 s in 4 attempts")
    window.open("/jobs/")
    assert "59 min 38 s" in window.text("table.jobs tbody tr")
    assert "failed" not in window.text("table.jobs tbody tr").lower()
    drawn = "(name) => document.querySelector(`.spark path.${name}`).getAttribute('d')"
    assert window.evaluate(drawn, "aborted") != ""
    assert window.evaluate(drawn, "failed") == ""


def test_a_finished_job_opens_with_that(window: Window) -> None:
    job = factories.job("clicks", status=JobStatus.FINISHED)
    now = clock.now()
    driver = factories.driver(job, status="ended", ended_at=now)
    factories.attempt(driver, ended_at=now, end="finished")
    factories.graph(job)
    factories.subtasks(job, SubtaskStatus.FINISHED)
    flights.history(job, 15, until=job.ended_at)
    log_in(window)
    open_on_both(window, f"/jobs/{job.pk}/")
    window.sees("main", "Finished: its sources ended")
    window.sees("main", "All its output is committed.")
    window.sees_nothing(VERDICT)
    window.sees(".tiles", "Ran for")
    assert window.evaluate(DOWN) == []


def test_the_takeover_of_a_rescaled_job_is_planned_and_its_downtime_grey(window: Window) -> None:
    job = eventful("trips")
    job.attempts.filter(number=3).update(cause="rescaled from 2 to 4 by ada")
    abort(job, 5, FailureReason.JOB_RESCALED)
    log_in(window)
    open_on_both(window, f"/jobs/{job.pk}/?window=hour")
    window.sees("#history", "none failed, 1 aborted")
    window.sees(RECOVERIES, "Attempt 4 Planned")
    window.sees(RECOVERIES, "Took over as requested: rescaled from 2 to 4 by ada.")
    window.sees(RECOVERIES, "Attempt 3 Recovery")
    down = sorted(window.evaluate(DOWN))
    assert len(down) == 3
    failed, lost, rescaled = (fill for _, fill in down)
    assert failed == lost != rescaled, "the newest was asked for"
