"""Checkpoints that hold changes: each restores to what was there at its barrier, and no file is
missing or left over, however the checkpoints around it end and wherever a process dies.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.seeds import share
from tests.unit.state.backends.test_rocksdb import small
from tests.unit.state.states import state_of
from tests.unit.storage.test_manifest import JOB, manifest
from weir.cli.inspect import valid_rows
from weir.common.typeinfo import Types
from weir.config import StateBackendKind, StateConfig
from weir.errors import CorruptStateError
from weir.graph.key_groups import key_group, key_group_range
from weir.ids import AttemptNumber, CheckpointId, KeyGroupRange, OperatorId, StateHandle, SubtaskId
from weir.protocol.messages import OperatorAck
from weir.protocol.restore import (
    CHANGES,
    WHOLE,
    OperatorSnapshot,
    RestoreTarget,
    plan_restore,
)
from weir.state import chains, keyed_timers, progress
from weir.state.backends import changed_keys, rocksdb_timers
from weir.state.backends.choice import open_tables
from weir.state.chains import CHANGES_FILES_LONG, SLICES
from weir.state.columns.table import ColumnarTable
from weir.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from weir.state.keyed_timers import KeyedTimers
from weir.state.store import OperatorStateStore
from weir.state.timers import TimerQueue
from weir.state.ttl import StateTtlConfig
from weir.storage.layout import JobLayout, in_job, writer_of_shared
from weir.storage.manifest import Manifest, dump, list_checkpoints, read_handle, verify
from weir.storage.memory import MemoryStore
from weir.storage.shared_files import discard_attempt, discard_checkpoint, sweep_shared
from weir.storage.writer import StoredSnapshotWriter

OPERATOR = OperatorId("op")
LAYOUT = JobLayout(JOB)
GROUPS = 8
TABLE_FILES = 4  # Of changes, until a table is written anew.
KEYS = (*range(12), "a", b"a", ("t", 1), None)
HEAP = StateConfig()
ROCKS = StateConfig(backend=StateBackendKind.ROCKSDB)
BOTH = {"hashmap": StateConfig(incremental=True), "rocksdb": ROCKS}


class Crash(BaseException):
    """The process that works with the storage is gone."""


class Storage(MemoryStore):
    """A storage whose user dies before one of its next changes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.dies_in: int | None = None

    def _change(self) -> None:
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                raise Crash

    def delete(self, path: str) -> None:
        self._change()
        super().delete(path)

    def delete_prefix(self, directory: str) -> None:
        self._change()
        super().delete_prefix(directory)


def opened(
    config: StateConfig,
    store: MemoryStore,
    handles: dict[int, tuple[StateHandle, ...]],
    before: int,
    index: int,
    of: int,
    restored_id: CheckpointId | None = None,
    directory: str = LAYOUT.directory,
) -> OperatorStateStore:
    """A subtask that takes over its share of what ``before`` subtasks had stored."""
    groups = key_group_range(GROUPS, of, index)
    plan = plan_restore(
        [OperatorSnapshot(OPERATOR, before, GROUPS, handles)], [RestoreTarget(OPERATOR, of)]
    )
    mine = next((r.handles for r in plan.restores if r.subtask.index == index), ())
    return OperatorStateStore(
        groups,
        GROUPS,
        keyed=True,
        restored=mine,
        read=lambda handle: read_handle(store, directory, handle),
        tables=open_tables(config, groups),
        restored_id=restored_id,
    )


def writer(
    store: MemoryStore,
    checkpoint_id: CheckpointId,
    attempt: int = 1,
    index: int = 0,
    *,
    inline_max: int | None = 0,
    is_savepoint: bool = False,
) -> StoredSnapshotWriter:
    return StoredSnapshotWriter(
        store,
        JOB,
        AttemptNumber(attempt),
        checkpoint_id,
        SubtaskId(OPERATOR, index),
        inline_max=inline_max,
        cancelled=lambda: False,
        is_savepoint=is_savepoint,
    )


