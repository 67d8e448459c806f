"""Lists and maps of RocksDB of which each item lies apart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.seeds import share
from tests.unit.state import test_ttl
from tests.unit.state.backends.test_increments import LAYOUT, OPERATOR, ROCKS, Line
from tests.unit.state.backends.test_increments import opened as restored_from
from tests.unit.state.backends.test_rocksdb import HEAP, opened, rocks, small
from tests.unit.state.states import state_of, written
from weir.cli.inspect import valid_rows
from weir.common.typeinfo import TypeInformation, Types
from weir.config import StateBackendKind, StateConfig
from weir.errors import RestoreError
from weir.graph.key_groups import key_group_range
from weir.ids import CheckpointId, StateHandle, SubtaskId
from weir.protocol.restore import CHANGES
from weir.state import state_files
from weir.state.backend import KeyedStateBackend
from weir.state.backends import rocksdb, rocksdb_items
from weir.state.backends.choice import open_tables
from weir.state.backends.rocksdb_items import CollectionTable, DividedList, DividedMap
from weir.state.descriptors import ListStateDescriptor, MapStateDescriptor
from weir.state.keyed import ListState, MapState
from weir.state.store import OperatorStateStore
from weir.state.ttl import StateTtlConfig

T = Types
MAP = MapStateDescriptor("map", T.LONG(), T.STRING())
LIST = ListStateDescriptor("list", T.LONG())
MANY = {n: str(n) for n in range(-3, 9)}


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    with small():
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OperatorStateStore]:
    one = opened(rocks(tmp_path))
    one.keyed.set_current_key("k")
    yield one
    one.close()


def map_of(store: OperatorStateStore) -> MapState:
    return store.keyed.get_map_state(MAP)


def list_of(store: OperatorStateStore) -> ListState:
    return store.keyed.get_list_state(LIST)


def table_of(store: OperatorStateStore, name: str) -> CollectionTable:
    (table,) = store.keyed._tables[name]
    assert isinstance(table, CollectionTable)
    return table


def items_in(store: OperatorStateStore, name: str) -> int:
    """The items of all divided lists or maps of a state."""
    items = table_of(store, name).items
    return sum(1 for group in range(len(items.fresh)) for _ in items.rows(group, b""))


def is_divided(store: OperatorStateStore, name: str, key: Any = "k") -> bool:
    store.keyed.set_current_key(key)
    cursor = store.keyed.cursor
    kept = table_of(store, name).own(cursor.group, cursor.slot)
    return isinstance(kept, DividedMap | DividedList)


def snapshot(store: OperatorStateStore) -> list[StateHandle]:
    return written(store.freeze(CheckpointId(1)))


def both(handles: list[StateHandle], path: Path) -> Iterator[OperatorStateStore]:
    """The snapshot restored into either backend."""
    for config in (HEAP, rocks(path)):
        one = opened(config, handles)
        one.keyed.set_current_key("k")
        yield one
        one.close()


def test_a_map_is_divided_and_reads_as_before(store: OperatorStateStore, tmp_path: Path) -> None:
    state = map_of(store)
    state.put_all(MANY)
    assert items_in(store, "map") == len(MANY)
    store.give_back()
    assert dict(state.items()) == MANY
    assert list(state.keys()) == list(state)
    assert sorted(state.values()) == sorted(MANY.values())
    assert state.get(-3) == "-3"
    assert state.get(99) is None
    assert state.contains(0)
    assert 99 not in state
    assert not state.is_empty()
    state.put(0, None)
    assert state.contains(0)
    assert state.get(0) is None
    for restored in both(snapshot(store), tmp_path):
        assert restored.values_of("k") == {"map": MANY | {0: None}}
        assert dict(map_of(restored).items()) == MANY | {0: None}
    state.clear()
    assert state.is_empty()
    assert items_in(store, "map") == 0
    assert store.values_of("k") == {}


def test_an_iteration_sees_no_changes_made_meanwhile(store: OperatorStateStore) -> None:
    state = map_of(store)
    state.put_all(MANY)
    seen = {}
    for key, value in state.items():
        seen[key] = value
        state.put(key + 100, "new")
        state.remove(8)
        store.keyed.set_current_key("k")
        store.give_back()
    assert seen == MANY
    assert len(list(state.keys())) == 2 * len(MANY) - 1


def test_a_list_grows_without_a_look_at_its_elements(
    store: OperatorStateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = list_of(store)
    state.add_all(range(5))
    store.give_back()
    rows = type(table_of(store, "list").items).rows
    looks: list[int] = []

    def counted(table: Any, group: int, prefix: bytes) -> Any:
        looks.append(group)
        return rows(table, group, prefix)

    monkeypatch.setattr(type(table_of(store, "list").items), "rows", counted)
    for n in range(5, 50):
        state.add(n)
    assert looks == []
    assert state.get() == list(state) == list(range(50))
    assert len(looks) == 2
    for restored in both(snapshot(store), tmp_path):
        again = list_of(restored)
        assert again.get() == list(range(50))
        again.add(50)
        assert again.get() == list(range(51))
        again.update([1])
        assert again.get() == [1]
        assert restored.values_of("k") == {"list": [1]}
    assert items_in(store, "list") == 50


def test_what_can_be_changed_in_place_is_not_lost_and_not_doubled(tmp_path: Path) -> None:
    """A value of a divided map that was read is the state's own; such a list is never divided."""
    store = opened(rocks(tmp_path))
    store.keyed.set_current_key("k")
    lists = store.keyed.get_map_state(MapStateDescriptor("lists", T.LONG(), T.LIST(T.LONG())))
    inner = store.keyed.get_list_state(ListStateDescriptor("inner", T.LIST(T.LONG())))
    for n in range(6):
        lists.put(n, [n])
        inner.add([n])
    store.give_back()
    assert items_in(store, "lists") == 6
    lists.get(1).append(10)
    for _, value in lists.items():
        value.append(20)
    for value in inner.get():
        value.append(30)
    store.give_back()
    expected = {n: [n, *([10] if n == 1 else []), 20] for n in range(6)}
    assert dict(lists.items()) == expected
    assert inner.get() == [[n, 30] for n in range(6)]
    assert not isinstance(store.keyed._tables["inner"][0], CollectionTable)
    store.close()


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (T.DOUBLE(), [float("nan"), 0.0, 2.5]),
        (T.INSTANT(), []),
        (T.PICKLED_BYTE_ARRAY(), [frozenset({1}), frozenset({2}), 3]),
        (T.TUPLE([T.LONG(), T.DOUBLE()]), [(1, 2.0), (2, 2.0)]),
    ],
)
def test_maps_whose_keys_would_come_back_as_others_stay_whole(
    tmp_path: Path, key_type: TypeInformation, keys: list[Any]
) -> None:
    groups = key_group_range(4, 1, 0)
    tables = open_tables(rocks(tmp_path), groups)
    keyed = KeyedStateBackend(groups, 4, tables=tables)
    keyed.set_current_key("k")
    state = keyed.get_map_state(MapStateDescriptor("map", key_type, T.LONG()))
    for n, key in enumerate(keys):
        state.put(key, n)
    tables.give_back()
    (table,) = keyed._tables["map"]
    assert not isinstance(table, CollectionTable)
    assert sorted(state.values()) == list(range(len(keys)))
    tables.close()


