"""A job whose due step fails is set aside with its cause; the jobs behind it are served."""

from datetime import timedelta

import pytest

from checkpoints import tasks, ticks
from checkpoints.coordinator.shell import state_of
from checkpoints.models import CoordinatorRow
from controlplane.base import clock
from controlplane.base.ticks import run_all
from jobs import due_jobs, set_aside
from jobs.models import Job, JobException, SetAsideStep
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from weir.protocol.coordinator import CoordinatorState
from weir.protocol.wire import from_wire

pytestmark = pytest.mark.django_db


def due(line: Line, seconds_ago: float) -> None:
    """Make the job's clock trigger: the state holds the time, the row repeats it."""
    row = CoordinatorRow.objects.get(job=line.job_id)
    moment = clock.now() - timedelta(seconds=seconds_ago)
    row.state["next_periodic_ms"] = clock.to_ms(moment)
    row.due_at = moment
    row.save()


def broken(seconds_ago: float) -> Line:
    """A job whose coordinator's state cannot be read, as another version may have written it."""
    line = Line.running(interval_ms=60_000)
    due(line, seconds_ago)
    row = CoordinatorRow.objects.get(job=line.job_id)
    row.state |= {"next_id": "many", "surprise": 1}
    row.save()
    return line


def again(line: Line) -> None:
    """Let the pause pass."""
    step = SetAsideStep.objects.get(job=line.job_id)
    jobs.pass_time(step, set_aside.BACKOFF_MAX_S, "retry_at")


def test_rows_that_fail_do_not_take_the_whole_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "CLAIMED_MAX", 2)
    first, second = broken(3), broken(2)
    good = Line.running(interval_ms=60_000)
    due(good, 1)
    assert ticks.tick_due() == 0, "the two that fail are all that the first look takes"
    assert set(SetAsideStep.objects.values_list("job", flat=True)) == {first.job_id, second.job_id}
    assert ticks.tick_due() == 1
    assert good.triggered() == [1]


def test_the_cause_is_told_once_and_the_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    line = broken(1)
    pauses = []
    for _ in range(4):
        ticks.tick_due()
        kept = SetAsideStep.objects.get(job=line.job_id)
        pauses.append((kept.retry_at - clock.now()).total_seconds())
        again(line)
    assert kept.failures == 4
    assert pauses == sorted(pauses)
    assert 4 < pauses[-1] / set_aside.BACKOFF_MIN_S <= 8
    told = JobException.objects.get(job=line.job_id, kind="internal")
    assert "checkpoint of the control plane failed and is set aside" in told.text
    assert "surprise" in told.text


def test_a_countdown_leaves_out_a_job_that_is_set_aside() -> None:
    line = broken(1)
    tasks.tick_job(line.job_id)
    assert SetAsideStep.objects.get(job=line.job_id).failures == 1
    tasks.tick_job(line.job_id)
    assert SetAsideStep.objects.get(job=line.job_id).failures == 1


def test_a_job_that_was_repaired_is_ticked_again() -> None:
    line = broken(1)
    ticks.tick_due()
    row = CoordinatorRow.objects.get(job=line.job_id)
    row.state = {key: value for key, value in row.state.items() if key != "surprise"}
    row.state["next_id"] = 1
    row.save()
    assert from_wire(CoordinatorState, row.state) == state_of(line.job)
    assert ticks.tick_due() == 0, "its time has not come"
    again(line)
    assert ticks.tick_due() == 1
    assert line.triggered() == [1]


def test_what_has_not_failed_for_an_hour_is_forgotten() -> None:
    line = broken(1)
    ticks.tick_due()
    assert set_aside.forget_old() == 0
    SetAsideStep.objects.update(retry_at=clock.now() - timedelta(hours=2))
    assert set_aside.forget_old() == 1
    assert not SetAsideStep.objects.filter(job=line.job_id).exists()


def test_relaunches_that_fail_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_jobs, "CLAIMED_MAX", 1)
    waiting = []
    for seconds_ago in (2, 1):
        job = jobs.submitted()
        jobs.lose(job)
        due_at = clock.now() - timedelta(seconds=seconds_ago)
        Job.objects.filter(pk=job.pk).update(restart_at=due_at)
        waiting.append(job)
    bad, good = waiting
    relaunch = due_jobs._relaunch

    def fail(job: Job) -> bool:
        if job.pk == bad.pk:
            raise ValueError("this row cannot be")
        return relaunch(job)

    monkeypatch.setattr(due_jobs, "_relaunch", fail)
    assert due_jobs.relaunch_due() == 0
    assert due_jobs.relaunch_due() == 1
    assert jobs.driver_of(good).number == 2
    assert jobs.driver_of(bad).number == 1
    assert SetAsideStep.objects.get().cause == "ValueError: this row cannot be"


def test_parts_of_a_tick_run_behind_one_that_raises() -> None:
    ran = []

    def fails() -> None:
        ran.append("fails")
        raise ValueError("first")

    def runs() -> None:
        ran.append("runs")

    with pytest.raises(ValueError, match="first"):
        run_all(fails, runs, fails)
    assert ran == ["fails", "runs", "fails"]
