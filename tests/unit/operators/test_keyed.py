import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tests.unit.operators.operator_harness import MAX_PARALLELISM, Harness
from weir.common import Row, Types
from weir.common.batch import Batch
from weir.common.typeinfo import type_from_wire
from weir.common.types.dynamic import DYNAMIC
from weir.datastream.keys import selector_of
from weir.errors import KeyTypeError, SchemaError, SubtaskError, UserError
from weir.graph.key_groups import key_group, key_group_range
from weir.operators.functions import (
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    TimeDomain,
)
from weir.operators.keyed import (
    CountOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    KeyedProcessOperator,
    ReduceOperator,
    field_reducer,
)
from weir.operators.keys import key_groups_of_keys
from weir.state.descriptors import ValueStateDescriptor

FIRST = selector_of(lambda record: record[0])
ITSELF = selector_of(lambda record: record)


def add(one: Any, other: Any) -> Any:
    return (one[0], one[1] + other[1])


def test_reduce_emits_the_reduction_after_every_record() -> None:
    harness = Harness(partial(ReduceOperator, FIRST, add))
    assert harness.rows([("a", 1), ("b", 5), ("a", 2)]) == [("a", 1), ("b", 5), ("a", 3)]
    assert harness.rows([("a", 10)]) == [("a", 13)]


