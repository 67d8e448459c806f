"""State in RocksDB beside state in memory: every read and every snapshot is the same."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.seeds import share
from tests.unit.state.states import Collected, state_of, written
from weir.common.typeinfo import Types
from weir.config import StateBackendKind, StateConfig
from weir.errors import ConfigError, StorageError
from weir.graph.key_groups import key_group_range
from weir.ids import CheckpointId, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.state.backends import choice, rocksdb, rocksdb_items
from weir.state.backends.choice import open_tables
from weir.state.backends.rocksdb import RocksTables
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from weir.state.store import OperatorStateStore
from weir.state.ttl import StateTtlConfig

GROUPS = 4
KEYS = (1, "a", b"a", ("t", 1), None, 2.5)
T = Types
HEAP = StateConfig()


def rocks(directory: Path | str) -> StateConfig:
    return StateConfig(backend=StateBackendKind.ROCKSDB, directory=str(directory))


def descriptors() -> dict[str, StateDescriptor]:
    """States of all kinds, one of them with a time-to-live."""
    expiring = MapStateDescriptor("expiring", T.STRING(), T.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(3_600_000).build())
    made = [
        ValueStateDescriptor("value", T.LONG()),
        ValueStateDescriptor("row", T.ROW_NAMED(["a", "b"], [T.STRING(), T.LIST(T.LONG())])),
        ListStateDescriptor("list", T.LONG()),
        MapStateDescriptor("map", T.STRING(), T.LIST(T.LONG())),
        expiring,
        ReducingStateDescriptor("sum", lambda a, b: a + b, T.LONG()),
        AggregatingStateDescriptor("folded", Collected(), T.LIST(T.LONG())),
    ]
    return {descriptor.name: descriptor for descriptor in made}


def opened(
    config: StateConfig, handles: list[StateHandle] | None = None, *, index: int = 0, of: int = 1
) -> OperatorStateStore:
    groups = key_group_range(GROUPS, of, index)
    return OperatorStateStore(
        groups,
        GROUPS,
        keyed=True,
        restored=[RestoredHandle(handle, groups) for handle in handles or ()],
        read=lambda handle: handle.inline or b"",
        tables=open_tables(config, groups),
    )


def states_of(store: OperatorStateStore) -> dict[str, Any]:
    return {name: state_of(store, descriptor) for name, descriptor in descriptors().items()}


def contents(handles: list[StateHandle]) -> dict[Any, dict[str, Any]]:
    """The values in a snapshot by key, without the times of touches."""
    store = opened(HEAP, handles)
    states_of(store)
    return {key: store.values_of(key) for key in KEYS}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few values in memory, and fewer in a file, so that little state makes many."""
    with small():
        yield


class small:
    def __enter__(self) -> None:
        self.kept = rocksdb.PIECE_VALUES, rocksdb.FRESH_MAX
        self.kept_items = rocksdb_items.WHOLE_MAX, rocksdb_items.PART_ITEMS
        rocksdb.PIECE_VALUES, rocksdb.FRESH_MAX = 2, 5  # type: ignore[misc]
        rocksdb_items.WHOLE_MAX, rocksdb_items.PART_ITEMS = 1, 2  # type: ignore[misc]

    def __exit__(self, *raised: object) -> None:
        rocksdb.PIECE_VALUES, rocksdb.FRESH_MAX = self.kept  # type: ignore[misc]
        rocksdb_items.WHOLE_MAX, rocksdb_items.PART_ITEMS = self.kept_items  # type: ignore[misc]


