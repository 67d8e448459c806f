import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.operators.operator_harness import MAX_PARALLELISM, Harness
from weir.common import Time, Types
from weir.common.batch import Batch
from weir.datastream.keys import selector_of
from weir.errors import GraphError, RestoreError, SchemaError, SubtaskError, UserError
from weir.graph.key_groups import key_group, key_group_range
from weir.operators.aggregates import parse_aggregates
from weir.operators.functions import AggregateFunction, ProcessWindowFunction, WindowFunction
from weir.operators.keys import ColumnKeySelector
from weir.operators.output_tag import OutputTag
from weir.operators.windows.window_aggregates import WindowAggregateFactory, WindowCombineFactory
from weir.operators.windows.window_assigners import (
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    TumblingWindows,
)
from weir.operators.windows.window_operator import WindowFactory
from weir.protocol.elements import MAX_WATERMARK_MS
from weir.state.descriptors import ValueStateDescriptor

FIRST = selector_of(lambda record: record[0])
TEN = TumblingEventTimeWindows.of(Time.milliseconds(10))
LATE = OutputTag("late")


def add(one: Any, other: Any) -> Any:
    return (one[0], one[1] + other[1])


def windows(**changes: Any) -> WindowFactory:
    settings: dict[str, Any] = {
        "selector": FIRST,
        "windows": TEN,
        "gather": add,
        "window_function": None,
    }
    return WindowFactory(**{**settings, **changes})


def rows_of(events: Iterable[Any]) -> list[Any]:
    return [row for event in events if event[0] == "rows" for row in event[1]]


# Assigners -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "offset", "start"),
    [(0, 0, 0), (9, 0, 0), (10, 0, 10), (-1, 0, -10), (4, 5, -5), (5, 5, 5), (3, -7, 3)],
)
def test_a_tumbling_window_covers_its_timestamp(timestamp: int, offset: int, start: int) -> None:
    assigner = TumblingEventTimeWindows.of(10, offset)
    assert assigner.start_of(timestamp) == start


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(GraphError):
        TumblingEventTimeWindows.of(Time.seconds(0))
    with pytest.raises(GraphError):
        TumblingEventTimeWindows.of(10, 10)


# Per record ------------------------------------------------------------------------------------


def test_a_window_fires_when_the_watermark_reaches_its_last_moment() -> None:
    harness = Harness(windows())
    harness.rows([("a", 1), ("a", 2), ("b", 3), ("a", 4)], [1, 9, 5, 10])
    assert harness.watermark(8) == [("watermark", 8)]
    assert harness.watermark(9) == [("rows", [("a", 3), ("b", 3)]), ("watermark", 9)]
    assert harness.output.batches[-1].timestamps.tolist() == [9, 9]  # type: ignore[union-attr]
    assert harness.watermark(MAX_WATERMARK_MS)[0] == ("rows", [("a", 4)])


def test_a_fired_window_leaves_no_state() -> None:
    harness = Harness(windows())
    harness.rows([("a", 1)], [1])
    harness.watermark(9)
    assert list(harness.state.keyed.keys("windows")) == []
    assert len(harness.state.timers.event_time) == 0


def test_records_of_a_window_that_is_over_are_counted_and_diverted() -> None:
    harness = Harness(windows(late_tag=LATE))
    harness.watermark(9)
    harness.rows([("a", 1), ("a", 2)], [9, 10])
    assert harness.output.events[1:] == [("side", "late", [("a", 1)])]
    assert harness.ctx.late_records == 1


def test_what_was_late_at_the_snapshot_is_late_after_a_restore() -> None:
    """The window fired before the failure; its late records are replayed before any watermark."""
    before = Harness(windows(late_tag=LATE))
    before.rows([("a", 1)], [1])
    before.watermark(9)
    after = Harness(windows(late_tag=LATE), restored=before.snapshot())
    after.rows([("a", 2)], [3])
    assert after.output.events == [("side", "late", [("a", 2)])]


def test_without_a_side_output_late_records_are_counted_and_dropped() -> None:
    harness = Harness(windows())
    harness.watermark(9)
    harness.rows([("a", 1)], [9])
    assert harness.output.events == [("watermark", 9)]
    assert harness.ctx.late_records == 1


