"""Barriers that overtake: what of the records under way is kept, where, and when it is over."""

from typing import Any

import pytest

from tests.builders import barrier
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.gate_harness import records
from tests.unit.worker.subtask_harness import Counting, SubtaskHarness
from weir.common.batch import Batch
from weir.graph.logical import Partitioning
from weir.ids import CheckpointId
from weir.protocol.elements import (
    Alignment,
    BarrierOptions,
    CheckpointBarrier,
    CheckpointKind,
    EndOfInput,
    Watermark,
)
from weir.protocol.messages import Acknowledged, OperatorAck, Switch
from weir.state.channel_state import decode_records
from weir.worker import in_flight
from weir.worker.gates import InputGates
from weir.worker.subtask import Progress

ONE = CheckpointId(1)


def unaligned(number: int = 1) -> CheckpointBarrier:
    return CheckpointBarrier(CheckpointId(number), 0, BarrierOptions(alignment=Alignment.UNALIGNED))


def timeoutable(number: int = 1, timeout_ms: int = 500, at_ms: int = 0) -> CheckpointBarrier:
    return CheckpointBarrier(
        CheckpointId(number), at_ms, BarrierOptions(alignment_timeout_ms=timeout_ms)
    )


def head_ack(harness: SubtaskHarness, number: int = 1) -> OperatorAck:
    (acknowledged,) = [
        r for r in harness.reports if isinstance(r, Acknowledged) and r.checkpoint_id == number
    ]
    return acknowledged.operators[0]


def kept(harness: SubtaskHarness, number: int = 1) -> dict[str, list[Any]]:
    """The rows under way that an acknowledged snapshot holds, by the name of the state."""
    held: dict[str, list[Any]] = {}
    for handle in head_ack(harness, number).handles:
        if handle.kind == "channel":
            assert handle.inline is not None
            read = decode_records(handle.inline, handle.name)
            held[handle.name] = [row for one in read for row in one.payload.rows]
    return held


def seen(harness: SubtaskHarness) -> list[Any]:
    return list(harness.operator.seen.get())


def test_a_barrier_overtakes_what_is_queued_for_input() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, "a1", "a2", unaligned(), "a3")
    assert harness.emitted() == ["flushed for 1", unaligned()]  # Before any of the records.
    harness.bring(1, "b1")
    harness.settle()
    assert seen(harness) == ["a1", "b1", "a2", "a3"]  # They are processed as ever.
    harness.bring(1, "b2", unaligned(), "b3")
    harness.settle()
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["a1", "a2", "b1", "b2"]}
    metrics = head_ack(harness).metrics
    assert metrics.unaligned
    assert metrics.records == 0  # At the freeze.
    sizes = [h.size for h in head_ack(harness).handles if h.kind == "channel"]
    assert metrics.bytes_persisted_in_flight == sum(sizes) > 0


def test_nothing_is_acknowledged_before_the_last_barrier() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, unaligned())
    harness.settle()
    harness.write()
    assert harness.reports.acknowledged == []
    harness.bring(1, unaligned())
    assert harness.reports.acknowledged == [1]
    assert kept(harness) == {}


def test_a_batch_of_which_a_part_is_processed_is_kept_without_that() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.subtask._slice.rows = 2
    harness.bring(0, records("a1", "a2", "a3", "a4"))
    assert harness.subtask.step() is Progress.WORKED
    done = seen(harness)
    assert 0 < len(done) < 4
    harness.bring(0, unaligned())
    harness.bring(1, unaligned())
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["a1", "a2", "a3", "a4"][len(done) :]}


def test_a_barrier_overtakes_what_waits_for_credit() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.exhaust_credit()
    harness.emitted()
    harness.bring(0, "a1", unaligned())
    assert harness.emitted() == [unaligned()]
    harness.bring(1, unaligned())
    harness.write()
    assert kept(harness) == {
        "in/up>op.0/0/0": ["a1"],
        "out/op>down.0/0/0": ["waits", "flushed for 1"],
    }
    harness.grant_all()
    assert harness.emitted() == ["waits", "flushed for 1"]  # They are sent all the same.


def test_a_source_overtakes_what_waits_for_credit() -> None:
    harness = SubtaskHarness(source=Counting(9))
    harness.exhaust_credit()
    harness.emitted()
    harness.subtask.on_trigger(unaligned())
    harness.write()
    assert harness.emitted() == [unaligned()]
    assert kept(harness) == {"out/op>down.0/0/0": ["waits"]}
    assert head_ack(harness).metrics.unaligned


