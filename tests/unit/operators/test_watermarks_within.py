"""Watermarks between the records of a batch count at their places.

An operator that carries them does with such a batch what it does with the batch cut at its
watermarks, each of which it follows up before it gets the next records.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import share
from tests.unit.operators.operator_harness import Harness
from weir.common import Time
from weir.common.batch import Batch
from weir.common.watermarks import Watermarks
from weir.errors import UserError
from weir.operators.aggregates import CombineFactory, RunningAggregateFactory, parse_aggregates
from weir.operators.bad_records import ErrorPolicy
from weir.operators.base import Operator
from weir.operators.keys import ColumnKeySelector
from weir.operators.output_tag import OutputTag
from weir.operators.sources.split_time import SourceWatermarkFactory
from weir.operators.stateless import (
    FilterBatchesOperator,
    FilterOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
)
from weir.operators.windows import window_aggregates
from weir.operators.windows.window_aggregates import WindowAggregateFactory, WindowCombineFactory
from weir.operators.windows.window_assigners import TumblingEventTimeWindows

TEN = TumblingEventTimeWindows.of(Time.milliseconds(10))
LATE = OutputTag("late")
SPECS = parse_aggregates(
    {"total": ("x", "sum"), "least": ("x", "min"), "mean": ("x", "mean"), "n": ("*", "count")}
)
Slice = tuple[list[int], list[int], list[int], list[tuple[int, int]]]

# Rows of a slice: event times, keys and values; and watermarks: a place and how far it rises.
# Made once for each count: one that is made for a draw is checked for it.
_slices_of = {
    count: st.tuples(
        st.lists(st.integers(0, 60), min_size=count, max_size=count),
        st.lists(st.integers(0, 2), min_size=count, max_size=count),
        st.lists(st.none() | st.integers(-9, 9), min_size=count, max_size=count),
        st.lists(
            st.tuples(st.integers(0, count), st.integers(1, 25)),
            max_size=4,
            unique_by=lambda pair: pair[0],
        ).map(sorted),
    )
    for count in range(1, 13)
}
slices = st.integers(1, 12).flatmap(_slices_of.__getitem__)


def batch_of(one: Slice, before_ms: int, keys: Callable[[list[int]], dict[str, Any]]) -> Batch:
    """A slice whose watermarks rise from ``before_ms`` on."""
    times, numbers, values, marks = one
    columns = {**keys(numbers), "x": pa.array(values, pa.int64())}
    return Batch.of_columns(
        pa.RecordBatch.from_pydict(columns),
        timestamps=np.array(times, np.int64),
        watermarks=marked(marks, before_ms),
    )


def marked(marks: Iterable[tuple[int, int]], before_ms: int) -> Watermarks | None:
    places, rises = zip(*marks, strict=True) if marks else ((), ())
    times_ms = before_ms + np.cumsum(np.array(rises, np.int64))
    return Watermarks(np.array(places, np.int64), times_ms) if places else None


def batches_of(
    given_slices: list[Slice], keys: Callable[[list[int]], dict[str, Any]]
) -> list[Batch]:
    made: list[Batch] = []
    reached_ms = -1
    for one in given_slices:
        made.append(batch_of(one, reached_ms, keys))
        if (watermarks := made[-1].watermarks) is not None:
            reached_ms = watermarks.last_ms
    return made


def cut(harness: Harness, batches: Iterable[Batch]) -> None:
    """Give an operator batches cut at their watermarks."""
    for batch in batches:
        for records, watermark_ms in batch.cut():
            if len(records):
                harness.operator.on_batch(records, 0)
            if watermark_ms is not None:
                harness.operator.on_watermark(watermark_ms)
                harness.settle()


def whole(harness: Harness, batches: Iterable[Batch]) -> None:
    """Give an operator batches with the watermarks between their records."""
    assert harness.operator.carries_watermarks
    for batch in batches:
        harness.operator.on_batch(batch, 0)
        harness.settle()


def told(events: Iterable[Any], *, ordered: bool = True) -> list[Any]:
    """Rows one by one and the watermarks between them that rise, of several the last.

    Side outputs come behind the main one: there is no order between them. Unordered: the rows
    between two watermarks are sorted.
    """
    main: list[Any] = []
    sides: list[Any] = []
    reached_ms = -(1 << 63)
    for kind, *rest in events:
        if kind == "side":
            sides += [tuple(row) for row in rest[-1]]
        elif kind == "rows":
            main += [tuple(row) if isinstance(row, tuple) else row for row in rest[0]]
        elif kind == "watermark" and rest[0] > reached_ms:
            reached_ms = rest[0]
            if main and isinstance(main[-1], Mark):
                main.pop()
            main.append(Mark(reached_ms))
    if not ordered:
        runs = itertools.groupby(main, lambda one: isinstance(one, Mark))
        main = [one for is_mark, run in runs for one in (run if is_mark else sorted(run, key=repr))]
    return [*main, "late", *sides]


class Mark(int):
    """A watermark."""


def texts(numbers: list[int]) -> dict[str, Any]:
    return {"k": pa.array([["a", "b", None][n] for n in numbers], pa.string())}


def ints(numbers: list[int]) -> dict[str, Any]:
    return {"k": pa.array([[7, -7, None][n] for n in numbers], pa.int32())}


def floats(numbers: list[int]) -> dict[str, Any]:
    return {"k": pa.array([[0.0, -0.0, 1.5][n] for n in numbers])}


def dictionaries(numbers: list[int]) -> dict[str, Any]:
    return {"k": texts(numbers)["k"].dictionary_encode()}


def pairs(numbers: list[int]) -> dict[str, Any]:
    return {"k": pa.array(numbers), "l": pa.array([str(n % 2) for n in numbers])}


def coded_pairs(numbers: list[int]) -> dict[str, Any]:
    return {"k": pa.array(numbers), "l": pa.array([str(n) for n in numbers]).dictionary_encode()}


KEYS = [texts, ints, floats, dictionaries, pairs, coded_pairs]


def double(record: Any) -> Any:
    return record[-1] and record[-1] * 2


def is_small(record: Any) -> bool:
    return (record[-1] or 0) < 3


def some(record: Any) -> list[Any]:
    return [record[-1]] * ((record[-1] or 0) % 3)


def small_rows(columns: pa.RecordBatch) -> pa.Array:
    return pc.less(columns["x"], 3)


CARRYING = {
    "map": partial(MapOperator, double),
    "filter": partial(FilterOperator, is_small),
    "flat map": partial(FlatMapOperator, some),
    "map batches": partial(MapBatchesOperator, lambda columns: columns.select(["x"])),
    "filter batches": partial(FilterBatchesOperator, small_rows),
    "behind a source": SourceWatermarkFactory(),
}


@pytest.mark.parametrize("name", CARRYING)
@given(st.lists(slices, min_size=1, max_size=3))
def test_records_and_watermarks_stay_in_their_order(name: str, given_slices: list[Slice]) -> None:
    batches = batches_of(given_slices, texts)
    one, other = Harness(CARRYING[name], keyed=False), Harness(CARRYING[name], keyed=False)
    whole(one, batches)
    cut(other, batches)
    assert told(one.output.events) == told(other.output.events)
    assert times_of(one) == times_of(other)


def times_of(harness: Harness) -> list[int]:
    return [
        time
        for batch in harness.output.batches
        if batch.timestamps is not None
        for time in batch.timestamps.tolist()
    ]


def test_records_without_times_keep_their_place_in_a_flat_map() -> None:
    harness = Harness(partial(FlatMapOperator, lambda record: [record] * record), keyed=False)
    watermarks = Watermarks(np.array([0, 2, 3]), np.array([5, 6, 7]))
    whole(harness, [Batch.of_rows([1, 2, 0, 1], watermarks=watermarks)])
    assert told(harness.output.events) == [5, 1, 2, 2, 7, 1, "late"]


def test_watermarks_outlive_the_records_that_a_filter_drops() -> None:
    for factory in (
        partial(FilterOperator, lambda record: False),
        partial(FilterBatchesOperator, lambda c: [False] * 2),
    ):
        harness = Harness(factory, keyed=False)
        batch = pa.RecordBatch.from_pydict({"x": [1, 2]})
        watermarks = Watermarks(np.array([1]), np.array([5]))
        try:
            whole(harness, [Batch.of_columns(batch, watermarks=watermarks)])
        except Exception as error:
            raise AssertionError(factory) from error
        (empty,) = harness.output.whole
        assert len(empty) == 0
        assert empty.watermarks is not None
        assert empty.watermarks.last_ms == 5


def test_slices_are_cut_where_bad_records_are_told_apart() -> None:
    policy = ErrorPolicy("divert", OutputTag("bad"))
    assert not Harness(
        partial(MapOperator, double), keyed=False, on_error=policy
    ).operator.carries_watermarks


# Windows -------------------------------------------------------------------------------------


def window_harness(*keys: str, combined: bool, late: bool = False, **more: Any) -> Harness:
    return Harness(
        WindowAggregateFactory(
            ColumnKeySelector(keys), SPECS, TEN, late_tag=LATE if late else None, combined=combined
        ),
        **more,
    )


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("fired_at_once", [0, 10_000])
@settings(max_examples=share(60, block=12))
@given(data=st.data())
def test_windows_fire_what_they_do_if_slices_are_cut(
    keys: Callable[[list[int]], dict[str, Any]], fired_at_once: int, data: st.DataObject
) -> None:
    batches = batches_of(data.draw(st.lists(slices, min_size=1, max_size=4)), keys)
    names = [name for name in batches[0].columns.schema.names if name != "x"]
    one, other = (window_harness(*names, combined=False, late=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_aggregates, "FIRED_AT_ONCE", fired_at_once)
        whole(one, batches)
    cut(other, batches)
    # Rows that fire in portions come before a watermark that is as late as the last of the slice.
    in_place = fired_at_once > 0 and keys not in (floats, coded_pairs)
    assert _shown(one, in_place=in_place) == _shown(other, in_place=in_place)
    assert one.ctx.late_records == other.ctx.late_records
    assert [b.columns.schema for b in one.output.batches[:1]] == [
        b.columns.schema for b in other.output.batches[:1]
    ]
    assert _open_windows(one) == _open_windows(other)


def _shown(harness: Harness, *, in_place: bool) -> list[Any]:
    if in_place:
        return told(harness.output.events, ordered=False)
    shown = told(harness.output.events)
    marks = [one for one in shown if isinstance(one, Mark)]
    rows = [one for one in shown if not isinstance(one, Mark)]
    windows = [row[-6] for row in rows[: rows.index("late")]]
    assert windows == sorted(windows)
    return [marks[-1:], sorted(map(repr, rows))]


def _open_windows(harness: Harness) -> list[Any]:
    """The windows still open: all that fires at the end of event time."""
    return sorted(map(repr, told(harness.watermark((1 << 63) - 1))))


@settings(max_examples=share(100, block=20))
@given(st.lists(slices, min_size=1, max_size=4), st.booleans())
def test_combined_rows_are_late_where_their_records_are(
    given_slices: list[Slice], reduces: bool
) -> None:
    batches = batches_of(given_slices, texts)
    selector = ColumnKeySelector(("k",))
    one, other = window_harness("k", combined=True), window_harness("k", combined=True)
    combined = []
    for give in (whole, cut):
        combiner = Harness(WindowCombineFactory(selector, SPECS, TEN), keyed=False)
        combiner.operator.REDUCTION_MIN = 1 if reduces else 2  # type: ignore[attr-defined]
        give(combiner, batches)
        combined.append(combiner.output)
    whole(one, combined[0].whole)
    for kind, value in _records_and_watermarks(combined[1]):
        if kind == "records":
            other.operator.on_batch(value, 0)
        else:
            other.watermark(value)
    before, before_cut = _before_marks(one), _before_marks(other)
    # A watermark goes where combining leaves no row between it and the next.
    assert before == {mark: before_cut[mark] for mark in before}
    assert list(before)[-1:] == list(before_cut)[-1:]
    assert one.ctx.late_records == other.ctx.late_records


def _before_marks(harness: Harness) -> dict[int, list[str]]:
    """The rows that came before each watermark."""
    rows: list[str] = []
    before: dict[int, list[str]] = {}
    for kind, value in harness.output.events:
        if kind == "rows":
            rows += map(repr, value)
        else:
            before.setdefault(value, sorted(rows))
    return before


def _records_and_watermarks(output: Any) -> Iterable[tuple[str, Any]]:
    batches = iter(output.batches)
    for kind, value in output.events:
        yield ("records", next(batches)) if kind == "rows" else (kind, value)


def test_late_rows_are_not_combined_with_those_in_time() -> None:
    combiner = Harness(WindowCombineFactory(ColumnKeySelector(("k",)), SPECS, TEN), keyed=False)
    watermarks = Watermarks(np.array([2, 3]), np.array([9, 12]))
    columns = pa.RecordBatch.from_pydict({"k": ["a"] * 6, "x": [1, 2, 3, 4, 5, 6]})
    batch = Batch.of_columns(
        columns, timestamps=np.array([1, 2, 11, 3, 4, 12]), watermarks=watermarks
    )
    whole(combiner, [batch])
    (made,) = combiner.output.whole
    assert made.columns["sum(x)"].to_pylist() == [3, 9, 9]
    assert made.watermarks is not None
    assert made.watermarks.behind.tolist() == [1, 2]


@given(st.lists(slices, min_size=1, max_size=4))
def test_windows_resume_from_a_snapshot_between_slices(given_slices: list[Slice]) -> None:
    batches = batches_of(given_slices, texts)
    undisturbed = window_harness("k", combined=False)
    whole(undisturbed, batches)
    events: list[Any] = []
    harness = window_harness("k", combined=False)
    for batch in batches:
        whole(harness, [batch])
        events += harness.output.events
        harness = window_harness("k", combined=False, restored=harness.snapshot())
    shown = told(undisturbed.output.events, ordered=False)
    assert told(events, ordered=False) == shown


def test_windows_of_one_slice_fire_as_one_batch_with_watermarks_between_them() -> None:
    harness = window_harness("k", combined=False)
    watermarks = Watermarks(np.array([1, 2, 3]), np.array([9, 19, 29]))
    columns = pa.RecordBatch.from_pydict({"k": ["a", "b", "a", "c"], "x": [1, 2, 3, 4]})
    batch = Batch.of_columns(columns, timestamps=np.array([1, 11, 21, 31]), watermarks=watermarks)
    whole(harness, [batch])
    (fired,) = harness.output.whole
    assert [tuple(row)[:3] for row in fired.rows] == [("a", 0, 10), ("b", 10, 20), ("a", 20, 30)]
    assert fired.watermarks is not None
    assert fired.watermarks.behind.tolist() == [1, 2, 3]
    assert fired.watermarks.times_ms.tolist() == [9, 19, 29]
    assert fired.timestamps is not None
    assert fired.timestamps.tolist() == [9, 19, 29]


def test_late_records_go_aside_with_the_watermarks_around_them() -> None:
    harness = window_harness("k", combined=False, late=True)
    watermarks = Watermarks(np.array([1, 3]), np.array([9, 19]))
    columns = pa.RecordBatch.from_pydict({"k": ["a", "b", "c", "d"], "x": [1, 2, 3, 4]})
    batch = Batch.of_columns(columns, timestamps=np.array([1, 2, 11, 12]), watermarks=watermarks)
    whole(harness, [batch])
    sides = [event for event in harness.output.events if event[0].startswith("side")]
    assert sides == [
        ("side watermark", "late", 9),
        ("side", "late", [("b", 2)]),
        ("side watermark", "late", 19),
        ("side", "late", [("d", 4)]),
    ]
    assert harness.ctx.late_records == 2


def test_a_sum_that_leaves_64_bits_is_refused_in_a_window_that_passes() -> None:
    harness = window_harness("k", combined=False)
    watermarks = Watermarks(np.array([2]), np.array([9]))
    most = (1 << 63) - 1
    columns = pa.RecordBatch.from_pydict({"k": ["a", "a"], "x": [most, 1]})
    batch = Batch.of_columns(columns, timestamps=np.array([1, 2]), watermarks=watermarks)
    with pytest.raises(UserError, match="leaves 64 bits"):
        whole(harness, [batch])


def test_windows_that_wait_for_late_records_take_slices_that_are_cut() -> None:
    selector = ColumnKeySelector(("k",))
    operator = WindowAggregateFactory(selector, SPECS, TEN, lateness_ms=5)()
    assert not operator.carries_watermarks


# Running aggregates --------------------------------------------------------------------------


@given(st.lists(slices, min_size=1, max_size=3))
def test_running_aggregates_come_to_the_same(given_slices: list[Slice]) -> None:
    """A slice shows each key once, before every watermark that follows all of its rows."""
    batches = batches_of(given_slices, texts)
    selector = ColumnKeySelector(("k",))
    lasts = []
    for give in (whole, cut):
        combiner = Harness(CombineFactory(selector, SPECS), keyed=False)
        final = Harness(RunningAggregateFactory(selector, SPECS))
        give(combiner, batches)
        give(final, combiner.output.whole)
        rows = [tuple(row) for batch in final.output.batches for row in batch.rows]
        marks = [one for one in told(final.output.events) if isinstance(one, Mark)]
        lasts.append(({row[0]: row for row in rows}, marks[-1:] if give is whole else None))
    assert lasts[0][0] == lasts[1][0]
    marks = [b.watermarks.last_ms for b in batches if b.watermarks is not None]
    assert lasts[0][1] == marks[-1:]


def test_every_operator_that_carries_watermarks_says_so_by_what_it_is() -> None:
    """Firing in ``advance`` needs a place between two slices, so few of these carry watermarks."""
    firing = [
        kind
        for kind in _all_kinds(Operator)
        if kind.has_pending is not Operator.has_pending  # type: ignore[comparison-overlap]
        and kind.carries_watermarks is not Operator.carries_watermarks  # type: ignore[comparison-overlap]
        and kind.__module__.startswith("weir.")
    ]
    assert [kind.__name__ for kind in firing] == ["WindowAggregateOperator"]


def _all_kinds(kind: type[Operator]) -> set[type[Operator]]:
    return {kind}.union(*map(_all_kinds, kind.__subclasses__()))
