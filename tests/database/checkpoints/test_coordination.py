"""The effects of the coordinator's commands: rows, commands in the outbox, answers to requests."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from checkpoints.coordinator import shell
from checkpoints.models import Checkpoint, CoordinatorRow, GateAlignment
from checkpoints.operations import savepoints
from controlplane.accounts.models import User
from controlplane.base import clock
from jobs.models import JobException, OutboxCommand
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from weir.ids import StateHandle
from weir.protocol import messages
from weir.protocol.coordinator import check_invariants
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointRequested,
    DiscardHandles,
    DiscardPending,
    ManifestWritten,
    OperatorAck,
    RecordAborted,
    RecordCompleted,
    SnapshotMetrics,
    Tick,
    TimeLost,
    TriggerCheckpoint,
    WriteManifest,
)

pytestmark = pytest.mark.django_db


def pump(line: Line, *events: messages.CoordinatorEvent, now_ms: int | None = None) -> None:
    """Fold events in as those who hold the job's lock do."""
    with transaction.atomic():
        job = shell.Job.objects.select_for_update().get(pk=line.job_id)
        shell.pump(job, events, now_ms=clock.now_ms() if now_ms is None else now_ms)


def kinds(commands: list[Any]) -> list[type]:
    return [type(command) for command in commands]


def measured(chain: str, number: int, **metrics: Any) -> Acknowledged:
    """A sink's acknowledgement with measurements."""
    head = protocol.subtask(chain)
    part = OperatorAck(
        head,
        (StateHandle("keyed", "counts", 70, "00", path=f"chk-{number}/1/sink-0-counts"),),
        SnapshotMetrics(**metrics),
    )
    return Acknowledged(1, number, head, (part,))  # type: ignore[arg-type]


def test_a_checkpoint_goes_through_its_statuses(line: Line, operator: User) -> None:
    operation = savepoints.request_checkpoint(operator, line.job_id)
    assert kinds(line.poll()) == [TriggerCheckpoint]
    assert line.statuses() == {1: "pending"}
    assert line.checkpoint(1).request_id == str(operation.pk)

    line.post(*protocol.acks(1)[:-1])
    row = line.checkpoint(1)
    assert (row.status, row.acknowledged_count, row.subtask_count) == ("pending", 5, 6)
    assert row.acks.count() == 5

    line.post(protocol.acks(1)[-1])
    assert kinds(line.poll()) == [WriteManifest]
    row = line.checkpoint(1)
    assert (row.status, row.acknowledged_count) == ("finalizing", 6)
    assert row.sinks_acknowledged_at is not None
    assert row.settled_at is None

    line.post(protocol.written(1))
    assert kinds(line.poll()) == [RecordCompleted, CheckpointCompleted]
    row = line.checkpoint(1)
    assert row.status == "completed"
    assert row.settled_at is not None
    assert row.duration_ms is not None
    operation.refresh_from_db()
    assert operation.status == "succeeded"
    assert operation.result == {
        "checkpoint": 1,
        "duration_ms": row.duration_ms,
        "path": f"{line.job.storage}/{line.job_id}/chk-1",
    }


