from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.operators.operator_harness import Harness
from weir.common.batch import Batch
from weir.errors import SchemaError, SubtaskError, UserError
from weir.operators.functions import (
    BatchProcessFunction,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    ProcessFunction,
    RuntimeContext,
)
from weir.operators.output_tag import OutputTag
from weir.operators.stateless import (
    FilterBatchesOperator,
    FilterOperator,
    FlatMapBatchesOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
    ProcessBatchesOperator,
    ProcessOperator,
)
from weir.protocol.elements import MIN_WATERMARK_MS


def times(harness: Harness) -> list[list[int] | None]:
    return [None if b.timestamps is None else b.timestamps.tolist() for b in harness.output.batches]


def test_map_gives_one_record_for_each_and_keeps_their_times() -> None:
    harness = Harness(partial(MapOperator, lambda x: x * 2), keyed=False)
    assert harness.rows([1, 2, 3], [10, 20, 30]) == [2, 4, 6]
    assert times(harness) == [[10, 20, 30]]


def test_filter_keeps_records_with_their_times() -> None:
    harness = Harness(partial(FilterOperator, lambda x: x % 2), keyed=False)
    assert harness.rows([1, 2, 3], [10, 20, 30]) == [1, 3]
    assert times(harness) == [[10, 30]]


def test_flat_map_gives_each_record_the_time_of_the_one_it_came_from() -> None:
    harness = Harness(partial(FlatMapOperator, str.split), keyed=False)
    assert harness.rows(["a b", "", "c"], [10, 20, 30]) == ["a", "b", "c"]
    assert times(harness) == [[10, 10, 30]]


def test_flat_map_takes_none_for_nothing() -> None:
    harness = Harness(partial(FlatMapOperator, lambda x: [x] if x else None), keyed=False)
    assert harness.rows([0, 1]) == [1]


