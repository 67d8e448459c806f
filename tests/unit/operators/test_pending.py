"""Timers and windows that fire, and operators that finish: in slices, held up by back pressure."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.builders import barrier
from tests.unit.operators.operator_harness import Harness
from tests.unit.operators.test_windows import FIRST, TEN, Pipeline, _plain, rows_of, windows
from tests.unit.worker.subtask_harness import ManualClock, Passing, SubtaskHarness
from weir.common.batch import Batch
from weir.ids import ChannelId, StateHandle
from weir.operators.base import Poll, SourceOperator
from weir.operators.functions import KeyedProcessFunction, ProcessWindowFunction
from weir.operators.keyed import KeyedProcessOperator
from weir.operators.windows.window_aggregates import WINDOW_ROWS
from weir.operators.windows.window_assigners import (
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from weir.operators.windows.window_operator import WindowFactory
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    CheckpointKind,
    EndOfInput,
    Records,
    Watermark,
)
from weir.protocol.messages import Acknowledged
from weir.worker.subtask import Progress

LAST = Watermark(MAX_WATERMARK_MS)
TARGET_MS = 5  # The default of ``slice_target_ms``.
SLICE_MAX = 2 * TARGET_MS  # Firings of 1 ms in a slice, when nothing is known of them yet.


class Slow(KeyedProcessFunction):
    """A timer per record, each of which takes a millisecond."""

    def __init__(self, clock: Callable[[], ManualClock], fired: list[int]) -> None:
        self.clock, self.fired = clock, fired

    def __deepcopy__(self, memo: Any) -> "Slow":
        return self

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value[1])
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.clock().ms += 1
        self.fired.append(timestamp)
        yield timestamp


class SlowWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Each window takes a millisecond, and makes a row of its key."""

    def __init__(self, clock: Callable[[], ManualClock]) -> None:
        self.clock = clock

    def __deepcopy__(self, memo: Any) -> "SlowWindow":
        return self

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        self.clock().ms += 1
        yield key, context.window().start


def slow_windows(clock: Callable[[], ManualClock], *, event_time: bool) -> WindowFactory:
    size_ms = 1 if event_time else 10**9
    kind = TumblingEventTimeWindows if event_time else TumblingProcessingTimeWindows
    return windows(windows=kind.of(size_ms), window_function=SlowWindow(clock))


def in_overdraft(harness: SubtaskHarness) -> int:
    """Rows that wait for credit."""
    (channel,) = harness.subtask.outputs[0].channels
    return sum(e.count for e in channel.overdraft if isinstance(e, Records))


def give(harness: SubtaskHarness, batch: Batch) -> None:
    harness.subtask.inputs.deliver(ChannelId(0), Records(batch, len(batch), 10))
    harness.settle()


def deliver_ends(harness: SubtaskHarness) -> None:
    for index in (0, 1):
        harness.subtask.inputs.deliver(ChannelId(index), EndOfInput())


def use_up_credit(harness: SubtaskHarness) -> None:
    """Send so much that what is emitted next waits, though nothing waits yet."""
    harness.subtask.outputs[0].emit(Batch.of_rows(["x" * 2_000]))
    assert in_overdraft(harness) == 0


def through_back_pressure(harness: SubtaskHarness) -> tuple[list[Any], int]:
    """All that comes out, with credit for a batch at a time; the most rows that waited for it."""
    out: list[Any] = harness.emitted()
    most = held = 0
    while True:
        progress = harness.subtask.step()
        most = max(most, in_overdraft(harness))
        if progress is Progress.BACK_PRESSURED:
            held += 1
            harness.grant_all()
        out += harness.emitted()
        if progress is Progress.IDLE:
            assert held, "nothing was ever held up"
            return out, most


# Slices ----------------------------------------------------------------------------------------


def test_a_step_fires_about_as_many_timers_as_a_slice_has_time_for() -> None:
    fired: list[int] = []
    slow = partial(KeyedProcessOperator, FIRST, Slow(lambda: harness.clock, fired))()
    harness = SubtaskHarness(head=slow, channels=1)
    give(harness, Batch.of_rows([("k", number) for number in range(500)]))
    harness.subtask.inputs.deliver(ChannelId(0), Watermark(1_000))
    counts = []
    while len(fired) < 500:
        before = len(fired)
        harness.grant_all()
        assert harness.subtask.step() is Progress.WORKED
        counts.append(len(fired) - before)
    assert fired == list(range(500))
    assert max(counts) <= SLICE_MAX
    assert max(counts[3:]) <= TARGET_MS
    assert harness.emitted()[-1] == Watermark(1_000)


