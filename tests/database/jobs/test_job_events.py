"""Facts about jobs as rows: which are written, with what they tell of, and in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction

from controlplane.accounts.models import User
from controlplane.base import clock
from jobs import due_jobs, job_events, operations, services
from jobs.headlines import LENGTH_MAX
from jobs.models import (
    Attempt,
    AttemptEnd,
    DesiredState,
    DriverStatus,
    Job,
    JobEvent,
    JobEventKind,
    JobException,
    OperationKind,
)
from tests.database.jobs import builders as jobs
from weir.protocol.driver_messages import PipelineFailed
from weir.protocol.lifecycle import JobStatus

CHANGED = JobEventKind.JOB_CHANGED
BEGAN, ENDED = JobEventKind.ATTEMPT_BEGAN, JobEventKind.ATTEMPT_ENDED
OPERATION, LOST = JobEventKind.OPERATION_ENDED, JobEventKind.DRIVER_LOST

Told = list[tuple[str, str, bool]]


def told(job: Job, position: int = 0) -> Told:
    """Kind, reason and whether it was planned, of the job's events after an id."""
    return [(e.kind, e.reason, e.planned) for e in job_events.after(position, job_id=job.pk)]


def newest(job: Job) -> int:
    return JobEvent.objects.filter(job=job).latest("pk").pk


@pytest.mark.django_db
def test_a_jobs_way_to_its_end_is_told_in_order(operator: User) -> None:
    job = jobs.running(operator)
    jobs.apply(job, jobs.changed(JobStatus.FINISHED))
    assert told(job) == [
        (CHANGED, "initializing", True),
        (BEGAN, "", True),
        (CHANGED, "running", True),
        (OPERATION, "succeeded", True),
        (ENDED, "finished", True),
        (CHANGED, "finished", True),
    ]


@pytest.mark.django_db
def test_a_failure_and_the_recovery_from_it_are_not_planned(operator: User) -> None:
    job = jobs.running(operator)
    before = newest(job)
    cause = "Traceback (most recent call last):\n  File ...\nValueError: no column 'x'"
    jobs.apply(
        job,
        jobs.changed(JobStatus.FAILING, cause),
        jobs.changed(JobStatus.RESTARTING),
        jobs.changed(JobStatus.INITIALIZING),
        jobs.attempt_started(2),
        jobs.changed(JobStatus.RUNNING),
    )
    assert told(job, before) == [
        (ENDED, "failed", False),
        (CHANGED, "failing", False),
        (CHANGED, "restarting", False),
        (CHANGED, "initializing", False),
        (BEGAN, "", False),
        (CHANGED, "running", False),
    ]
    ended = JobEvent.objects.get(job=job, kind=ENDED)
    assert ended.facts == {"attempt": 1, "driver": 1, "cause": "ValueError: no column 'x'"}


@pytest.mark.django_db
def test_a_restart_that_was_asked_for_is_planned_also_after_a_failure(operator: User) -> None:
    job = jobs.running(operator)
    jobs.apply(job, jobs.changed(JobStatus.FAILING, "why"), jobs.changed(JobStatus.FAILED))
    before = newest(job)
    services.restart(operator, job.pk)
    jobs.speaking(job)
    jobs.apply(job, jobs.planned(), *jobs.coming_up(2))
    events = told(job, before)
    assert [event for event in events if event[0] != OPERATION] == [
        (CHANGED, "restarting", True),
        (CHANGED, "initializing", True),
        (BEGAN, "", True),
        (CHANGED, "running", True),
    ]
    assert (OPERATION, "succeeded", True) in events


@pytest.mark.django_db
def test_a_running_job_that_is_restarted_lost_nothing(operator: User) -> None:
    job = jobs.running(operator)
    before = newest(job)
    services.restart(operator, job.pk)
    assert told(job, before) == [(ENDED, "canceled", True), (CHANGED, "restarting", True)]
    assert jobs.reload(job).is_planned
    assert not JobException.objects.filter(job=job).exists()


