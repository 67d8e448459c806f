"""Beat ticks on when the wall clock of its machine is moved."""

import pickle
from datetime import datetime, timedelta

import pytest
from celery.beat import ScheduleEntry

from controlplane.base import schedules
from controlplane.base.schedules import SteadySchedule, steady_now
from controlplane.celery import TICK_S, app

HOUR = timedelta(hours=1)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed in this process."""
    total = [1_000.0]
    monkeypatch.setattr(schedules.time, "monotonic", lambda: total[0])
    return total


def entry() -> ScheduleEntry:
    return ScheduleEntry(name="tick", task="tick", schedule=SteadySchedule(TICK_S), app=app)


@pytest.mark.parametrize("by", [-HOUR, HOUR])
def test_a_tick_is_due_a_second_after_the_last(
    passed: list[float], monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    tick = entry()
    # What Celery asks where a schedule does not say otherwise.
    monkeypatch.setattr(app, "now", lambda: datetime.now(tz=steady_now().tzinfo) + by)
    passed[0] += 0.6
    is_due, in_s = tick.is_due()
    assert not is_due
    assert in_s == pytest.approx(0.4)
    passed[0] += 0.4
    is_due, in_s = tick.is_due()
    assert is_due
    assert in_s == TICK_S
    following = next(tick)
    assert not following.is_due()[0]


def test_what_was_sent_last_before_the_clock_was_set_back_is_due(passed: list[float]) -> None:
    """Beat keeps the time on disk, and was started again."""
    tick = ScheduleEntry(
        name="tick",
        task="tick",
        schedule=SteadySchedule(TICK_S),
        last_run_at=steady_now() + HOUR,
        app=app,
    )
    assert tick.is_due() == (True, TICK_S)


def test_a_schedule_is_kept_on_disk(passed: list[float]) -> None:
    kept = pickle.loads(pickle.dumps(SteadySchedule(TICK_S)))
    assert kept == SteadySchedule(TICK_S)
    assert isinstance(kept, SteadySchedule)
    assert kept.now() == steady_now()


def test_every_tick_goes_by_it() -> None:
    schedules_used = [task["schedule"] for task in app.conf.beat_schedule.values()]
    assert len(schedules_used) == 12
    assert all(isinstance(used, SteadySchedule) for used in schedules_used)