def test_no_barrier_overtakes_on_an_exchange_that_forbids_it() -> None:
    """It waits for its turn at the output, and for all that is before it at the input."""
    forward = (Partitioning.FORWARD, Partitioning.FORWARD)
    harness = SubtaskHarness(alignment_timeout_ms=0, partitionings=forward)
    harness.exhaust_credit()
    harness.emitted()
    harness.bring(0, "a1", unaligned(), "a2")
    harness.bring(1, "b1", unaligned())
    assert harness.emitted() == []
    harness.grant_all()
    harness.settle()
    harness.grant_all()
    harness.write()
    emitted = harness.emitted()
    assert emitted.index("waits") < emitted.index("a1") < emitted.index(unaligned())
    assert emitted.index("b1") < emitted.index(unaligned()) < emitted.index("a2")
    assert kept(harness) == {}


def test_savepoints_overtake_nothing() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    options = BarrierOptions(CheckpointKind.SAVEPOINT)
    savepoint = CheckpointBarrier(ONE, 0, options)
    harness.give(0, "a1", savepoint, "a2")
    harness.bring(1, "b1", savepoint)
    assert "b1" not in seen(harness)
    harness.settle()
    harness.write()
    assert harness.emitted() == ["a1", "b1", "flushed for 1", savepoint, "a2"]
    assert kept(harness) == {}


def test_an_aligned_barrier_overtakes_when_its_time_is_over() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    harness.exhaust_credit()
    harness.emitted()
    first = timeoutable(at_ms=clock.now_ms())
    harness.bring(0, "a1", first)
    harness.bring(1, "b1")
    assert harness.subtask.step() is Progress.BACK_PRESSURED
    assert harness.emitted() == []
    due = harness.subtask.next_timer_ms()
    assert due == clock.now_ms() + 500  # Though it is held.
    clock.ms += 500
    assert harness.subtask.step() is Progress.WORKED
    (sent,) = harness.emitted()
    assert (sent.checkpoint_id, sent.options.alignment) == (1, Alignment.UNALIGNED)
    harness.bring(1, "b2", first)
    harness.write()
    assert kept(harness) == {
        "in/up>op.0/0/0": ["a1", "b1", "b2"],
        "out/op>down.0/0/0": ["waits", "flushed for 1"],
    }


def test_a_barrier_that_waits_for_credit_overtakes_when_its_time_is_over() -> None:
    """Its snapshot is aligned and written; it is acknowledged when the barrier is gone."""
    clock = ManualClock()
    harness = SubtaskHarness(source=Counting(9), clock=clock)
    harness.exhaust_credit()
    harness.emitted()
    harness.subtask.on_trigger(timeoutable(at_ms=clock.now_ms()))
    harness.write()
    assert (harness.emitted(), harness.reports.acknowledged) == ([], [])
    assert harness.subtask.next_timer_ms() == clock.now_ms() + 500
    clock.ms += 500
    harness.settle()
    (sent,) = harness.emitted()
    assert sent.options.alignment is Alignment.UNALIGNED
    harness.write()
    assert kept(harness) == {"out/op>down.0/0/0": ["waits"]}
    assert head_ack(harness).metrics.unaligned


def test_a_barrier_that_gets_credit_in_time_overtakes_nothing() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(source=Counting(0), clock=clock)
    harness.exhaust_credit()
    harness.emitted()
    harness.subtask.on_trigger(timeoutable(at_ms=clock.now_ms()))
    harness.write()
    assert harness.reports.acknowledged == []
    harness.grant_all()
    harness.subtask.step()
    assert harness.emitted()[:2] == ["waits", timeoutable(at_ms=clock.now_ms())]
    assert harness.reports.acknowledged == [1]
    assert kept(harness) == {}
    assert not head_ack(harness).metrics.unaligned
    clock.ms += 500
    harness.settle()
    assert harness.reports.acknowledged == [1]


def test_the_end_of_a_channel_stands_for_its_barrier_as_soon_as_it_is_queued() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, "a1", EndOfInput())
    harness.bring(1, unaligned(), "b1")
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["a1"]}


