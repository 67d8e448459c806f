"""Batches are applied once however often they come; commands are handed out in order."""

import json
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import DjangoAssertNumQueries

from checkpoints import driver_protocol
from checkpoints.models import SubtaskAck
from checkpoints.operations import savepoints
from controlplane.base import clock
from controlplane.base.errors import DriverFenced, Invalid, NotFound, Unauthorized
from jobs.models import Driver, JobException, OutboxCommand
from tests import builders as protocol
from tests.database.checkpoints.line import Line, body
from tests.database.jobs import builders as jobs
from weir.protocol.driver_messages import DriverLost, EventBatch
from weir.protocol.events import Notice
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import CheckpointRequested, TriggerCheckpoint

pytestmark = pytest.mark.django_db


# Events.


def test_the_same_batch_twice_counts_once(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    up_to = line.post(*protocol.acks(1)[:3])
    assert line.send(line.batches[-1]) == up_to
    assert SubtaskAck.objects.count() == 5
    assert line.checkpoint(1).acknowledged_count == 5
    assert not JobException.objects.exists()


def test_a_batch_that_overlaps_counts_from_where_it_is_new(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    first = line.number
    line.post(*protocol.acks(1)[:2])
    assert line.send(EventBatch(first, tuple(protocol.acks(1)))) == first + 3
    assert line.checkpoint(1).acknowledged_count == 6


def test_a_gap_is_refused_by_number(line: Line) -> None:
    up_to = line.number - 1
    with pytest.raises(Invalid, match=f"event {up_to + 1} is expected") as refused:
        line.send(EventBatch(up_to + 2, (Notice(0, "hello"),)))
    assert refused.value.extra == {"expected": up_to + 1}
    assert line.send(EventBatch(up_to + 1, ())) == up_to


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"no json",
        b"[]",
        b"[" * 100_000,
        b'{"first_number": 1}',
        b'{"first_number": 0, "events": []}',
        b'{"first_number": 1, "events": [], "away_ms": -1}',
        b'{"first_number": 1, "events": [{"type": "Surprise"}]}',
        b'{"first_number": 1, "events": [], "more": 1}',
        b'{"first_number": 1' + b"0" * 5_000 + b', "events": []}',
        b"\xff\xfe",
        b'{"first_number": 1, "events": [], "a\xed\xa0\x80": 1}',
        '{"first_number": 1, "events": []}'.encode("utf-16"),
    ],
)
def test_what_is_no_batch_is_refused(line: Line, sent: bytes) -> None:
    with pytest.raises(Invalid):
        driver_protocol.receive(line.job_id, line.token, sent)