def test_what_a_timer_costs_does_not_shrink_the_slices_of_records() -> None:
    slow = partial(KeyedProcessOperator, FIRST, Slow(lambda: harness.clock, []))()
    harness = SubtaskHarness(head=slow, channels=1)
    give(harness, Batch.of_rows([("k", number) for number in range(50)]))
    harness.subtask.inputs.deliver(ChannelId(0), Watermark(1_000))
    while harness.subtask.step() is not Progress.IDLE:
        harness.grant_all()
    harness.grant_all()
    harness.subtask.inputs.deliver(
        ChannelId(0), Records(Batch.of_rows([("k", 2_000 + n) for n in range(500)]), 500, 10)
    )
    before = harness.subtask.records_in
    assert harness.subtask.step() is Progress.WORKED
    # The first fifty came in growing slices, as cheap records do, and so they go on.
    assert harness.subtask.records_in - before > 32


def test_a_slice_of_tables_is_bounded_by_their_number_as_well_as_their_rows() -> None:
    pipeline = Pipeline(assigner=TumblingEventTimeWindows.of(1))
    for number in range(50):
        pipeline.run([number] * 2, k=["a", "b"], x=[1, 1])
    operator, events = pipeline.final.operator, pipeline.final.output.events
    operator.on_watermark(1_000)
    fired, counts = 0, []
    while operator.has_pending:
        done = operator.advance(3 * WINDOW_ROWS)
        now = len(rows_of(events)) // 2
        counts.append(now - fired)
        assert done >= WINDOW_ROWS * (now - fired)
        fired = now
    assert (sum(counts), max(counts)) == (50, 3)
    assert [row[1] for row in rows_of(events)[::2]] == list(range(50))
    assert events[-1] == ("watermark", 1_000)


def test_forgetting_tables_is_sliced_as_well() -> None:
    pipeline = Pipeline(assigner=TumblingEventTimeWindows.of(1), lateness_ms=100)
    for number in range(20):
        pipeline.run([number], k=["a"], x=[1])
    pipeline.watermark(50)
    tables = len(pipeline.final.state._tables)
    operator = pipeline.final.operator
    operator.on_watermark(1_000)
    left = []
    while operator.has_pending:
        operator.advance(2 * WINDOW_ROWS)
        left.append(len(pipeline.final.state._tables))
    assert (tables, left) == (20, list(range(18, -1, -2)))


