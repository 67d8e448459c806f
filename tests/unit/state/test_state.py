"""Keyed and operator state: what functions see, and what a frozen view keeps."""

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.state.snapshots import snapshot_writer
from weir.common.typeinfo import Types
from weir.errors import (
    ConfigError,
    CorruptStateError,
    KeyTypeError,
    ProtocolError,
    SchemaError,
    UserError,
)
from weir.graph.key_groups import key_group, key_group_range
from weir.ids import CheckpointId, KeyGroupRange
from weir.state.backend import FrozenKeyedState, KeyedStateBackend
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from weir.state.operator_state import BroadcastState, OperatorListState
from weir.storage.memory import MemoryStore
from weir.storage.writer import load_items

GROUPS = 8
ONE = CheckpointId(1)


def backend() -> KeyedStateBackend:
    return KeyedStateBackend(KeyGroupRange(0, GROUPS - 1), GROUPS)


def contents(frozen: FrozenKeyedState) -> dict[str, dict[Any, Any]]:
    """Everything a view holds, by state and key, copied so that it shares nothing."""
    by_state: dict[str, dict[Any, Any]] = {}
    for state in frozen.states:
        merged: dict[Any, Any] = {}
        for group in state.tables.groups:
            merged |= state.tables.group(group)
        by_state[state.name] = copy.deepcopy(merged)
    return by_state


