"""The life of one subtask: slices, time, barriers, and the end of its input."""

import pytest

from tests.builders import barrier
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.gate_harness import records
from tests.unit.worker.subtask_harness import Counting, Passing, SubtaskHarness
from weir.common.batch import Batch
from weir.config import CheckpointingMode
from weir.ids import ChannelId, CheckpointId
from weir.operators.base import Poll, SourceOperator
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    CancelCheckpoint,
    EndOfInput,
    Watermark,
    WatermarkIdle,
)
from weir.worker.subtask import Progress

ONE, TWO = CheckpointId(1), CheckpointId(2)
LAST = Watermark(MAX_WATERMARK_MS)


def test_a_barrier_goes_out_between_what_came_before_it_and_what_came_after() -> None:
    harness = SubtaskHarness()
    harness.give(0, "a1", barrier(1), "a2")
    harness.give(1, "b1")
    assert harness.emitted() == ["a1", "b1"]  # a2 is behind the barrier.
    harness.give(1, barrier(1), "b2")
    flushed, forwarded, *behind = harness.emitted()
    assert (flushed, forwarded, sorted(behind)) == ("flushed for 1", barrier(1), ["a2", "b2"])


def test_the_position_of_the_input_is_that_of_the_last_slice() -> None:
    harness = SubtaskHarness()
    harness.give(0, records("a1", "a2"))
    harness.give(1, records("b1"), barrier(1))
    assert str(harness.subtask.position) == "in the input records 3 to 3 of the attempt"
    assert harness.subtask.records_in == 3


def test_a_snapshot_holds_what_came_before_the_barrier_and_nothing_else() -> None:
    harness = SubtaskHarness()
    harness.give(0, "a1", barrier(1), "a2")
    harness.give(1, "b1", barrier(1), "b2")
    harness.write()  # After a2 and b2 were processed.
    (ack,) = harness.reports[1:]
    assert ack.operators[0].handles[0].inline == b'["a1","b1"]'


def test_at_least_once_blocks_nothing_and_waits_for_the_last_barrier() -> None:
    harness = SubtaskHarness(mode=CheckpointingMode.AT_LEAST_ONCE)
    harness.give(0, "a1", barrier(1), "a2")
    assert harness.emitted() == ["a1", "a2"]
    harness.give(1, barrier(1))
    harness.write()
    assert harness.emitted() == ["flushed for 1", barrier(1)]
    assert harness.reports.acknowledged == [1]


def test_without_credit_nothing_is_taken_in_and_no_timer_wakes_the_loop() -> None:
    harness = SubtaskHarness()
    owed = harness.exhaust_credit()
    harness.operator.timer_ms = 1
    harness.give(0, "a1")
    assert harness.subtask.step() is Progress.BACK_PRESSURED
    assert harness.subtask.next_timer_ms() is None
    harness.emitted()
    harness.grant(owed)
    harness.settle()
    assert harness.emitted() == ["waits", "a1"]
    assert ("timer", harness.clock.ms) in harness.operator.calls


def test_the_next_timer_is_the_earliest_of_all() -> None:
    behind = Passing()
    harness = SubtaskHarness(behind=behind)
    start = harness.clock.ms
    harness.subtask.alignment_clock.start_timer(ONE, 20, start)
    for first, second, earliest in [(30, 10, 10), (10, 30, 10), (40, 30, 20)]:
        harness.operator.timer_ms, behind.timer_ms = start + first, start + second
        assert harness.subtask.next_timer_ms() == start + earliest


def test_a_barrier_waits_behind_records_that_wait_for_credit() -> None:
    harness = SubtaskHarness(source=Counting(0))
    owed = harness.exhaust_credit()
    harness.emitted()
    harness.subtask.on_trigger(barrier(1))
    assert harness.emitted() == []
    harness.grant(owed)
    assert harness.emitted() == ["waits", barrier(1)]