def test_keys_of_tuples_and_texts_come_back_as_they_were(tmp_path: Path) -> None:
    store = opened(rocks(tmp_path))
    store.keyed.set_current_key(("k", 1))
    kind = T.TUPLE([T.STRING(), T.LONG(), T.BOOLEAN()])
    state = store.keyed.get_map_state(MapStateDescriptor("map", kind, T.LONG()))
    keys = [("", -1, True), ("ä", 1 << 62, False), ("\0", 0, None), ("a" * 300, 1, True)]
    for n, key in enumerate(keys):
        state.put(key, n)
    store.give_back()
    assert items_in(store, "map") == len(keys)
    assert {key: state.get(key) for key in state} == dict(zip(keys, range(4), strict=True))
    assert all(type(key) is tuple for key in state)
    store.close()


def test_a_record_is_undone_across_a_division(store: OperatorStateStore) -> None:
    changes = store.record_changes()
    state, elements = map_of(store), list_of(store)
    state.put(1, "a")
    elements.add(1)
    changes.keep()
    state.put_all(MANY)
    elements.add_all(range(9))
    assert items_in(store, "map") == len(MANY)
    changes.undo()
    assert items_in(store, "map") == items_in(store, "list") == 0
    assert store.values_of("k") == {"map": {1: "a"}, "list": [1]}
    state.put_all(MANY)
    elements.add_all(range(9))
    changes.keep()
    store.give_back()
    state.remove(0)
    state.put(77, "b")
    elements.clear()
    changes.undo()
    assert store.values_of("k") == {"map": MANY, "list": [1, *range(9)]}