class Average:
    """Sum and count in a list that is changed in place, as users do."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]


LIST_OF_INT = Types.LIST(Types.LONG())
VALUE = ValueStateDescriptor("value", Types.LONG())
BASKET = ValueStateDescriptor("basket", LIST_OF_INT)
LIST = ListStateDescriptor("list", Types.LONG())
MAP = MapStateDescriptor("map", Types.STRING(), Types.LONG())
DEEP = MapStateDescriptor("deep", Types.STRING(), LIST_OF_INT)
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG())
MEAN = AggregatingStateDescriptor("mean", Average(), LIST_OF_INT)


def test_a_value_belongs_to_its_key() -> None:
    keyed = backend()
    state = keyed.get_state(VALUE)
    for key in ("a", "b"):
        keyed.set_current_key(key)
        assert state.value() is None
        state.update(ord(key))
    keyed.set_current_key("a")
    assert state.value() == 97
    state.clear()
    assert state.value() is None
    keyed.set_current_key("b")
    assert state.value() == 98
    state.update(None)
    assert list(keyed.keys("value")) == []


def test_keys_that_python_calls_equal_have_state_of_their_own() -> None:
    keyed = KeyedStateBackend(KeyGroupRange(0, 0), 1)  # All in one dictionary.
    state = keyed.get_state(VALUE)
    keys = [1, True, 1.0, "1", b"1", (1,), (True,), None, b"\x02\x01" + bytes(7)]
    for number, key in enumerate(keys):
        keyed.set_current_key(key)
        assert state.value() is None
        state.update(number)
    for number, key in enumerate(keys):
        keyed.set_current_key(key)
        assert (state.value(), keyed.get_current_key()) == (number, key)
        assert type(keyed.get_current_key()) is type(key)
    assert len(list(keyed.keys("value"))) == len(keys)


def test_a_list_grows_and_is_handed_out_as_a_copy() -> None:
    keyed = backend()
    state = keyed.get_list_state(LIST)
    keyed.set_current_key(1)
    assert state.get() == []
    state.add(1)
    state.add_all([2, 3])
    state.get().append(99)
    assert state.get() == [1, 2, 3]
    state.update([7])
    assert state.get() == [7]
    state.update([])
    state.add_all([])
    assert state.get() == []
    assert list(keyed.keys("list")) == []


def test_a_map_can_change_while_it_is_iterated() -> None:
    keyed = backend()
    state = keyed.get_map_state(MAP)
    keyed.set_current_key(1)
    assert state.is_empty()
    assert state.get("a") is None
    state.put_all({"a": 1, "b": 2})
    state.put("c", 3)
    assert dict(state.items()) == {"a": 1, "b": 2, "c": 3}
    assert list(state.values()) == [1, 2, 3]
    assert "a" in state
    for key in state:
        state.remove(key)
    state.remove("never")
    assert state.is_empty()
    assert not state.contains("a")
    assert list(keyed.keys("map")) == []


def test_reducing_and_aggregating_state_fold_what_is_added() -> None:
    keyed = backend()
    total, mean = keyed.get_reducing_state(SUM), keyed.get_aggregating_state(MEAN)
    keyed.set_current_key(1)
    assert total.get() is None
    assert mean.get() is None
    for number in (1, 2, 6):
        total.add(number)
        mean.add(number)
    assert total.get() == 9
    assert mean.get() == 3.0
    mean.clear()
    assert mean.get() is None


def test_state_without_a_key_is_an_error_that_says_where_to_use_it() -> None:
    keyed = backend()
    uses = [
        keyed.get_state(VALUE).value,
        keyed.get_state(BASKET).value,
        keyed.get_list_state(LIST).get,
        keyed.get_state(VALUE).clear,
        lambda: keyed.get_state(VALUE).update(1),
        lambda: keyed.get_map_state(MAP).put("a", 1),
        lambda: keyed.get_map_state(MAP).get("a"),
        keyed.get_current_key,
    ]
    for use in uses:
        with pytest.raises(UserError, match=r"not in open\(\)"):
            use()


def test_a_key_of_another_subtask_is_refused() -> None:
    owned = key_group_range(128, 2, 0)
    keyed = KeyedStateBackend(owned, 128)
    foreign = next(key for key in range(100) if key_group(key, 128) not in owned)
    with pytest.raises(ProtocolError, match="owns 0 to 63"):
        keyed.set_current_key(foreign)


def test_a_key_without_encoding_is_refused_when_first_seen() -> None:
    with pytest.raises(KeyTypeError, match="key_type"):
        backend().set_current_key([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("get_state", "count", r"get_state takes .*, ValueStateDescriptor\(\.\.\.\), not 'count'"),
        ("get_list_state", VALUE, "get_list_state takes .* ListSt.* not a ValueStateDescriptor"),
        ("get_map_state", None, "get_map_state takes the state's descriptor, MapStateDescriptor"),
        ("get_reducing_state", VALUE, "get_reducing_state takes .* ReducingStateDescriptor"),
        (
            "get_aggregating_state",
            VALUE,
            "get_aggregating_state takes .* AggregatingStateDescriptor",
        ),
    ],
)
def test_a_state_is_declared_by_its_own_kind_of_descriptor(
    method: str, given: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        getattr(backend(), method)(given)


def test_a_state_is_one_however_often_it_is_asked_for() -> None:
    keyed = backend()
    assert keyed.get_state(VALUE) is keyed.get_state(ValueStateDescriptor("value", Types.LONG()))
    with pytest.raises(ConfigError, match="declared twice"):
        keyed.get_state(ValueStateDescriptor("value", Types.STRING()))
    with pytest.raises(ConfigError, match="declared twice"):
        keyed.get_list_state(ListStateDescriptor("value", Types.LONG()))


def test_a_descriptor_needs_a_name_and_a_type() -> None:
    with pytest.raises(ConfigError, match="name"):
        ValueStateDescriptor("", Types.LONG())
    with pytest.raises(ConfigError, match=r"Types\.LONG"):
        ValueStateDescriptor("v", int)  # type: ignore[arg-type]


def test_a_value_changed_in_place_after_a_freeze_stays_out_of_the_view() -> None:
    keyed = backend()
    basket, deep = keyed.get_state(BASKET), keyed.get_map_state(DEEP)
    keyed.set_current_key(1)
    basket.update([1])
    deep.put("x", [1])
    frozen = keyed.freeze(ONE)
    basket.value().append(2)
    deep.get("x").append(2)
    for values in deep.values():
        values.append(3)
    assert basket.value() == [1, 2]
    assert deep.get("x") == [1, 2, 3]
    assert contents(frozen) == {"basket": {1: [1]}, "deep": {1: {"x": [1]}}}


def test_changes_are_undone_and_views_keep_what_they_froze() -> None:
    keyed = backend()
    changes = keyed.record_changes()
    state = keyed.get_list_state(ListStateDescriptor("list", Types.INT()))
    keyed.set_current_key("a")
    state.add(1)
    frozen = keyed.freeze(CheckpointId(1))
    state.add(2)
    keyed.undo()
    assert state.get() == [1]
    state.add(3)
    again = keyed.freeze(CheckpointId(2))
    state.add(4)
    assert contents(frozen)["list"] == {"a": [1]}
    assert contents(again)["list"] == {"a": [1, 3]}
    for log in changes:
        log.clear()
    state.clear()
    keyed.undo()
    assert state.get() == [1, 3, 4]


def test_without_a_live_view_values_are_not_copied() -> None:
    keyed = backend()
    basket = keyed.get_state(BASKET)
    keyed.set_current_key(1)
    basket.update([1])
    kept = basket.value()
    assert basket.value() is kept
    frozen = keyed.freeze(ONE)
    own = basket.value()
    assert own is not kept
    assert basket.value() is own
    frozen.release()
    frozen.release()
    assert basket.value() is own


class FreezingKeyedState(RuleBasedStateMachine):
    """A frozen view holds what was there at the freeze, for all that happens later."""

    def __init__(self) -> None:
        super().__init__()
        self.keyed = backend()
        self.value = self.keyed.get_state(VALUE)
        self.basket = self.keyed.get_state(BASKET)
        self.list = self.keyed.get_list_state(LIST)
        self.map = self.keyed.get_map_state(DEEP)
        self.mean = self.keyed.get_aggregating_state(MEAN)
        self.views: list[tuple[FrozenKeyedState, dict[str, dict[Any, Any]]]] = []
        self.model: dict[str, dict[Any, Any]] = {
            name: {} for name in ("value", "basket", "list", "deep", "mean")
        }
        self.keyed.set_current_key(0)
        self.key = 0

    @rule(key=st.integers(0, 12))
    def next_key(self, key: int) -> None:
        self.keyed.set_current_key(key)
        self.key = key

    @rule(number=st.integers(0, 9))
    def update_value(self, number: int) -> None:
        self.value.update(number)
        self.model["value"][self.key] = number

    @rule()
    def clear_all(self) -> None:
        for state in (self.value, self.basket, self.list, self.map, self.mean):
            state.clear()
        for table in self.model.values():
            table.pop(self.key, None)

    @rule(number=st.integers(0, 9))
    def append_in_place(self, number: int) -> None:
        held = self.basket.value()
        if held is None:
            self.basket.update([number])
        else:
            held.append(number)
        self.model["basket"].setdefault(self.key, []).append(number)

    @rule(number=st.integers(0, 9))
    def add_to_list(self, number: int) -> None:
        self.list.add(number)
        self.model["list"].setdefault(self.key, []).append(number)

    @rule(name=st.sampled_from("xy"), number=st.integers(0, 9))
    def change_map(self, name: str, number: int) -> None:
        held = self.map.get(name)
        if held is None:
            self.map.put(name, [number])
        else:
            held.append(number)
        self.model["deep"].setdefault(self.key, {}).setdefault(name, []).append(number)

    @rule(name=st.sampled_from("xy"))
    def remove_from_map(self, name: str) -> None:
        self.map.remove(name)
        held = self.model["deep"].get(self.key, {})
        held.pop(name, None)
        if not held:
            self.model["deep"].pop(self.key, None)

    @rule(number=st.integers(0, 9))
    def aggregate(self, number: int) -> None:
        self.mean.add(number)
        held = self.model["mean"].setdefault(self.key, [0, 0])
        held[0] += number
        held[1] += 1

    @rule()
    def freeze(self) -> None:
        if len(self.views) < 3:
            frozen = self.keyed.freeze(ONE)
            self.views.append((frozen, copy.deepcopy(self.model)))

    @rule(data=st.data())
    def write_and_release(self, data: st.DataObject) -> None:
        if self.views:
            index = data.draw(st.integers(0, len(self.views) - 1))
            frozen, expected = self.views.pop(index)
            assert contents(frozen) == expected
            frozen.release()

    @rule(data=st.data(), group=st.integers(0, GROUPS - 1))
    def take_one_group(self, data: st.DataObject, group: int) -> None:
        """The snapshot thread is done with a group of immutable values while the loop goes on."""
        if self.views:
            frozen, expected = self.views[-1]
            [table] = [state.tables for state in frozen.states if state.name == "value"]
            if table.logs[group] is not None:
                taken = table.group(group)
                wanted = {k: v for k, v in expected["value"].items() if key_group(k, 8) == group}
                assert taken == wanted

    @invariant()
    def views_never_change(self) -> None:
        for frozen, expected in self.views:
            assert contents(frozen) == expected

    @invariant()
    def live_state_is_the_model(self) -> None:
        live = contents(frozen := self.keyed.freeze(ONE))
        frozen.release()
        assert live == self.model


TestFreezingKeyedState = FreezingKeyedState.TestCase
TestFreezingKeyedState.settings = settings(deadline=None)


def test_a_group_that_was_written_is_not_logged_any_more() -> None:
    keyed = backend()
    state = keyed.get_state(VALUE)
    keyed.set_current_key(1)
    state.update(1)
    frozen = keyed.freeze(ONE)
    group = key_group(1, GROUPS)
    tables = frozen.states[0].tables
    assert tables.group(group, last=True) == {1: 1}
    state.update(2)
    assert tables.logs[group] is None
    assert state.value() == 2


def test_a_view_that_was_written_to_the_end_is_not_logged_any_more() -> None:
    keyed = backend()
    state = keyed.get_state(VALUE)
    keyed.set_current_key(1)
    state.update(1)
    frozen = keyed.freeze(ONE)
    tables = frozen.states[0].tables
    assert tables.group(key_group(1, GROUPS)) == {1: 1}
    tables.end()
    state.update(2)
    assert set(tables.logs) == {None}
    assert state.value() == 2


# Operator state.


def test_items_are_taken_by_value() -> None:
    state = OperatorListState("files")
    item = {"path": "a", "done": [1]}
    state.add(item)
    item["path"] = "changed"
    state.get()[0]["done"].append(2)
    frozen = state.freeze()
    state.update([b"\x00\xff", None, 1.5, "ä", [1, {"x": True}]])
    assert state.get() == [b"\x00\xff", None, 1.5, "ä", [1, {"x": True}]]
    [handle] = frozen.write(snapshot_writer(MemoryStore()))
    assert handle.inline is not None
    assert load_items(handle.inline) == [{"path": "a", "done": [1]}]
    assert (handle.kind, handle.name, handle.mode) == ("operator", "files", "split")


def test_an_empty_list_is_stored_because_it_was_declared() -> None:
    [handle] = OperatorListState("files").freeze().write(snapshot_writer(MemoryStore()))
    assert handle.inline == b"[]"


@pytest.mark.parametrize("item", [object(), {1, 2}, {"a": b"x"}, {"base64": "AA=="}])
def test_an_item_that_cannot_be_stored_is_refused_when_it_is_handed_in(item: Any) -> None:
    with pytest.raises(SchemaError, match="files"):
        OperatorListState("files").add(item)


def test_split_items_are_dealt_out_and_union_items_given_to_all() -> None:
    [handle] = _stored(["a", "b", "c", "d", "e"], "split")
    shares = [OperatorListState("files") for _ in range(3)]
    for index, state in enumerate(shares):
        state.restore(handle.inline, (index, 3))
    assert [state.get() for state in shares] == [["a", "d"], ["b", "e"], ["c"]]
    whole = OperatorListState("files", "union")
    whole.restore(handle.inline)
    whole.restore(handle.inline)
    assert whole.get() == ["a", "b", "c", "d", "e"] * 2


def _stored(items: list[Any], mode: Any) -> Any:
    state = OperatorListState("files", mode)
    state.update(items)
    assert len(state) == len(items)
    return state.freeze().write(snapshot_writer(MemoryStore()))


def test_a_list_is_split_or_union() -> None:
    with pytest.raises(ConfigError, match="union"):
        OperatorListState("files", "broadcast")  # type: ignore[arg-type]


def test_broadcast_state_comes_back_with_its_keys_as_they_were() -> None:
    state = BroadcastState("rules")
    state.put_all({("a", 1): {"limit": 3}, 1: b"\x00", None: None})
    state.put(True, [1])  # Another key than 1.
    state.put("gone", 1)
    state.remove("gone")
    [handle] = state.freeze().write(snapshot_writer(MemoryStore()))
    restored = BroadcastState("rules")
    assert restored.is_empty()
    restored.restore(handle.inline or b"")
    assert handle.mode == "broadcast"
    assert list(restored.items()) == list(state.items())
    assert restored.get(True) == [1]
    assert restored.get(("a", 1)) == {"limit": 3}
    assert None in restored
    assert "gone" not in restored
    assert len(list(restored)) == len(list(restored.values())) == 4


def test_damaged_operator_state_is_corrupt() -> None:
    for data in (b"[", b"[1]", b'[["zz",1]]', b'[["ff",1]]'):
        with pytest.raises(CorruptStateError):
            BroadcastState("rules").restore(data)