class BackendsMachine(RuleBasedStateMachine):
    """The same calls on both backends, with restores from one into the other at any time."""

    @initialize()
    def begin(self) -> None:
        self.small = small()
        self.small.__enter__()
        self.views: list[tuple[list[Any], list[Any]]] = []
        self.open([], [], 1)

    def teardown(self) -> None:
        if hasattr(self, "small"):
            self.small.__exit__()
            for store in self.rocks:
                store.close()

    def open(self, for_heap: list[StateHandle], for_rocks: list[StateHandle], of: int) -> None:
        config = StateConfig(backend=StateBackendKind.ROCKSDB)
        self.heap = [opened(HEAP, for_heap, index=i, of=of) for i in range(of)]
        self.rocks = [opened(config, for_rocks, index=i, of=of) for i in range(of)]
        self.pairs = [
            (one, other, states_of(one), states_of(other))
            for one, other in zip(self.heap, self.rocks, strict=True)
        ]

    def both(self, key: Any) -> list[dict[str, Any]]:
        for one, other, states, others in self.pairs:
            if one.owns(key):
                one.keyed.set_current_key(key)
                other.keyed.set_current_key(key)
                return [states, others]
        raise AssertionError(key)

    @rule(key=st.sampled_from(KEYS), n=st.none() | st.integers(0, 9))
    def update(self, key: Any, n: int | None) -> None:
        for states in self.both(key):
            states["value"].update(n)
            states["row"].update(None if n is None else {"a": str(n), "b": [n]})

    @rule(key=st.sampled_from(KEYS), n=st.integers(0, 9), entry=st.sampled_from("xy"))
    def add(self, key: Any, n: int, entry: str) -> None:
        for states in self.both(key):
            states["list"].add(n)
            states["map"].put(entry, [n])
            states["expiring"].put(entry, n)
            states["sum"].add(n)
            states["folded"].add(n)

    @rule(key=st.sampled_from(KEYS), entry=st.sampled_from("xy"), n=st.integers(0, 9))
    def change_in_place(self, key: Any, entry: str, n: int) -> None:
        """As functions may: what a read returned is the state's own."""
        for states in self.both(key):
            if (held := states["map"].get(entry)) is not None:
                held.append(n)
            if (row := states["row"].value()) is not None:
                row.b.append(n)

    @rule(key=st.sampled_from(KEYS), entry=st.sampled_from("xy"))
    def remove(self, key: Any, entry: str) -> None:
        for states in self.both(key):
            states["map"].remove(entry)
            states["list"].clear()
            states["sum"].clear()

    @rule(key=st.sampled_from(KEYS))
    def read(self, key: Any) -> None:
        one, other = (
            [
                states["value"].value(), states["row"].value(), states["list"].get(),
                dict(states["map"].items()), dict(states["expiring"].items()),
                states["sum"].get(), states["folded"].get(), states["map"].is_empty(),
            ]
            for states in self.both(key)
        )  # fmt: skip
        assert one == other

    @rule()
    def tidy(self) -> None:
        for store in self.rocks:
            store.tidy()

    @rule()
    def freeze(self) -> None:
        one = [part for store in self.heap for part in store.freeze(CheckpointId(1))]
        other = [part for store in self.rocks for part in store.freeze(CheckpointId(1))]
        self.views.append((one, other))

    @precondition(lambda self: self.views)
    @rule(newest=st.booleans(), of=st.integers(0, 2), crosses=st.booleans())
    def write(self, newest: bool, of: int, crosses: bool) -> None:
        """A snapshot is written, perhaps before an older one; the job may go on from it."""
        one, other = self.views.pop(-1 if newest else 0)
        handles = []
        thread = threading.Thread(target=lambda: handles.extend(written(other)))
        thread.start()
        thread.join()
        of_heap = written(one)
        assert contents(of_heap) == contents(handles)
        if of:
            for store in self.rocks:
                store.close()
            self.views = []
            self.open(*((handles, of_heap) if crosses else (of_heap, handles)), of)

    @precondition(lambda self: self.views)
    @rule()
    def drop(self) -> None:
        for parts in self.views.pop():
            for part in parts:
                part.release()

    @invariant()
    def all_keys_are_the_same(self) -> None:
        for one, other, _, _ in self.pairs if hasattr(self, "pairs") else ():
            assert set(one.keyed.keys("sum")) == set(other.keyed.keys("sum"))


TestBackends = BackendsMachine.TestCase
TestBackends.settings = settings(max_examples=share(25, block=5), stateful_step_count=40)


@pytest.mark.usefixtures("small_pieces")
def test_a_record_is_undone_as_it_was(tmp_path: Path) -> None:
    store = opened(rocks(tmp_path))
    changes = store.record_changes()
    states = states_of(store)
    store.keyed.set_current_key("a")
    states["value"].update(1)
    states["map"].put("x", [1])
    for _ in range(2):  # From memory, then from the database.
        changes.keep()
        states["value"].update(2)
        states["map"].get("x").append(2)
        states["list"].add(3)
        changes.undo()
        assert store.values_of("a") == {"value": 1, "map": {"x": [1]}}
        written(store.freeze(CheckpointId(1)))
        assert not any(map(len, store.keyed.tables._tables[0].fresh))  # type: ignore[attr-defined]
    changes.keep()
    states["value"].update(4)
    written(store.freeze(CheckpointId(2)))
    changes.undo()  # What a snapshot holds is not undone, with either backend.
    assert states["value"].value() == 4
    store.close()


