"""Stored state meets a program that declares other types: what is converted, what refused."""

from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.operators.operator_harness import InlineWriter
from weir.common.row import Row
from weir.common.typeinfo import TypeInformation, Types, type_from_wire
from weir.common.types.dynamic import DYNAMIC
from weir.errors import ConfigError, RestoreError, SchemaError
from weir.graph.key_groups import key_group_range
from weir.ids import CheckpointId, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from weir.state.evolution import Evolution, Verdict, evolve, evolve_table, unite_tables
from weir.state.store import OperatorStateStore

T = Types
NAMED = T.ROW_NAMED


def store(
    *handles: StateHandle, allow: bool = False, keyed: bool = True, pickles: bool = True
) -> OperatorStateStore:
    return OperatorStateStore(
        key_group_range(16, 1, 0),
        16,
        keyed=keyed,
        restored=[RestoredHandle(handle, handle.key_groups) for handle in handles],
        read=lambda handle: handle.inline or b"",
        allow_pickled_state=pickles,
        operator="op",
        allow_non_restored_state=allow,
    )


def frozen(state: OperatorStateStore) -> list[StateHandle]:
    parts = state.freeze(CheckpointId(1))
    handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
    for part in parts:
        part.release()
    return handles


def held(kind: TypeInformation, value: Any, key: Any = 1) -> list[StateHandle]:
    """The handles of a program that keeps one value of this type under one key."""
    state = store()
    state.keyed.set_current_key(key)
    state.keyed.get_state(ValueStateDescriptor("s", kind)).update(value)
    return frozen(state)


def read(state: OperatorStateStore, kind: TypeInformation, key: Any = 1) -> Any:
    state.keyed.set_current_key(key)
    return state.keyed.get_state(ValueStateDescriptor("s", kind)).value()


# Which types map.

WIDENED = [
    (T.BYTE(), T.SHORT(), 1, 1),
    (T.INT(), T.LONG(), 2**31 - 1, 2**31 - 1),
    (T.LONG(), T.BIG_INT(), 2**63 - 1, 2**63 - 1),
    (T.INT(), T.DOUBLE(), 2**31 - 1, 2147483647.0),
    (T.SHORT(), T.FLOAT(), -7, -7.0),
    (T.FLOAT(), T.DOUBLE(), 0.5, 0.5),
    (T.BIG_INT(), T.BIG_DEC(), 2**70, Decimal(2**70)),
    (T.CHAR(), T.STRING(), "a", "a"),
    (T.LONG(), DYNAMIC, 5, 5),
    (T.LIST(T.INT()), T.LIST(T.DOUBLE()), [1, None], [1.0, None]),
    (T.PRIMITIVE_ARRAY(T.INT()), T.BASIC_ARRAY(T.INT()), [1, 2], [1, 2]),
    (T.MAP(T.INT(), T.INT()), T.MAP(T.LONG(), T.DOUBLE()), {1: 2}, {1: 2.0}),
    (T.TUPLE([T.INT()]), T.TUPLE([T.LONG(), T.STRING()]), (1,), (1, None)),
    (T.ROW([T.INT()]), T.ROW([T.INT(), T.LONG()]), Row(1), Row(1, None)),
    (
        NAMED(["a", "b"], [T.INT(), T.STRING()]),
        NAMED(["b", "new", "a"], [T.STRING(), T.LONG(), T.DOUBLE()]),
        Row(a=1, b="x"),
        Row(b="x", new=None, a=1.0),
    ),
    (
        T.LIST(NAMED(["a"], [T.INT()])),
        T.LIST(NAMED(["a", "l"], [T.INT(), T.LIST(T.INT())], defaults={"l": [7]})),
        [Row(a=1), Row(a=2)],
        [Row(a=1, l=[7]), Row(a=2, l=[7])],
    ),
]


