"""Due coordinators are ticked, by the second and punctually; those of silent drivers are not."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from pytest_django.fixtures import Settings

from checkpoints import driver_protocol, tasks, ticks
from checkpoints.coordinator import countdowns
from checkpoints.models import CoordinatorRow
from checkpoints.operations import savepoints
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import KeyReused, NotFound, WrongState
from controlplane.embedded.redis import Redis
from jobs import services as job_services
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from tests.processes import stopped
from tests.services import blocked_here
from tests.waiting import wait_until
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db


def due(line: Line, seconds_ago: float = 1.0) -> None:
    """Make the job's clock trigger: the state holds the time, the row repeats it."""
    row = CoordinatorRow.objects.get(job=line.job_id)
    moment = clock.now() - timedelta(seconds=seconds_ago)
    row.state["next_periodic_ms"] = clock.to_ms(moment)
    row.due_at = moment
    row.save()


def pass_deadline(line: Line, ago_ms: int) -> int:
    """Let the pending checkpoint have expired so long ago; the moment."""
    row = CoordinatorRow.objects.get(job=line.job_id)
    deadline_ms = clock.now_ms() - ago_ms
    row.state["pending"][0]["expires_at_ms"] = deadline_ms
    row.expires_at = row.due_at = clock.from_ms(deadline_ms)
    row.save()
    return deadline_ms


def test_a_due_job_is_ticked(db: None) -> None:
    line = Line.running(interval_ms=60_000)
    assert ticks.tick_due() == 0
    due(line)
    assert ticks.tick_due() == 1
    assert line.triggered() == [1]
    assert ticks.tick_due() == 0


def test_a_checkpoint_expires(db: None) -> None:
    line = Line.running(timeout_ms=10)
    savepoints.request_checkpoint(None, line.job_id)

    def has_ended() -> bool:
        line.post()
        tasks.tick_job(line.job_id)
        return line.statuses()[1] != "pending"

    wait_until(has_ended, "the checkpoint has ended")
    row = line.checkpoint(1)
    assert (row.status, row.reason) == ("failed", "checkpoint_expired")


def test_nothing_expires_before_its_driver_was_heard_of_again(db: None) -> None:
    """The control plane was away for a moment, and the acknowledgements wait at the driver."""
    line = Line.running(timeout_ms=1_000)
    savepoints.request_checkpoint(None, line.job_id)
    pass_deadline(line, 100)
    jobs.pass_time(line.driver, 0.5, "heard_at", "sent_at")
    assert ticks.tick_due() == 0
    assert not ticks.tick_one(line.job_id)
    assert line.statuses()[1] == "pending"
    line.post()
    assert ticks.tick_due() == 1
    assert line.checkpoint(1).reason == "checkpoint_expired"