def test_pending_work_is_done_before_new_input() -> None:
    harness = SubtaskHarness()
    harness.operator.pending = 2
    harness.subtask.inputs.deliver(harness.subtask.inputs.gates[0][0].id, EndOfInput())
    assert harness.subtask.step() is Progress.WORKED
    assert harness.subtask.step() is Progress.WORKED
    assert harness.operator.calls == ["advance", "advance"]


def test_the_watermark_advances_with_the_slowest_channel_and_never_goes_back() -> None:
    harness = SubtaskHarness()
    harness.give(0, Watermark(10))
    assert harness.operator.calls == []
    harness.give(1, Watermark(5), Watermark(3), Watermark(20))
    assert harness.operator.calls == [("watermark", 5), ("watermark", 10)]


def test_idle_channels_do_not_hold_event_time_back() -> None:
    harness = SubtaskHarness()
    harness.give(0, Watermark(10))
    harness.give(1, WatermarkIdle())
    assert harness.operator.calls == [("watermark", 10)]
    harness.give(0, WatermarkIdle())
    assert harness.operator.calls[1:] == ["idle"]
    harness.give(1, "record", Watermark(12))
    harness.give(0, Watermark(15))
    assert harness.operator.calls[2:] == [("watermark", 12)]


def test_an_end_beside_an_idle_channel_does_not_end_event_time() -> None:
    harness = SubtaskHarness()
    harness.give(0, WatermarkIdle())
    harness.give(1, EndOfInput())
    assert LAST not in harness.emitted()
    harness.give(0, "late comer", Watermark(7))
    assert ("watermark", 7) in harness.operator.calls


def test_the_end_of_all_input_is_the_last_watermark_then_finish_then_the_end() -> None:
    harness = SubtaskHarness()
    harness.give(0, "a1", EndOfInput())
    assert harness.reports.statuses == ["running"]
    harness.give(1, EndOfInput())
    assert harness.operator.calls == [("watermark", MAX_WATERMARK_MS), "finish"]
    assert harness.emitted() == ["a1", LAST, EndOfInput()]
    assert harness.reports.statuses == ["running", "ended"]


def test_without_checkpoints_a_subtask_finishes_by_itself() -> None:
    harness = SubtaskHarness(checkpointing=False)
    harness.give(0, EndOfInput())
    harness.give(1, EndOfInput())
    assert harness.reports.statuses == ["running", "finished"]


def test_a_source_takes_its_snapshot_when_triggered_once_per_checkpoint() -> None:
    harness = SubtaskHarness(source=Counting(3))
    harness.settle()
    harness.subtask.on_trigger(barrier(2))
    harness.subtask.on_trigger(barrier(2))
    harness.subtask.on_trigger(barrier(1))
    harness.write()
    assert harness.reports.acknowledged == [2]


def test_a_source_between_records_and_end_still_sends_the_barrier() -> None:
    harness = SubtaskHarness(source=Counting(1))
    assert harness.subtask.step() is Progress.WORKED
    harness.subtask.on_trigger(barrier(1))
    harness.settle()
    assert harness.emitted() == [0, barrier(1), LAST, EndOfInput()]


def test_an_ended_subtask_takes_the_trigger_for_a_barrier_and_sends_none() -> None:
    harness = SubtaskHarness()
    harness.give(0, EndOfInput())
    harness.give(1, EndOfInput())
    harness.emitted()
    harness.subtask.on_trigger(barrier(1))
    harness.write()
    assert harness.reports.acknowledged == [1]
    assert barrier(1) not in harness.emitted()


def test_a_trigger_that_no_barrier_will_follow_is_taken_at_the_end() -> None:
    """The sources had ended before the trigger; their end of input is still on its way here."""
    harness = SubtaskHarness()
    harness.subtask.on_trigger(barrier(1))
    assert harness.reports.acknowledged == []
    harness.give(0, EndOfInput())
    harness.give(1, EndOfInput())
    harness.write()
    assert harness.reports.acknowledged == [1]