@pytest.mark.parametrize(("stored", "declared", "value", "expected"), WIDENED, ids=str)
def test_widened_and_added_to(
    stored: TypeInformation, declared: TypeInformation, value: Any, expected: Any
) -> None:
    evolution = evolve(stored, declared)
    assert (evolution.verdict, evolution.losses) == (Verdict.CHANGED, ())
    assert evolution.differences
    restored = read(store(*held(stored, value)), declared)
    assert restored == expected
    assert type(restored) is type(expected)
    assert repr(restored) == repr(expected)
    declared.to_arrow([restored])  # It can be stored as what it is now.


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (T.LONG(), T.INT()),
        (T.LONG(), T.DOUBLE()),
        (T.INT(), T.FLOAT()),
        (T.DOUBLE(), T.FLOAT()),
        (T.DOUBLE(), T.BIG_DEC()),
        (T.BOOLEAN(), T.INT()),
        (T.SQL_DATE(), T.SQL_TIMESTAMP()),
        (T.SQL_TIMESTAMP(), T.INSTANT()),
        (T.STRING(), T.LONG()),
        (DYNAMIC, T.LONG()),
        (T.PICKLED_BYTE_ARRAY(), DYNAMIC),
        (T.LIST(T.PICKLED_BYTE_ARRAY()), DYNAMIC),
        (T.LONG(), T.LIST(T.LONG())),
        (T.BASIC_ARRAY(T.INT()), T.PRIMITIVE_ARRAY(T.INT())),
        (T.LIST(T.LONG()), T.LIST(T.INT())),
        (T.TUPLE([T.INT()]), T.ROW([T.INT()])),
        (T.ROW([T.INT()]), NAMED(["f0"], [T.INT()])),
        (NAMED(["a"], [T.STRING()]), NAMED(["a", "b"], [T.INT(), T.INT()])),
        (T.MAP(T.LONG(), T.INT()), T.MAP(T.INT(), T.INT())),
        (T.MAP(T.TUPLE([T.INT(), T.INT()]), T.INT()), T.MAP(T.TUPLE([T.INT()]), T.INT())),
    ],
    ids=str,
)
def test_what_cannot_be_mapped(stored: TypeInformation, declared: TypeInformation) -> None:
    assert evolve(stored, declared).verdict is Verdict.UNMAPPABLE


def test_equal_types_are_kept() -> None:
    for wire in ("LONG", ["ROW_NAMED", ["a"], ["INT"]], ["MAP", "INT", ["LIST", "STRING"]]):
        assert evolve(type_from_wire(wire), type_from_wire(wire)) == Evolution()


def test_differences_are_told_where_they_are() -> None:
    old = T.LIST(NAMED(["a", "gone"], [T.MAP(T.INT(), T.INT()), T.INT()]))
    new = T.LIST(NAMED(["a", "b"], [T.MAP(T.INT(), T.LONG()), T.STRING()], defaults={"b": "x"}))
    evolution = evolve(old, new)
    assert evolution.differences == (
        "element: field a: value: INT is widened to LONG",
        "element: field b is added, 'x' in what was stored",
        "element: field gone is dropped",
    )
    assert evolution.losses == ("element: field gone is dropped",)


def test_a_refusal_names_operator_state_and_both_types() -> None:
    state = store(*held(T.LONG(), 1))
    with pytest.raises(RestoreError) as caught:
        read(state, T.STRING())
    assert str(caught.value) == (
        "operator 'op': state 's' is value of LONG in the checkpoint, but the program declares "
        "value of STRING (LONG cannot become STRING); keep the old type, or use a new name"
    )


def test_a_field_is_dropped_only_where_loss_is_allowed() -> None:
    handles = held(NAMED(["a", "b"], [T.INT(), T.INT()]), Row(a=1, b=2))
    only_a = NAMED(["a"], [T.INT()])
    with pytest.raises(RestoreError, match=r"field b is dropped.*--allow-non-restored-state"):
        read(store(*handles), only_a)
    assert read(store(*handles, allow=True), only_a) == Row(a=1)


def test_defaults_are_checked_and_are_no_part_of_the_type() -> None:
    with_default = NAMED(["a"], [T.INT()], defaults={"a": 1})
    assert with_default == NAMED(["a"], [T.INT()])
    assert hash(with_default) == hash(NAMED(["a"], [T.INT()]))
    with pytest.raises(SchemaError, match=r"default of field a: 'x'"):
        NAMED(["a"], [T.INT()], defaults={"a": "x"})
    with pytest.raises(SchemaError, match="no field b"):
        NAMED(["a"], [T.INT()], defaults={"b": 1})


def test_a_default_that_can_be_changed_is_not_shared() -> None:
    state = store(*held(T.LIST(T.ROW_NAMED(["a"], [T.INT()])), [Row(a=1), Row(a=2)]))
    kind = T.LIST(NAMED(["a", "l"], [T.INT(), T.LIST(T.INT())], defaults={"l": []}))
    one, two = read(state, kind)
    one.l.append(1)
    assert two.l == []