def test_nothing_expires_by_a_message_that_was_sent_before_the_deadline(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the control plane, and the acknowledgements wait behind it."""
    monkeypatch.setattr(driver_protocol, "HELD_UP_MS", 600_000)  # So short a wait gives no time.
    line = Line.running(timeout_ms=1_000)
    savepoints.request_checkpoint(None, line.job_id)
    deadline_ms = pass_deadline(line, 500)
    line.post(sent_at_ms=deadline_ms - 1)
    assert clock.to_ms(line.driver.heard_at) > deadline_ms
    assert ticks.tick_due() == 0
    assert not ticks.tick_one(line.job_id)
    assert line.statuses()[1] == "pending"
    line.post(sent_at_ms=deadline_ms)
    assert ticks.tick_due() == 1
    assert line.checkpoint(1).reason == "checkpoint_expired"


@pytest.mark.django_db(transaction=True)
def test_a_tick_that_waited_for_the_lock_past_a_deadline_expires_nothing() -> None:
    """It was due for something else, and a message was being applied meanwhile."""
    line = Line.running(interval_ms=60_000)
    due(line)
    assert ticks.tick_one(line.job_id)
    assert line.statuses()[1] == "pending"
    due(line)
    is_locked = threading.Event()

    def apply() -> None:
        with transaction.atomic():
            job_services.locked(line.job_id)
            is_locked.set()
            wait_until(lambda: blocked_here() == 1, "the tick waits for the lock")
            jobs.pass_time(line.driver, 60, "sent_at")
            pass_deadline(line, 500)

    def tick() -> bool:
        is_locked.wait()
        return ticks.tick_one(line.job_id)

    assert jobs.at_once(apply, tick) == [None, False]
    assert line.statuses()[1] == "pending"
    line.post()
    assert ticks.tick_one(line.job_id)
    assert line.checkpoint(1).reason == "checkpoint_expired"


def test_the_job_of_a_silent_driver_is_not_ticked(db: None, settings: Settings) -> None:
    line = Line.running(interval_ms=60_000)
    due(line)
    jobs.pass_time(line.driver, settings.WEIR_DRIVER_SILENT_MS / 1_000 + 1, "heard_at")
    assert ticks.tick_due() == 0
    assert not ticks.tick_one(line.job_id)
    line.post()
    assert ticks.tick_due() == 1


def test_what_is_due_in_a_moment_is_counted_down_for(
    db: None,
    scheduled: list[Any],
    django_capture_on_commit_callbacks: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line.running(interval_ms=60_000)
    due(line, seconds_ago=-300.0)
    monkeypatch.setattr(countdowns, "HORIZON_MS", 600_000)
    with django_capture_on_commit_callbacks(execute=True):
        assert ticks.tick_due() == 0
    ((job_id, delay_s),) = scheduled
    assert job_id == line.job_id
    assert 200 < delay_s <= 300


def test_a_countdown_that_is_a_little_fast_is_repeated_once(
    db: None, scheduled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "EARLY_MS", 600_000)
    line = Line.running(interval_ms=60_000)
    due(line, seconds_ago=-300.0)
    scheduled.clear()
    tasks.tick_job(line.job_id)
    ((job_id, delay_s),) = scheduled
    assert job_id == line.job_id
    assert 200 < delay_s <= 300
    tasks.tick_job(line.job_id, is_repeated=True)
    assert len(scheduled) == 1


def test_a_countdown_that_finds_the_job_ticked_already_ends(
    db: None,
    scheduled: list[Any],
    django_capture_on_commit_callbacks: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several for one time the first ticks; if the others went on, they would only get more."""
    line = Line.running(interval_ms=600_000)  # It is not due again before all have ended.
    monkeypatch.setattr(countdowns, "HORIZON_MS", 600_000)
    due(line)
    scheduled.clear()
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(3):
            tasks.tick_job(line.job_id)
    assert line.triggered() == [1]
    assert [job_id for job_id, _ in scheduled] == [line.job_id]


def test_one_job_that_raises_holds_up_no_other(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [Line.running(interval_ms=60_000) for _ in range(2)]
    for line in lines:
        due(line)
    CoordinatorRow.objects.filter(job=lines[0].job_id).update(state={"no": "state"})
    assert ticks.tick_due() == 1
    assert lines[1].triggered() == [1]


# Countdowns.


def test_a_countdown_reaches_the_broker(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    import redis as client

    monkeypatch.undo()  # Schedule for real.
    countdowns.send("a-job", 0.25)
    with client.Redis.from_url(redis.url) as broker:
        (task,) = broker.lrange("coordination", 0, -1)
    assert b"checkpoints.tasks.tick_job" in task


def test_a_broker_that_is_away_is_logged_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(countdowns.app.conf, "broker_url", "redis://127.0.0.1:1/0")
    started = time.monotonic()
    for _ in range(20):
        countdowns.send("a-job", 0.25)
    assert time.monotonic() - started < 20 * countdowns.TIMEOUT_S
    assert len([r for r in caplog.records if "could not be scheduled" in r.message]) <= 2


def test_a_broker_that_hangs_holds_no_caller_up_for_long(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import redis as client

    with client.Redis.from_url(redis.url) as broker:
        pid = broker.info("server")["process_id"]
    monkeypatch.undo()
    monkeypatch.setitem(countdowns.app.conf, "broker_url", redis.url)
    with stopped(pid):
        started = time.monotonic()
        countdowns.send("a-job", 0.25)
        assert time.monotonic() - started < 60 * countdowns.TIMEOUT_S
    assert "could not be scheduled" in caplog.text


# Asking for checkpoints.


def test_a_repeated_request_is_one_operation(line: Line, operator: User) -> None:
    first = savepoints.request_checkpoint(operator, line.job_id, key="k")
    again = savepoints.request_checkpoint(operator, line.job_id, key="k")
    assert first.pk == again.pk
    assert line.triggered() == [1]
    with pytest.raises(KeyReused):
        job_services.cancel(operator, line.job_id, key="k")
    entry = AuditEntry.objects.get(action="job.checkpoint")
    assert (entry.actor, entry.target) == (operator, f"job/{line.job_id}")


def test_a_checkpoint_waits_for_its_turn(line: Line, operator: User) -> None:
    first = savepoints.request_checkpoint(operator, line.job_id)
    second = savepoints.request_checkpoint(operator, line.job_id)
    assert line.triggered() == [1]
    line.complete(1)
    assert line.triggered() == [2]
    line.complete(2)
    assert [jobs.reload(o).status for o in (first, second)] == ["succeeded"] * 2


def test_only_a_running_job_takes_checkpoints(operator: User) -> None:
    job = jobs.submitted()
    with pytest.raises(WrongState) as refused:
        savepoints.request_checkpoint(operator, job.pk)
    assert refused.value.extra == {"state": "created", "allowed": ["running"]}
    with pytest.raises(NotFound):
        savepoints.request_checkpoint(operator, "no-such-job")


def test_no_checkpoint_of_a_job_that_is_being_cancelled(line: Line, operator: User) -> None:
    job_services.cancel(operator, line.job_id)
    with pytest.raises(WrongState) as refused:
        savepoints.request_checkpoint(operator, line.job_id)
    assert refused.value.extra["state"] == JobStatus.CANCELLING.value


def test_a_cancel_overtakes_a_checkpoint(line: Line, operator: User) -> None:
    operation = savepoints.request_checkpoint(operator, line.job_id)
    job_services.cancel(operator, line.job_id)
    assert jobs.reload(operation).status == "cancelled"
    line.complete(1)
    assert line.statuses() == {1: "completed"}
    assert jobs.reload(operation).status == "cancelled"