@pytest.mark.django_db
def test_a_lost_driver_is_told_and_is_no_surprise_while_its_job_is_cancelled(
    operator: User,
) -> None:
    job = jobs.running(operator, jobs.planned(restart=jobs.ALWAYS_AT_ONCE))
    before = newest(job)
    jobs.lose(job, "its JVM was killed\nand more")
    assert told(job, before) == [
        (LOST, "", False),
        (ENDED, "failed", False),
        (CHANGED, "restarting", False),
    ]
    lost = JobEvent.objects.get(job=job, kind=LOST)
    assert lost.facts == {"driver": 1, "cause": "its JVM was killed"}

    other = jobs.running(operator)
    services.cancel(operator, other.pk)
    before = newest(other)
    jobs.lose(other)
    assert told(other, before) == [
        (LOST, "", True),
        (ENDED, "canceled", True),
        (CHANGED, "canceled", True),
        (OPERATION, "succeeded", True),
    ]


@pytest.mark.django_db
def test_a_script_that_fails_as_its_job_is_cancelled_fails_no_attempt(operator: User) -> None:
    job = jobs.running(operator)
    services.cancel(operator, job.pk)
    jobs.apply(job, PipelineFailed(0, "interrupted"))
    assert Attempt.objects.get(job=job).end == AttemptEnd.CANCELED
    assert not JobEvent.objects.filter(job=job, planned=False).exists()


@pytest.mark.django_db
def test_an_operation_that_fails_or_expires_is_not_planned_one_that_is_overtaken_is(
    operator: User,
) -> None:
    job = jobs.running(operator)
    with transaction.atomic():
        locked = services.locked(job.pk)
        failing = operations.begin(locked, OperationKind.CHECKPOINT, operator, {}, key="a")
        overtaken = operations.begin(locked, OperationKind.CHECKPOINT, operator, {}, key="b")
        expiring = operations.begin(locked, OperationKind.PREVIEW, operator, {}, key="c")
    before = newest(job)
    operations.fail(failing, "the disk is full\nsee below")
    operations.fail(failing, "twice")
    services.restart(operator, job.pk)
    jobs.pass_time(expiring, 100_000, "deadline_at")
    operations.expire_due()
    ended = {
        e.facts["operation"]: (e.reason, e.planned, e.facts["kind"])
        for e in job_events.after(before, job_id=job.pk)
        if e.kind == OPERATION
    }
    assert ended == {
        str(failing.pk): ("failed", False, "checkpoint"),
        str(overtaken.pk): ("cancelled", True, "checkpoint"),
        str(expiring.pk): ("expired", False, "preview"),
    }
    event = JobEvent.objects.get(job=job, facts__operation=str(failing.pk))
    assert event.facts["error"] == "the disk is full"


@pytest.mark.django_db
def test_texts_are_bounded_and_storable(operator: User) -> None:
    job = jobs.running(operator)
    jobs.apply(job, jobs.changed(JobStatus.FAILING, "a\0b" + "x" * 10_000))
    cause = JobEvent.objects.get(job=job, kind=ENDED).facts["cause"]
    assert len(cause) == LENGTH_MAX
    assert cause.startswith("a\ufffdb")


# Suspended by the control plane that stops.


@pytest.mark.django_db
def test_the_drivers_of_a_control_plane_that_stops_are_not_lost(operator: User) -> None:
    job = jobs.running(operator)
    waiting, canceling = jobs.submitted(operator), jobs.running(operator)
    services.cancel(operator, canceling.pk)
    before = newest(job)
    assert services.suspend_all("stopped") == 2
    assert services.suspend_all("stopped") == 0

    assert told(job, before) == [(ENDED, "suspended", True), (CHANGED, "restarting", True)]
    job = jobs.reload(job)
    assert (job.status, job.is_planned, job.restart_state) == ("restarting", True, None)
    driver = jobs.driver_of(job)
    assert (driver.number, driver.status) == (1, DriverStatus.ENDED)
    assert driver.stop_requested_at is not None
    assert not JobException.objects.filter(job=job).exists()
    assert jobs.reload(canceling).status == JobStatus.CANCELED
    assert jobs.driver_of(waiting).status == DriverStatus.REQUESTED

    assert due_jobs.relaunch_due() == 1
    assert jobs.driver_of(job).number == 2
    assert jobs.reload(job).desired == DesiredState.RUNNING


# With what they tell of, and in order.


