"""Operators with a policy for bad records: what goes on, what is undone, counted and refused."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operators.operator_harness import Harness
from weir.common import Row
from weir.common.typeinfo import TypeInformation, Types
from weir.errors import BadRecordsError, InternalError, SchemaError, SubtaskError
from weir.ids import StateHandle
from weir.operators.bad_records import LOG_INTERVAL_NS, ErrorPolicy
from weir.operators.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    RuntimeContext,
)
from weir.operators.keyed import (
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    KeyedProcessOperator,
)
from weir.operators.keys import FunctionKeySelector
from weir.operators.output_tag import OutputTag
from weir.operators.stateless import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from weir.protocol.restore import BAD_RECORDS_STATE
from weir.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from weir.storage.writer import load_items

SKIP = ErrorPolicy("skip")
BAD = OutputTag("bad")
DIVERT = ErrorPolicy("divert", BAD)
ODD_OR_EVEN = FunctionKeySelector(lambda x: abs(x) % 2)


def tolerant(factory: Any, policy: ErrorPolicy = SKIP, **settings: Any) -> Harness:
    return Harness(factory, on_error=policy, **{"keyed": False, **settings})


def times(harness: Harness) -> list[Any]:
    return [None if b.timestamps is None else b.timestamps.tolist() for b in harness.output.batches]


def sides(harness: Harness) -> list[Any]:
    return [row for e in harness.output.events if e[0] == "side" for row in e[2]]


def halves(x: int) -> Iterator[int]:
    yield x
    yield 10 // x


class Halves(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value
        yield OutputTag("side"), value
        yield 10 // value


@pytest.mark.parametrize(
    ("factory", "made", "at"),
    [
        (partial(MapOperator, lambda x: 10 // x), [2, 1], [10, 30]),
        (partial(FilterOperator, lambda x: 10 // x > 1), [5], [10]),
        (partial(FlatMapOperator, halves), [5, 2, 10, 1], [10, 10, 30, 30]),
        (partial(ProcessOperator, Halves()), [5, 2, 10, 1], [10, 10, 30, 30]),
    ],
    ids=["map", "filter", "flat_map", "process"],
)
@pytest.mark.parametrize("is_timed", [True, False])
def test_a_bad_record_leaves_nothing_behind_and_the_others_go_on(
    factory: Any, made: list[int], at: list[int], is_timed: bool
) -> None:
    harness = tolerant(factory)
    assert harness.rows([5, 0, 10], [10, 20, 30] if is_timed else None) == made
    assert times(harness) == [at if is_timed else None]
    assert harness.ctx.bad_records == 1
    assert sides(harness) == ([5, 10] if factory.func is ProcessOperator else [])


@pytest.mark.parametrize("first", [0, 1])
def test_a_slice_may_be_bad_as_a_whole_and_in_columns(first: int) -> None:
    harness = tolerant(partial(FilterOperator, lambda row: 10 // row[0] > 0))
    assert harness.columns(x=[0, 0][first:]) == []
    assert harness.columns([7, 8], x=[0, 5]) == [(5,)]
    assert times(harness) == [[8]]
    assert harness.ctx.bad_records == 3 - first


def test_a_record_in_the_side_output_has_its_cause_its_time_and_its_position() -> None:
    policy = replace(DIVERT, record_type=Types.INT())
    harness = tolerant(partial(MapOperator, lambda x: 10 // x), policy)
    harness.ctx.position.first, harness.ctx.position.behind = 6, 9
    assert harness.rows([5, 0, 10], [10, 20, 30], Types.INT()) == [2, 1]
    (bad,) = sides(harness)
    assert bad == Row(
        record=0,
        error="ZeroDivisionError",
        message="integer division or modulo by zero",
        operator="op",
        event_time=20,
        position="in the input records 7 to 9 of the attempt",
    )


def test_bad_records_of_any_kind_and_cause_become_columns() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    causes = iter([Odd(), ValueError("\ud800"), ValueError("x" * 10_000), KeyError()])

    def fail(record: Any) -> None:
        raise next(causes)

    harness = tolerant(partial(MapOperator, fail), DIVERT)
    batches: list[Any] = []
    harness.output.emit_side = lambda tag, batch: batches.append(batch)  # type: ignore[method-assign]
    harness.rows([object(), "\ud800", "y" * 10_000, None])
    (batch,) = batches
    rows = batch.columns.to_pylist()
    assert [row["error"] for row in rows] == ["Odd", "ValueError", "ValueError", "KeyError"]
    assert rows[0]["message"] == "its message cannot be shown"
    assert rows[1]["message"] == "\\ud800"
    assert len(rows[2]["message"]) == 1_001
    assert (len(rows[2]["record"]), rows[3]["record"]) == (200, "None")


def test_the_diverted_record_is_as_it_came() -> None:
    def spoil(record: list[int]) -> None:
        record.append(99)
        raise ValueError("spoilt")

    kind: TypeInformation = Types.LIST(Types.INT())
    harness = tolerant(partial(MapOperator, spoil), replace(DIVERT, record_type=kind))
    harness.rows([[1]], type=kind)
    assert [row.record for row in sides(harness)] == [[1]]


def stopping(x: int) -> int:
    return next(value for value in (1, 2) if value == x)


class Stopping(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> list[int]:
        return [stopping(value)]


@pytest.mark.parametrize(
    "factory",
    [
        partial(MapOperator, stopping),
        partial(FilterOperator, stopping),
        partial(FlatMapOperator, lambda x: [stopping(x)]),
        partial(ProcessOperator, Stopping()),
    ],
)
def test_stop_iteration_is_an_error_of_one_record(factory: Any) -> None:
    harness = tolerant(factory)
    assert harness.rows([1, 7, 2]) == [1, 2]
    assert harness.ctx.bad_records == 1


@pytest.mark.parametrize(
    ("error", "raised", "names"),
    [
        (InternalError("a bug"), InternalError, "a bug"),
        (SchemaError("a misfit"), SchemaError, "on the record 7: a misfit"),
        (MemoryError(), SubtaskError, "on the record 7: MemoryError"),
        (KeyboardInterrupt("now"), KeyboardInterrupt, "now"),
        (SystemExit(3), SystemExit, "3"),
    ],
)
@pytest.mark.parametrize("is_process", [True, False])
def test_what_is_not_the_functions_own_is_never_skipped(
    error: BaseException, raised: type[BaseException], names: str, is_process: bool
) -> None:
    def fail(x: int) -> list[int]:
        if x == 7:
            raise error
        return [x]

    class Failing(ProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> list[int]:
            return fail(value)

    harness = tolerant(
        partial(ProcessOperator, Failing()) if is_process else partial(FlatMapOperator, fail)
    )
    with pytest.raises(raised, match=names):
        harness.rows([1, 7, 2])
    assert harness.ctx.bad_records == 0


def test_a_failure_behind_the_operator_is_not_skipped() -> None:
    harness = tolerant(partial(MapOperator, lambda x: 10 // x))

    def fail(batch: Any) -> None:
        raise OSError("behind")

    harness.output.emit = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="behind"):
        harness.rows([1, 0])


def test_a_result_that_does_not_fit_its_declared_type_is_not_skipped() -> None:
    harness = tolerant(partial(MapOperator, lambda x: x, Types.INT()))
    with pytest.raises(SchemaError, match="'x'"):
        harness.rows([1, "x"])


def test_one_more_than_the_limit_names_operator_count_record_position_and_cause() -> None:
    harness = tolerant(partial(MapOperator, lambda x: 10 // x), ErrorPolicy("skip", limit=2))
    assert harness.rows([0, 5, 0]) == [2]
    with pytest.raises(BadRecordsError) as caught:
        harness.rows([5, 0, 5])
    assert str(caught.value) == (
        "'op' failed on 3 records in subtask op-0, more than its limit of 2; the last one is 0, "
        "before the first input record: ZeroDivisionError: integer division or modulo by zero"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def bad_counts(handles: list[StateHandle]) -> list[Any]:
    return [h for h in handles if h.name == BAD_RECORDS_STATE]


def test_the_count_is_that_of_the_snapshot_and_of_what_is_replayed() -> None:
    policy = ErrorPolicy("skip", limit=3)
    factory = partial(MapOperator, lambda x: 10 // x)
    harness = tolerant(factory, policy)
    harness.rows([0, 1])
    handles = harness.snapshot()
    harness.rows([0, 0])
    again = tolerant(factory, policy, restored=handles)
    again.rows([0, 0])  # Replayed.
    assert again.ctx.bad_records == 2
    third = tolerant(factory, policy, restored=again.snapshot())
    assert third.rows([1]) == [10]
    with pytest.raises(BadRecordsError, match="on 4 records"):
        third.rows([0])
    with pytest.raises(BadRecordsError, match="on 4 records"):
        again.rows([0])


@pytest.mark.parametrize("new", [1, 2, 3, 7])
def test_a_rescale_keeps_the_sum(new: int) -> None:
    factory, policy = partial(MapOperator, lambda x: 10 // x), ErrorPolicy("skip", limit=100)
    olds = [tolerant(factory, policy, index=i, parallelism=3) for i in range(3)]
    for count, old in enumerate(olds, 1):
        old.rows([0] * count)
    handles = {i: tuple(old.snapshot()) for i, old in enumerate(olds)}
    totals = []
    for index in range(new):
        made = tolerant(factory, policy, index=index, parallelism=new, rescaled=(handles, 3))
        assert made.operator.bad is not None  # type: ignore[attr-defined]
        totals.append(made.operator.bad.total)  # type: ignore[attr-defined]
    assert sum(totals) == 6
    if new == 3:
        assert totals == [1, 2, 3]


def test_without_a_policy_nothing_is_saved() -> None:
    harness = Harness(partial(MapOperator, lambda x: x), keyed=False)
    assert bad_counts(harness.snapshot()) == []
    assert len(bad_counts(tolerant(partial(MapOperator, lambda x: x)).snapshot())) == 1


def test_the_first_is_logged_and_then_one_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    harness = tolerant(partial(MapOperator, lambda x: 10 // x))
    with caplog.at_level(logging.WARNING):
        harness.rows([0] * 50)
        harness.clock.ms += LOG_INTERVAL_NS // 1_000_000
        harness.rows([0] * 50)
    one, other = [record.getMessage() for record in caplog.records]
    assert one == (
        "'op', subtask op-0, skipped the record 0, which is bad record 1 of this attempt, "
        "before the first input record: ZeroDivisionError: integer division or modulo by zero"
    )
    assert "bad record 51 of" in other


# Under a key -----------------------------------------------------------------------------------


class Stateful:
    """Counts, lists and maps the records of a key; raises behind its changes at negative ones."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", Types.INT()))
        self.named = ctx.get_map_state(MapStateDescriptor("named", Types.INT(), Types.INT()))

    def step(self, x: int) -> tuple[int, list[int], dict[int, int]]:
        count = (self.count.value() or 0) + 1
        if x % 5 == 4:
            self.count.clear()
        else:
            self.count.update(count)
        self.seen.add(x)
        self.named.put(abs(x) % 3, x)
        if x % 7 == 6:
            self.named.remove(0)
        if x < 0:
            raise ValueError(f"{x} is negative")
        return count, self.seen.get(), dict(self.named.items())