def test_a_map_of_which_little_is_left_is_whole_again(
    store: OperatorStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_items, "WHOLE_MAX", 6)
    state = map_of(store)
    state.put_all(MANY)
    store.give_back()
    for n in range(-3, 6):
        state.remove(n)
        assert is_divided(store, "map")
        if n % 2:
            store.tidy()
    store.tidy()
    assert not is_divided(store, "map")
    assert items_in(store, "map") == 0
    assert dict(state.items()) == {6: "6", 7: "7", 8: "8"}
    for n in (6, 7, 8):
        state.remove(n)
    assert list(store.keyed.keys("map")) == []


def test_maps_that_are_emptied_entry_by_entry_leave_nothing(store: OperatorStateStore) -> None:
    state = map_of(store)
    for key in range(20):
        store.keyed.set_current_key(key)
        for n in range(5):
            state.put(n, "x")
    store.give_back()
    for key in range(20):
        store.keyed.set_current_key(key)
        for n in range(5):
            state.remove(n)
    store.tidy()
    assert list(store.keyed.keys("map")) == []
    assert items_in(store, "map") == 0
    assert table_of(store, "map")._removals_left == {}


def test_few_items_of_many_bytes_are_divided_too(
    store: OperatorStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_items, "WHOLE_MAX", 512)
    monkeypatch.setattr(rocksdb_items, "WHOLE_BYTES", 10_000)
    state = map_of(store)
    for n in range(3):
        state.put(n, "x" * 5_000)
    store.give_back()
    assert state.get(1) == "x" * 5_000
    assert not is_divided(store, "map")
    store.tidy()
    assert is_divided(store, "map")
    assert sorted(state) == [0, 1, 2]
    for n in range(2):
        state.remove(n)
    store.tidy()
    assert dict(state.items()) == {2: "x" * 5_000}


def expiring(descriptor: Any) -> Any:
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(1_000).build())
    return descriptor


class TtlMachine(test_ttl.TtlMachine):
    """Every kind of state with a time-to-live beside a plain model, divided from two items on."""

    state = StateConfig(backend=StateBackendKind.ROCKSDB)

    def open(self, handles: list[StateHandle], parallelism: int) -> None:
        self.teardown()
        super().open(handles, parallelism)

    def teardown(self) -> None:
        for store in getattr(self, "stores", ()):
            store.close()


TestTtl = TtlMachine.TestCase
TestTtl.settings = settings(max_examples=share(15, block=3), stateful_step_count=40)


def test_items_expire_one_by_one(tmp_path: Path) -> None:
    clock = test_ttl.HandClock(0)
    store = test_ttl.opened(clock, config=rocks(tmp_path))
    store.keyed.set_current_key("k")
    state = state_of(store, expiring(MapStateDescriptor("map", T.LONG(), T.LONG())))
    elements = state_of(store, expiring(ListStateDescriptor("list", T.LONG())))
    for n in range(6):
        state.put(n, n)
        elements.add(n)
        clock.ms += 100
    store.give_back()
    clock.ms += 650  # 0, 1 and 2 have expired.
    assert state.get(0) is None
    assert state.get(3) == 3
    assert not state.contains(1)
    assert dict(state.items()) == {3: 3, 4: 4, 5: 5}
    assert items_in(store, "map") == 3
    assert elements.get() == [3, 4, 5]
    assert items_in(store, "list") == 3
    clock.ms += 1_000
    handles = snapshot(store)
    restored = test_ttl.opened(test_ttl.HandClock(0), handles)
    assert list(restored.keyed.keys("map")) == list(restored.keyed.keys("list")) == []
    test_ttl.swept(store, clock)
    store.tidy()
    assert state.is_empty()
    assert items_in(store, "map") == items_in(store, "list") == 0
    assert list(store.keyed.keys("map")) == list(store.keyed.keys("list")) == []
    store.close()


def test_a_map_that_is_changed_while_it_is_read_and_touched_keeps_the_changes(
    tmp_path: Path,
) -> None:
    clock = test_ttl.HandClock(0)
    store = test_ttl.opened(clock, config=rocks(tmp_path))
    store.keyed.set_current_key("k")
    descriptor = MapStateDescriptor("map", T.LONG(), T.LONG())
    descriptor.enable_time_to_live(test_ttl.ttl(on_read=True))
    state = state_of(store, descriptor)
    for n in range(6):
        state.put(n, n)
    clock.ms += 600
    seen = {}
    for key, value in state.items():
        seen[key] = value
        if key == 0:
            state.remove(3)
            state.put(4, 40)
    assert seen == {n: n for n in range(6)}
    assert items_in(store, "map") == 5
    clock.ms += 600  # They were touched when they were read.
    assert dict(state.items()) == {0: 0, 1: 1, 2: 2, 4: 40, 5: 5}
    clock.ms += 1_001
    expired = state.items()
    first = next(expired, None)
    assert first is None
    assert items_in(store, "map") == 0
    store.close()