# Each kind of state.


def test_every_kind_of_keyed_state_is_converted() -> None:
    before = store()
    before.keyed.set_current_key("k")
    descriptors = kinds(T.INT())
    for descriptor, put in descriptors:
        put(getattr(before.keyed, METHODS[descriptor.kind])(descriptor))
    after = store(*frozen(before))
    after.keyed.set_current_key("k")
    got = [
        getattr(after.keyed, METHODS[descriptor.kind])(descriptor)
        for descriptor, _ in kinds(T.DOUBLE())
    ]
    value, items, pairs, reduced, aggregated = got
    assert repr(value.value()) == "1.0"
    assert repr(items.get()) == "[1.0, 2.0]"
    assert repr(list(pairs.items())) == "[('a', 1.0)]"
    assert repr(reduced.get()) == "3.0"
    assert repr(aggregated.get()) == "3.0"


METHODS = {
    "value": "get_state",
    "list": "get_list_state",
    "map": "get_map_state",
    "reducing": "get_reducing_state",
    "aggregating": "get_aggregating_state",
}


class Sum:
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def kinds(kind: TypeInformation) -> list[tuple[StateDescriptor, Any]]:
    def twice(state: Any) -> None:
        state.add(1)
        state.add(2)

    return [
        (ValueStateDescriptor("v", kind), lambda state: state.update(1)),
        (ListStateDescriptor("l", kind), twice),
        (MapStateDescriptor("m", T.STRING(), kind), lambda state: state.put("a", 1)),
        (ReducingStateDescriptor("r", lambda a, b: a + b, kind), twice),
        (AggregatingStateDescriptor("a", Sum(), kind), twice),
    ]


def test_another_kind_of_state_is_refused() -> None:
    state = store(*held(T.LIST(T.LONG()), [1]))
    with pytest.raises(RestoreError, match="a value state is no list state"):
        state.keyed.get_list_state(ListStateDescriptor("s", T.LONG()))


def test_state_that_is_declared_late_is_converted_then() -> None:
    kept = store(*frozen(store(*held(T.INT(), 3))))  # Not declared: it stays what it is.
    assert repr(read(store(*frozen(kept)), T.DOUBLE())) == "3.0"


def test_conversion_leaves_a_snapshot_under_way_alone() -> None:
    state = store(*held(T.LIST(T.INT()), [1]))
    parts = state.freeze(CheckpointId(1))
    state.keyed.set_current_key(1)
    items = state.keyed.get_state(ValueStateDescriptor("s", T.LIST(T.LONG())))
    items.value().append(2)
    handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
    assert read(store(*handles), T.LIST(T.INT())) == [1]
    assert items.value() == [1, 2]


def test_subtasks_that_did_not_declare_yet_keep_their_part_as_it_was() -> None:
    """One subtask has converted its state, another had no record before the checkpoint."""
    with_default = NAMED(["a", "b"], [T.INT(), T.INT()], defaults={"b": 9})
    one = store(*held(NAMED(["a"], [T.INT()]), Row(a=1), key=1))
    assert read(one, with_default, key=1) == Row(a=1, b=9)
    other = held(NAMED(["a"], [T.INT()]), Row(a=2), key=2)
    both = store(*frozen(one), *other)
    assert set(both.keyed.keys("s")) == {1, 2}
    again = store(*frozen(both))  # Not declared here either; the parts go into files of their own.
    assert len({handle.name for handle in frozen(both)}) == 2
    assert read(again, with_default, key=2) == Row(a=2, b=9)
    assert read(again, with_default, key=1) == Row(a=1, b=9)


def test_state_declared_twice_is_still_refused() -> None:
    state = store(*held(T.INT(), 3))
    read(state, T.LONG())
    with pytest.raises(ConfigError, match="declared twice"):
        read(state, T.DOUBLE())


# Tables.


def columns(**types: Any) -> dict[str, np.dtype[Any]]:
    return {name: np.dtype(kind) for name, kind in types.items()}


def tabled(key: pa.DataType, **types: Any) -> list[StateHandle]:
    state = store()
    table = state.table("t", key, types)
    slots = table.slots_of(pa.array([1, 2, None], key))
    for name in types:
        table.column(name).scatter(slots, [5, 6, 7])
    return frozen(state)