class StatefulMap(Stateful, MapFunction):
    def map(self, value: Any) -> Any:
        return self.step(value)


class StatefulFilter(Stateful, FilterFunction):
    def filter(self, value: Any) -> bool:
        return self.step(value)[0] % 2 == 1


class StatefulFlatMap(Stateful, FlatMapFunction):
    def flat_map(self, value: Any) -> Iterator[Any]:
        yield value
        yield self.step(value)


class StatefulProcess(Stateful, KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(abs(value) * 10)
        timers.delete_event_time_timer((abs(value) - 2) * 10)
        if value % 4 == 3:
            timers.register_event_time_timer((abs(value) - 2) * 10)
        yield value
        yield self.step(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.seen.add(timestamp)
        yield "timer", timestamp, ctx.get_current_key(), self.count.value()


@pytest.mark.parametrize(
    "make",
    [
        lambda: partial(KeyedMapOperator, ODD_OR_EVEN, StatefulMap()),
        lambda: partial(KeyedFilterOperator, ODD_OR_EVEN, StatefulFilter()),
        lambda: partial(KeyedFlatMapOperator, ODD_OR_EVEN, StatefulFlatMap()),
        lambda: partial(KeyedProcessOperator, ODD_OR_EVEN, StatefulProcess()),
    ],
    ids=["map", "filter", "flat_map", "process"],
)
@given(
    slices=st.lists(
        st.lists(st.integers(-12, 12), max_size=6)
        | st.sampled_from(["watermark", "freeze", "release", "restore"]),
        max_size=12,
    )
)
def test_a_bad_record_is_as_if_it_had_never_come(
    make: Callable[[], Any], slices: list[Any]
) -> None:
    """State, timers and output equal those over the good records, snapshots in between or not."""
    one, other = tolerant(make(), keyed=True), Harness(make())
    steps = [([*s, -1] if isinstance(s, list) else s) for s in slices]
    frozen: list[Any] = []
    reached = 0
    for step in [*steps, [-1, 2], "watermark"]:
        if isinstance(step, list):
            assert one.rows(step) == other.rows([x for x in step if x >= 0])
        elif step == "watermark":
            reached += 40
            assert one.watermark(reached) == other.watermark(reached)
        elif step == "freeze":
            parts = one.freeze()
            frozen.append((parts, contents(other.snapshot())))
        elif step == "release" and frozen:
            parts, before = frozen.pop(0)
            assert contents(one.written(parts)) == before
        elif step == "restore":
            frozen = []
            one = tolerant(make(), keyed=True, restored=one.snapshot())
            other = Harness(make(), restored=other.snapshot())
    for parts, before in frozen:
        assert contents(one.written(parts)) == before
    assert one.operator.bad.total > 0  # type: ignore[attr-defined]
    assert contents(one.snapshot()) == contents(other.snapshot())


def contents(handles: list[StateHandle]) -> list[Any]:
    """The rows of all stored states in some order, without the count of bad records."""
    rows = [(h.name, str(row)) for h in handles if h.name != BAD_RECORDS_STATE for row in stored(h)]
    return sorted(rows)


def stored(handle: StateHandle) -> list[Any]:
    data = handle.inline or b""
    if handle.kind == "operator":
        return load_items(data)
    rows: list[Any] = pa.ipc.open_file(data).read_all().to_pylist()
    return rows


def test_state_that_is_declared_late_is_undone_as_well() -> None:
    class Late(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.ctx = runtime_context

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            state = self.ctx.get_state(ValueStateDescriptor("late", Types.INT()))
            before = state.value()
            state.update(value)
            if value < 0:
                raise ValueError("negative")
            yield value, before

    harness = tolerant(
        partial(KeyedProcessOperator, FunctionKeySelector(lambda x: 0), Late()), keyed=True
    )
    assert harness.rows([-1, 2, -3, 4]) == [(2, None), (4, 2)]


def test_a_timer_that_raises_fails_with_any_policy() -> None:
    class Timing(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timer(value)

        def on_timer(self, timestamp: int, ctx: Any) -> None:
            raise ValueError("in a timer")

    harness = tolerant(partial(KeyedProcessOperator, ODD_OR_EVEN, Timing()), keyed=True)
    harness.rows([5])
    with pytest.raises(SubtaskError, match="in the timer 5 of the key 1: ValueError: in a timer"):
        harness.watermark(10)


def test_a_key_function_that_raises_fails_with_any_policy() -> None:
    harness = tolerant(
        partial(KeyedMapOperator, FunctionKeySelector(lambda x: 10 // x), StatefulMap()), keyed=True
    )
    with pytest.raises(SubtaskError, match="the function of key_by failed on the record 0"):
        harness.rows([5, 0])