def manifest_of(
    checkpoint_id: CheckpointId, attempt: int, handles: dict[int, tuple[StateHandle, ...]]
) -> Manifest:
    acks = tuple(OperatorAck(SubtaskId(OPERATOR, n), own) for n, own in handles.items())
    return manifest(checkpoint_id=checkpoint_id, attempt=AttemptNumber(attempt), acks=acks)


def values_of(stores: Iterable[OperatorStateStore]) -> dict[Any, dict[str, Any]]:
    return {
        k: store.values_of(k) | store.times_of(k) for store in stores for k in KEYS if store.owns(k)
    }


def table_of(store: OperatorStateStore) -> ColumnarTable:
    return store.table("rows", None, {"n": np.int64, "half": np.float64})


def states_of(store: OperatorStateStore) -> dict[str, Any]:
    expiring = MapStateDescriptor("map", Types.STRING(), Types.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(3_600_000).build())
    declared = (
        ValueStateDescriptor("value", Types.LONG()),
        expiring,
        MapStateDescriptor("lists", Types.LONG(), Types.LIST(Types.LONG())),
        ListStateDescriptor("list", Types.LONG()),
    )
    return {descriptor.name: state_of(store, descriptor) for descriptor in declared}


Changes: TypeAlias = list[tuple[Any, int | None]]
CHANGED = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9)), max_size=8)


@dataclass
class UnderWay:
    """A checkpoint that was frozen."""

    base_id: CheckpointId
    parts: list[list[Any]]  # By subtask.
    expected: dict[Any, dict[str, Any]]
    written: dict[int, tuple[StateHandle, ...]] = field(default_factory=dict)


