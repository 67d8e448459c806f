"""Batches are applied once however often they come; commands are handed out in order."""

import json
from dataclasses import replace
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import DjangoAssertNumQueries

from checkpoints import driver_protocol
from checkpoints.coordinator import read_model
from checkpoints.models import SubtaskAck
from checkpoints.operations import savepoints
from controlplane.base import clock
from controlplane.base.errors import DriverFenced, Invalid, NotFound, Unauthorized
from jobs.models import Driver, JobException, OutboxCommand, Subtask
from tests import builders as protocol
from tests.database.checkpoints.line import Line, body, planned
from tests.database.jobs import builders as jobs
from weir.bounds import DELAY_MS_MAX, DUE_MS_MAX, NUMBER_MAX
from weir.ids import CheckpointId, OperatorId
from weir.protocol.driver_messages import DriverLost, EventBatch, JobPlanned
from weir.protocol.events import Notice
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import (
    CheckpointRequested,
    CheckpointsRestored,
    TimeLost,
    TriggerCheckpoint,
)
from weir.wire import batches

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


def test_a_number_beyond_its_bounds_is_refused_and_nothing_is_kept(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    ack = protocol.ack("sink-0", 1)
    huge = json.loads(body(EventBatch(line.number, (ack,))))
    huge["events"][0]["operators"][0]["metrics"]["records"] = 10**400
    with pytest.raises(Invalid, match=r"events\[0\]\.operators\[0\]\.metrics\.records: Expected"):
        driver_protocol.receive(line.job_id, line.token, json.dumps(huge).encode())
    assert line.driver.applied_up_to == line.number - 1
    assert line.checkpoint(1).acknowledged_count == 0


def test_what_the_database_refuses_is_told_and_nothing_is_kept(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value whose bound was forgotten."""
    monkeypatch.setattr(read_model, "_duration_ms", lambda stored: NUMBER_MAX + 1)
    line = Line.for_job(jobs.submitted())
    with pytest.raises(Invalid, match="cannot be stored: integer out of range"):
        line.post(planned(), CheckpointsRestored((protocol.completed(1),), CheckpointId(2)))
    assert line.driver.applied_up_to == 0
    assert not line.statuses()


def hostile_plans() -> list[tuple[JobPlanned, str]]:
    """Plans that contradict themselves, and the problem with each."""
    plan = planned()
    sink, source, parse = plan.operators
    edge = plan.edges[0]
    stranger = OperatorId("stranger")
    many = tuple(
        replace(sink, uid=OperatorId(f"s{n}"), chain=OperatorId(f"s{n}"), parallelism=32_768)
        for n in range(7)
    )
    return [
        (replace(plan, operators=(sink, source, parse, sink)), r"operators\[3\]\.uid: .* twice"),
        (replace(plan, operators=(sink, source, replace(parse, chain=stranger))), "no chain"),
        (replace(plan, edges=(replace(edge, target=stranger),)), r"edges\[0\]\.target: "),
        (replace(plan, edges=(replace(edge, source=stranger),)), r"edges\[0\]\.source: "),
        (
            replace(plan, edges=(replace(edge, partitioning="any"),)),
            "partitioning: 'any' is unknown",
        ),
        (replace(plan, operators=many, edges=()), "229,376 operator subtasks"),
    ]


@pytest.mark.parametrize(("plan", "problem"), hostile_plans())
def test_a_plan_that_contradicts_itself_is_refused(
    plan: JobPlanned, problem: str, db: None
) -> None:
    line = Line.for_job(jobs.submitted())
    with pytest.raises(Invalid, match=problem):
        line.post(plan)
    assert line.job.planned_name == ""


def test_a_plan_comes_once_in_a_batch(db: None) -> None:
    line = Line.for_job(jobs.submitted())
    with pytest.raises(Invalid, match="a driver plans its job once"):
        line.post(planned(), planned())


def test_a_subtask_that_is_not_in_the_plan_is_refused(line: Line) -> None:
    before = Subtask.objects.count()
    for name in ("sink-2", "stranger-0", "parse-0"):  # The last one is no head of a chain.
        changed = jobs.subtask_changed(name, SubtaskStatus.RUNNING)
        with pytest.raises(Invalid, match=f"{name} is no chain subtask"):
            line.send(EventBatch(line.number, (changed,)))
    assert Subtask.objects.count() == before


def test_a_coordinators_plan_that_is_not_the_jobs_is_refused(line: Line) -> None:
    started = protocol.started()
    chain = started.plan.chains[0]
    stranger = OperatorId("stranger")
    for chains, problem in (
        ((replace(chain, head=stranger, operators=(stranger,)),), "stranger is not in the job's"),
        ((replace(chain, head=stranger),), "the chain of stranger does not list it"),
        ((chain, chain), "or in two chains"),
        ((replace(chain, upstream=chain.upstream * 2),), "subtasks, and 2 in the job's plan"),
    ):
        plan = replace(started.plan, chains=chains)
        with pytest.raises(Invalid, match=problem):
            line.send(EventBatch(line.number, (replace(started, plan=plan),)))


def test_time_lost_again_and_again_ends_at_the_last_year(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    line.post(*[TimeLost(DELAY_MS_MAX)] * 900)
    assert line.state.pending[0].expires_at_ms == DUE_MS_MAX


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
    assert line.statuses() == {1: "failed"}
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


@pytest.mark.usefixtures("standing_clock")
def test_time_away_is_given_to_checkpoints_once(line: Line) -> None:
    line.post(CheckpointRequested("r1"))
    expires = line.state.pending[0].expires_at_ms
    jobs.pass_time(line.driver, 60, "heard_at")
    line.post(away_ms=60_000)
    assert line.state.pending[0].expires_at_ms == expires + 60_000
    line.send(line.batches[-1])  # The answer was lost.
    assert line.state.pending[0].expires_at_ms == expires + 60_000


@pytest.mark.usefixtures("standing_clock")
@pytest.mark.parametrize(("away_ms", "whole_s"), [(0, 60), (20_000, 80)])
def test_time_on_its_way_is_given_to_checkpoints_once(
    line: Line, away_ms: int, whole_s: int
) -> None:
    """A batch that waited for a minute, after the driver had tried for a while to send it."""
    line.post(CheckpointRequested("r1"))
    expires = line.state.pending[0].expires_at_ms
    jobs.pass_time(line.driver, whole_s, "heard_at")
    line.post(away_ms=away_ms, sent_at_ms=clock.now_ms() - 60_000)
    assert line.state.pending[0].expires_at_ms == expires + 1_000 * whole_s
    line.send(line.batches[-1])  # The answer was lost.
    assert line.state.pending[0].expires_at_ms == expires + 1_000 * whole_s


@pytest.mark.parametrize("ago_ms", [30_000, 0, -3_600_000])
def test_a_batch_that_came_soon_gives_checkpoints_no_time(
    line: Line, monkeypatch: pytest.MonkeyPatch, ago_ms: int
) -> None:
    monkeypatch.setattr(driver_protocol, "HELD_UP_MS", 600_000)
    line.post(CheckpointRequested("r1"))
    expires = line.state.pending[0].expires_at_ms
    jobs.pass_time(line.driver, 60, "heard_at")
    line.post(sent_at_ms=clock.now_ms() - ago_ms)
    assert line.state.pending[0].expires_at_ms == expires
    driver = line.driver
    assert driver.sent_at <= driver.heard_at


def test_the_answer_tells_the_time_to_drivers_that_know_it(line: Line) -> None:
    sign_of_life = body(EventBatch(line.number, ()))
    before = clock.now_ms()
    answer = driver_protocol.receive(line.job_id, line.token, sign_of_life)
    told = batches.decode_applied(answer)
    assert told.at_ms is not None
    assert before <= told.at_ms <= clock.now_ms()
    old = driver_protocol.receive(line.job_id, line.token, sign_of_life, batches.TIMES_SINCE - 1)
    assert json.loads(old) == {"up_to": told.up_to}


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