def test_a_function_that_throws_is_named_with_its_record() -> None:
    harness = Harness(partial(MapOperator, lambda x: 10 // x), keyed=False)
    with pytest.raises(SubtaskError, match=r"'op' failed on the record 0: ZeroDivisionError"):
        harness.rows([5, 0, 1])


def test_the_record_named_is_the_one_a_lazy_flat_map_failed_on() -> None:
    def halves(x: int) -> Iterator[int]:
        yield x
        yield 10 // x

    with pytest.raises(SubtaskError, match="on the record 0"):
        Harness(partial(FlatMapOperator, halves), keyed=False).rows([5, 0, 1])


def test_a_failure_behind_the_operator_is_not_blamed_on_its_function() -> None:
    harness = Harness(partial(MapOperator, lambda x: x), keyed=False)

    def fail(batch: Any) -> None:
        raise OSError("behind")

    harness.output.emit = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="behind"):
        harness.rows([1])


def test_a_long_record_is_shortened_in_the_message() -> None:
    harness = Harness(partial(MapOperator, lambda x: x.missing), keyed=False)
    with pytest.raises(SubtaskError) as caught:
        harness.rows(["x" * 10_000])
    assert len(str(caught.value)) < 400


class Counting(MapFunction):
    def __init__(self) -> None:
        self.seen = 0
        self.log: list[str] = []

    def open(self, runtime_context: RuntimeContext) -> None:
        self.log.append(runtime_context.get_task_name_with_subtasks())
        self.suffix = runtime_context.get_job_parameter("suffix", "?")

    def map(self, value: Any) -> Any:
        self.seen += 1
        return f"{value}{self.suffix}{self.seen}"

    def close(self) -> None:
        self.log.append("closed")


def test_every_subtask_has_a_function_of_its_own() -> None:
    factory = partial(MapOperator, Counting())
    one, other = (Harness(factory, keyed=False, parameters={"suffix": "-"}) for _ in range(2))
    assert one.rows(["a", "b"]) == ["a-1", "b-2"]
    assert other.rows(["c"]) == ["c-1"]


def test_a_function_is_opened_before_and_closed_once_after() -> None:
    harness = Harness(partial(MapOperator, Counting()), keyed=False)
    harness.rows(["a"])
    harness.operator.close()
    harness.operator.close()
    assert harness.operator.function.log == ["op (1/1)", "closed"]  # type: ignore[attr-defined]


def test_keyed_state_without_a_key_is_refused_with_advice() -> None:
    class Stateful(FilterFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_state(None)  # type: ignore[arg-type]

        def filter(self, value: Any) -> bool:
            return True

    with pytest.raises(UserError, match="call key_by before it"):
        Harness(partial(FilterOperator, Stateful()), keyed=False)


def test_flat_map_function_objects_are_called_by_their_method() -> None:
    class Twice(FlatMapFunction):
        def flat_map(self, value: Any) -> list[Any]:
            return [value, value]

    assert Harness(partial(FlatMapOperator, Twice()), keyed=False).rows([1]) == [1, 1]


LATE = OutputTag("late")


class Splitting(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()
        if value < 0:
            yield LATE, value


def test_process_feeds_main_and_side_outputs() -> None:
    harness = Harness(partial(ProcessOperator, Splitting()), keyed=False)
    harness.watermark(7)
    harness.rows([1, -1], [10, 20])
    assert harness.output.events[1:] == [
        ("rows", [(1, 10, 7), (-1, 20, 7)]),
        ("side", "late", [-1]),
    ]


def test_a_timer_without_a_key_is_refused_with_advice() -> None:
    class Timing(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(1)

    with pytest.raises(UserError, match="call key_by before process"):
        Harness(partial(ProcessOperator, Timing()), keyed=False).rows([1])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": pc.multiply(batch["x"], 2)})


def test_map_batches_works_on_columns_and_keeps_times() -> None:
    harness = Harness(partial(MapBatchesOperator, doubled), keyed=False)
    assert harness.columns([10, 20], x=[1, 2]) == [(2,), (4,)]
    assert times(harness) == [[10, 20]]


def test_the_size_of_columns_that_are_passed_on_is_known() -> None:
    harness = Harness(partial(MapBatchesOperator, lambda batch: batch), keyed=False)
    given = Batch.of_columns(pa.record_batch({"x": [1, 2, 3]}))
    given.know_size(25)  # Which Arrow would not say.
    harness.operator.on_batch(given, 0)
    (made,) = harness.output.whole
    assert made.size == 25


def test_map_batches_must_keep_the_number_of_rows() -> None:
    harness = Harness(partial(MapBatchesOperator, lambda batch: batch.slice(1)), keyed=False)
    with pytest.raises(SchemaError, match="flat_map_batches"):
        harness.columns(x=[1, 2])


def test_map_batches_must_return_a_record_batch() -> None:
    harness = Harness(partial(MapBatchesOperator, lambda batch: batch["x"]), keyed=False)
    with pytest.raises(SchemaError, match=r"must make a pyarrow\.RecordBatch"):
        harness.columns(x=[1, 2])


def test_filter_batches_keeps_the_rows_of_the_mask_and_drops_null() -> None:
    harness = Harness(
        partial(FilterBatchesOperator, lambda batch: pc.greater(batch["x"], 1)), keyed=False
    )
    assert harness.columns([10, 20, 30], x=[1, 2, None]) == [(2,)]
    assert times(harness) == [[20]]


def test_filter_batches_refuses_a_mask_of_another_shape_or_type() -> None:
    for mask in (lambda batch: batch["x"], lambda batch: [True]):
        with pytest.raises(SchemaError, match="one boolean per row"):
            Harness(partial(FilterBatchesOperator, mask), keyed=False).columns(x=[1, 2])


def test_flat_map_batches_may_change_the_number_of_rows_and_drops_their_times() -> None:
    harness = Harness(
        partial(FlatMapBatchesOperator, lambda batch: [batch, batch.slice(1)]), keyed=False
    )
    assert harness.columns([10, 20], x=[1, 2]) == [(1,), (2,), (2,)]
    assert times(harness) == [None, None]


def test_process_batches_feeds_main_and_side_outputs() -> None:
    class Splitting(BatchProcessFunction):
        def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[Any]:
            yield batch
            yield LATE, batch.slice(0, 1)

    harness = Harness(partial(ProcessBatchesOperator, Splitting()), keyed=False)
    assert harness.columns([10, 20], x=[1, 2]) == [(1,), (2,)]
    assert [(e[0], [tuple(r) for r in e[-1]]) for e in harness.output.events] == [
        ("rows", [(1,), (2,)]),
        ("side", [(1,)]),
    ]


def test_a_vectorised_function_that_throws_is_named_with_its_batch() -> None:
    harness = Harness(partial(MapBatchesOperator, lambda batch: batch["y"]), keyed=False)
    with pytest.raises(SubtaskError, match=r"'op' failed on a batch of 2 rows \(x\): KeyError"):
        harness.columns(x=[1, 2])


class Watermarks(ProcessFunction):
    """Emits each record with the watermark it sees."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value, ctx.timer_service().current_watermark()


class BatchWatermarks(BatchProcessFunction):
    """Emits the watermark that each batch sees."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[Any]:
        yield pa.RecordBatch.from_pydict({"watermark": [ctx.current_watermark()]})


def test_the_watermark_goes_on_after_a_restore() -> None:
    rows, columns = (
        partial(ProcessOperator, Watermarks()),
        partial(ProcessBatchesOperator, BatchWatermarks()),
    )
    before = [Harness(rows, keyed=False), Harness(columns, keyed=False)]
    assert before[0].rows([1]) == [(1, MIN_WATERMARK_MS)]
    assert before[1].columns(x=[1]) == [(MIN_WATERMARK_MS,)]
    for harness in before:
        harness.watermark(50)
    after = [
        Harness(factory, keyed=False, restored=harness.snapshot())
        for factory, harness in zip((rows, columns), before, strict=True)
    ]
    assert after[0].rows([1]) == [(1, 50)]
    assert after[1].columns(x=[1]) == [(50,)]
    for harness in after:  # What is replayed is behind for a while.
        assert harness.watermark(20) == [("watermark", 20)]
    assert after[0].rows([1]) == [(1, 50)]
    assert after[1].columns(x=[1]) == [(50,)]
    for harness in after:
        harness.watermark(60)
    assert after[0].rows([1]) == [(1, 60)]
    assert after[1].columns(x=[1]) == [(60,)]


def test_rescaled_subtasks_begin_with_the_least_watermark() -> None:
    factory = partial(ProcessOperator, Watermarks())
    before = [Harness(factory, keyed=False, index=index, parallelism=2) for index in (0, 1)]
    for harness, watermark in zip(before, (50, 70), strict=True):
        harness.watermark(watermark)
    handles = [handle for harness in before for handle in harness.snapshot()]
    for index in range(3):
        after = Harness(factory, keyed=False, index=index, parallelism=3, restored=handles)
        assert after.rows([1]) == [(1, 50)]


def test_only_operators_whose_functions_see_the_watermark_keep_it() -> None:
    passing = [
        partial(MapOperator, lambda x: x),
        partial(FilterOperator, bool),
        partial(FlatMapOperator, str.split),
        partial(MapBatchesOperator, lambda batch: batch),
        partial(FilterBatchesOperator, lambda batch: [True]),
        partial(FlatMapBatchesOperator, lambda batch: batch),
    ]
    for factory in passing:
        assert Harness(factory, keyed=False).snapshot() == []
    assert [
        h.name for h in Harness(partial(ProcessOperator, Watermarks()), keyed=False).snapshot()
    ] == ["watermark"]