def test_a_divided_state_is_converted_to_the_declared_types(
    store: OperatorStateStore, tmp_path: Path
) -> None:
    map_of(store).put_all(MANY)
    store.keyed.get_list_state(ListStateDescriptor("list", T.INT())).add_all(range(9))
    handles = snapshot(store)
    for restored in both(handles, tmp_path):
        floats = restored.keyed.get_list_state(ListStateDescriptor("list", T.DOUBLE()))
        assert repr(floats.get()) == repr([float(n) for n in range(9)])
        dated = expiring(MapStateDescriptor("map", T.LONG(), T.STRING()))
        assert dict(restored.keyed.get_map_state(dated).items()) == MANY
    for restored in both(handles, tmp_path):
        wider = restored.keyed.get_map_state(MapStateDescriptor("map", T.BIG_INT(), T.STRING()))
        assert dict(wider.items()) == MANY


def test_parts_are_refused_by_a_version_that_would_lose_all_but_one(
    store: OperatorStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_of(store).put(1, "a")
    monkeypatch.setattr(state_files, "FORMAT_VERSION", 2)
    assert opened(HEAP, snapshot(store)).values_of("k") == {"map": {1: "a"}}
    map_of(store).put_all(MANY)
    with pytest.raises(RestoreError, match="format version 3, this Weir reads up to version 2"):
        opened(HEAP, snapshot(store))


class Maps(Line):
    """One subtask's checkpoints of a map and a list."""

    def change(self, entries: dict[int, str | None], elements: list[int]) -> None:
        (one,) = self.subtasks
        state, appended = map_of(one), list_of(one)
        one.keyed.set_current_key("k")
        for key, value in entries.items():
            if value is None:
                state.remove(key)
            else:
                state.put(key, value)
        appended.add_all(elements)

    def restored_values(self) -> dict[str, Any]:
        """The values as either backend restores them."""
        stores = [
            restored_from(config, self.store, self.handles, 1, 0, 1) for config in (HEAP, ROCKS)
        ]
        one, other = (store.values_of("k") for store in stores)
        for store in stores:
            store.close()
        assert one == other
        return one

    def shown(self) -> dict[str, Any]:
        """The values as ``weir inspect`` shows them."""
        shown: dict[str, Any] = {"map": [], "list": []}
        for name, values in shown.items():
            pieces = [handle for handle in self.handles[0] if handle.name == f"state.{name}"]
            for row in valid_rows(self.store, LAYOUT.directory, SubtaskId(OPERATOR, 0), pieces):
                assert set(row.values) == {"key_group", "key", "value"}
                values += row.values["value"]
        return {"map": dict(shown["map"]), "list": sorted(shown["list"])}


def test_an_increment_holds_the_items_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_items, "WHOLE_MAX", 512)
    monkeypatch.setattr(rocksdb, "PIECE_VALUES", 4_096)
    monkeypatch.setattr(rocksdb, "FRESH_MAX", 16_384)
    line = Maps()
    entries: dict[int, str] = {n: str(n) for n in range(20_000)}
    elements = list(range(20_000))
    line.change(dict(entries), elements)
    whole = line.new_bytes(line.checkpoint())
    for n in range(12):
        changed: dict[int, str | None] = dict.fromkeys(range(n, 20000, 1000), f"{n}")
        changed[n * 7] = None
        line.change(changed, [n, n])
        elements += [n, n]
        entries = {k: v for k, v in (entries | changed).items() if v is not None}
        handles = line.checkpoint()
        assert line.new_bytes(handles) < 0.02 * whole
    assert sum(handle.mode == CHANGES for handle in handles) == 24
    assert line.restored_values() == {"map": entries, "list": elements}
    assert line.shown() == {"map": entries, "list": sorted(elements)}
    (one,) = line.subtasks
    one.keyed.set_current_key("k")
    map_of(one).clear()
    list_of(one).update([1, 2])
    line.change({5: "again"}, [3])
    line.checkpoint()
    assert line.restored_values() == {"map": {5: "again"}, "list": [1, 2, 3]}
    assert line.shown() == {"map": {5: "again"}, "list": [1, 2, 3]}
    line.close()