class NotLookedThrough(dict[Any, Any]):
    """The open windows, which nothing may look through."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all open windows are looked at")


@pytest.mark.parametrize("event_time", [True, False])
def test_time_that_ends_no_window_looks_at_none(event_time: bool) -> None:
    assigner = TEN if event_time else TumblingProcessingTimeWindows.of(10)
    pipeline = Pipeline(assigner=assigner)
    pipeline.final.clock.ms = 1_000
    for start in range(1_000, 1_100, 10):
        pipeline.final.clock.ms = start
        pipeline.run([start] if event_time else None, k=["a"], x=[1])
    operator: Any = pipeline.final.operator
    operator._open = NotLookedThrough(operator._open)
    if event_time:
        assert pipeline.watermark(1_008) == [("watermark", 1_008)]
        fired = pipeline.watermark(1_019)
    else:
        assert operator.next_timer_ms() == 1_010
        fired = [_plain(event) for event in pipeline.final.clock_to(1_020)]
    assert [row[1] for row in rows_of(fired)] == [1_000, 1_010]


# Back pressure ---------------------------------------------------------------------------------


def test_windows_that_fire_wait_for_credit_between_their_slices() -> None:
    harness = SubtaskHarness(
        head=slow_windows(lambda: harness.clock, event_time=True)(), channels=1
    )
    batch = Batch.of_rows([("k", 1)] * 2_000, timestamps=np.arange(2_000))
    give(harness, batch)
    use_up_credit(harness)
    harness.subtask.inputs.deliver(ChannelId(0), Watermark(10_000))
    out, most = through_back_pressure(harness)
    assert [row for row in out if isinstance(row, tuple)] == [("k", n) for n in range(2_000)]
    assert out[-1] == Watermark(10_000)
    assert 0 < most <= SLICE_MAX


def test_windows_of_processing_time_wait_for_credit_at_the_end_of_the_input() -> None:
    harness = SubtaskHarness(head=slow_windows(lambda: harness.clock, event_time=False)())
    give(harness, Batch.of_rows([(f"k{number}", 1) for number in range(2_000)]))
    use_up_credit(harness)
    deliver_ends(harness)
    out, most = through_back_pressure(harness)
    fired = [row[0] for row in out if isinstance(row, tuple)]
    assert sorted(fired) == sorted(f"k{number}" for number in range(2_000))
    assert out[-1] == EndOfInput()
    assert 0 < most <= SLICE_MAX
    assert harness.reports.statuses == ["running", "ended"]


def test_tables_of_processing_time_fire_in_slices_at_the_end_of_the_input() -> None:
    pipeline = Pipeline(assigner=TumblingProcessingTimeWindows.of(10))
    for number in range(20):
        pipeline.final.clock.ms = 10 * number
        pipeline.run(None, k=["a"], x=[1])
    operator, events = pipeline.final.operator, pipeline.final.output.events
    operator.finish()
    assert rows_of(events) == []
    operator.advance(5 * WINDOW_ROWS)
    first = [row[1] for row in rows_of(events)]
    after = Pipeline(
        assigner=TumblingProcessingTimeWindows.of(10), restored=pipeline.final.snapshot()
    ).final
    after.operator.finish()
    after.settle()
    assert first == [0, 10, 20, 30, 40]
    assert [row[1] for row in rows_of(after.output.events)] == list(range(50, 200, 10))


# The end ---------------------------------------------------------------------------------------


class Finishing(Passing):
    """Has more to do when it finishes; what the operators of the chain do is noted in one list."""

    def __init__(self, name: str, calls: list[str], pending: int) -> None:
        super().__init__()
        self.name, self.noted, self.more = name, calls, pending

    def advance(self, records_max: int) -> int:
        self.noted.append(f"{self.name} advances")
        self.ctx.output.emit(Batch.of_rows([f"{self.name} {self.pending}"]))
        return super().advance(records_max)

    def finish(self) -> None:
        self.noted.append(f"{self.name} finishes")
        self.pending = self.more

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.noted.append(f"{self.name} gets {', '.join(batch.rows)}")
        super().on_batch(batch, input_index)


def test_each_operator_finishes_after_the_pending_work_of_those_before_it() -> None:
    calls: list[str] = []
    harness = SubtaskHarness(head=Finishing("head", calls, 2), behind=Finishing("behind", calls, 1))
    deliver_ends(harness)
    harness.settle()
    assert calls == [
        "head finishes",
        "head advances", "behind gets head 2",
        "head advances", "behind gets head 1",
        "behind finishes",
        "behind advances",
    ]  # fmt: skip
    assert harness.emitted() == [LAST, "head 2", "head 1", "behind 1", EndOfInput()]


def test_an_operator_finishes_after_what_the_end_of_another_gave_it_to_do() -> None:
    calls: list[str] = []

    class Emitting(Finishing):
        def finish(self) -> None:
            super().finish()
            self.ctx.output.emit(Batch.of_rows(["rest"]))

    class Busy(Finishing):
        def on_batch(self, batch: Batch, input_index: int) -> None:
            super().on_batch(batch, input_index)
            self.pending = 1

    harness = SubtaskHarness(head=Emitting("head", calls, 0), behind=Busy("behind", calls, 0))
    deliver_ends(harness)
    harness.settle()
    assert calls == ["head finishes", "behind gets rest", "behind advances", "behind finishes"]


def test_the_last_of_a_chain_with_pending_work_goes_first() -> None:
    """It gets nothing more before what it has is done."""
    calls: list[str] = []
    head, behind = Finishing("head", calls, 0), Finishing("behind", calls, 0)
    harness = SubtaskHarness(head=head, behind=behind)
    head.pending = behind.pending = 1
    harness.settle()
    assert calls == ["behind advances", "head advances", "behind gets head 1"]


def test_a_trigger_while_operators_finish_is_taken_when_all_have() -> None:
    calls: list[str] = []
    harness = SubtaskHarness(head=Finishing("head", calls, 2))
    deliver_ends(harness)
    while "head advances" not in calls:
        assert harness.subtask.step() is Progress.WORKED
    harness.subtask.on_trigger(barrier(1))
    harness.write()
    assert harness.reports.acknowledged == []
    harness.settle()
    harness.write()
    assert harness.reports.acknowledged == [1]
    assert harness.emitted()[-2:] == [EndOfInput(), "flushed for 1"]


@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_drain_triggered_while_operators_finish_is_confirmed(checkpointing: bool) -> None:
    calls: list[str] = []
    harness = SubtaskHarness(
        head=Finishing("head", calls, 2),
        behind=Finishing("behind", calls, 0),
        checkpointing=checkpointing,
    )
    deliver_ends(harness)
    while "head advances" not in calls:
        assert harness.subtask.step() is Progress.WORKED
    harness.subtask.on_trigger(barrier(1, kind=CheckpointKind.STOP_DRAIN))
    harness.settle()
    harness.write()
    assert harness.reports.acknowledged == [1]
    assert harness.reports.statuses == ["running", "ended"]
    harness.subtask.on_completed(barrier(1).checkpoint_id, final=True)
    assert harness.reports.statuses == ["running", "ended", "finished"]


def test_a_drain_given_up_while_operators_finish_leaves_none_without_its_confirmation() -> None:
    """The head finished expecting to be confirmed, which an end of the subtask would lose."""
    head, behind = Finishing("head", [], 2), Finishing("behind", [], 0)
    harness = SubtaskHarness(head=head, behind=behind, checkpointing=False)
    harness.subtask.on_trigger(barrier(1, kind=CheckpointKind.STOP_DRAIN))
    deliver_ends(harness)
    while not head.pending:
        assert harness.subtask.step() is Progress.WORKED
    assert head.ctx.checkpointing
    harness.subtask.on_aborted(barrier(1).checkpoint_id)
    harness.settle()
    assert behind.ctx.checkpointing
    assert harness.reports.statuses == ["running", "ended"]


class Keys(SourceOperator):
    """Emits one record of each key, all at once."""

    def __init__(self, count: int) -> None:
        self.left = [(f"k{number}", 1) for number in range(count)]

    def poll(self, records_max: int) -> Poll:
        if not self.left:
            return Poll.END
        self.ctx.output.emit(Batch.of_rows(self.left))
        self.left = []
        return Poll.MORE


def finishing(keys: int) -> SubtaskHarness:
    """A source that has ended, and windows of processing time behind it, of which some fired."""
    behind = slow_windows(lambda: harness.clock, event_time=False)()
    harness = SubtaskHarness(source=Keys(keys), behind=behind)
    while not any(isinstance(what, tuple) for what in seen(harness)):
        harness.grant_all()
        assert harness.subtask.step() is Progress.WORKED
    return harness


def seen(harness: SubtaskHarness) -> list[Any]:
    """The rows sent so far, without taking them."""
    sent = [element for _, element in harness.transport.sent]
    return [row for e in sent if isinstance(e, Records) for row in e.payload.rows]


def held_behind(harness: SubtaskHarness) -> tuple[StateHandle, ...]:
    """The snapshot's handles of the operator behind the source."""
    (ack,) = [report for report in harness.reports if isinstance(report, Acknowledged)]
    return next(op.handles for op in ack.operators if str(op.subtask) == "behind-0")