def test_a_trigger_whose_barrier_came_is_not_taken_again_at_the_end() -> None:
    harness = SubtaskHarness()
    harness.subtask.on_trigger(barrier(1))
    harness.give(0, barrier(1), EndOfInput())
    harness.give(1, EndOfInput())  # Counts as aligned.
    harness.write()
    assert harness.reports.acknowledged == [1]


def test_a_trigger_that_was_given_up_is_not_taken_at_the_end() -> None:
    harness = SubtaskHarness()
    harness.subtask.on_trigger(barrier(1))
    harness.subtask.on_aborted(ONE)
    harness.give(0, EndOfInput())
    harness.give(1, EndOfInput())
    harness.write()
    assert harness.reports.acknowledged == []


def test_the_final_checkpoint_finishes_an_ended_subtask_and_nothing_follows() -> None:
    harness = SubtaskHarness(source=Counting(0))
    harness.settle()
    harness.subtask.on_trigger(barrier(1))
    harness.write()
    harness.subtask.on_completed(ONE, final=True)
    assert harness.reports.statuses == ["running", "ended", "finished"]
    harness.emitted()
    harness.subtask.on_trigger(barrier(2))
    harness.write()
    assert harness.reports.acknowledged == [1]
    assert harness.emitted() == []


def test_a_checkpoint_before_the_end_does_not_finish_anything() -> None:
    harness = SubtaskHarness(source=Counting(0))
    harness.settle()
    harness.subtask.on_completed(ONE, final=False)
    assert harness.reports.statuses == ["running", "ended"]


def test_completions_only_go_forward() -> None:
    harness = SubtaskHarness()
    for checkpoint_id in (TWO, ONE, TWO):
        harness.subtask.on_completed(checkpoint_id, final=False)
    assert harness.operator.calls == [("completed", 2)]


def test_giving_a_checkpoint_up_frees_what_waits_for_it() -> None:
    harness = SubtaskHarness()
    harness.give(0, barrier(1), "a2")
    harness.subtask.on_aborted(ONE)
    harness.settle()
    assert harness.emitted() == [CancelCheckpoint(ONE), "a2"]
    assert ("aborted", 1) in harness.operator.calls
    harness.give(1, barrier(1))
    harness.write()
    assert harness.reports.acknowledged == []


def test_a_snapshot_being_written_for_a_checkpoint_given_up_is_not_acknowledged() -> None:
    harness = SubtaskHarness()
    for channel in (0, 1):
        harness.give(channel, barrier(1))
    assert harness.snapshots.waiting
    harness.subtask.on_aborted(ONE)
    harness.write()
    assert harness.reports.acknowledged == []
    assert harness.reports.declined == []


def test_a_newer_barrier_declines_the_older_checkpoint() -> None:
    harness = SubtaskHarness()
    harness.give(0, barrier(1))
    harness.give(1, barrier(2))
    assert harness.reports.declined == [(1, "checkpoint_declined_subsumed")]
    harness.give(0, barrier(2))
    harness.write()
    assert harness.reports.acknowledged == [2]


def test_a_cancel_marker_declines_and_goes_on_downstream() -> None:
    harness = SubtaskHarness()
    harness.give(0, CancelCheckpoint(ONE))
    assert harness.reports.declined == [(1, "checkpoint_declined_on_cancellation_barrier")]
    assert harness.emitted() == [CancelCheckpoint(ONE)]


def test_metrics_split_the_time_into_busy_held_and_idle() -> None:
    harness = SubtaskHarness()
    harness.give(0, "a1", "a2")
    harness.subtask.busy_ns = 3_000_000
    harness.subtask.held.begin(1_000_000)
    harness.subtask.held.begin(2_000_000)  # Held already.
    harness.subtask.held.end(5_000_000)
    harness.subtask.held.end(9_000_000)
    metrics = harness.subtask.metrics(now_ns=11_000_000, elapsed_ns=10_000_000)
    assert (metrics.busy_ms, metrics.back_pressured_ms, metrics.idle_ms) == (3, 4, 3)
    assert (metrics.records_in, metrics.records_out, metrics.watermark_ms) == (2, 2, None)