@pytest.mark.usefixtures("small_pieces")
def test_memory_holds_what_changed_last_alone(tmp_path: Path) -> None:
    store = opened(rocks(tmp_path))
    tables = store.keyed.tables
    assert isinstance(tables, RocksTables)
    state = states_of(store)["value"]
    most = 0
    for key in range(500):
        store.keyed.set_current_key(key)
        state.update(key)
        if key % 3 == 2:  # A slice of records.
            store.tidy()
        most = max(
            most, sum(len(v) for t in tables._tables for v in (*t.fresh, *sum(t.increments, ())))
        )
    assert most < 40
    restored = opened(rocks(tmp_path), written(store.freeze(CheckpointId(1))))
    state = states_of(restored)["value"]
    for key in range(500):
        restored.keyed.set_current_key(key)
        assert state.value() == key
    store.close()
    restored.close()
    assert list(tmp_path.iterdir()) == []


def test_a_type_that_widens_is_converted_in_its_place(tmp_path: Path) -> None:
    store = opened(rocks(tmp_path))
    keyed = store.keyed
    value = keyed.get_state(ValueStateDescriptor("v", T.INT()))
    for key in range(20):
        keyed.set_current_key(key)
        value.update(key)
    handles = written(store.freeze(CheckpointId(1)))
    wider = opened(rocks(tmp_path), handles)
    view = wider.freeze(CheckpointId(2))  # Before the function declares its state.
    value = wider.keyed.get_state(ValueStateDescriptor("v", T.DOUBLE()))
    wider.keyed.set_current_key(7)
    assert repr(value.value()) == "7.0"
    of_view = opened(HEAP, written(view))
    assert [str(kind) for kind in of_view.keyed.stored_types("v")] == ["INT"]
    assert len(list(of_view.keyed.keys("v"))) == 20
    store.close()
    wider.close()


def test_a_database_whose_process_is_gone_is_deleted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "weir-state-gone").mkdir()
    (tmp_path / "weir-state-gone" / "000001.sst").touch()
    (tmp_path / "weir-state-gone.lock").touch()
    (tmp_path / "weir-state-other").mkdir()  # Without a lock: not one of these.
    one = opened(rocks(tmp_path))
    two = opened(rocks(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert "weir-state-other" in left
    assert not any(name.startswith("weir-state-gone") for name in left)
    assert len(left) == 5  # Two that live, with their locks.
    one.close()
    two.close()


def test_a_disk_that_fails_says_so_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(rocks(tmp_path))
    state = states_of(store)["value"]
    store.keyed.set_current_key(1)
    state.update(5)
    view = store.freeze(CheckpointId(1))
    made = rocksdb._SortedFile
    monkeypatch.setattr(rocksdb, "_SortedFile", lambda path, *_: made(path / "no" / "such", *_))
    with pytest.raises(StorageError, match=r"local disk, in .*see to its space.*localdir"):
        written(view)
    assert state.value() == 5
    monkeypatch.undo()
    assert contents(written(store.freeze(CheckpointId(2))))[1] == {"value": 5}
    store.close()


def test_an_increment_whose_file_fails_at_its_end_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(rocks(tmp_path))
    state = states_of(store)["value"]
    monkeypatch.setattr(rocksdb, "PIECE_VALUES", 2)
    for n, key in enumerate(KEYS):
        store.keyed.set_current_key(key)
        state.update(n)
    view = store.freeze(CheckpointId(1))
    finish, failed = rocksdb._SortedFile.finish, []

    def fails_once(file: rocksdb._SortedFile) -> None:
        if not failed:
            failed.append(file)
            raise OSError("no space left")
        finish(file)

    monkeypatch.setattr(rocksdb._SortedFile, "finish", fails_once)
    with pytest.raises(StorageError, match="no space left"):
        written(view)
    expected = {key: {"value": n} for n, key in enumerate(KEYS)}
    assert contents(written(store.freeze(CheckpointId(2)))) == expected
    store.close()


def test_no_step_of_a_write_waits_for_the_disk_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = key_group_range(GROUPS, 1, 0)
    tables = RocksTables(groups, str(tmp_path))
    table = tables.table("value", "value", T.LONG())
    table.put(0, 1, 5)
    tables._seal(None)
    guarded = tables.guarded
    called: list[str] = []

    def noted(call: Any) -> Any:
        called.append(call.__name__ if hasattr(call, "__name__") else call.func.__name__)
        return guarded(call)

    monkeypatch.setattr(tables, "guarded", noted)
    steps = []
    while tables._sealed:
        called.clear()
        tables._write_piece()
        steps.append(called[:])
    assert [step[-1] for step in steps] == ["write", "finish", "ingest_external_file"]
    assert [len(step) for step in steps[1:]] == [1, 1]
    assert len(list(tables.read(table.family.iter(), 0))) == 1
    tables.close()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"state cannot be kept in .*localdir"):
        opened(rocks(tmp_path / "file"))


def test_a_backend_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"weir-streaming\[rocksdb\]"):
        opened(StateConfig(backend=StateBackendKind.ROCKSDB))
