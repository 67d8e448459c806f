"""Beat rests while there is no work, and wakes for some."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.beat import ScheduleEntry
from django.db import transaction
from pytest_django import Settings

from controlplane.accounts.models import Role
from controlplane.base import schedules, wakeups
from controlplane.base.schedules import (
    PULSE,
    PULSE_S,
    REST_S,
    SteadySchedule,
    WatchedScheduler,
    steady_now,
)
from controlplane.celery import TICK_S, app
from controlplane.deliveries import outbox
from controlplane.embedded.redis import Redis
from jobs.due_jobs import AWAY_MS
from jobs.tasks import tick
from tests import factories
from tests.services import running_redis
from weir.protocol.lifecycle import JobStatus

LATER_S = 30.0
Wait = Callable[[float], None]


@pytest.fixture(autouse=True)
def unmarked(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process has said yet that there is work."""
    monkeypatch.setattr(wakeups, "_awake_again", {})


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Lets time pass for beat."""
    passed = 0.0
    now = time.monotonic

    def passing(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(schedules.time, "monotonic", lambda: now() + passed)
    return passing


@pytest.fixture
def scheduler() -> WatchedScheduler:
    """Beat's scheduler, without its schedule on disk."""
    return WatchedScheduler(app, schedule={}, lazy=True)


def entry(every_s: float = TICK_S, task: str = "tick") -> ScheduleEntry:
    return ScheduleEntry("tick", task, steady_now(), schedule=SteadySchedule(every_s), app=app)


@pytest.mark.parametrize(("task", "rest_s"), [("tick", REST_S), (PULSE, PULSE_S)])
def test_without_work_a_tick_waits_for_the_time_of_rest(
    scheduler: WatchedScheduler, wait: Wait, task: str, rest_s: float
) -> None:
    ticked = entry(task=task)
    wait(TICK_S)
    assert ticked.is_due() == (True, TICK_S)
    is_due, in_s = scheduler.is_due(ticked)
    assert not is_due
    assert in_s <= schedules.LOOK_S
    wait(rest_s - TICK_S - 0.5)
    assert not scheduler.is_due(ticked)[0]
    wait(0.5)
    assert scheduler.is_due(ticked) == (True, TICK_S)


def test_a_task_that_is_rarer_than_the_time_of_rest_is_punctual(
    scheduler: WatchedScheduler, wait: Wait
) -> None:
    rare = entry(LATER_S)
    wait(LATER_S)
    assert scheduler.is_due(rare) == (True, LATER_S)


def test_a_wake_up_ends_the_rest_for_a_while(
    scheduler: WatchedScheduler, settings: Settings, wait: Wait
) -> None:
    ticked = entry()
    wait(TICK_S)
    assert not scheduler.is_due(ticked)[0]
    wakeups.publish(wakeups.job("a-job"))
    wait(schedules.LOOK_S)
    assert scheduler.is_due(ticked)[0]
    wait(wakeups.AWAKE_S)
    wakeups.client(settings.REDIS_URL).delete(
        wakeups.AWAKE
    )  # Redis's clock did not move with beat's.
    ticked = entry()
    wait(TICK_S)
    assert not scheduler.is_due(ticked)[0]


def test_beat_does_not_rest_without_redis(
    scheduler: WatchedScheduler, settings: Settings, wait: Wait
) -> None:
    ticked = entry()
    wait(TICK_S)
    with running_redis() as mortal:
        settings.REDIS_URL = mortal.url
        assert not scheduler.is_due(ticked)[0]
    wait(schedules.LOOK_S)
    assert scheduler.is_due(ticked)[0]


def test_a_broker_that_is_away_is_one_line(
    scheduler: WatchedScheduler,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And looked for as often as before."""
    with running_redis() as mortal:
        settings.REDIS_URL = mortal.url
    due = [entry(task=PULSE), entry(task="checkpoints.tasks.tick")]
    tried: list[str] = []
    refused = scheduler.apply_async

    def apply(entry: ScheduleEntry, **kwargs: Any) -> Any:
        tried.append(entry.task)
        return refused(entry, **kwargs)

    monkeypatch.setattr(scheduler, "apply_async", apply)
    with app.connection_for_write(
        settings.REDIS_URL, transport_options={"max_retries": 0}
    ) as broker:
        producer = app.amqp.Producer(broker, auto_declare=False)
        for ticked in due:
            assert scheduler._is_awake()
            ticked.options["retry"] = False
            scheduler.apply_entry(ticked, producer=producer)
    assert tried == [PULSE, "checkpoints.tasks.tick"]
    (record,) = caplog.records
    assert "Redis" in record.getMessage()
    assert record.exc_info is None


def test_a_task_that_cannot_be_sent_for_another_reason_keeps_its_traceback(
    scheduler: WatchedScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        ticked = entry(task=PULSE)
        ticked.args = [object()]  # No JSON.
        scheduler.apply_entry(ticked)
    assert [bool(record.exc_info) for record in caplog.records] == [True, True]


def test_the_rest_of_the_pulse_is_shorter_than_a_gap() -> None:
    assert PULSE in {task["task"] for task in app.conf.beat_schedule.values()}
    assert 1_000 * (PULSE_S + schedules.LOOK_S) <= AWAY_MS


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("status", "keeps_awake"), [(JobStatus.RUNNING, True), (JobStatus.FINISHED, False)]
)
def test_a_job_that_goes_on_keeps_beat_awake(status: JobStatus, keeps_awake: bool) -> None:
    factories.job(status=status)
    tick()
    assert (wakeups.awake_s() > 0) is keeps_awake


@pytest.mark.django_db
def test_an_open_operation_keeps_beat_awake() -> None:
    job = factories.job(status=JobStatus.FINISHED)
    factories.operation(job, factories.user(Role.OPERATOR), "preview", "running")
    tick()
    assert wakeups.awake_s() > 0


@pytest.mark.django_db(transaction=True)
def test_a_notice_wakes_beat_when_it_is_committed() -> None:
    endpoint = factories.endpoint("https://203.0.113.7/")
    with transaction.atomic():
        outbox.post(factories.notice(), [endpoint])
        assert wakeups.awake_s() == 0
    assert wakeups.awake_s() > 0