def test_an_aborted_checkpoint_leaves_nothing_behind() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0, inline_max_bytes=0)
    harness.bring(0, "a1", unaligned())
    harness.write()
    harness.subtask.on_aborted(ONE)
    harness.bring(1, "b1", unaligned())
    harness.settle()
    harness.write()
    assert harness.reports.acknowledged == []
    assert harness.files() == []
    harness.bring(0, unaligned(2))
    harness.bring(1, unaligned(2))
    harness.write()
    assert harness.reports.acknowledged == [2]
    assert kept(harness, 2) == {}


def test_much_under_way_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "PIECE_BYTES", 20)  # Each record counts ten.
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, unaligned())
    for row in ("b1", "b2", "b3"):
        harness.bring(1, row)
    assert len(harness.snapshots.waiting) == 2  # The state and a piece.
    harness.bring(1, unaligned())
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["b1", "b2"], "in/up>op.0/0/1": ["b3"]}


def test_a_storage_that_falls_behind_has_the_checkpoint_declined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_flight, "PIECE_BYTES", 10)
    monkeypatch.setattr(in_flight, "UNWRITTEN_BYTES_MAX", 25)
    harness = SubtaskHarness(alignment_timeout_ms=0, inline_max_bytes=0)
    harness.bring(0, unaligned())
    for row in ("b1", "b2"):
        harness.bring(1, row)
    assert harness.reports.declined == []
    harness.bring(1, "b3", "b4", unaligned())
    assert harness.reports.declined == [(1, "checkpoint_async_exception")]
    harness.write()
    assert harness.reports.acknowledged == []
    assert harness.files() == []
    harness.settle()
    assert seen(harness) == ["b1", "b2", "b3", "b4"]


def test_much_that_was_there_at_the_freeze_is_no_storage_that_falls_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of restored records, of those queued before a barrier and of those that came after it."""
    monkeypatch.setattr(in_flight, "PIECE_BYTES", 10)  # Each record counts ten.
    monkeypatch.setattr(in_flight, "UNWRITTEN_BYTES_MAX", 25)
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.subtask.inputs.restore(0, [records("r1"), records("r2")])
    harness.bring(1, "b1", "b2")
    harness.bring(0, "a1", "a2", unaligned())
    assert len(harness.snapshots.waiting) > 3  # None of its pieces is written yet.
    harness.bring(1, "b3", "b4", unaligned())
    assert harness.reports.declined == []
    harness.write()
    assert harness.reports.acknowledged == [1]
    pieces = [row for rows in kept(harness).values() for row in rows]
    assert sorted(pieces) == ["a1", "a2", "b1", "b2", "b3", "b4", "r1", "r2"]
    assert pieces.index("r1") < pieces.index("r2") < pieces.index("a1") < pieces.index("a2")


def test_restored_records_come_before_all_that_is_delivered() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.subtask.inputs.restore(0, [records("r1", "r2"), records("r3")])
    harness.bring(0, "a1", Watermark(5))
    harness.settle()
    assert seen(harness) == ["r1", "r2", "r3", "a1"]


def test_restored_records_that_are_left_are_kept_once_more_before_the_others() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.subtask.inputs.restore(0, [records("r1"), records("r2")])
    assert harness.subtask.step() is Progress.WORKED
    harness.bring(0, "a1", unaligned())
    harness.bring(1, unaligned())
    harness.write()
    assert seen(harness) == ["r1"]
    assert kept(harness) == {"in/up>op.0/0/0": ["r2", "a1"]}


def test_rows_that_their_receiver_changes_are_kept_as_they_came() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    row = ["as it came"]
    harness.bring(0, records(row), unaligned())
    row[0] = "changed"
    harness.bring(1, unaligned())
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": [["as it came"]]}


def test_records_queued_behind_the_barrier_of_another_checkpoint_are_kept() -> None:
    """An aborted checkpoint's barrier may still be under way among them."""
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.subtask.on_aborted(ONE)
    harness.bring(0, "a1", unaligned(1), "a2", unaligned(2), "a3")
    harness.bring(1, unaligned(2))
    harness.write()
    assert kept(harness, 2) == {"in/up>op.0/0/0": ["a1", "a2"]}


def test_the_backlog_takes_no_credit() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    inputs: InputGates = harness.subtask.inputs
    inputs.restore(0, [records(*"abcdef", size=10_000)])
    harness.settle()
    assert harness.inputs_transport.granted == []
    assert inputs.channels[next(iter(inputs.channels))].credit.held_bytes == 0
    assert len(seen(harness)) == 6