class IncrementsMachine(RuleBasedStateMachine):
    """One job's checkpoints: some complete, some do not, and drivers die while they delete."""

    @initialize(
        of=st.integers(1, 3),
        inline_max=st.sampled_from([0, 0, 1_100]),
        rewrites=st.sampled_from([1, 4]),
        noted=st.sampled_from([5, changed_keys.VALUE_BYTES_MAX]),
        backend=st.sampled_from(sorted(BOTH)),
    )
    def begin(self, of: int, inline_max: int, rewrites: int, noted: int, backend: str) -> None:
        self.small = small()
        self.small.__enter__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(changed_keys, "VALUE_BYTES_MAX", noted)  # Of an integer, and above.
        self.patch.setattr(rocksdb_timers, "NEAR_MAX", 2)
        self.patch.setattr(chains, "CHANGES_MAX", 1_000)  # Or little state is written whole.
        self.patch.setattr(chains, "CHANGES_LONG", 1_000)
        self.patch.setattr(chains, "CHANGES_FILES_LONG", rewrites)
        self.patch.setattr(chains, "TABLE_CHANGES_LONG", 1_000)
        self.patch.setattr(chains, "TABLE_FILES_LONG", TABLE_FILES)
        self.inline_max = inline_max
        self.store = Storage()
        self.attempt, self.next_id = 1, 1
        self.line: list[CheckpointId] = []  # Completed and retained.
        self.base_id = CheckpointId(0)
        self.under_way: dict[CheckpointId, UnderWay] = {}
        self.kept: dict[CheckpointId, tuple[dict[int, tuple[StateHandle, ...]], int, Any]] = {}
        self.subtasks: list[OperatorStateStore] = []
        self.open({}, 1, of, None, backend)

    def teardown(self) -> None:
        if not hasattr(self, "small"):
            return
        self.small.__exit__()
        self.patch.undo()
        # What is left after a sweep is what manifests name, or checkpoints under way wrote.
        sweep_shared(self.store, JOB, lambda attempt, number: not self.is_written_to(number))
        named = {in_job(JOB, path) for n in self.line for path in self.manifest(n).shared_paths}
        beside = {
            path
            for path in self.store.list(LAYOUT.shared)
            if not self.is_written_to(int(path.split("/")[2].partition("-")[2]))
        }
        assert beside == named
        for one in self.subtasks:
            one.close()

    def is_written_to(self, number: int) -> bool:
        return number in self.under_way

    def manifest(self, number: CheckpointId) -> Manifest:
        stored = next(s for s in list_checkpoints(self.store, JOB) if s.checkpoint_id == number)
        assert isinstance(stored.manifest, Manifest)
        return stored.manifest

    def open(
        self,
        handles: dict[int, tuple[StateHandle, ...]],
        before: int,
        of: int,
        restored_id: CheckpointId | None,
        backend: str,
    ) -> None:
        for one in self.subtasks:
            one.close()
        self.of = of
        self.subtasks = [
            opened(BOTH[backend], self.store, handles, before, i, of, restored_id)
            for i in range(of)
        ]
        self.states = [states_of(one) for one in self.subtasks]

    def at(self, key: Any) -> tuple[dict[str, Any], ColumnarTable, KeyedTimers]:
        for one, states in zip(self.subtasks, self.states, strict=True):
            if one.owns(key):
                one.keyed.set_current_key(key)
                return states, table_of(one), one.timers
        raise AssertionError(key)

    def change(self, changes: Changes) -> None:
        for key, n in changes:
            states, table, timers = self.at(key)
            states["value"].update(n)
            if n is None:
                for name in ("map", "lists", "list"):
                    states[name].clear()
                for at_ms in range(5):
                    timers.event_time.delete(at_ms, key)
                continue
            timers.event_time.register(n % 5, key)
            timers.processing_time.register(n, key)
            timers.processing_time.delete(n - 1, key)
            if n == 9:
                timers.event_time.poll(4)
            states["map"].put("wxyz"[n % 4], n)
            if (kept := states["lists"].get(n % 4)) is None:
                states["lists"].put(n % 4, [n])
            else:
                kept.append(n)  # In place.
            if n % 3 == 0:
                states["map"].remove("wxyz"[(n + 1) % 4])
                states["lists"].remove((n + 1) % 4)
            if n == 8:
                states["list"].update([n])
            else:
                states["list"].add_all([n, n])
            slots = table.slots_of([key])
            table.column("n").add(slots, np.array([n]))
            table.column("half").scatter(slots, n / 2)

    @precondition(lambda self: len(self.under_way) < 3)
    @rule(changes=CHANGED, spilled=CHANGED)
    def trigger(self, changes: Changes, spilled: Changes) -> None:
        self.change(spilled)
        for one in self.subtasks:
            one.tidy()
        self.change(changes)
        number = CheckpointId(self.next_id)
        self.next_id += 1
        parts = [one.freeze(number, self.base_id) for one in self.subtasks]
        self.under_way[number] = UnderWay(self.base_id, parts, values_of(self.subtasks))

    def write(self, number: CheckpointId) -> None:
        one = self.under_way[number]
        if one.written:
            return
        for index, parts in enumerate(one.parts):
            out = writer(self.store, number, self.attempt, index, inline_max=self.inline_max)
            one.written[index] = tuple(h for part in parts for h in part.write(out))
            for part in parts:
                part.release()

    @precondition(lambda self: self.under_way)
    @rule()
    def write_next(self) -> None:
        """The snapshot thread is done, and the coordinator has not heard of it yet."""
        self.write(
            next((n for n, u in self.under_way.items() if not u.written), min(self.under_way))
        )

    @precondition(lambda self: self.under_way)
    @rule(retained_max=st.integers(1, 2), crash=st.none() | st.integers(0, 6))
    def complete(self, retained_max: int, crash: int | None) -> None:
        number = min(self.under_way)
        self.write(number)
        one = self.under_way.pop(number)
        manifest = manifest_of(number, self.attempt, one.written)
        assert self.store.create_if_absent(LAYOUT.manifest(number), dump(manifest))
        self.kept[number] = one.written, self.of, one.expected
        self.line.append(number)
        self.base_id = number
        bases = {other.base_id for other in self.under_way.values()}
        past = [n for n in self.line[:-retained_max] if n not in bases]
        self.line = [n for n in self.line if n not in past]
        self.discard(past, crash)

    def discard(self, past: Iterable[CheckpointId], crash: int | None) -> None:
        self.store.dies_in = crash
        with suppress(Crash):
            for number in past:
                discard_checkpoint(self.store, JOB, number)
        self.store.dies_in = None
        for number in past:  # It is repeated: the row is still due, or the next driver's sweep.
            discard_checkpoint(self.store, JOB, number)

    @precondition(lambda self: self.under_way)
    @rule(written=st.booleans(), deleted=st.booleans())
    def abort(self, written: bool, deleted: bool) -> None:
        number = min(self.under_way)
        if written:
            self.write(number)
        one = self.under_way.pop(number)
        for part in (part for parts in one.parts for part in parts if not one.written):
            part.release()
        if deleted:
            discard_attempt(self.store, JOB, number, AttemptNumber(self.attempt))

    @rule(crash=st.none() | st.integers(0, 3))
    def sweep(self, crash: int | None) -> None:
        self.store.dies_in = crash
        with suppress(Crash):
            sweep_shared(self.store, JOB, lambda _, number: not self.is_written_to(number))
        self.store.dies_in = None

    @rule(index=st.integers(0, 1))
    def savepoint(self, index: int) -> None:
        """It holds everything, and nothing builds on it."""
        number, own = CheckpointId(self.next_id), MemoryStore()
        self.next_id += 1
        handles: dict[int, tuple[StateHandle, ...]] = {}
        for n, one in enumerate(self.subtasks):
            parts = one.freeze(number, None)
            out = writer(own, number, self.attempt, n, is_savepoint=True)
            handles[n] = tuple(h for part in parts for h in part.write(out))
            for part in parts:
                part.release()
        every = [handle for own_handles in handles.values() for handle in own_handles]
        assert not any(h.mode in (WHOLE, CHANGES) or writer_of_shared(h.path or "") for h in every)
        restored = opened(HEAP, own, handles, self.of, 0, 1, directory="")
        states_of(restored)
        assert values_of([restored]) == values_of(self.subtasks)

    @precondition(lambda self: self.line)
    @rule(
        newest=st.booleans(),
        of=st.integers(1, 3),
        into_heap=st.booleans(),
        builds=st.booleans(),
        backend=st.sampled_from(sorted(BOTH)),
    )
    def restore(self, newest: bool, of: int, into_heap: bool, builds: bool, backend: str) -> None:
        number = self.line[-1 if newest else 0]
        handles, before, expected = self.kept[number]
        if into_heap:
            other = [opened(HEAP, self.store, handles, before, i, of) for i in range(of)]
            for one in other:
                states_of(one)
            assert values_of(other) == expected
            return
        every = [handle for own in handles.values() for handle in own]
        states = len(self.states[0])
        assert sum(h.mode == CHANGES for h in every) <= before * (states * GROUPS + TABLE_FILES)
        self.attempt += 1
        self.under_way = {}
        self.open(handles, before, of, number if builds else None, backend)
        assert values_of(self.subtasks) == expected
        self.base_id = number if builds else CheckpointId(0)
        beside = [n for n in self.line if n > number]  # As with a rollback, and no time to live.
        self.line = [n for n in self.line if n <= number]
        self.discard(beside, None)

    @invariant()
    def no_file_is_missing(self) -> None:
        for number in getattr(self, "line", ()):
            verify(self.store, self.manifest(number))