def test_columns_of_a_table_are_added_and_widened() -> None:
    state = store(*tabled(pa.int32(), n="i4"))
    parts = state.freeze(CheckpointId(1))
    table = state.table("t", pa.int64(), {"n": "f8", "new": "i8"})
    slots = table.slots_of(pa.array([1, 2, None, 3], pa.int64()))
    assert table.column("n").gather(slots).tolist() == [5.0, 6.0, 7.0, 0.0]
    assert table.column("new").gather(slots).tolist() == [0, 0, 0, 0]
    table.column("n").scatter(slots, 0)
    handles = [handle for part in parts for handle in part.write(InlineWriter())]  # type: ignore[arg-type]
    old = store(*handles).table("t", pa.int32(), {"n": "i4"})
    assert old.column("n").gather(old.slots_of(pa.array([1], pa.int32()))).tolist() == [5]


@pytest.mark.parametrize(
    ("key", "asked", "problem"),
    [
        (pa.string(), {"n": "i8"}, "keys of int64 cannot become keys of string"),
        (pa.int64(), {"n": "f8"}, "column n: int64 cannot become float64"),
        (pa.int64(), {"n": "i4"}, "column n: int64 cannot become int32"),
        (pa.int64(), {"m": "i8"}, "column n is dropped"),
    ],
)
def test_a_table_that_cannot_be_mapped(key: Any, asked: dict[str, str], problem: str) -> None:
    with pytest.raises(RestoreError, match=problem):
        store(*tabled(pa.int64(), n="i8")).table("t", key, asked)


def test_a_column_is_dropped_where_loss_is_allowed() -> None:
    state = store(*tabled(pa.int64(), n="i8", m="i8"), allow=True)
    assert list(state.table("t", pa.int64(), {"m": "i8"}).columns) == ["m"]


def test_parts_of_a_table_of_different_types_are_united() -> None:
    state = store(*tabled(pa.int32(), n="i4"), *tabled(pa.int64(), n="f8", m="i8"))
    table = state.table("t", pa.int64(), {"n": "f8", "m": "i8"})
    assert len(table) == 3
    narrow, wide = (None, columns(n="i4")), (None, columns(m="i1", n="i8"))
    assert unite_tables(narrow, wide) == (None, columns(m="i1", n="i8"))
    with pytest.raises(ValueError, match="column n"):
        unite_tables(wide, (None, columns(n="f8")))
    with pytest.raises(RestoreError, match="contradict each other"):
        store(*tabled(pa.int64(), n="i8"), *tabled(pa.int64(), n="f8"))


def test_bools_and_times_stay_what_they_are() -> None:
    assert evolve_table((None, columns(b="?")), (None, columns(b="i8"))).verdict is (
        Verdict.UNMAPPABLE
    )
    assert evolve_table((None, columns(d="M8[s]")), (None, columns(d="M8[ms]"))).verdict is (
        Verdict.UNMAPPABLE
    )


# Operator state, and timers.


def test_operator_state_is_kept_with_any_content() -> None:
    before = store()
    before.list_state("items").update([1, {"a": None}])
    assert store(*frozen(before)).list_state("items").get() == [1, {"a": None}]


def test_operator_state_that_is_dealt_out_otherwise_is_refused() -> None:
    before = store()
    before.list_state("items").add(1)
    before.broadcast_state("rules").put("a", 1)
    after = store(*frozen(before))
    with pytest.raises(RestoreError, match=r"'items' is split state.*declares union state"):
        after.list_state("items", "union")
    with pytest.raises(RestoreError, match=r"'rules' is broadcast state.*declares split state"):
        after.list_state("rules")
    after.list_state("mine")
    with pytest.raises(ConfigError, match="declared twice"):
        after.list_state("mine", "union")


def test_keyed_state_of_an_operator_without_a_key_is_not_lost_in_silence() -> None:
    handles = held(T.LONG(), 1)
    with pytest.raises(RestoreError, match=r"operator 'op'.*\(state\.s\).*has no key any more"):
        store(*handles, keyed=False)
    assert frozen(store(*handles, keyed=False, allow=True)) == []


def test_dates_come_back_under_another_form_of_the_same_list() -> None:
    restored = read(
        store(*held(T.BASIC_ARRAY(T.SQL_DATE()), [date(2024, 1, 1)])), T.LIST(T.SQL_DATE())
    )
    assert restored == [date(2024, 1, 1)]
