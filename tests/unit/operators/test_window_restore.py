"""Open windows restored into a program whose windows have another size or lateness."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import pytest

from tests.unit.operators.operator_harness import Harness
from tests.unit.operators.test_windows import LATE, TEN, Listing, Pipeline, rows_of, windows
from weir.common import Types
from weir.common.batch import Batch
from weir.common.types.dynamic import DYNAMIC
from weir.errors import RestoreError
from weir.operators.base import Operator, OperatorContext
from weir.operators.functions import ProcessWindowFunction
from weir.operators.windows.window_assigners import (
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    TumblingWindows,
)
from weir.protocol.elements import MAX_WATERMARK_MS
from weir.state.descriptors import MapStateDescriptor

SIZES = [4, 25, 1_000]


def of_size(size_ms: int) -> TumblingWindows:
    return TumblingEventTimeWindows.of(size_ms)


def is_empty(harness: Harness) -> bool:
    """Whether a snapshot would hold neither windows nor timers."""
    return not any(handle.kind == "keyed" for handle in harness.snapshot())


# Another size ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size_ms", SIZES)
def test_a_restored_window_fires_at_its_own_end_beside_those_of_the_new_size(size_ms: int) -> None:
    before = Harness(windows(gather=None, window_function=Listing()))
    before.rows([("a", 1), ("a", 2), ("b", 3)], [1, 12, 13])
    now = windows(gather=None, window_function=Listing(), windows=of_size(size_ms))
    after = Harness(now, restored=before.snapshot())
    after.rows([("a", 4)], [13])
    start = 13 // size_ms * size_ms
    assert rows_of(after.watermark(8)) == []
    assert rows_of(after.watermark(9)) == [("a", 0, 10, [("a", 1)])]
    assert sorted(rows_of(after.watermark(MAX_WATERMARK_MS))) == sorted(
        [
            ("a", 10, 20, [("a", 2)]),
            ("a", start, start + size_ms, [("a", 4)]),
            ("b", 10, 20, [("b", 3)]),
        ]
    )
    assert is_empty(after)


@pytest.mark.parametrize("late_tag", [None, LATE])
@pytest.mark.parametrize("size_ms", SIZES)
def test_a_restored_table_fires_at_its_own_end_beside_those_of_the_new_size(
    size_ms: int, late_tag: Any
) -> None:
    before = Pipeline(late_tag=late_tag)
    before.run([1, 12, 13], k=["a", "a", "b"], x=[1, 2, 3])
    after = Pipeline(assigner=of_size(size_ms), late_tag=late_tag, restored=before.final.snapshot())
    after.run([13], k=["a"], x=[4])
    start = 13 // size_ms * size_ms
    assert rows_of(after.watermark(8)) == []
    assert rows_of(after.watermark(9)) == [("a", 0, 10, 1, 1)]
    assert sorted(rows_of(after.watermark(MAX_WATERMARK_MS))) == sorted(
        [("a", 10, 20, 2, 1), ("a", start, start + size_ms, 4, 1), ("b", 10, 20, 3, 1)]
    )
    assert is_empty(after.final)


def test_windows_of_several_sizes_survive_another_restore() -> None:
    first = Pipeline()
    first.run([12], k=["a"], x=[1])
    second = Pipeline(assigner=of_size(4), restored=first.final.snapshot())
    second.run([13], k=["a"], x=[2])
    third = Pipeline(assigner=of_size(10), restored=second.final.snapshot())
    third.run([13], k=["a"], x=[4])
    assert rows_of(third.watermark(99)) == [("a", 12, 16, 2, 1), ("a", 10, 20, 5, 2)]


def test_combined_records_say_how_long_their_windows_are() -> None:
    """As a receiver that is told by the records it gets, not by its own program."""
    sender, receiver = Pipeline(assigner=of_size(4)), Pipeline()
    assert sender.combiner is not None
    sender.combiner.columns([13], k=["a"], x=[1])
    receiver.final.operator.on_batch(sender.combiner.output.batches[0], 0)
    assert rows_of(receiver.watermark(15)) == [("a", 12, 16, 1, 1)]


@pytest.mark.parametrize("size_ms", SIZES)
def test_restored_windows_of_processing_time_fire_at_their_own_end(size_ms: int) -> None:
    ten = TumblingProcessingTimeWindows.of(10)
    other = TumblingProcessingTimeWindows.of(size_ms)
    rows, columns = Harness(windows(windows=ten)), Pipeline(assigner=ten)
    rows.clock.ms = columns.final.clock.ms = 1_003
    rows.rows([("a", 1)])
    columns.run(None, k=["a"], x=[1])
    rows = Harness(windows(windows=other), restored=rows.snapshot())
    columns = Pipeline(assigner=other, restored=columns.final.snapshot())
    assert rows.clock_to(1_008) == columns.final.clock_to(1_008) == []
    assert rows.operator.next_timer_ms() == 1_009
    assert columns.final.operator.next_timer_ms() == 1_010
    assert rows_of(rows.clock_to(1_010)) == [("a", 1)]
    assert [tuple(row) for row in rows_of(columns.final.clock_to(1_010))] == [
        ("a", 1_000, 1_010, 1, 1)
    ]


# Another lateness ------------------------------------------------------------------------------


class Clearing(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits how many records a window has, and notes each window that it is told to forget."""

    cleared: ClassVar[list[Any]] = []

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, context.window().start, len(list(elements))

    def clear(self, context: Any) -> None:
        self.cleared.append(context.window().start)