TestIncrements = IncrementsMachine.TestCase
TestIncrements.settings = settings(max_examples=share(15, block=3), stateful_step_count=50)


class Line:
    """One subtask's checkpoints, each of which completes and is the base of the next."""

    def __init__(self, config: StateConfig = ROCKS, of: int = 1, inline_max: int = 0) -> None:
        self.config = config
        self.store, self.of, self.inline_max = MemoryStore(), of, inline_max
        self.number = self.base = CheckpointId(0)
        self.handles: dict[int, tuple[StateHandle, ...]] = {}
        self.subtasks = [opened(config, self.store, {}, 1, i, of) for i in range(of)]

    def reopened(self, of: int) -> None:
        self.close()
        self.subtasks = [
            opened(self.config, self.store, self.handles, self.of, i, of, self.base)
            for i in range(of)
        ]
        self.of = of

    def put(self, values: dict[Any, int | None]) -> None:
        for one in self.subtasks:
            state = states_of(one)["value"]
            for key, value in values.items():
                if one.owns(key):
                    one.keyed.set_current_key(key)
                    state.update(value)

    def checkpoint(
        self, *, completes: bool = True, meanwhile: dict[Any, int | None] | None = None
    ) -> list[StateHandle]:
        """The files of the newest that completed; ``meanwhile``: values put behind the barrier."""
        self.number = CheckpointId(self.number + 1)
        frozen = [one.freeze(self.number, self.base) for one in self.subtasks]
        if meanwhile:
            self.put(meanwhile)
        for index, parts in enumerate(frozen):
            out = writer(self.store, self.number, 1, index, inline_max=self.inline_max)
            handles = tuple(h for part in parts for h in part.write(out))
            if completes:
                self.handles[index] = handles
            for part in parts:
                part.release()
        if completes:
            self.base = self.number
        self.handles = {n: own for n, own in self.handles.items() if n < self.of}
        return [handle for own in self.handles.values() for handle in own]

    def new_bytes(self, handles: list[StateHandle]) -> int:
        of_this = f"shared/1-{self.number}/"
        return sum(h.size for h in handles if h.path is None or h.path.startswith(of_this))

    def restored(self) -> dict[int, int]:
        one = opened(HEAP, self.store, self.handles, self.of, 0, 1)
        state, values = states_of(one)["value"], {}
        for key in one.keyed.keys("value"):
            one.keyed.set_current_key(key)
            values[key] = state.value()
        return values

    def shown(self) -> dict[int, int]:
        """The values as ``weir inspect`` shows them."""
        pieces = [handle for handle in self.handles[0] if handle.name == "state.value"]
        subtask = SubtaskId(OPERATOR, 0)
        rows = list(valid_rows(self.store, LAYOUT.directory, subtask, pieces))
        values = {row.values["key"]: row.values["value"] for row in rows}
        assert len(values) == len(rows)
        return values

    def close(self) -> None:
        for one in self.subtasks:
            one.close()