def test_an_aligned_checkpoint_is_not_announced() -> None:
    """Aligned alone: a barrier behind records does nothing until its turn."""
    harness = SubtaskHarness()
    harness.bring(0, "a1", barrier(1))
    assert not harness.subtask.is_overtaken
    assert harness.emitted() == []
    batch = Batch.of_rows(["b1"])
    harness.bring(1, records(*batch.rows), barrier(1))
    harness.settle()
    assert harness.emitted() == ["a1", "b1", "flushed for 1", barrier(1)]


def test_the_figures_of_an_unaligned_snapshot_last_from_its_first_to_its_last_barrier() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=0, clock=clock)
    first = CheckpointBarrier(ONE, clock.now_ms(), BarrierOptions(alignment=Alignment.UNALIGNED))
    harness.bring(1, "b1")
    clock.ms += 30
    harness.bring(0, first)
    clock.ms += 7
    harness.bring(1, records("b2", size=40))
    harness.bring(1, first)
    harness.write()
    metrics = head_ack(harness).metrics
    assert (metrics.start_delay_ms, metrics.alignment_ms, metrics.unaligned) == (30, 7, True)
    (gate,) = metrics.gates
    assert gate.arrived_ms == (0, 7)
    assert gate.blocked_ms == (0, 0)
    assert gate.bytes_during == (0, 40)
    clock.ms += 1_000
    harness.settle()  # The barriers reach the head, and count no more.
    assert harness.subtask.alignment_clock._alignments == {}


def test_a_barrier_that_waited_for_its_time_out_counts_from_then_on() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    harness.exhaust_credit()
    first = timeoutable(at_ms=clock.now_ms())
    harness.bring(0, "a1", first)
    clock.ms += 500
    harness.subtask.step()
    clock.ms += 5
    harness.bring(1, EndOfInput())
    harness.write()
    metrics = head_ack(harness).metrics
    assert (metrics.start_delay_ms, metrics.alignment_ms) == (500, 5)
    assert metrics.gates[0].arrived_ms == (0, None)  # The other one has ended.


def test_a_trigger_stands_for_barriers_that_cannot_come() -> None:
    """Every source has ended: all that they sent is queued, and takes its time."""
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, "a1", EndOfInput())
    harness.subtask.on_trigger(unaligned())
    harness.bring(1, "b1")
    harness.write()
    assert harness.reports.acknowledged == []  # The other channel may still bring the barrier.
    assert harness.emitted() == []
    harness.bring(1, "b2", EndOfInput())
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["a1", "b1", "b2"]}
    assert harness.emitted() == ["flushed for 1", unaligned()]
    harness.subtask.on_trigger(unaligned(2))
    harness.write()
    assert kept(harness, 2) == {"in/up>op.0/0/0": ["a1", "b1", "b2"]}
    harness.settle()
    assert seen(harness) == ["a1", "b1", "b2"]
    assert harness.reports.acknowledged == [1, 2]


def test_a_trigger_does_not_stand_for_barriers_that_are_queued() -> None:
    """Such a barrier began the checkpoint, whose snapshot was taken then."""
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, "a1", unaligned(), "a2", EndOfInput())
    harness.bring(1, "b1", unaligned(), EndOfInput())
    harness.subtask.on_trigger(unaligned())
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["a1", "b1"]}
    assert harness.reports.acknowledged == [1]


def test_a_triggered_checkpoint_aligns_with_what_is_left_until_its_time_is_over() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    harness.exhaust_credit()
    harness.bring(0, "a1", EndOfInput())
    harness.bring(1, "b1", EndOfInput())
    harness.subtask.on_trigger(timeoutable(at_ms=clock.now_ms()))
    assert harness.subtask.step() is Progress.BACK_PRESSURED
    clock.ms += 500
    harness.subtask.step()
    harness.write()
    assert kept(harness)["in/up>op.0/0/0"] == ["a1", "b1"]


def test_a_triggered_checkpoint_is_aligned_where_the_rest_is_processed_in_time() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    harness.bring(0, "a1", EndOfInput())
    harness.bring(1, "b1", EndOfInput())
    first = timeoutable(at_ms=clock.now_ms())
    harness.subtask.on_trigger(first)
    harness.settle()
    harness.write()
    assert kept(harness) == {}
    assert [e for e in harness.emitted() if e != Watermark(2**63 - 1)] == [
        "a1", "b1", "flushed for 1", first, EndOfInput(),
    ]  # fmt: skip


