"""Savepoints, operations and attempts as a real browser shows them live."""

import pytest

from controlplane.accounts.models import Role
from controlplane.base import clock, wakeups
from jobs import operations
from jobs.models import Attempt, Job, Operation
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend import flights, rows_recovery
from tests.database.frontend.logging_in import log_in

pytestmark = [pytest.mark.django_db(transaction=True)]


def acknowledge(job: Job, *which: tuple[str, int]) -> None:
    flights.drive(job, *(flights.chain_acknowledged(1, chain, at) for chain, at in which))


def test_a_savepoint_is_asked_for_followed_and_there(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window)
    window.open(f"/jobs/{job.pk}/savepoints/")
    window.sees("#savepoints", "No savepoint yet.")
    window.click("Take a savepoint")
    window.sees("h1", "Take a savepoint of flights?")
    window.sees(".will", "The job keeps running meanwhile")
    window.fill("name", "before-the-upgrade")
    window.fill("labels", "env: prod")
    window.click("Take a savepoint of flights")

    window.sees("h1", "Savepoint Under way")
    window.sees(".taken", "0 of 18 subtasks acknowledged")
    mark = "document.documentElement.dataset.mark = 'not reloaded'"
    window.evaluate(mark)
    acknowledge(job, ("flights", 0), ("flights", 1))
    window.sees(".taken", "6 of 18 subtasks acknowledged")
    flights.complete(job, 1)
    window.sees("#operation", "Savepoint before-the-upgrade was taken in")
    assert not window.was_reloaded()
    window.follow("Savepoints and lineage")
    window.sees("#savepoints", "before-the-upgrade Completed")
    window.sees("#savepoints", "env: prod")
    window.sees("#lineage", "before-the-upgrade Checkpoint 1")
    assert window.complaints() == []


def test_the_list_and_the_tree_follow_what_others_do(window: Window) -> None:
    job = flights.running(interval_ms=None)
    log_in(window, Role.VIEWER)
    window.open(f"/jobs/{job.pk}/savepoints/")
    window.sees("#savepoints", "No savepoint yet.")
    asked = factories.operation(job, None, "savepoint", "running")
    made = factories.savepoint(job, "first", 20, operation=asked)
    wakeups.publish(wakeups.job(job.pk))
    window.sees("#savepoints", "first Completed")
    window.sees("#lineage", "first Checkpoint 20")
    made.name = "second"  # Of that the stream says nothing.
    made.save()
    window.sees("#savepoints", "second Completed")
    assert not window.was_reloaded()


def test_an_operation_shows_each_step_and_then_its_end(window: Window) -> None:
    job = flights.running()
    log_in(window, Role.VIEWER)
    progress = {"kind": "rollback", "phase": "relaunching", "restore": "/s/chk-10"}
    row = factories.operation(
        job, None, "rollback", "running", progress=progress, parameters={"checkpoint": 10}
    )
    Job.objects.update(status="restarting")
    window.open(f"/jobs/{job.pk}/operations/{row.pk}")
    window.sees(".steps", "under way The old driver ends")
    Job.objects.update(status="initializing")
    wakeups.publish(wakeups.job(job.pk))
    window.sees(".steps", "done The old driver ends, and a new one is launched")
    Job.objects.update(status="running")
    operations.succeed(Operation.objects.get(), {"job": job.pk})
    window.sees("#operation", "The job is running again from checkpoint 10 after")
    assert not window.was_reloaded()


def test_an_attempt_that_fails_is_seen_where_the_others_are(window: Window) -> None:
    job = factories.job()
    rows_recovery.eventful(job)
    log_in(window, Role.VIEWER)
    window.open(f"/jobs/{job.pk}/recovery/?attempt=2#attempt-2")
    window.await_figures()
    window.sees("#attempt-4", "Running")
    Attempt.objects.filter(number=4).update(
        ended_at=clock.now(), end="failed", cause="OSError: no space"
    )
    wakeups.publish(wakeups.job(job.pk))
    window.sees("#attempt-4", "Failed OSError: no space")
    assert not window.was_reloaded()
    assert window.drawn()["recovery"] >= 1
