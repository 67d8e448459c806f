"""Function classes as users write them: whole or not, with other bases, on rows and batches."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.datastream.test_datastream import environment, results
from weir.common import Row, Time, Types
from weir.datastream import (
    AggregateFunction,
    BatchProcessFunction,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WindowFunction,
)
from weir.errors import GraphError
from weir.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor

OPENED: list[str] = []


def numbers(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([Row(n=n) for n in range(6)], Types.ROW_NAMED(["n"], [Types.LONG()]))


def batches() -> DataStream:
    return numbers(environment())


def keyed() -> Any:
    return numbers(environment()).key_by(lambda row: row.n)


def windowed() -> Any:
    return keyed().window(TumblingEventTimeWindows.of(Time.seconds(1)))


@pytest.mark.parametrize(
    ("base", "method", "use"),
    [
        (MapFunction, "map", lambda f: numbers(environment()).map(f)),
        (MapFunction, "map", lambda f: numbers(environment()).map_batches(f)),
        (MapFunction, "map", lambda f: keyed().map(f)),
        (FlatMapFunction, "flat_map", lambda f: numbers(environment()).flat_map(f)),
        (FlatMapFunction, "flat_map", lambda f: numbers(environment()).flat_map_batches(f)),
        (FlatMapFunction, "flat_map", lambda f: keyed().flat_map(f)),
        (FilterFunction, "filter", lambda f: numbers(environment()).filter(f)),
        (FilterFunction, "filter", lambda f: numbers(environment()).filter_batches(f)),
        (FilterFunction, "filter", lambda f: keyed().filter(f)),
        (ProcessFunction, "process_element", lambda f: numbers(environment()).process(f)),
        (KeyedProcessFunction, "process_element", lambda f: keyed().process(f)),
        (BatchProcessFunction, "process_batch", lambda f: batches().process_batches(f)),
        (ReduceFunction, "reduce", lambda f: keyed().reduce(f)),
        (ReduceFunction, "reduce", lambda f: windowed().reduce(f)),
        (ReduceFunction, "reduce", lambda f: ReducingStateDescriptor("x", f, Types.LONG())),
        (AggregateFunction, "add", lambda f: windowed().aggregate(f)),
        (AggregateFunction, "add", lambda f: AggregatingStateDescriptor("x", f, Types.LONG())),
        (WindowFunction, "apply", lambda f: windowed().apply(f)),
        (ProcessWindowFunction, "process", lambda f: windowed().process(f)),
        (ProcessWindowFunction, "process", lambda f: windowed().reduce(max, f)),
        (KeySelector, "get_key", lambda f: numbers(environment()).key_by(f)),
        (KeySelector, "get_key", lambda f: numbers(environment()).partition_custom(max, f)),
        (Partitioner, "partition", lambda f: numbers(environment()).partition_custom(f, max)),
    ],
)  # fmt: skip
def test_a_class_that_leaves_its_method_out_is_refused_as_the_graph_is_built(
    base: type, method: str, use: Callable[[Any], Any]
) -> None:
    rest = {"create_accumulator": lambda self: 0, "get_result": lambda self, acc: acc}
    forgot = type("Mine", (base,), rest)
    with pytest.raises(GraphError, match=rf"Mine does not define {method}, .*{base.__name__}"):
        use(forgot())
    misspelt = type("Mine", (base,), {**rest, f"{method}s": lambda self, *given: None})
    with pytest.raises(GraphError, match=rf"it has {method}s, which is never called"):
        use(misspelt())
    with pytest.raises(GraphError, match=rf"{base.__name__} is a base class"):
        use(base())
    use(type("Mine", (base,), {**rest, method: lambda self, *given: None})())


class Mixin:
    def map(self, value: Row) -> tuple[int]:
        return (int(value.n) + 1,)


class Inherited(Mixin, MapFunction):
    pass


class Registering(type):
    """A metaclass of the user's own."""


class Registered(MapFunction, metaclass=Registering):
    def map(self, value: Row) -> tuple[int]:
        return (int(value.n) + 1,)

    def __call__(self, value: Row) -> tuple[int]:
        raise AssertionError("map is what counts")


class SetOnTheObject(MapFunction):
    def __init__(self) -> None:
        self.map = plus_one  # type: ignore[method-assign]


class Callable_:
    def __call__(self, value: Row) -> tuple[int]:
        return plus_one(value)


def plus_one(value: Row) -> tuple[int]:
    return (int(value.n) + 1,)


@pytest.mark.parametrize("make", [Inherited, Registered, SetOnTheObject, Callable_])
def test_a_method_counts_wherever_it_comes_from(make: Callable[[], Any]) -> None:
    made = results(lambda env: numbers(env).map(make()))
    assert made == [(n,) for n in range(1, 7)]


class OnBatches:
    """Notes that it was opened and closed, in the process that runs it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        OPENED.append("open")

    def close(self) -> None:
        OPENED.append("close")


class Doubled(OnBatches, MapFunction):
    def map(self, value: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": pc.multiply(value["n"], 2)})


class Odd(OnBatches, FilterFunction):
    def filter(self, value: pa.RecordBatch) -> Any:
        return pc.equal(pc.bit_wise_and(value["n"], 1), 1)


class Twice(OnBatches, FlatMapFunction):
    def flat_map(self, value: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [value, value]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda rows: rows.map_batches(Doubled()), [0, 2, 4, 6, 8, 10]),
        (lambda rows: rows.filter_batches(Odd()), [1, 3, 5]),
        (lambda rows: rows.flat_map_batches(Twice()), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
    ],
)
def test_function_objects_get_whole_batches_between_open_and_close(
    use: Callable[[DataStream], DataStream], expected: list[int]
) -> None:
    OPENED.clear()
    made = results(lambda env: use(numbers(env)), parallelism=1)
    assert sorted(row[0] for row in made) == expected
    assert OPENED == ["open", "close"]