def test_a_late_but_allowed_record_fires_its_window_again_until_lateness_is_over() -> None:
    harness = Harness(windows(lateness_ms=5, late_tag=LATE))
    harness.rows([("a", 1)], [1])
    assert rows_of(harness.watermark(9)) == [("a", 1)]
    assert harness.rows([("a", 2)], [2]) == [("a", 3)]
    harness.watermark(13)
    assert harness.rows([("a", 3)], [3]) == [("a", 6)]
    assert rows_of(harness.watermark(14)) == []
    assert harness.rows([("a", 4)], [4]) == []
    assert harness.ctx.late_records == 1


class Averaging(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Listing(WindowFunction[Any, Any, Any, Any]):
    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterator[Any]:
        yield key, window.start, window.end, list(inputs)


def test_an_aggregate_goes_through_the_window_function() -> None:
    harness = Harness(windows(gather=Averaging(), window_function=Listing()))
    harness.rows([("a", 1), ("a", 2)], [11, 12])
    assert rows_of(harness.watermark(100)) == [("a", 10, 20, [1.5])]


def test_apply_sees_all_records_of_the_window_in_order() -> None:
    harness = Harness(windows(gather=None, window_function=Listing()))
    harness.rows([("a", 2)], [12])
    harness.rows([("a", 1)], [11])
    assert rows_of(harness.watermark(100)) == [("a", 10, 20, [("a", 2), ("a", 1)])]


class Numbering(ProcessWindowFunction[Any, Any, Any, Any]):
    """Numbers a key's windows with state that outlives them."""

    DESCRIPTOR = ValueStateDescriptor("number", Types.LONG())

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        state = context.global_state().get_state(self.DESCRIPTOR)
        state.update((state.value() or 0) + 1)
        yield key, context.window().start, state.value(), context.current_watermark()
        yield LATE, sum(1 for _ in elements)


def test_process_has_state_time_and_side_outputs() -> None:
    harness = Harness(windows(gather=None, window_function=Numbering()))
    harness.rows([("a", 1), ("a", 1), ("a", 1)], [1, 11, 12])
    assert harness.watermark(100)[:2] == [
        ("rows", [("a", 0, 1, 100), ("a", 10, 2, 100)]),
        ("side", "late", [1, 2]),
    ]


def test_windows_of_processing_time_fire_by_the_clock() -> None:
    harness = Harness(windows(windows=TumblingProcessingTimeWindows.of(10)))
    harness.clock.ms = 1_003
    harness.rows([("a", 1), ("a", 2)])
    assert harness.operator.next_timer_ms() == 1_009
    assert harness.clock_to(1_009) == [("rows", [("a", 3)])]


def test_windows_of_processing_time_fire_at_the_end_of_the_input() -> None:
    harness = Harness(windows(windows=TumblingProcessingTimeWindows.of(10)))
    harness.rows([("a", 1)])
    harness.operator.finish()
    harness.settle()
    harness.operator.finish()
    harness.settle()
    assert rows_of(harness.output.events) == [("a", 1)]


def test_firing_is_sliced_and_a_snapshot_in_between_holds_the_rest() -> None:
    before = Harness(windows())
    before.rows([(f"k{i}", i) for i in range(5)], [1] * 5)
    before.operator.on_watermark(50)
    before.operator.advance(2)
    first = rows_of(before.output.events)
    after = Harness(windows(), restored=before.snapshot())
    rest = after.watermark(50)
    assert sorted(first + rows_of(rest)) == [(f"k{i}", i) for i in range(5)]
    assert rest[-1] == ("watermark", 50)


def test_records_without_event_time_are_refused_with_advice() -> None:
    with pytest.raises(SchemaError, match="assign_timestamps_and_watermarks"):
        Harness(windows()).rows([("a", 1)])


def test_a_window_function_that_throws_is_named_with_its_window() -> None:
    class Failing(Listing):
        def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterator[Any]:
            raise ValueError("no")
            yield

    harness = Harness(windows(window_function=Failing()))
    harness.rows([("a", 1)], [1])
    with pytest.raises(SubtaskError, match="in the window 0 to 10 of the key 'a': ValueError"):
        harness.watermark(9)


# Columns ---------------------------------------------------------------------------------------


class Pipeline:
    """A window combiner, unless late records are diverted, and the final operator behind it."""

    def __init__(
        self,
        *,
        keys: tuple[str, ...] = ("k",),
        assigner: TumblingWindows = TEN,
        lateness_ms: int = 0,
        late_tag: OutputTag | None = None,
        **final: Any,
    ) -> None:
        selector = ColumnKeySelector(keys)
        specs = parse_aggregates({"total": ("x", "sum"), "n": ("*", "count")})
        combined = late_tag is None and assigner.is_event_time
        self.combiner = (
            Harness(WindowCombineFactory(selector, specs, assigner), keyed=False)
            if combined
            else None
        )
        self.factory = WindowAggregateFactory(
            selector, specs, assigner, lateness_ms, late_tag, combined=combined
        )
        self.final = Harness(self.factory, **final)

    def run(self, times: list[int] | None, **columns: Any) -> list[Any]:
        """Process one slice; what came out."""
        before = len(self.final.output.events)
        if self.combiner is None:
            self.final.columns(times, **columns)
        else:
            sent = len(self.combiner.output.batches)
            self.combiner.columns(times, **columns)
            for batch in self.combiner.output.batches[sent:]:
                self.final.operator.on_batch(batch, 0)
        return [_plain(event) for event in self.final.output.events[before:]]

    def watermark(self, timestamp_ms: int, **how: Any) -> list[Any]:
        return [_plain(event) for event in self.final.watermark(timestamp_ms, **how)]


def _plain(event: Any) -> Any:
    return (*event[:-1], [tuple(r) for r in event[-1]]) if isinstance(event[-1], list) else event


def test_columns_fire_one_row_per_key_when_the_window_ends() -> None:
    pipeline = Pipeline()
    assert pipeline.run([1, 9, 5, 10], k=["a", "a", "b", "a"], x=[1, 2, 3, 4]) == []
    assert pipeline.watermark(8) == [("watermark", 8)]
    assert pipeline.watermark(9) == [
        ("rows", [("a", 0, 10, 3, 2), ("b", 0, 10, 3, 1)]),
        ("watermark", 9),
    ]
    batch = pipeline.final.output.batches[-1]
    assert batch.columns.schema.names == ["k", "window_start", "window_end", "total", "n"]
    assert [batch.columns.schema.field(i).type for i in (1, 2)] == [pa.int64()] * 2
    assert batch.timestamps.tolist() == [9, 9]  # type: ignore[union-attr]
    assert pipeline.watermark(MAX_WATERMARK_MS)[0] == ("rows", [("a", 10, 20, 4, 1)])


def test_several_windows_fire_in_their_order() -> None:
    pipeline = Pipeline()
    pipeline.run([25, 5, 15], k=["a", "a", "a"], x=[1, 2, 3])
    fired = rows_of(pipeline.watermark(29))
    assert [row[1] for row in fired] == [0, 10, 20]


def test_a_late_row_is_counted_per_record_even_when_it_was_combined() -> None:
    pipeline = Pipeline()
    pipeline.watermark(9)
    assert pipeline.run([1, 2, 11], k=["a", "a", "a"], x=[1, 2, 3]) == []
    assert pipeline.final.ctx.late_records == 2
    assert rows_of(pipeline.watermark(19)) == [("a", 10, 20, 3, 1)]


@pytest.mark.parametrize("late_tag", [None, LATE])
def test_a_sum_of_a_window_beyond_64_bits_is_refused(late_tag: OutputTag | None) -> None:
    pipeline = Pipeline(late_tag=late_tag)
    pipeline.run([1, 11], k=["a", "a"], x=[2**62, 2**62])  # Two windows.
    with pytest.raises(UserError, match=r"the sum of the integer column 'x' for the key 'a'"):
        pipeline.run([2], k=["a"], x=[2**62])


def test_late_rows_go_to_the_side_output_one_by_one_as_they_came() -> None:
    pipeline = Pipeline(late_tag=LATE)
    pipeline.watermark(9)
    made = pipeline.run([1, 2, 11], k=["a", "b", "a"], x=[1, 2, 3], other=["u", "v", "w"])
    assert made == [("side", "late", [("a", 1, "u"), ("b", 2, "v")])]
    assert pipeline.final.ctx.late_records == 2


def test_rows_late_at_the_snapshot_are_late_after_a_restore() -> None:
    before = Pipeline(late_tag=LATE)
    before.run([1], k=["a"], x=[1])
    before.watermark(9)
    after = Pipeline(late_tag=LATE, restored=before.final.snapshot())
    assert after.run([3], k=["a"], x=[2]) == [("side", "late", [("a", 2)])]


def test_open_windows_without_what_a_new_aggregate_needs_are_refused_with_advice() -> None:
    before = Pipeline()
    before.run([1], k=["a"], x=[1])
    open_windows = before.final.snapshot()
    before.watermark(9)
    none_open = before.final.snapshot()
    specs = parse_aggregates({"total": ("x", "sum"), "most": ("x", "max")})
    factory = WindowAggregateFactory(ColumnKeySelector(("k",)), specs, TEN)
    with pytest.raises(RestoreError, match=r"'op': the windows .* have no .*max\(x\).* drain"):
        Harness(factory, restored=open_windows)
    Harness(factory, restored=none_open)


def test_late_but_allowed_rows_fire_their_keys_again_and_not_others() -> None:
    pipeline = Pipeline(lateness_ms=5)
    pipeline.run([1, 1], k=["a", "b"], x=[1, 10])
    pipeline.watermark(9)
    assert pipeline.run([2], k=["a"], x=[2]) == [("rows", [("a", 0, 10, 3, 2)])]
    assert pipeline.watermark(13) == [("watermark", 13)]
    assert pipeline.watermark(14) == [("watermark", 14)]
    assert pipeline.run([3], k=["a"], x=[3]) == []
    assert pipeline.final.ctx.late_records == 1


def test_a_fired_window_leaves_no_table() -> None:
    pipeline = Pipeline(lateness_ms=5)
    pipeline.run([1], k=["a"], x=[1])
    pipeline.watermark(9)
    assert any(handle.kind == "keyed" for handle in pipeline.final.snapshot())
    pipeline.watermark(14)
    assert not any(handle.kind == "keyed" for handle in pipeline.final.snapshot())


def test_column_windows_of_processing_time_fire_by_the_clock_and_at_the_end() -> None:
    pipeline = Pipeline(assigner=TumblingProcessingTimeWindows.of(10))
    pipeline.final.clock.ms = 1_003
    pipeline.run(None, k=["a", "a"], x=[1, 2])
    assert pipeline.final.operator.next_timer_ms() == 1_010
    assert [_plain(e) for e in pipeline.final.clock_to(1_010)] == [
        ("rows", [("a", 1_000, 1_010, 3, 2)])
    ]
    pipeline.run(None, k=["a"], x=[5])
    pipeline.final.operator.finish()
    pipeline.final.settle()
    assert _plain(pipeline.final.output.events[-1])[1] == [("a", 1_010, 1_020, 5, 1)]


def test_a_column_window_of_processing_time_lasts_to_its_end() -> None:
    pipeline = Pipeline(assigner=TumblingProcessingTimeWindows.of(10))
    for pipeline.final.clock.ms in (1_003, 1_013):
        pipeline.run(None, k=["a"], x=[1])
    assert [row[1] for row in rows_of(pipeline.final.clock_to(1_019))] == [1_000]
    assert [row[1] for row in rows_of(pipeline.final.clock_to(1_020))] == [1_010]


def test_a_clock_that_is_put_back_does_not_fire_a_window_with_every_slice() -> None:
    pipeline = Pipeline(assigner=TumblingProcessingTimeWindows.of(10))
    pipeline.final.clock.ms = 1_003
    pipeline.run(None, k=["a"], x=[1])
    pipeline.final.clock_to(1_025)
    pipeline.final.clock.ms = 1_014
    for _ in range(2):
        pipeline.run(None, k=["a"], x=[1])
        pipeline.final.settle()
    assert [_plain(e) for e in pipeline.final.clock_to(1_020)] == [
        ("rows", [("a", 1_010, 1_020, 2, 2)])
    ]


def test_columns_without_event_time_are_refused_with_advice() -> None:
    with pytest.raises(SchemaError, match="assign_timestamps_and_watermarks"):
        Pipeline().run(None, k=["a"], x=[1])


def test_a_snapshot_in_the_middle_of_firing_holds_exactly_the_rest() -> None:
    before = Pipeline()
    before.run([1] * 5, k=[f"k{i}" for i in range(5)], x=[1] * 5)
    before.final.operator.on_watermark(50)
    before.final.operator.advance(3)  # The first row of a table is the null key's.
    first = rows_of(before.final.output.events)
    after = Pipeline(restored=before.final.snapshot())
    rest = after.watermark(50, records_max=2)
    assert len(first) == 2
    assert sorted(tuple(row) for row in [*first, *rows_of(rest)]) == [
        (f"k{i}", 0, 10, 1, 1) for i in range(5)
    ]
    assert rest[-1] == ("watermark", 50)


def test_restored_windows_that_had_begun_to_fire_go_on_before_any_watermark() -> None:
    before = Pipeline()
    before.run([1, 1, 30], k=["a", "b", "a"], x=[1, 1, 1])
    before.final.operator.on_watermark(20)
    before.final.operator.advance(2)
    after = Pipeline(restored=before.final.snapshot())
    assert after.final.operator.has_pending
    after.final.settle()
    made = [*rows_of(before.final.output.events), *rows_of(after.final.output.events)]
    assert sorted(tuple(row) for row in made) == [("a", 0, 10, 1, 1), ("b", 0, 10, 1, 1)]


@pytest.mark.parametrize("late_tag", [None, LATE])
@pytest.mark.parametrize("keys", [("k",), ("k", "j")])
def test_windows_equal_a_plain_computation_through_restores_and_rescale(
    keys: tuple[str, ...], late_tag: OutputTag | None
) -> None:
    """On-time rows per key and window plus late ones are all rows, wherever state moved to."""
    rng = random.Random(3)
    pipelines = [Pipeline(keys=keys, late_tag=late_tag)]
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    fired: dict[Any, list[int]] = {}
    late = expected_late = clock = 0

    def note(events: list[Any]) -> None:
        for row in rows_of(events):
            where = row[:-4], row[-4]
            assert where not in fired
            fired[where] = list(row[-2:])

    note(pipelines[0].watermark(clock))
    for step in range(30):
        if step in (8, 20):
            handles = [handle for p in pipelines for handle in p.final.snapshot()]
            late += sum(p.final.ctx.late_records for p in pipelines)
            count = 3 if step == 8 else 2
            pipelines = [
                Pipeline(keys=keys, late_tag=late_tag, parallelism=count, index=i, restored=handles)
                for i in range(count)
            ]
            for pipeline in pipelines:
                note(pipeline.watermark(clock))
        rows = [
            (
                f"k{rng.randrange(9)}",
                rng.randrange(2),
                rng.randrange(50),
                clock + rng.randint(-15, 25),
            )
            for _ in range(20)
        ]
        for index, pipeline in enumerate(pipelines):
            owned = key_group_range(MAX_PARALLELISM, len(pipelines), index)
            mine = [
                row
                for row in rows
                if key_group(row[0] if len(keys) == 1 else row[:2], MAX_PARALLELISM) in owned
            ]
            if mine:
                k, j, x, times = zip(*mine, strict=True)
                note(pipeline.run(list(times), k=k, j=j, x=x))
        for row in rows:
            start = TEN.start_of(row[3])
            if start + 9 <= clock:
                expected_late += 1
                continue
            slot = expected[row[: len(keys)], start]
            slot[0] += row[2]
            slot[1] += 1
        clock += rng.randint(0, 8)
        for pipeline in pipelines:
            note(pipeline.watermark(clock))
    for pipeline in pipelines:
        note(pipeline.watermark(MAX_WATERMARK_MS))
    late += sum(p.final.ctx.late_records for p in pipelines)
    assert fired == expected
    assert (late, late > 0) == (expected_late, True)


def test_a_combined_batch_says_which_window_its_rows_belong_to() -> None:
    combiner = Pipeline().combiner
    assert combiner is not None
    combiner.operator.on_batch(
        Batch.of_columns(
            pa.RecordBatch.from_pydict({"k": ["a"] * 4, "x": [1] * 4}),
            timestamps=np.array([1, 2, 11, 12]),
        ),
        0,
    )
    (batch,) = combiner.output.batches
    assert batch.columns.column("window_start").to_pylist() == [0, 10]
