"""The database's clock is moved under jobs: nothing expires, nothing stops, no driver is lost."""

from datetime import timedelta
from typing import Any

import pytest

from checkpoints import tasks, ticks
from checkpoints.models import CoordinatorRow
from checkpoints.operations import savepoints
from controlplane.base import clock
from controlplane.base.clock import _Watch
from jobs import due_jobs, operations
from jobs import services as job_services
from jobs.models import Driver, DriverStatus, Job, Operation
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.test_ticking import due
from tests.database.controlplane.moved_clock import HOUR_S, MovedClock
from tests.database.jobs import builders as jobs
from weir.bounds import NUMBER_MAX
from weir.config import RestartConfig, RestartStrategyKind

pytestmark = pytest.mark.django_db(transaction=True)

MOVES = [pytest.param(-HOUR_S, id="back"), pytest.param(HOUR_S, id="ahead")]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    database = MovedClock(monkeypatch)
    clock.now()
    return database


def tick() -> None:
    """The tasks that beat starts every second."""
    due_jobs.tick()
    operations.expire_due()
    tasks.tick()


@pytest.mark.parametrize("by_s", MOVES)
def test_a_checkpoint_under_way_neither_expires_nor_lasts_for_ever(
    database: MovedClock, by_s: float
) -> None:
    line = Line.running(interval_ms=600_000, timeout_ms=300_000)
    savepoints.request_checkpoint(None, line.job_id)
    line.post()
    database.move(by_s)
    line.post()
    tick()
    assert line.statuses() == {1: "pending"}
    database.pass_time(270)  # A twentieth more or less, as the clock comes back to the database's.
    line.post()
    tick()
    assert line.statuses() == {1: "pending"}
    database.pass_time(60)
    line.post()
    tick()
    assert line.statuses()[1] == "failed"
    assert line.checkpoint(1).reason == "checkpoint_expired"
    assert database.corrections == 1


def test_a_checkpoint_that_completes_when_a_machine_wakes_after_a_month_is_stored(
    database: MovedClock,
) -> None:
    line = Line.running(interval_ms=60_000)
    due(line)
    line.post()
    tick()
    assert line.triggered() == [1]
    database.pass_time(30 * 24 * HOUR_S)
    line.complete(1)
    assert line.statuses()[1] == "completed"
    assert line.checkpoint(1).duration_ms == NUMBER_MAX


@pytest.mark.parametrize("by_s", MOVES)
def test_the_next_checkpoint_is_triggered_when_it_would_have_been(
    database: MovedClock, by_s: float
) -> None:
    line = Line.running(interval_ms=60_000)
    due(line, seconds_ago=-20)
    database.move(by_s)
    line.post()
    tick()
    assert line.triggered() == []
    database.pass_time(22)
    line.post()
    tick()
    assert line.triggered() == [1]
    line.complete(1)
    row = CoordinatorRow.objects.get(job=line.job_id)
    assert row.next_trigger_at is not None
    assert row.next_trigger_at - clock.now() < timedelta(seconds=60)
    assert 0 <= line.checkpoint(1).duration_ms < 10_000


@pytest.mark.parametrize("by_s", MOVES)
def test_no_driver_is_lost_that_speaks_and_one_that_is_silent_is(
    database: MovedClock, by_s: float, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_jobs, "_gateway_answers", lambda: True)
    line = Line.running(interval_ms=60_000)
    settings.WEIR_DRIVER_TIMEOUT_MS = 30_000
    line.post()
    tick()
    database.move(by_s)
    tick()
    assert Driver.objects.get(pk=line.driver.pk).status == DriverStatus.RUNNING
    for _ in range(9):  # It would be lost on the tenth.
        database.pass_time(4)
        line.post()
        tick()
    assert Driver.objects.get(pk=line.driver.pk).status == DriverStatus.RUNNING
    for _ in range(9):
        database.pass_time(4)
        tick()
    assert Driver.objects.get(pk=line.driver.pk).status == DriverStatus.LOST


@pytest.mark.parametrize("by_s", MOVES)
def test_a_job_is_relaunched_after_its_delay(database: MovedClock, by_s: float) -> None:
    fixed = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=2, delay_ms=600_000)
    job = jobs.lose(jobs.running(plan=jobs.planned(restart=fixed)))
    assert job.restart_at is not None
    database.move(by_s)
    tick()
    assert Job.objects.get(pk=job.pk).restart_at is not None
    database.pass_time(550)
    tick()
    assert Job.objects.get(pk=job.pk).restart_at is not None
    database.pass_time(100)
    tick()
    assert Job.objects.get(pk=job.pk).restart_at is None
    assert Driver.objects.filter(job=job, status=DriverStatus.REQUESTED).count() == 1


@pytest.mark.parametrize("by_s", MOVES)
def test_operations_and_cancellations_keep_their_deadlines(
    database: MovedClock, by_s: float, settings: Any
) -> None:
    settings.WEIR_CANCEL_GRACE_MS = 20_000
    line = Line.running(interval_ms=60_000)
    operation = savepoints.request_checkpoint(None, line.job_id)
    other = Line.running(interval_ms=60_000)
    job_services.cancel(None, other.job_id)
    database.move(by_s)
    tick()
    assert Operation.objects.get(pk=operation.pk).status == "running"
    assert Job.objects.get(pk=other.job_id).status == "running"  # Its driver has not obeyed yet.
    database.pass_time(25)
    tick()
    assert Job.objects.get(pk=other.job_id).status == "canceled"
    database.pass_time(settings.WEIR_OPERATION_TIMEOUT_MS / 1_000)
    tick()
    assert Operation.objects.get(pk=operation.pk).status == "expired"


@pytest.mark.parametrize("by_s", MOVES)
def test_two_workers_tick_and_the_clock_is_corrected_once(
    database: MovedClock, by_s: float
) -> None:
    line = Line.running(interval_ms=60_000, timeout_ms=30_000)
    savepoints.request_checkpoint(None, line.job_id)
    other = _Watch()
    with database.within(other):
        tick()
    tick()
    expires_at = CoordinatorRow.objects.get(job=line.job_id).expires_at
    database.move(by_s)
    for _ in range(3):
        tick()
        with database.within(other):
            tick()
    assert database.corrections == 1
    assert line.statuses() == {1: "pending"}
    assert CoordinatorRow.objects.get(job=line.job_id).expires_at == expires_at


def test_a_countdown_counts_by_the_clock_that_goes_on(
    database: MovedClock, scheduled: list[Any]
) -> None:
    line = Line.running(interval_ms=60_000)
    due(line, seconds_ago=-1.0)
    scheduled.clear()
    database.move(-HOUR_S)
    line.post()
    ticks.tick_due()
    assert [delay_s <= 1.0 for _, delay_s in scheduled] == [True]