@pytest.mark.parametrize("sent", [unaligned(), timeoutable()])
def test_a_source_leaves_a_barrier_in_its_place_where_none_may_overtake(
    sent: CheckpointBarrier,
) -> None:
    """The checkpoint does not wait for it either: downstream takes it in its turn."""
    clock = ManualClock()
    forward = (Partitioning.FORWARD, Partitioning.FORWARD)
    harness = SubtaskHarness(source=Counting(0), clock=clock, partitionings=forward)
    harness.exhaust_credit()
    harness.emitted()
    harness.subtask.on_trigger(sent)
    harness.write()
    assert harness.reports.acknowledged == [1]
    assert kept(harness) == {}
    clock.ms += 500
    harness.settle()
    assert harness.emitted() == []
    harness.grant_all()
    assert harness.emitted() == ["waits", sent]


def test_a_newer_barrier_ends_an_older_snapshot_that_waits_for_its_own() -> None:
    """The word that the older was aborted may come later."""
    harness = SubtaskHarness(alignment_timeout_ms=0, inline_max_bytes=0)
    harness.bring(0, "a1", unaligned(1))
    harness.bring(0, unaligned(2))
    harness.bring(1, "b1", unaligned(2))
    harness.write()
    assert harness.reports.declined == [(1, "checkpoint_declined_subsumed")]
    assert harness.reports.acknowledged == [2]
    assert harness.files()
    assert all("/chk-2/" in path for path in harness.files())
    assert harness.subtask._snapshotter._running == {}


def test_a_newer_trigger_ends_an_older_snapshot_whose_barrier_waits_for_credit() -> None:
    harness = SubtaskHarness(source=Counting(9), inline_max_bytes=0)
    harness.exhaust_credit()
    for number in (1, 2):
        at_ms = harness.clock.now_ms()
        harness.subtask.on_trigger(timeoutable(number, at_ms=at_ms))
    harness.write()
    harness.grant_all()
    harness.subtask.step()
    assert harness.reports.acknowledged == [2]
    assert harness.subtask._snapshotter._running == {}


def test_nothing_is_kept_for_a_checkpoint_that_is_aborted() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, unaligned())
    harness.subtask.on_aborted(ONE)
    harness.bring(1, "b1")
    assert harness.subtask._in_flight._open is None
    harness.write()
    assert harness.subtask._snapshotter._running == {}


def test_rows_that_wait_for_credit_are_kept_as_they_were_sent() -> None:
    """In one process the receiver gets the very objects, some time."""
    harness = SubtaskHarness(source=Counting(0))
    row = ["as it was sent"]
    harness.exhaust_credit()
    harness.subtask.outputs[0].emit(Batch.of_rows([row]))
    harness.subtask.on_trigger(unaligned())
    row[0] = "changed"
    harness.write()
    assert kept(harness) == {"out/op>down.0/0/0": ["waits", ["as it was sent"]]}


def test_the_barrier_of_an_aborted_checkpoint_does_not_overtake_any_more() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(source=Counting(0), clock=clock)
    harness.exhaust_credit()
    harness.emitted()
    harness.subtask.on_trigger(timeoutable(at_ms=clock.now_ms()))
    harness.write()
    harness.subtask.on_aborted(ONE)
    clock.ms += 500
    harness.settle()
    harness.write()
    assert (harness.emitted(), harness.reports.acknowledged) == ([], [])


def test_a_held_subtask_waits_for_the_time_out_alone() -> None:
    """Its own timer is due, and has to wait for credit: nothing would come of waking for it."""
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    harness.exhaust_credit()
    harness.operator.timer_ms = clock.now_ms() - 1
    assert harness.subtask.next_timer_ms() is None
    harness.bring(0, timeoutable(at_ms=clock.now_ms()))
    assert harness.subtask.next_timer_ms() == clock.now_ms() + 500
    harness.grant_all()
    assert harness.subtask.next_timer_ms() == clock.now_ms() - 1


def test_an_alignment_that_lasts_is_reported_though_its_barrier_was_announced_before() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=5_000, clock=clock)
    harness.bring(0, "a1", timeoutable(timeout_ms=5_000, at_ms=clock.now_ms()))
    assert harness.subtask.alignment_clock.progress_due_ns is None  # It waits for its turn.
    harness.settle()
    due_ns = harness.subtask.alignment_clock.progress_due_ns
    assert due_ns is not None
    assert due_ns > clock.monotonic_ns()


