"""Records are the receiver's own, of the declared type, and none is lost on the way."""

import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.operators.operator_harness import Harness, InlineWriter
from weir.common import Types, WatermarkStrategy
from weir.common.batch import Batch
from weir.common.ownership import own, own_rows
from weir.common.row import Row
from weir.datastream import (
    FilterFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from weir.datastream.execution import capturing
from weir.errors import SchemaError, SubtaskError
from weir.local.cluster import JobResult, run_in_process
from weir.operators.hand_over import keeps_nothing
from weir.operators.keyed import (
    KeyedFilterOperator,
    KeyedMapOperator,
    KeyedProcessOperator,
    ReduceOperator,
)
from weir.operators.keys import FunctionKeySelector
from weir.operators.sources import CollectionSource, DataGeneratorSource
from weir.operators.stateless import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from weir.operators.watermarks import WatermarkFactory
from weir.protocol.lifecycle import JobStatus

BY_FIRST = FunctionKeySelector(operator.itemgetter(0))
BY_NOTHING = FunctionKeySelector(lambda record: 0)
SLICES = [1, 2, 100]


def in_slices(harness: Harness, records: list[Any], size: int, **how: Any) -> list[Any]:
    made: list[Any] = []
    for start in range(0, len(records), size):
        made += harness.rows(records[start : start + size], **how)
    return made


# What a function keeps and changes later ---------------------------------------------------------


class History(KeyedProcessFunction):
    """Yields the list it keeps in state, to two outputs."""

    side = OutputTag("side")

    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.LIST(Types.LONG())
        self.history: Any = runtime_context.get_state(ValueStateDescriptor("history", kind))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        history = self.history.value() or []
        history.append(value)
        self.history.update(history)
        yield history
        yield self.side, history
        history.append(-1)  # It is this function's alone.


@pytest.mark.parametrize("size", SLICES)
def test_what_a_function_yields_is_not_what_it_changes_later(size: int) -> None:
    harness = Harness(partial(KeyedProcessOperator, BY_NOTHING, History()))
    histories = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert in_slices(harness, [0, 1, 2, 3], size) == histories
    aside = [event[2] for event in harness.output.events if event[0] == "side"]
    assert [row for rows in aside for row in rows] == histories


class Buffer(MapFunction):
    """Returns the same objects for every record."""

    def __init__(self) -> None:
        self.buffer: dict[str, Any] = {"values": []}

    def map(self, value: Any) -> Any:
        self.buffer["values"].append(value)
        return self.buffer, (value, self.buffer["values"])


@pytest.mark.parametrize("size", SLICES)
def test_a_function_may_return_the_same_object_each_time(size: int) -> None:
    made = in_slices(Harness(partial(MapOperator, Buffer()), keyed=False), [1, 2, 3], size)
    assert [record[0]["values"] for record in made] == [[1], [1, 2], [1, 2, 3]]
    assert [record[1] for record in made] == [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])]


def growing(count: int) -> Iterator[list[int]]:
    grown: list[int] = []
    for number in range(count):
        grown.append(number)
        yield grown