class CountedReduction(ReduceFunction):
    """Numbers the reductions since it was opened."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.reductions = 0

    def reduce(self, value1: Any, value2: Any) -> Any:
        self.reductions += 1
        return (value1[0], self.reductions)


def test_every_subtask_reduces_by_a_function_of_its_own() -> None:
    factory = partial(ReduceOperator, FIRST, CountedReduction())
    one, other = Harness(factory), Harness(factory)
    assert one.rows([("a", 0), ("a", 0), ("a", 0)]) == [("a", 0), ("a", 1), ("a", 2)]
    assert other.rows([("a", 0), ("a", 0)]) == [("a", 0), ("a", 1)]


def test_reduce_continues_from_a_snapshot_without_a_declared_type() -> None:
    before = Harness(partial(ReduceOperator, FIRST, add))
    before.rows([("a", 1), (None, Decimal("1.5")), ("b", 1)])
    after = Harness(partial(ReduceOperator, FIRST, add), restored=before.snapshot())
    assert after.rows([("a", 1), (None, Decimal(1)), ("b", 0.5)]) == [
        ("a", 2),
        (None, Decimal("2.5")),
        ("b", 1.5),
    ]


def test_equal_looking_keys_of_different_types_are_different_keys() -> None:
    harness = Harness(partial(ReduceOperator, FIRST, add))
    made = harness.rows([(1, 1), (True, 1), (1.0, 1), (1, 1)])
    assert [n for _, n in made] == [1, 1, 1, 2]


def test_a_reduction_in_place_does_not_change_what_was_emitted() -> None:
    def collect(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        one["n"] += other["n"]
        return one

    harness = Harness(partial(ReduceOperator, selector_of("k"), collect))
    made = harness.rows([{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "a", "n": 3}])
    assert [record["n"] for record in made] == [1, 3, 6]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        2**80,
        float("inf"),
        "ä",
        b"\x00",
        Decimal("1.50"),
        dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
        dt.date(2020, 1, 2),
        dt.time(1, 2, 3),
        UUID(int=5),
        (1, (2.0, None)),
        [1, ["a"]],
        {1: "a", ("x",): [b"y"]},
        Row(1, "a"),
        Row(id=1, tags=["a"]),
    ],
)
def test_values_of_undeclared_type_come_back_as_they_were(value: Any) -> None:
    (restored,) = DYNAMIC.from_arrow(DYNAMIC.to_arrow([value]))
    assert (restored, type(restored)) == (value, type(value))
    assert type_from_wire(DYNAMIC.to_wire()) == DYNAMIC


def test_state_moves_with_its_key_groups_on_rescale() -> None:
    keys = [f"k{i}" for i in range(40)]
    before = Harness(partial(ReduceOperator, FIRST, add))
    before.rows([(key, 1) for key in keys])
    handles = before.snapshot()
    for index in range(3):
        owned = key_group_range(MAX_PARALLELISM, 3, index)
        mine = [k for k in keys if key_group(k, MAX_PARALLELISM) in owned]
        part = Harness(
            partial(ReduceOperator, FIRST, add), parallelism=3, index=index, restored=handles
        )
        assert part.rows([(key, 1) for key in mine]) == [(key, 2) for key in mine]


def test_a_record_of_a_foreign_key_group_is_refused_with_advice() -> None:
    foreign = next(k for k in range(100) if key_group(k, MAX_PARALLELISM) > 63)
    harness = Harness(partial(ReduceOperator, FIRST, add), parallelism=2, index=0)
    with pytest.raises(UserError, match="A key must depend on the record alone"):
        harness.rows([(foreign, 1)])


def test_a_key_function_that_throws_is_named_with_its_record() -> None:
    harness = Harness(partial(ReduceOperator, selector_of(lambda r: r["k"]), add))
    with pytest.raises(SubtaskError, match=r"function of key_by failed on the record \{'x': 1"):
        harness.rows([{"k": 1}, {"x": 1}])


@pytest.mark.parametrize("key", [float("nan"), object(), [1]])
def test_a_key_without_an_encoding_is_refused(key: object) -> None:
    with pytest.raises(KeyTypeError):
        Harness(partial(CountOperator, ITSELF)).rows([key])


def test_key_type_turns_keys_into_ones_that_have_an_encoding() -> None:
    selector = selector_of(
        lambda r: Row(r[0], [r[1]][0]), Types.ROW([Types.STRING(), Types.LONG()])
    )
    assert selector.keys_of_rows([("a", 1)]) == [("a", 1)]
    with pytest.raises(KeyTypeError, match="does not fit its key_type"):
        selector.keys_of_rows([("a", "b")])


def test_columns_are_read_by_name_from_rows_and_from_columns() -> None:
    both = selector_of(["a", "b"])
    rows = [Row(a=1, b="x", c=0), Row(a=None, b="y", c=0)]
    assert both.keys_of_rows(rows) == [(1, "x"), (None, "y")]
    assert both.keys_of(Batch.of_columns(Batch.of_rows(rows).columns)) == [(1, "x"), (None, "y")]
    assert selector_of("a").keys_of_rows([{"a": 1}]) == [1]
    with pytest.raises(UserError, match=r"'a', 'b', which the record \(1, 2\) does not have"):
        both.keys_of_rows([(1, 2)])


@pytest.mark.parametrize(
    "keys",
    [
        [1, -5, 2**62],
        [1, 2**70],
        ["a", "", "ä" * 30],
        [b"a", b""],
        [1.5, -0.0],
        [True, False],
        [None, 1],
        [None, None],
        [1, True, 1.0, "1"],
        [(1, "a"), (2, "b")],
        [(1, "a"), (None, "b")],
        [(1,), (2,)],
        [(1, 2), (1, 2, 3)],
        [(1, (2, 3)), (1, (2, 4))],
        [Decimal("1.5"), Decimal(2)],
        [],
    ],
)
def test_key_groups_of_a_slice_are_those_of_its_keys_one_by_one(keys: list[Any]) -> None:
    assert key_groups_of_keys(keys, 128).tolist() == [key_group(key, 128) for key in keys]


class Numbering(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map(self, value: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return value, count


def test_a_map_function_has_state_per_key() -> None:
    harness = Harness(partial(KeyedMapOperator, ITSELF, Numbering()))
    assert harness.rows(["a", "b", "a"]) == [("a", 1), ("b", 1), ("a", 2)]
    after = Harness(partial(KeyedMapOperator, ITSELF, Numbering()), restored=harness.snapshot())
    assert after.rows(["a", "b"]) == [("a", 3), ("b", 2)]


def test_a_lazy_flat_map_function_sees_the_state_of_its_own_record() -> None:
    class Lazy(FlatMapFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

        def flat_map(self, value: Any) -> Iterator[Any]:
            for _ in range(2):
                self.count.update((self.count.value() or 0) + 1)
                yield value, self.count.value()

    harness = Harness(partial(KeyedFlatMapOperator, ITSELF, Lazy()))
    assert harness.rows(["a", "b"]) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_count_counts_per_key() -> None:
    harness = Harness(partial(CountOperator, FIRST))
    assert harness.rows([("a", 0), ("b", 0), ("a", 0)]) == [("a", 1), ("b", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("kind", "field", "records", "expected"),
    [
        ("sum", 1, [("a", 1, "x"), ("a", 2, "y")], ("a", 3, "x")),
        ("min", 1, [("a", 2, "x"), ("a", 1, "y")], ("a", 1, "x")),
        ("max", -1, [("a", 1), ("a", 2)], ("a", 2)),
        ("min_by", 1, [("a", 2, "x"), ("a", 1, "y")], ("a", 1, "y")),
        ("max_by", 1, [("a", 2, "x"), ("a", 2, "y")], ("a", 2, "x")),
        ("sum", "n", [Row(k="a", n=1), Row(k="a", n=2)], Row(k="a", n=3)),
        ("sum", "n", [{"k": "a", "n": 1}, {"k": "a", "n": 2}], {"k": "a", "n": 3}),
        ("sum", 1, [["a", 1], ["a", 2]], ["a", 3]),
        ("sum", 0, [1, 2], 3),
        ("min_by", 0, [2, 1], 1),
    ],
)
def test_field_reductions_change_the_field_or_choose_the_record(
    kind: str, field: int | str, records: list[Any], expected: Any
) -> None:
    made = field_reducer(kind, field)(*records)
    assert made == expected
    assert type(made) is type(expected)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(UserError, match=r"sum\(5\) found no such field in the tuple"):
        field_reducer("sum", 5)(("a", 1), ("a", 2))


class Timed(KeyedProcessFunction):
    """Registers a timer per record and reports every firing."""

    def __init__(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        self.domain = domain

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        service = ctx.timer_service()
        if self.domain is TimeDomain.EVENT_TIME:
            service.register_event_time_timer(value[1])
        else:
            service.register_processing_time_timer(service.current_processing_time() + value[1])
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value(), ctx.time_domain()


EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME


def test_timers_fire_under_their_key_in_order_and_before_the_watermark() -> None:
    harness = Harness(partial(KeyedProcessOperator, FIRST, Timed()))
    harness.rows([("a", 20), ("b", 10), ("a", 20), ("a", 30)])
    assert harness.watermark(20) == [
        ("rows", [("b", 10, 1, EVENT), ("a", 20, 3, EVENT)]),
        ("watermark", 20),
    ]
    assert harness.output.batches[-1].timestamps.tolist() == [10, 20]  # type: ignore[union-attr]
    assert harness.watermark(29) == [("watermark", 29)]
    assert harness.watermark(40) == [("rows", [("a", 30, 3, EVENT)]), ("watermark", 40)]


def test_a_snapshot_between_two_firings_holds_what_is_still_to_fire() -> None:
    before = Harness(partial(KeyedProcessOperator, FIRST, Timed()))
    before.rows([(f"k{i}", i) for i in range(5)])
    before.operator.on_watermark(100)
    before.operator.advance(2)
    assert before.operator.has_pending
    assert [e[0] for e in before.output.events] == ["rows"]  # The watermark is held back.
    after = Harness(partial(KeyedProcessOperator, FIRST, Timed()), restored=before.snapshot())
    fired = after.watermark(100)
    assert [row[0] for row in fired[0][1]] == ["k2", "k3", "k4"]
    assert fired[-1] == ("watermark", 100)


def test_timers_of_processing_time_fire_by_the_clock_without_event_time() -> None:
    harness = Harness(partial(KeyedProcessOperator, FIRST, Timed(PROCESSING)))
    harness.rows([("a", 5), ("b", 500)], [1, 2])
    start = harness.clock.ms
    assert harness.operator.next_timer_ms() == start + 5
    assert harness.clock_to(start + 4) == []
    assert harness.clock_to(start + 100) == [("rows", [("a", start + 5, 1, PROCESSING)])]
    assert harness.output.batches[-1].timestamps is None
    assert harness.operator.next_timer_ms() == start + 500


def test_a_deleted_timer_does_not_fire() -> None:
    class Deleting(Timed):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield from super().process_element(value, ctx)
            if len(value) > 2:
                ctx.timer_service().delete_event_time_timer(value[1])

    harness = Harness(partial(KeyedProcessOperator, FIRST, Deleting()))
    harness.rows([("a", 10), ("b", 10), ("a", 10, "delete")])
    assert harness.watermark(10)[0] == ("rows", [("b", 10, 1, EVENT)])


def test_a_timer_that_throws_is_named_with_its_key() -> None:
    class Failing(Timed):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            raise ValueError("no")
            yield

    harness = Harness(partial(KeyedProcessOperator, FIRST, Failing()))
    harness.rows([("a", 10)])
    with pytest.raises(SubtaskError, match="in the timer 10 of the key 'a': ValueError: no"):
        harness.watermark(10)


def test_state_of_an_undeclared_type_is_refused_with_advice() -> None:
    harness = Harness(partial(ReduceOperator, FIRST, lambda one, other: one))
    with pytest.raises(SchemaError, match=r"'op' failed on the record .*declare output_type"):
        harness.rows([("a", object())])