# What is told of it.


def told(harness: SubtaskHarness, number: int = 1) -> tuple[bool, Switch | None, float | None]:
    metrics = head_ack(harness, number).metrics
    return metrics.unaligned, metrics.switched, metrics.switched_ms


def by_channel(harness: SubtaskHarness, number: int = 1) -> list[tuple[int, ...]]:
    return [gate.in_flight for gate in head_ack(harness, number).metrics.gates]


def test_bytes_under_way_are_told_by_channel_and_those_at_outputs_apart() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0, channels=3)
    harness.exhaust_credit()
    harness.bring(0, records("a1", size=5), unaligned(), records("a2", size=7))
    harness.bring(1, records("b1", size=11))
    harness.bring(2, unaligned(), records("c1", size=13))
    harness.bring(1, records("b2", size=17), unaligned())
    harness.write()
    assert by_channel(harness) == [(5, 28, 0)]
    metrics = head_ack(harness).metrics
    sizes = {h.name: h.size for h in head_ack(harness).handles if h.kind == "channel"}
    assert metrics.bytes_persisted_at_outputs == sizes["out/op>down.0/0/0"] > 0
    assert metrics.bytes_persisted_in_flight == sum(sizes.values())
    assert metrics.bytes_persisted_in_flight > metrics.bytes_persisted_at_outputs
    assert told(harness) == (True, None, None)


def test_nothing_is_told_of_channels_without_bytes_under_way() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.bring(0, unaligned())
    harness.bring(1, unaligned())
    harness.write()
    assert by_channel(harness) == [()]
    assert told(harness) == (True, None, None)


def test_restored_records_count_to_no_channel() -> None:
    harness = SubtaskHarness(alignment_timeout_ms=0)
    harness.subtask.inputs.restore(0, [records("r1", size=100)])
    harness.bring(0, unaligned())
    harness.bring(1, records("b1", size=3), unaligned())
    harness.write()
    assert kept(harness) == {"in/up>op.0/0/0": ["r1", "b1"]}
    assert by_channel(harness) == [(0, 3)]


def test_a_snapshot_that_is_aligned_in_time_is_told_as_aligned() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    first = timeoutable(at_ms=clock.now_ms())
    harness.give(0, "a1", first)
    clock.ms += 499
    harness.give(1, "b1", first)
    harness.write()
    clock.ms += 1
    harness.settle()
    assert (told(harness), by_channel(harness)) == ((False, None, None), [()])
    later = timeoutable(2, at_ms=clock.now_ms() - 200)
    harness.bring(0, later)
    harness.settle()
    clock.ms += 300
    harness.settle()
    harness.bring(1, later)
    harness.write()
    assert told(harness, 2) == (True, Switch.INPUT, 500)


def test_a_switch_at_the_input_is_told_with_its_time() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    first = timeoutable(at_ms=clock.now_ms())
    clock.ms += 100
    harness.give(0, "a1", first)
    clock.ms += 420
    harness.settle()
    clock.ms += 1_000
    harness.bring(1, records("b1", size=9), first)
    harness.write()
    assert told(harness) == (True, Switch.INPUT, 520)
    assert by_channel(harness) == [(0, 9)]


def test_a_switch_at_the_output_is_told_with_its_time() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(source=Counting(9), clock=clock)
    harness.exhaust_credit()
    harness.subtask.on_trigger(timeoutable(at_ms=clock.now_ms()))
    harness.write()
    clock.ms += 530
    harness.settle()
    clock.ms += 40
    harness.write()
    assert told(harness) == (True, Switch.OUTPUT, 530)
    metrics = head_ack(harness).metrics
    assert metrics.bytes_persisted_at_outputs == metrics.bytes_persisted_in_flight > 0


def test_a_barrier_that_overtook_upstream_switches_the_snapshot_when_it_comes() -> None:
    clock = ManualClock()
    harness = SubtaskHarness(alignment_timeout_ms=500, clock=clock)
    options = BarrierOptions(alignment=Alignment.UNALIGNED, alignment_timeout_ms=500)
    overtaking = CheckpointBarrier(ONE, clock.now_ms(), options)
    clock.ms += 503
    harness.bring(0, "a1", overtaking)
    clock.ms += 20
    harness.bring(1, overtaking)
    harness.write()
    assert told(harness) == (True, Switch.UPSTREAM, 503)