LATENESSES = [(0, 5), (5, 0), (5, 20), (20, 5)]


def clearing(lateness_ms: int) -> Callable[[], Operator]:
    Clearing.cleared.clear()
    return windows(gather=None, window_function=Clearing(), lateness_ms=lateness_ms)


@pytest.mark.parametrize(("old_ms", "new_ms"), LATENESSES)
def test_an_open_window_is_forgotten_once_under_another_lateness(old_ms: int, new_ms: int) -> None:
    before = Harness(clearing(old_ms))
    before.rows([("a", 1)], [1])
    after = Harness(clearing(new_ms), restored=before.snapshot())
    assert rows_of(after.watermark(9)) == [("a", 0, 1)]
    if new_ms:
        after.watermark(9 + new_ms - 1)
        assert after.rows([("a", 2)], [2]) == [("a", 0, 2)]
    after.watermark(9 + new_ms)
    assert Clearing.cleared == [0]
    assert after.rows([("a", 3)], [3]) == []
    assert after.ctx.late_records == 1
    after.watermark(100)
    assert Clearing.cleared == [0]
    assert is_empty(after)


@pytest.mark.parametrize(("old_ms", "new_ms"), LATENESSES)
def test_a_fired_window_is_forgotten_once_under_another_lateness(old_ms: int, new_ms: int) -> None:
    before = Harness(clearing(old_ms))
    before.rows([("a", 1)], [1])
    before.watermark(9)
    held = before.snapshot()
    Clearing.cleared.clear()
    after = Harness(clearing(new_ms), restored=held)
    after.watermark(11)
    made = after.rows([("a", 2)], [2])
    # Without lateness before, the window was forgotten when it fired, and begins anew.
    assert made == ([("a", 0, 2 if old_ms else 1)] if new_ms else [])
    after.watermark(9 + old_ms)  # When it was to be forgotten.
    if new_ms > old_ms:
        assert after.rows([("a", 3)], [3]) == [("a", 0, 3 if old_ms else 2)]
    after.watermark(100)
    assert Clearing.cleared == [0]
    assert is_empty(after)