def test_back_pressure_that_lasts_counts_while_it_does() -> None:
    """Counted as idle until it ended, idleness would shrink: counters of an attempt only grow."""
    harness = SubtaskHarness()
    harness.subtask.held.begin(2_000_000)
    during = harness.subtask.metrics(now_ns=10_000_000, elapsed_ns=10_000_000)
    assert (during.busy_ms, during.back_pressured_ms, during.idle_ms) == (0, 8, 2)
    harness.subtask.held.end(12_000_000)
    after = harness.subtask.metrics(now_ns=20_000_000, elapsed_ns=20_000_000)
    assert (after.busy_ms, after.back_pressured_ms, after.idle_ms) == (0, 10, 10)


def test_a_source_counts_what_it_emitted_as_taken_in() -> None:
    harness = SubtaskHarness(source=Counting(3))
    harness.settle()
    assert harness.subtask.records_in == 3


def test_closing_goes_on_past_an_operator_that_fails_to(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SubtaskHarness()

    def fail() -> None:
        raise OSError("gone")

    monkeypatch.setattr(harness.operator, "close", fail)
    errors: list[Exception] = []
    harness.subtask.close(errors.append)
    assert [str(error) for error in errors] == ["gone"]


# Time.


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
def test_an_alignment_times_out_though_the_trigger_came_from_a_clock_that_is_ahead(
    ahead_ms: int,
) -> None:
    harness = SubtaskHarness(alignment_timeout_ms=500)
    now = harness.clock.now_ms()
    harness.give(0, barrier(1, triggered_at_ms=now + ahead_ms, alignment_timeout_ms=500))
    assert harness.subtask.next_timer_ms() == now + 500


class SleepyClock(ManualClock):
    """A function sleeps by it: time passes, and no work is done."""

    def thread_ns(self) -> int:
        return 0


class Sleepy(Passing):
    """Takes 12 ms a record to wait for an answer."""

    def __init__(self, clock: SleepyClock) -> None:
        super().__init__()
        self.clock = clock
        self.slices: list[int] = []

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.slices.append(len(batch))
        self.clock.ms += 12 * len(batch)


class SleepyNumbers(SourceOperator):
    """A source whose generator function waits for each record."""

    def __init__(self, clock: SleepyClock) -> None:
        self.clock = clock

    def poll(self, records_max: int) -> Poll:
        self.clock.ms += 12 * records_max
        self.ctx.output.emit(Batch.of_rows(list(range(records_max))))
        return Poll.MORE


def test_a_barrier_passes_a_function_that_sleeps() -> None:
    """It comes by one channel while thousands of records wait on the other."""
    clock = SleepyClock()
    harness = SubtaskHarness(clock=clock, mode=CheckpointingMode.AT_LEAST_ONCE)
    operator = Sleepy(clock)
    operator.open(harness.operator.ctx)
    harness.subtask._head = operator
    rows = [str(number) for number in range(1_000)]
    harness.subtask.inputs.deliver(ChannelId(0), records(*rows))
    longest = 0
    for number in range(1, 20):
        harness.subtask.inputs.deliver(ChannelId(1), barrier(number))
        since, known = clock.ms, harness.subtask.alignment_clock
        while number not in known._alignments:
            assert harness.subtask.step() is Progress.WORKED
        longest = max(longest, clock.ms - since)
    assert len(operator.slices) >= 18  # Each time there were records to be processed first.
    assert longest <= 150


def test_a_trigger_reaches_a_source_that_sleeps() -> None:
    clock = SleepyClock()
    harness = SubtaskHarness(source=SleepyNumbers(clock), clock=clock, credit_bytes=1 << 20)
    longest = 0
    for _ in range(50):
        since = clock.ms
        assert harness.subtask.step() is Progress.WORKED
        longest = max(longest, clock.ms - since)
    assert 0 < longest <= 150