@pytest.fixture(params=sorted(BOTH))
def config(request: pytest.FixtureRequest) -> StateConfig:
    return BOTH[request.param]


def test_an_increment_is_small_and_its_chain_stays_short(config: StateConfig) -> None:
    line, values = Line(config), {key: key for key in range(20_000)}
    line.put(values)
    whole = line.new_bytes(line.checkpoint())
    written = []
    for n in range(40):
        changed: dict[int, int | None] = dict.fromkeys(range(n, 20000, 100), -n)
        changed[n] = None
        line.put(changed)
        values = {k: v for k, v in (values | changed).items() if v is not None}
        handles = line.checkpoint()
        written.append(line.new_bytes(handles))
        assert sum(handle.mode == CHANGES for handle in handles) <= CHANGES_FILES_LONG + SLICES
        assert sum(handle.size for handle in handles) < 1.6 * whole
    assert line.restored() == values
    # A hundredth of the keys, and now and then one of its eight key groups.
    assert sum(written) / len(written) < 0.08 * whole
    assert max(written) > 0.1 * whole, "a slice was rewritten"
    assert line.shown() == values
    line.checkpoint()
    assert line.new_bytes(line.checkpoint()) == 0, "nothing has changed"
    line.close()


def test_what_is_put_behind_a_barrier_is_in_the_next_checkpoint_alone(config: StateConfig) -> None:
    line, values = Line(config), dict.fromkeys(range(3_000), 1)
    line.put(values)
    line.checkpoint(meanwhile={1: 2})
    assert line.restored() == values
    line.put({2: 3})
    handles = line.checkpoint(meanwhile={1: 4, 2: None, 3: 4, -1: 5})
    assert CHANGES in {handle.mode for handle in handles}
    assert line.restored() == values | {1: 2, 2: 3}
    line.checkpoint()
    del values[2]
    assert line.restored() == values | {1: 4, 3: 4, -1: 5}
    line.close()