def test_a_number_beyond_the_databases_is_refused_and_nothing_is_kept(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    ack = protocol.ack("sink-0", 1)
    huge = json.loads(body(EventBatch(line.number, (ack,))))
    huge["events"][0]["operators"][0]["metrics"]["records"] = 2**63
    with pytest.raises(Invalid, match="cannot be stored"):
        driver_protocol.receive(line.job_id, line.token, json.dumps(huge).encode())
    assert line.driver.applied_up_to == line.number - 1
    assert line.checkpoint(1).acknowledged_count == 0


def test_characters_that_the_database_has_no_place_for_are_replaced(line: Line) -> None:
    sent = body(EventBatch(line.number, (Notice(0, "a\0b\ud800c and \\u0000 \U0001f600"),)))
    driver_protocol.receive(line.job_id, line.token, sent)
    text = JobException.objects.get(kind="notice").text
    assert text == "a\ufffdb?c and \\u0000 \U0001f600"


def test_strangers_are_refused(line: Line) -> None:
    other = Line.running()
    empty = body(EventBatch(1, ()))
    with pytest.raises(NotFound):
        driver_protocol.receive("no-such-job", line.token, empty)
    for token in ("unknown", other.token):
        with pytest.raises(Unauthorized):
            driver_protocol.receive(line.job_id, token, empty)
        with pytest.raises(Unauthorized):
            driver_protocol.take_commands(line.job_id, token, 0)
    with pytest.raises(NotFound):
        driver_protocol.take_commands("no-such-job", line.token, 0)


def test_an_older_driver_is_fenced(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    jobs.lose(line.job)
    with pytest.raises(DriverFenced):
        line.post(*protocol.acks(1))
    with pytest.raises(DriverFenced):
        line.poll()
    assert line.statuses() == {1: "aborted"}
    Line.for_job(line.job).come_up(2)
    with pytest.raises(DriverFenced, match="driver 2"):
        line.send(line.batches[-1])


def test_events_behind_the_drivers_own_loss_are_dropped(line: Line) -> None:
    up_to = line.post(DriverLost(0, "the cluster is gone"), CheckpointRequested("r1"))
    assert up_to == line.number - 1
    assert line.driver.status == "lost"
    assert line.statuses() == {}
    assert line.job.status == JobStatus.RESTARTING


def test_plan_and_coordinator_events_of_one_batch_are_applied_in_order(db: None) -> None:
    line = Line.for_job(jobs.submitted())
    line.post(
        jobs.planned(),
        *jobs.coming_up(),
        protocol.started(),
        CheckpointRequested("r1"),
        *protocol.acks(1),
        protocol.written(1),
    )
    assert line.statuses() == {1: "completed"}
    assert line.job.status == JobStatus.RUNNING


def test_time_away_is_given_to_checkpoints_once(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    expires = line.state.pending[0].expires_at_ms
    jobs.pass_time(line.driver, 60, "heard_at")
    line.post(away_ms=60_000)
    assert line.state.pending[0].expires_at_ms == expires + 60_000
    line.send(line.batches[-1])  # The answer was lost.
    gained = line.state.pending[0].expires_at_ms - expires
    assert 60_000 <= gained < 65_000


def test_a_batch_is_a_sign_of_life_and_a_poll_is_none(line: Line) -> None:
    driver = line.driver
    jobs.pass_time(driver, 10, "heard_at", "heartbeat_due_at")
    line.poll()
    assert line.driver.heard_at == jobs.reload(driver).heard_at
    before = clock.now()
    line.post()
    assert line.driver.heard_at >= before


# Commands.


def test_commands_are_handed_out_until_they_were_taken(line: Line) -> None:
    line.post(CheckpointRequested("r1"), *protocol.acks(1))
    first = driver_protocol.take_commands(line.job_id, line.token, 0)
    assert driver_protocol.take_commands(line.job_id, line.token, 0).commands == first.commands
    assert [type(c.command).__name__ for c in first.commands] == [
        "TriggerCheckpoint",
        "WriteManifest",
    ]
    taken = first.commands[0].number
    again = driver_protocol.take_commands(line.job_id, line.token, taken)
    assert again.commands == first.commands[1:]
    assert OutboxCommand.objects.filter(job=line.job_id).count() == 1
    assert line.driver.commands_taken == taken


def test_commands_come_in_portions(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_protocol, "COMMANDS_MAX", 2)
    line.post(CheckpointRequested("r1"), *protocol.acks(1), protocol.written(1))
    assert [len(line.poll()) for _ in range(3)] == [2, 2, 0]


def test_a_driver_that_took_what_was_never_given_is_refused(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    with pytest.raises(Invalid, match="never given out"):
        driver_protocol.take_commands(line.job_id, line.token, 2**40)
    assert isinstance(line.poll()[0], TriggerCheckpoint)


def test_a_poll_without_commands_is_cheap(
    line: Line, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(2) as queries:
        line.poll()
    assert not any("FOR UPDATE" in q["sql"] or "UPDATE " in q["sql"] for q in queries)


def test_what_a_command_says_survives_the_outbox(line: Line, operator: Any) -> None:
    savepoints.request_checkpoint(operator, line.job_id)
    (command,) = line.poll()
    assert isinstance(command, TriggerCheckpoint)
    assert command.barrier == line.state.pending[0].barrier
    assert command.attempt == 1
    assert Driver.objects.get(job=line.job_id).commands_taken == 0


def test_a_heartbeat_is_cheap(line: Line) -> None:
    from django.db import connection

    with CaptureQueriesContext(connection) as queries:
        line.post()
    assert len(queries) <= 9