@pytest.mark.parametrize("fired", [False, True])
@pytest.mark.parametrize(("old_ms", "new_ms"), LATENESSES)
def test_a_table_is_forgotten_under_another_lateness(old_ms: int, new_ms: int, fired: bool) -> None:
    before = Pipeline(lateness_ms=old_ms)
    before.run([1], k=["a"], x=[1])
    if fired:
        before.watermark(9)
    after = Pipeline(lateness_ms=new_ms, restored=before.final.snapshot())
    assert rows_of(after.watermark(9)) == ([] if fired else [("a", 0, 10, 1, 1)])
    was_kept = bool(old_ms) or not fired
    if new_ms:
        after.watermark(9 + new_ms - 1)
        kept = (1, 1) if was_kept else (0, 0)
        row = ("a", 0, 10, kept[0] + 2, kept[1] + 1)
        assert rows_of(after.run([2], k=["a"], x=[2])) == [row]
    after.watermark(9 + new_ms)
    assert is_empty(after.final)
    assert after.run([3], k=["a"], x=[3]) == []
    assert after.final.ctx.late_records == 1


def test_a_window_whose_first_record_is_late_but_allowed_is_forgotten() -> None:
    harness = Harness(clearing(5))
    harness.watermark(9)
    assert harness.rows([("a", 1)], [1]) == [("a", 0, 1)]
    assert not is_empty(harness)
    harness.watermark(14)
    assert Clearing.cleared == [0]
    assert is_empty(harness)


def test_a_table_whose_first_record_is_late_but_allowed_is_forgotten() -> None:
    pipeline = Pipeline(lateness_ms=5)
    pipeline.watermark(9)
    assert rows_of(pipeline.run([1], k=["a"], x=[1])) == [("a", 0, 10, 1, 1)]
    assert not pipeline.final.operator.has_pending  # It has fired already.
    assert not is_empty(pipeline.final)
    pipeline.watermark(14)
    assert is_empty(pipeline.final)


def test_lateness_without_end_keeps_windows_until_the_end_of_event_time() -> None:
    harness = Harness(clearing(2**63 - 1))
    harness.rows([("a", 1)], [1])
    harness.watermark(9)
    assert harness.snapshot()  # The timer of the clean-up can be stored.
    assert not is_empty(harness)
    harness.watermark(MAX_WATERMARK_MS)
    assert Clearing.cleared == [0]
    assert is_empty(harness)


# The older layout ------------------------------------------------------------------------------


class ByStart(Operator):
    """Leaves what Weir stored of open windows when it knew them by their start alone."""

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self.kept = ctx.state.keyed.get_map_state(
            MapStateDescriptor("windows", Types.LONG(), DYNAMIC)
        )
        self.listed = ctx.state.list_state("windows", "union")

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.ctx.state.keyed.set_current_key("a")
        self.kept.put(0, ("a", 1))
        self.ctx.state.timers.event_time.register(9, "a", 0)
        self.listed.update([{"schema": "", "starts": [0]}])


def test_windows_stored_without_their_ends_are_refused_with_advice() -> None:
    old = Harness(ByStart)
    old.rows([("a", 1)])
    keyed = [handle for handle in old.snapshot() if handle.kind == "keyed"]
    listed = [handle for handle in old.snapshot() if handle.kind == "operator"]
    for restored, factory in ((keyed, windows()), (listed, Pipeline().factory)):
        with pytest.raises(RestoreError, match=r"'op': .* older version .* with drain.* uid"):
            Harness(factory, restored=restored)


def test_a_checkpoint_of_the_older_layout_without_open_windows_goes_on() -> None:
    none_open = Harness(ByStart).snapshot()
    harness = Harness(windows(windows=TEN), restored=none_open)
    harness.rows([("a", 1)], [1])
    assert rows_of(harness.watermark(9)) == [("a", 1)]
    pipeline = Pipeline(restored=none_open)
    pipeline.run([1], k=["a"], x=[1])
    assert rows_of(pipeline.watermark(9)) == [("a", 0, 10, 1, 1)]