def test_changes_of_a_checkpoint_that_came_to_nothing_are_in_the_next(config: StateConfig) -> None:
    line, values = Line(config), dict.fromkeys(range(3_000), 1)
    line.put(values)
    line.checkpoint()
    line.put({1: 2, 2: 2})
    line.checkpoint(completes=False)
    line.put({2: 3, 3: None})
    assert CHANGES in {handle.mode for handle in line.checkpoint()}
    del values[3]
    assert line.restored() == values | {1: 2, 2: 3}
    line.close()


def test_a_value_that_is_changed_in_place_is_a_change(config: StateConfig) -> None:
    line = Line(config)
    (subtask,) = line.subtasks
    lists = states_of(subtask)["list"]
    for key in range(100):
        subtask.keyed.set_current_key(key)
        lists.update([key])
    line.checkpoint()
    for n in range(3):
        subtask.keyed.set_current_key(7)
        lists.add(n)
        files = [handle.mode for handle in line.checkpoint() if handle.name == "state.list"]
        assert CHANGES in files
    restored = opened(HEAP, line.store, line.handles, 1, 0, 1)
    states_of(restored)
    assert restored.values_of(7)["list"] == [7, 0, 1, 2]
    assert restored.values_of(8)["list"] == [8]
    line.close()


def timers_of(one: OperatorStateStore) -> dict[int, list[int]]:
    """The event times of each key's timers."""
    owned = (key for key in range(600) if one.owns(key))
    return {key: times for key in owned if (times := one.times_of(key)["event_time"])}


def line_of_timers(config: StateConfig, count: int) -> tuple[Line, TimerQueue, int]:
    """A checkpoint of a timer for each of so many keys, due at the key; the bytes of its files."""
    line = Line(config)
    timers = line.subtasks[0].timers.event_time
    for key in range(count):
        timers.register(key, key)
    return line, timers, line.new_bytes(line.checkpoint())


def test_timers_that_came_or_went_are_an_increment(
    config: StateConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_timers, "NEAR_MAX", 50)  # So that most of them are on disk.
    expected = {key: [key] for key in range(600)}
    line, timers, whole = line_of_timers(config, len(expected))
    fired = timers.poll(0)
    assert fired is not None
    assert fired.key == 0
    timers.delete(599, 599)
    timers.register(5_000, 7)
    timers.register(6_000, 8)
    timers.delete(6_000, 8)
    del expected[0], expected[599]
    expected[7] = [7, 5_000]
    handles = line.checkpoint()
    assert [handle.mode for handle in handles] == [WHOLE, CHANGES]
    assert line.new_bytes(handles) < whole / 10
    line.checkpoint(completes=False)
    timers.delete(7, 7)
    line.checkpoint(completes=False)
    timers.register(7, 7)
    timers.delete(9, 9)
    del expected[9]
    assert [handle.mode for handle in line.checkpoint()] == [WHOLE, CHANGES, CHANGES]
    subtask_id = SubtaskId(OPERATOR, 0)
    shown = list(valid_rows(line.store, LAYOUT.directory, subtask_id, line.handles[0]))
    assert len(shown) == sum(map(len, expected.values()))
    assert {(row.values["key"], row.values["timestamp_ms"]) for row in shown} == {
        (key, at) for key, times in expected.items() for at in times
    }
    for other in BOTH.values():
        assert timers_of(opened(other, line.store, line.handles, 1, 0, 1)) == expected
    halves = [timers_of(opened(HEAP, line.store, line.handles, 1, n, 2)) for n in range(2)]
    assert halves[0] | halves[1] == expected
    line.reopened(1)
    line.subtasks[0].timers.event_time.delete(10, 10)
    del expected[10]
    assert [handle.mode for handle in line.checkpoint()] == [WHOLE, *[CHANGES] * 3]
    assert timers_of(opened(HEAP, line.store, line.handles, 1, 0, 1)) == expected
    line.close()