def test_a_row_holds_the_largest_times_and_the_sums_of_bytes(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    line.post(
        measured("sink-0", 1, alignment_ms=5.0, sync_ms=1.0, state_size=70, written_size=7),
        measured(
            "sink-1",
            1,
            alignment_ms=2.0,
            sync_ms=9.5,
            state_size=30,
            written_size=3,
            bytes_persisted_in_flight=4,
        ),
    )
    row = line.checkpoint(1)
    assert (row.alignment_ms, row.sync_ms) == (5.0, 9.5)
    assert (row.state_bytes, row.written_bytes, row.in_flight_bytes) == (100, 10, 4)


def test_details_come_back_as_they_were_sent(line: Line) -> None:
    """They are copied in as text: quotes, backslashes, commas and braces of names must survive."""
    pump(line, CheckpointRequested("r1"))
    names = ('so"urce-0', "so\\urce-1", "{so,urce}-2", "NULL", "")
    gate = messages.GateAlignment(
        0,
        names,
        (0.0, None, 1.25, 1e-7, 1e12),
        (0.5,) * 5,
        (0, 1, 2**40, 3, 4),
        (0, 7, 0, 2**40, 0),
    )
    line.post(
        measured(
            "sink-0",
            1,
            records=5,
            unaligned=True,
            gates=(gate,),
            bytes_persisted_in_flight=900,
            bytes_persisted_at_outputs=200,
            switched=messages.Switch.INPUT,
            switched_ms=512.5,
        )
    )
    ack = line.checkpoint(1).acks.get()
    assert (ack.in_flight_bytes, ack.in_flight_output_bytes) == (900, 200)
    assert (ack.switched, ack.switched_ms) == ("input", 512.5)
    assert (ack.operator, ack.index, ack.chain, ack.unaligned) == ("sink", 0, "sink", True)
    assert (ack.records, ack.sync_ms) == (5, 0.0)
    assert ack.handles[0]["path"] == "chk-1/1/sink-0-counts"
    row = GateAlignment.objects.get()
    assert tuple(row.upstream) == names
    assert row.arrived_ms == [0.0, None, 1.25, 1e-7, 1e12]
    assert row.blocked_ms == [0.5] * 5
    assert row.bytes_during == [0, 1, 2**40, 3, 4]
    assert row.in_flight == [0, 7, 0, 2**40, 0]


def test_nothing_is_kept_of_channels_without_data_in_flight(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    gate = messages.GateAlignment(0, ("source-0", "source-1"), (0.0, 1.0), (1.0, 0.0), (0, 9))
    line.post(measured("sink-0", 1, gates=(gate,)))
    line.post(measured("sink-1", 1, gates=(replace(gate, in_flight=(0, 0)),)))
    assert list(GateAlignment.objects.values_list("in_flight", flat=True)) == [None, None]
    ack = line.checkpoint(1).acks.first()
    assert ack is not None
    assert (ack.in_flight_output_bytes, ack.switched, ack.switched_ms) == (0, "", None)


def test_a_row_says_how_the_barriers_went(line: Line) -> None:
    switched, upstream = messages.Switch.OUTPUT, messages.Switch.UPSTREAM
    given: list[list[dict[str, Any]]] = [
        [{}, {}],
        [{"unaligned": True}, {}],
        [{"unaligned": True}, {"unaligned": True, "switched": switched, "switched_ms": 530.0}],
        [
            {"unaligned": True, "switched": switched, "switched_ms": 530.0},
            {"unaligned": True, "switched": upstream, "switched_ms": 512.0},
        ],
    ]
    seen = []
    for number, metrics in enumerate(given, 1):
        pump(line, CheckpointRequested(f"r{number}"))
        for index, one in enumerate(metrics):
            line.post(measured(f"sink-{index}", number, **one))
        row = line.checkpoint(number)
        seen.append((row.alignment, row.unaligned_count, row.switched_count, row.switched_ms))
        line.post(protocol.decline("source-0", number))
    assert seen == [
        ("aligned", 0, 0, None),
        ("unaligned", 1, 0, None),
        ("timed_out", 2, 1, 530.0),
        ("timed_out", 2, 2, 512.0),
    ]


def test_inline_state_is_left_to_the_manifest(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    line.post(protocol.ack("sink-0", 1, handles=(protocol.handle(inline=b"secret"),)))
    assert line.checkpoint(1).acks.get().handles == []


def test_a_subtask_that_ends_need_not_acknowledge_any_more(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    line.post(protocol.finished("source-0"))
    row = line.checkpoint(1)
    assert (row.acknowledged_count, row.subtask_count) == (0, 4)
    line.post(*(protocol.ack(chain, 1) for chain in ("source-1", "sink-0", "sink-1")))
    row = line.checkpoint(1)
    assert (row.status, row.acknowledged_count, row.subtask_count) == ("finalizing", 4, 4)


def test_an_abort_says_why_and_its_files_come_due(line: Line, operator: User) -> None:
    operation = savepoints.request_checkpoint(operator, line.job_id)
    line.poll()
    line.post(protocol.decline("sink-0", 1, cause="the disk is full"))
    assert kinds(line.poll()) == [CheckpointAborted, RecordAborted, messages.FailJob]
    row = line.checkpoint(1)
    assert (row.status, row.reason) == ("failed", "checkpoint_declined")
    assert row.cause == "sink-0: the disk is full"
    assert row.discard_due_at is not None
    operation.refresh_from_db()
    assert operation.status == "failed"
    assert "sink-0: the disk is full" in operation.error
    assert "checkpoint declined" in operation.error


def test_what_was_let_go_is_subsumed_and_comes_due(db: None, settings: Settings) -> None:
    line = Line.running(retained_max=1)
    for number in (1, 2):
        pump(line, CheckpointRequested(f"r{number}"))
        line.complete(number)
    assert line.statuses() == {1: "subsumed", 2: "completed"}
    assert line.checkpoint(1).discard_due_at is not None
    assert line.checkpoint(2).discard_due_at is None
    assert line.checkpoint(2).parent == line.checkpoint(1)
    commands = OutboxCommand.objects.filter(job=line.job_id)
    assert not {c.message["type"] for c in commands} & {"DiscardCheckpoint", "DiscardPending"}


def test_as_many_are_retained_as_this_control_plane_says(db: None, settings: Settings) -> None:
    settings.WEIR_RETAINED_CHECKPOINTS = 2
    line = Line.running()
    for number in (1, 2, 3):
        pump(line, CheckpointRequested(f"r{number}"))
        line.complete(number)
    assert line.statuses() == {1: "subsumed", 2: "completed", 3: "completed"}


def test_an_event_of_a_bug_is_passed_over_and_those_behind_it_count(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    uneven = messages.GateAlignment(0, ("source-0",), (0.0, 1.0), (0.0,), (0,))
    of_two = messages.GateAlignment(0, ("source-0",), (0.0,), (0.0,), (0,), (5, 5))
    line.post(
        protocol.ack("source-0", 77),
        measured("sink-1", 1, gates=(uneven,)),
        measured("sink-1", 1, gates=(of_two,)),
        protocol.ack("source-0", 1),
    )
    assert line.checkpoint(1).acknowledged_count == 2
    texts = JobException.objects.filter(job=line.job_id, kind="internal").order_by("id")
    assert [
        "checkpoint 77" in t or "gate 0" in t for t in texts.values_list("text", flat=True)
    ] == [
        True,
        True,
        True,
    ]
    check_invariants(line.state)


def test_due_times_are_those_of_the_coordinator(db: None, scheduled: list[Any]) -> None:
    line = Line.running(interval_ms=60_000, timeout_ms=5_000)
    row = CoordinatorRow.objects.get(job=line.job_id)
    assert row.due_at == row.next_trigger_at
    assert row.next_trigger_at is not None
    assert row.expires_at is None
    pump(line, Tick(), now_ms=clock.to_ms(row.due_at))
    row.refresh_from_db()
    triggered = line.checkpoint(1).triggered_at
    assert row.expires_at == row.due_at == triggered + timedelta(seconds=5)


def test_a_due_time_in_a_moment_is_counted_down_for_once(
    db: None, scheduled: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    line = Line.running(interval_ms=60_000)
    due_ms = clock.to_ms(CoordinatorRow.objects.get(job=line.job_id).due_at)
    assert scheduled == []
    with django_capture_on_commit_callbacks(execute=True):
        pump(line, Tick(), now_ms=due_ms - 70_000)  # A clock set back changes no due time.
        assert scheduled == []
    line = Line.running(interval_ms=1_000)
    row = CoordinatorRow.objects.get(job=line.job_id)
    with django_capture_on_commit_callbacks(execute=True):
        pump(line, Tick(), now_ms=clock.to_ms(row.due_at))
        pump(line, TimeLost(1), now_ms=clock.to_ms(row.due_at))
    assert scheduled == [(line.job_id, 1.0)]


def test_no_command_is_left_for_a_driver_that_is_gone(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    jobs.lose(line.job)
    assert line.statuses() == {1: "failed"}
    assert not OutboxCommand.objects.filter(job=line.job_id).exists()


def test_late_state_of_an_aborted_checkpoint_comes_due_again(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    line.post(protocol.decline("sink-0", 1))
    Checkpoint.objects.update(discard_due_at=None, discarded_at=clock.now())
    line.post(measured("sink-1", 1))
    row = line.checkpoint(1)
    assert row.discard_due_at is not None
    assert row.discarded_at is None
    assert not any(
        c.message["type"] in (DiscardHandles.__name__, DiscardPending.__name__)
        for c in OutboxCommand.objects.filter(job=line.job_id)
    )


def test_the_settings_of_a_changed_pipeline_count_from_its_next_driver_on(line: Line) -> None:
    jobs.lose(line.job)
    line = Line.for_job(line.job)
    line.come_up(2, timeout_ms=4_000)
    assert line.state.config.timeout_ms == 4_000


def test_the_end_of_a_job_keeps_or_deletes_its_checkpoints(db: None) -> None:
    kept, deleted = Line.running(), Line.running()
    for line, status in ((kept, JobStatus.CANCELED), (deleted, JobStatus.FINISHED)):
        pump(line, CheckpointRequested("r1"))
        line.complete(1)
        line.post(
            *([jobs.changed(JobStatus.CANCELLING)] if status is JobStatus.CANCELED else []),
            jobs.changed(status),
            messages.JobEnded(status),
        )
    assert kept.checkpoint(1).discard_due_at is None
    row = deleted.checkpoint(1)
    assert (row.status, row.discard_due_at is not None) == ("completed", True)
    assert CoordinatorRow.objects.get(job=deleted.job_id).has_ended


def test_a_checkpoint_the_storage_alone_holds_gets_a_row(db: None) -> None:
    line = Line.for_job(jobs.submitted())
    restored = messages.CheckpointsRestored((protocol.completed(4, completed_at_ms=9),), 5)  # type: ignore[arg-type]
    line.post(jobs.planned(), restored)
    assert line.statuses() == {4: "completed"}
    assert line.state.latest_completed_id == 4


def test_what_retention_let_go_is_not_taken_back_from_the_storage(db: None) -> None:
    """Its files may lie there a moment longer when the next driver lists them."""
    line = Line.running(retained_max=1)
    for number in (1, 2):
        pump(line, CheckpointRequested(f"r{number}"))
        line.complete(number)
    line.post(messages.CheckpointingStopped(1, FailureReason.JOB_FAILOVER))  # type: ignore[arg-type]
    both = (protocol.completed(1), protocol.completed(2))
    line.post(messages.CheckpointsRestored(both, 3))  # type: ignore[arg-type]
    assert [c.checkpoint_id for c in line.state.completed] == [2]
    assert line.checkpoint(1).discard_due_at is not None


def test_an_aborted_checkpoint_that_was_written_after_all_is_kept(line: Line) -> None:
    pump(line, CheckpointRequested("r1"))
    line.post(*protocol.acks(1), protocol.not_written(1, may_exist=True))
    assert line.checkpoint(1).discard_due_at is None
    line.post(messages.CheckpointingStopped(1, FailureReason.JOB_FAILOVER))  # type: ignore[arg-type]
    line.post(messages.CheckpointsRestored((protocol.completed(1),), 2))  # type: ignore[arg-type]
    row = line.checkpoint(1)
    assert row.status == "failed"
    assert "found in the storage later" in row.cause
    assert line.state.latest_completed_id == 1


def test_queries_do_not_grow_with_the_acknowledgements(
    line: Line, django_assert_max_num_queries: Any
) -> None:
    from django.db import connection

    def count(*events: Any) -> int:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            line.post(*events)
        return len(queries)

    pump(line, CheckpointRequested("r1"))
    first = count(protocol.ack("source-0", 1))
    pump(line, ManifestWritten(99))  # type: ignore[arg-type]
    three = count(*protocol.acks(1)[1:-1])
    assert first == three <= 18