def test_a_snapshot_while_operators_finish_holds_exactly_the_rest() -> None:
    harness = finishing(40)
    before = seen(harness)
    harness.subtask.on_trigger(barrier(1))
    while harness.subtask.step() is not Progress.IDLE:
        harness.grant_all()
    harness.write()
    out = harness.emitted()
    at = out.index(barrier(1))
    assert [row for row in out[:at] if isinstance(row, tuple)] == before
    assert out[-1] == EndOfInput()
    after = Harness(
        slow_windows(lambda: after.clock, event_time=False), restored=held_behind(harness)
    )
    after.operator.finish()
    after.settle()
    rest = [row[0] for row in rows_of(after.output.events)]
    assert 0 < len(before) < 40
    assert sorted([row[0] for row in before] + rest) == sorted(f"k{n}" for n in range(40))


def test_a_stop_pauses_operators_that_finish_and_its_end_lets_them_go_on() -> None:
    harness = finishing(40)
    suspend = barrier(1, kind=CheckpointKind.STOP_SUSPEND)
    harness.subtask.on_trigger(suspend)
    before = len(seen(harness))
    assert harness.subtask.step() is Progress.IDLE
    harness.subtask.on_aborted(suspend.checkpoint_id)
    while harness.subtask.step() is not Progress.IDLE:
        harness.grant_all()
    out = harness.emitted()
    assert 0 < before < 40
    assert len([row for row in out if isinstance(row, tuple)]) == 40
    assert out[-1] == EndOfInput()