def test_changes_that_are_undone_are_in_no_checkpoint(config: StateConfig) -> None:
    line = Line(config)
    (subtask,) = line.subtasks
    changes = subtask.record_changes()
    timers, state = subtask.timers.event_time, states_of(subtask)["value"]
    for key in range(100):
        timers.register(key, key)
        subtask.keyed.set_current_key(key)
        state.update(key)
    changes.keep()
    line.checkpoint()
    timers.register(500, 1)
    timers.delete(2, 2)
    line.put({1: 5, 2: None})
    changes.undo()
    timers.register(600, 3)
    line.put({3: 6})
    changes.keep()
    assert CHANGES in [handle.mode for handle in line.checkpoint()]
    assert line.restored() == {key: key for key in range(100)} | {3: 6}
    expected = {key: [key] for key in range(100)} | {3: [3, 600]}
    assert timers_of(opened(HEAP, line.store, line.handles, 1, 0, 1)) == expected
    line.close()


def test_timers_of_which_most_changed_are_written_whole(config: StateConfig) -> None:
    line, timers, _ = line_of_timers(config, 300)
    for key in range(200):
        timers.delete(key, key)
    assert [handle.mode for handle in line.checkpoint()] == [WHOLE]
    for key in range(200, 300):
        timers.delete(key, key)
    assert line.checkpoint() == []
    assert timers_of(opened(HEAP, line.store, line.handles, 1, 0, 1)) == {}
    line.close()


def test_more_changed_timers_than_are_noted_are_written_whole(
    config: StateConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_timers, "_NOTED_BYTES_MAX", 1_000)
    monkeypatch.setattr(progress, "LOOK_EVERY", 2)
    line, timers, _ = line_of_timers(config, 300)
    for key in range(20):
        timers.delete(key, key)
        line.subtasks[0].tidy()
    timers.delete(299, 299)
    assert [handle.mode for handle in line.checkpoint()] == [WHOLE]
    timers.delete(50, 50)
    assert CHANGES in [handle.mode for handle in line.checkpoint()]
    left = [key for key in range(20, 299) if key != 50]
    assert timers_of(opened(HEAP, line.store, line.handles, 1, 0, 1)) == {k: [k] for k in left}
    line.close()


def test_a_timer_that_is_set_anew_fires_after_others_of_its_time() -> None:
    line = Line(BOTH["hashmap"])
    (subtask,) = line.subtasks
    timers = subtask.timers.event_time
    keys = [key for key in range(2_000) if key_group(key, GROUPS) == 0]
    for key in keys:
        timers.register(1, key)
    line.checkpoint()
    timers.delete(1, keys[0])
    timers.register(1, keys[0])
    assert CHANGES in [handle.mode for handle in line.checkpoint()]
    restored = opened(HEAP, line.store, line.handles, 1, 0, 1).timers.event_time
    fired = [timer.key for timer in iter(lambda: restored.poll(1), None)]
    assert fired == [*keys[1:], keys[0]]
    line.close()


def test_a_value_that_is_too_large_for_the_notes_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changed_keys, "VALUE_BYTES_MAX", 5)
    line, values = Line(), {key: key for key in range(20_000)}
    line.put(values)
    line.checkpoint()
    changed: dict[int, int | None] = {1: 2, 2: 1 << 40, 3: None}
    line.put(changed)
    assert any(handle.mode == CHANGES for handle in line.checkpoint())
    del values[3]
    assert line.restored() == values | {1: 2, 2: 1 << 40}
    line.close()