@pytest.mark.parametrize("times", [None, [5, 6]])
def test_a_generator_may_yield_the_same_object_each_time(times: Any) -> None:
    harness = Harness(partial(FlatMapOperator, growing), keyed=False)
    assert harness.rows([2, 3], times) == [[0], [0, 1], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("size", SLICES)
def test_a_declared_type_copies_as_well(size: int) -> None:
    shared: list[int] = []

    def collect(value: int) -> list[int]:
        shared.append(value)
        return shared

    def twice(value: int) -> Iterable[Any]:
        return [collect(value), collect(value)]

    listed = Types.LIST(Types.LONG())
    assert in_slices(Harness(partial(MapOperator, collect, listed), keyed=False), [1, 2], size) == [
        [1],
        [1, 2],
    ]
    shared.clear()
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    assert (
        in_slices(Harness(partial(FlatMapOperator, twice, pair), keyed=False), [1], size)
        == [(1, 1)] * 2
    )


@pytest.mark.parametrize("size", SLICES)
@pytest.mark.parametrize("kind", [None, Types.TUPLE([Types.STRING(), Types.LIST(Types.LONG())])])
def test_reductions_that_change_their_argument_in_place(kind: Any, size: int) -> None:
    def extend(one: tuple[str, list[int]], other: tuple[str, list[int]]) -> tuple[str, list[int]]:
        one[1].extend(other[1])
        return one

    for selector in (BY_FIRST, FunctionKeySelector(lambda pair: (pair[0], 1))):
        harness = Harness(partial(ReduceOperator, selector, extend, kind))
        records = [("a", [1]), ("b", [9]), ("a", [2]), ("a", [3])]
        made = in_slices(harness, records, size)
        assert made == [("a", [1]), ("b", [9]), ("a", [1, 2]), ("a", [1, 2, 3])]
        assert records[0] == ("a", [1])


def test_a_reduction_is_what_state_holds_after_every_record() -> None:
    total = [
        in_slices(
            Harness(partial(ReduceOperator, BY_NOTHING, operator.add, Types.FLOAT())),
            [0.1] * 9,
            size,
        )
        for size in SLICES
    ]
    assert total[0] == total[1] == total[2]
    assert total[0][-1] != sum([0.1] * 9)


class Keeps(ProcessFunction):
    """Changes a record after it was handed on."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last: list[Any] | None = None

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.last is not None:
            self.last.append("changed")
        self.last = value
        yield value


def test_a_record_may_be_kept_and_changed_after_it_was_handed_on() -> None:
    harness = Harness(partial(ProcessOperator, Keeps()), keyed=False)
    assert harness.rows([[1], [2], [3]]) == [[1], [2], [3]]


# Chains, branches, sources -----------------------------------------------------------------------


def appending(word: str) -> Callable[[list[Any]], list[Any]]:
    def append(record: list[Any]) -> list[Any]:
        record.append(word)
        return record

    return append


@pytest.mark.parametrize("apart", [False, True])
def test_branches_do_not_see_each_others_changes(apart: bool) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_collection([[1], [2]])
        left, right = source.map(appending("left")), source.map(appending("right"))
        left.union(right).execute_and_collect()

    made = run_and_collect(build, apart=apart)
    assert sorted(made) == [[1, "left"], [1, "right"], [2, "left"], [2, "right"]]


def test_broadcast_records_are_each_subtasks_own() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection([[1]]).broadcast()
        stream.map(appending("seen")).set_parallelism(3).execute_and_collect()

    assert run_and_collect(build) == [[1, "seen"]] * 3


@pytest.mark.parametrize("apart", [False, True])
def test_a_later_map_does_not_reach_into_state(apart: bool) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        histories = env.from_collection([0, 1, 2]).key_by(lambda n: 0).process(History())
        histories.map(appending("later")).execute_and_collect()

    made = run_and_collect(build, apart=apart)
    assert made == [[0, "later"], [0, 1, "later"], [0, 1, 2, "later"]]


def test_object_reuse_hands_on_the_very_objects() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_collection([[1]])
        left, right = source.map(appending("left")), source.map(appending("right"))
        left.union(right).execute_and_collect()

    assert run_and_collect(build, reuse=True) == [[1, "left", "right"]] * 2


def run_and_collect(
    build: Callable[[StreamExecutionEnvironment], None], **settings: Any
) -> list[Any]:
    result = run_captured(build, **settings)
    assert result.status is JobStatus.FINISHED, result.cause
    return result.collected


def run_captured(
    build: Callable[[StreamExecutionEnvironment], None], *, apart: bool = False, reuse: bool = False
) -> JobResult:
    env = StreamExecutionEnvironment.get_execution_environment()
    if apart:
        env.disable_operator_chaining()
    if reuse:
        env.get_config().enable_object_reuse()
    with capturing() as capture:
        build(env)
    job = capture.jobs[0]
    return run_in_process(job.graph, job.config)


def test_the_settings_know_object_reuse() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    config = env.get_config()
    assert not config.is_object_reuse_enabled()
    assert config.enable_object_reuse().is_object_reuse_enabled()
    assert not config.disable_object_reuse().is_object_reuse_enabled()


def test_a_collection_is_the_same_when_it_is_read_again() -> None:
    source = CollectionSource([[1], [2]])
    for _ in range(2):
        batch = source.open({"rows": 2}, None).read(10)
        assert batch is not None
        assert batch.rows == [[1], [2]]
        batch.rows[0].append("changed")


# Errors that vanished ----------------------------------------------------------------------------


def exhausted(value: Any) -> Any:
    return next(iter(())) if value == 2 else value


class ExhaustedMap(MapFunction):
    def map(self, value: Any) -> Any:
        return exhausted(value)


class ExhaustedFilter(FilterFunction):
    def filter(self, value: Any) -> bool:
        return bool(exhausted(value))


class ExhaustedProcess(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [exhausted(value)]


@pytest.mark.parametrize(
    ("factory", "keyed"),
    [
        (partial(MapOperator, exhausted), False),
        (partial(MapOperator, exhausted, Types.LONG()), False),
        (partial(FilterOperator, exhausted), False),
        (partial(FlatMapOperator, lambda value: [exhausted(value)]), False),
        (partial(ProcessOperator, ExhaustedProcess()), False),
        (partial(KeyedMapOperator, BY_NOTHING, ExhaustedMap()), True),
        (partial(KeyedFilterOperator, BY_NOTHING, ExhaustedFilter()), True),
        (partial(ReduceOperator, BY_NOTHING, lambda one, other: exhausted(other)), True),
        (
            WatermarkFactory(
                WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
                    lambda value, at: exhausted(value)
                )
            ),
            False,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_stop_iteration_of_user_code_is_an_error_with_its_record(
    factory: Any, keyed: bool
) -> None:
    harness = Harness(factory, keyed=keyed)
    with pytest.raises(SubtaskError, match=r"'op' failed on the record 2: StopIteration"):
        harness.rows([1, 2, 3])


def test_a_stop_iteration_of_a_key_function_is_an_error_with_its_record() -> None:
    with pytest.raises(SubtaskError, match=r"key_by failed on the record 2: StopIteration"):
        FunctionKeySelector(exhausted).keys_of_rows([1, 2, 3])


def test_a_stop_iteration_of_a_generator_function_is_an_error_with_its_index() -> None:
    reader = DataGeneratorSource(exhausted, 5).open({"first": 0, "stride": 1, "count": 5}, None)
    with pytest.raises(SubtaskError, match=r"failed on the index 2: StopIteration"):
        reader.read(10)


# Declared types ----------------------------------------------------------------------------------


def test_a_record_that_does_not_fit_names_operator_line_field_and_value() -> None:
    kind = Types.ROW_NAMED(["id", "total"], [Types.LONG(), Types.INT()])

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection([1, 2])
        stream.map(lambda n: (n, "1" if n == 2 else 1), kind).execute_and_collect()

    result = run_captured(build)
    assert result.status is JobStatus.FAILED
    assert re.search(
        r"^collection-source-1-0 failed\n'Map' \(test_hand_over\.py:\d+\) made the record "
        r"\(2, '1'\), which does not fit its declared type: field total: '1' of type str does not "
        r"fit INT",
        result.cause,
    )


@pytest.mark.parametrize("checkpointed", [False, True])
def test_floats_of_32_bits_are_rounded_with_or_without_a_checkpoint(checkpointed: bool) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        if checkpointed:
            env.enable_checkpointing(10)
        env.from_collection([0.1]).map(lambda x: x, Types.FLOAT()).execute_and_collect()

    assert run_and_collect(build) == [float(np.float32(0.1))]


def test_named_rows_carry_their_names_from_the_first_operator_on() -> None:
    kind = Types.ROW_NAMED(["word", "n"], [Types.STRING(), Types.LONG()])

    def build(env: StreamExecutionEnvironment) -> None:
        words = env.from_collection([("a", 1), ("b", 2), ("a", 3)], kind)
        words.map(lambda row: row.word + str(row.n)).execute_and_collect()

    assert run_and_collect(build) == ["a1", "b2", "a3"]

    def keyed(env: StreamExecutionEnvironment) -> None:
        words = env.from_collection([1, 2, 3]).map(lambda n: ("ab"[n % 2], n), kind)
        words.key_by("word").sum(1).execute_and_collect()

    assert run_and_collect(keyed) == [("b", 1), ("a", 2), ("b", 4)]


def test_a_collection_is_checked_when_the_pipeline_is_built() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(SchemaError, match="'two' of type str does not fit LONG"):
        env.from_collection([1, "two"], Types.LONG())


def test_columns_are_of_the_declared_type() -> None:
    kind = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.FLOAT()])

    def columns(**made: Any) -> Callable[[Any], Any]:
        return lambda n: pa.record_batch({name: pa.array(of) for name, of in made.items()})

    def made(function: Any) -> Batch:
        source = DataGeneratorSource(function, 1, vectorised=True, type_info=kind)
        batch = source.open({"first": 0, "stride": 1, "count": 1}, None).read(1)
        assert batch is not None
        return batch

    batch = made(columns(b=[0.1], a=[1]))
    assert batch.columns.schema == pa.schema({"a": pa.int32(), "b": pa.float32()})
    assert batch.rows == [(1, float(np.float32(0.1)))]
    for function, told in (
        (columns(a=[1]), "has the columns a, but declared are a, b"),
        (columns(a=[2**31], b=[0.1]), "column a does not fit int32"),
        (columns(a=["1"], b=[0.1]), "column a is string, which does not fit int32"),
        (columns(a=[1.0], b=[0.1]), "column a is double, which does not fit int32"),
    ):
        with pytest.raises(SchemaError, match=told):
            made(function)


# Copies ------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


class Thing:
    def __init__(self) -> None:
        self.parts = [1]


def test_what_nothing_can_change_is_not_copied() -> None:
    table = pa.record_batch({"a": [1]})
    for value in (1, "x", None, Decimal(1), (1, ("a", 2.0)), Row(a=1), Point(1, 2), np.int64(1)):
        assert own(value) is value
    for value in (table, table.column(0), frozenset([1]), Types.LONG, len):
        assert own(value) is value
    rows = [(1, "a"), 2, None, Row(a=1)]
    assert own_rows(rows) is rows


@pytest.mark.parametrize(
    "value",
    [[1, [2]], {"a": [1]}, {1, 2}, (1, [2]), Row(a=[1]), Point([1], {}), bytearray(b"x")],
)
def test_a_copy_is_equal_and_of_the_same_class(value: Any) -> None:
    copied = own(value)
    assert copied == value
    assert type(copied) is type(value)
    assert copied is not value
    (again,) = own_rows([value])
    assert again is not value


def test_objects_are_copied_through_and_through_or_refused() -> None:
    thing, queue = Thing(), deque([[1]])
    assert own(thing).parts is not thing.parts
    assert own((1, queue))[1][0] is not queue[0]
    with pytest.raises(SchemaError, match="enable_object_reuse"):
        own((1, Lock()))


SHARED: list[int] = []
LIMIT = 3


def test_functions_that_name_nothing_outside_themselves_keep_nothing() -> None:
    outer: list[int] = []
    for function in (
        lambda record: record[0] + 1,
        lambda word: (word.lower(), len(word), [part for part in word.split()]),  # noqa: C416
        lambda n: n > LIMIT,
        str.split,
        int,
    ):
        assert keeps_nothing(function)
    for function in (
        lambda n: SHARED,
        lambda n: outer,
        lambda n, kept=[]: kept,
        lambda n: (yield n),
        lambda n: [SHARED for _ in n],
        Buffer().map,
        outer.append,
        Buffer(),
    ):
        assert not keeps_nothing(function)


# Snapshots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        Types.TUPLE([Types.LONG(), Types.LONG()]),
        Types.ROW([Types.LONG(), Types.LONG()]),
        Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LONG()]),
        Types.LIST(Types.LONG()),
    ],
)
def test_a_snapshot_is_not_torn_by_what_is_changed_in_place_afterwards(kind: Any) -> None:
    harness = Harness(partial(MapOperator, lambda n: n))
    state = harness.state.keyed.get_state(ValueStateDescriptor("value", kind))
    harness.state.keyed.set_current_key(1)
    given = [1, 2]
    state.update(given)
    parts = harness.state.freeze(1)  # type: ignore[arg-type]
    given.append(3)
    held = state.value()
    if isinstance(held, list):
        held.append(3)
    handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
    restored = Harness(partial(MapOperator, lambda n: n), restored=handles)
    restored.state.keyed.set_current_key(1)
    again = restored.state.keyed.get_state(ValueStateDescriptor("value", kind)).value()
    assert list(again) == [1, 2]
    assert type(again) is type(kind.normaliser()(given[:2]))


def test_state_gives_back_what_its_type_holds() -> None:
    harness = Harness(partial(MapOperator, lambda n: n))
    keyed = harness.state.keyed
    keyed.set_current_key(1)
    singles = keyed.get_list_state(ListStateDescriptor("singles", Types.FLOAT()))
    singles.add(0.1)
    singles.add_all([np.float32(0.5)])
    assert singles.get() == [float(np.float32(0.1)), 0.5]
    with pytest.raises(SchemaError, match="state 'singles': 'x' of type str does not fit FLOAT"):
        singles.add("x")