@pytest.mark.django_db(transaction=True)
def test_no_event_without_its_fact_and_no_fact_without_its_event(operator: User) -> None:
    job = jobs.running(operator)
    before = JobEvent.objects.count()
    with transaction.atomic():
        services.restart(operator, job.pk)
        assert JobEvent.objects.count() > before
        transaction.set_rollback(True)
    assert JobEvent.objects.count() == before
    with pytest.raises(AssertionError, match="in the transaction of its fact"):
        job_events.record(job, LOST, clock.now())


class Writer:
    """A thread with a connection of its own, whose transaction the test holds open."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._asked: SimpleQueue[str] = SimpleQueue()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def ask(self, what: str) -> int:
        """``write`` an event, ``commit``, or ``roll back``; gives the id of what was written."""
        self._asked.put(what)
        answer = self._done.get(timeout=120)
        if isinstance(answer, BaseException):
            raise answer
        return int(answer)

    def close(self) -> None:
        self._asked.put("roll back")
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            transaction.set_autocommit(False)
            connection.in_atomic_block = True  # So says the test, which begins and ends it.
            while True:
                match self._asked.get(timeout=240):
                    case "write":
                        job_events.record(self._job, LOST, clock.now(), driver=1)
                        self._done.put(JobEvent.objects.latest("pk").pk)
                    case "commit":
                        connection.connection.commit()
                        self._done.put(0)
                        return
                    case _:
                        connection.connection.rollback()
                        self._done.put(0)
                        return
        except BaseException as error:
            self._done.put(error)
        finally:
            connection.in_atomic_block = False
            connection.close()


@contextmanager
def writers(*of: Job) -> Iterator[list[Writer]]:
    made = [Writer(job) for job in of]
    try:
        yield made
    finally:
        for writer in made:
            writer.close()


@pytest.mark.django_db(transaction=True)
def test_an_event_that_commits_late_is_not_passed_over(operator: User) -> None:
    """Ids come in one order and transactions commit in the other: the first is waited for."""
    one, other = jobs.running(operator), jobs.running(operator)
    position = JobEvent.objects.latest("pk").pk
    with writers(one, other) as (early, late):
        first, second = early.ask("write"), late.ask("write")
        assert first < second
        late.ask("commit")
        assert JobEvent.objects.filter(pk=second).exists(), "visible, and still held back"
        assert job_events.after(position) == []
        early.ask("commit")
        assert [e.pk for e in job_events.after(position)] == [first, second]
        assert [e.pk for e in job_events.after(first)] == [second]


@pytest.mark.django_db(transaction=True)
def test_an_event_that_never_commits_holds_readers_up_as_long_as_its_transaction(
    operator: User,
) -> None:
    job = jobs.running(operator)
    position = JobEvent.objects.latest("pk").pk
    with writers(job, job) as (never, second):
        never.ask("write")
        kept = second.ask("write")
        second.ask("commit")
        assert job_events.after(position) == []
        never.ask("roll back")
        assert [e.pk for e in job_events.after(position)] == [kept]


@pytest.mark.django_db(transaction=True)
def test_what_was_committed_before_is_read_while_others_write(operator: User) -> None:
    job = jobs.running(operator)
    known = [e.pk for e in job_events.after(0)]
    assert known == list(JobEvent.objects.order_by("pk").values_list("pk", flat=True))
    with writers(job) as (writer,):
        writer.ask("write")
        assert [e.pk for e in job_events.after(0)] == known
    assert [e.pk for e in job_events.after(known[0], limit=2)] == known[1:3]


@pytest.mark.django_db(transaction=True)
def test_readers_that_go_on_from_their_position_see_each_event_once(operator: User) -> None:
    """Eight writers at once, many rounds, and a reader in between: nothing lost, nothing twice."""
    made = [jobs.running(operator) for _ in range(8)]
    begin = JobEvent.objects.latest("pk").pk
    seen: list[int] = []

    def write(job: Job) -> None:
        for _ in range(25):
            with transaction.atomic():
                job_events.record(job, LOST, clock.now(), driver=1)

    def read() -> None:
        position = begin
        while len(seen) < 200:
            for event in job_events.after(position, limit=7):
                seen.append(event.pk)
                position = event.pk

    results = jobs.at_once(read, *((lambda job=job: write(job)) for job in made))
    assert [error for error in results if error is not None] == []
    assert seen == sorted(set(seen))
    assert seen == list(
        JobEvent.objects.filter(pk__gt=begin).order_by("pk").values_list("pk", flat=True)
    )