def test_a_key_that_is_removed_when_its_group_is_rewritten_does_not_come_back(
    config: StateConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removal is in no file of changes, and an older one, which other groups need, has it."""
    monkeypatch.setattr(chains, "CHANGES_LONG", 0.0)
    line, values = Line(config), dict.fromkeys(range(3_000), 1)
    line.put(values)
    line.checkpoint()
    victims = {key_group(key, GROUPS): key for key in values}
    line.put(dict.fromkeys(victims.values(), 2))
    line.checkpoint()
    for group in range(1, GROUPS):
        line.put({victims[group]: None})
        rewritten = [h.key_groups for h in line.checkpoint() if h.mode == WHOLE][-1]
        assert rewritten == KeyGroupRange(group, group)
        del values[victims[group]]
        assert line.restored().keys() == values.keys() == line.shown().keys()
    line.close()


def test_changes_of_everything_do_not_pile_up(config: StateConfig) -> None:
    line, sizes = Line(config), []
    for n in range(12):
        line.put({key: n * key + 1 for key in range(3_000)})
        sizes.append(sum(handle.size for handle in line.checkpoint()))
    assert max(sizes) < 3.5 * sizes[0]
    assert line.restored() == {key: 11 * key + 1 for key in range(3_000)}
    line.close()


def test_more_changes_than_are_kept_track_of_are_written_whole(
    config: StateConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "CHANGED_BYTES_MIN", 1_000)
    monkeypatch.setattr(progress, "LOOK_EVERY", 4)
    line = Line(config)
    line.put(dict.fromkeys(range(100), 1))
    line.checkpoint()
    for n in range(40):  # Each spills some.
        line.put(dict.fromkeys(range(5_000), n))
        line.subtasks[0].tidy()
    handles = line.checkpoint()
    assert {handle.mode for handle in handles} == {WHOLE}
    assert line.restored() == dict.fromkeys(range(5_000), 39)
    line.put({1: None})
    assert CHANGES in {handle.mode for handle in line.checkpoint()}
    line.close()


def test_files_for_other_key_groups_are_not_built_on(config: StateConfig) -> None:
    line, values = Line(config, of=1), dict.fromkeys(range(500), 1)
    line.put(values)
    line.checkpoint()
    line.put({1: 2})
    assert CHANGES in {handle.mode for handle in line.checkpoint()}
    line.reopened(2)
    line.put({2: 3})
    handles = line.checkpoint()
    assert {handle.mode for handle in handles} == {WHOLE}
    assert line.new_bytes(handles) == sum(handle.size for handle in handles)
    assert line.restored() == values | {1: 2, 2: 3}
    for of, key in ((1, 3), (2, 4)):  # Slices lie within its own groups, and so do all old files.
        line.reopened(of)
        line.put({key: 4})
        handles = line.checkpoint()
        assert (CHANGES in {handle.mode for handle in handles}) is (of == 1)
        assert line.restored()[key] == 4
    line.close()


def test_state_of_which_a_part_is_inline_is_written_whole_first(config: StateConfig) -> None:
    """One of two subtasks had little state: the next one builds on a file and forgets the rest."""
    line = Line(config, of=2, inline_max=6_000)
    keys = [key for key in range(2_000) if line.subtasks[0].owns(key)]
    few = [key for key in range(2_000) if line.subtasks[1].owns(key)][:3]
    values = dict.fromkeys([*keys, *few], 1)
    line.put(values)
    assert {handle.path is None for handle in line.checkpoint()} == {True, False}
    line.reopened(1)
    line.put({keys[0]: 2})
    line.checkpoint()
    assert line.restored() == values | {keys[0]: 2}
    line.close()


@pytest.mark.parametrize("damage", ["gone", "cut short", "other bytes"])
def test_a_shared_file_that_is_damaged_is_named(damage: str) -> None:
    line = Line()
    line.put(dict.fromkeys(range(500), 1))
    line.checkpoint()
    line.put({1: 2})
    path = in_job(JOB, line.checkpoint()[0].path or "")
    data = line.store.read(path)
    if damage == "gone":
        line.store.delete(path)
    else:
        line.store.put(path, data[:-9] if damage == "cut short" else data[:-9] + b"?" * 9)
    problem = {
        "gone": "it is missing",
        "cut short": f"it has {len(data) - 9} bytes instead of {len(data)}",
        "other bytes": "its checksum does not match",
    }[damage]
    advice = "restore from another checkpoint"
    with pytest.raises(CorruptStateError, match=f"(?s){path}.*{problem}.*{advice}"):
        line.restored()
    whole = manifest_of(line.number, 1, line.handles)
    with pytest.raises(CorruptStateError, match=f"(?s){path}.*{problem}.*{advice}"):
        verify(line.store, whole)
    line.close()
