"""Time-to-live of keyed state: what a read returns, what the sweep and snapshots leave behind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.state.states import Collected, state_of, written
from weir.common.time import Duration, Time
from weir.common.typeinfo import TypeInformation, Types
from weir.config import StateConfig
from weir.errors import ConfigError, RestoreError
from weir.graph.key_groups import key_group, key_group_range
from weir.ids import CheckpointId, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.state.backends.choice import open_tables
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from weir.state.evolution import Declaration, Verdict
from weir.state.store import OperatorStateStore
from weir.state.ttl import StateTtlConfig

GROUPS, TTL_MS, NOON = 8, 1_000, 43_200_000
KEYS = ("a", "b", 3)
T = Types
IN_MEMORY = StateConfig()


class HandClock:
    """A clock that may also be set back, as the wall clock of the next driver may be."""

    def __init__(self, now_ms: int = NOON) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000

    def thread_ns(self) -> int:
        return 0


def ttl(
    *, on_read: bool = False, event_time: bool = False, ms: int = TTL_MS, returns: bool = False
) -> StateTtlConfig:
    builder = StateTtlConfig.new_builder(Duration.of_millis(ms))
    if on_read:
        builder.update_ttl_on_read_and_write()
    if event_time:
        builder.use_event_time()
    if returns:
        builder.return_expired_if_not_cleaned_up()
    return builder.build()


def descriptors(config: StateTtlConfig | None) -> list[StateDescriptor]:
    """One state of every kind, with values that cannot and values that can be changed in place."""
    made: list[StateDescriptor] = [
        ValueStateDescriptor("value", T.LONG()),
        ValueStateDescriptor("basket", T.LIST(T.LONG())),
        ListStateDescriptor("list", T.LONG()),
        MapStateDescriptor("map", T.STRING(), T.LONG()),
        MapStateDescriptor("deep", T.STRING(), T.LIST(T.LONG())),
        ReducingStateDescriptor("sum", lambda a, b: a + b, T.LONG()),
        AggregatingStateDescriptor("folded", Collected(), T.LIST(T.LONG())),
    ]
    for descriptor in made:
        if config is not None:
            descriptor.enable_time_to_live(config)
    return made


def opened(
    clock: HandClock,
    handles: list[StateHandle] | None = None,
    *,
    index: int = 0,
    parallelism: int = 1,
    judge: Callable[[Declaration], None] | None = None,
    config: StateConfig = IN_MEMORY,
) -> OperatorStateStore:
    groups = key_group_range(GROUPS, parallelism, index)
    return OperatorStateStore(
        groups,
        GROUPS,
        keyed=True,
        restored=[RestoredHandle(handle, groups) for handle in handles or ()],
        read=lambda handle: handle.inline or b"",
        clock=clock,
        judge=judge,
        tables=open_tables(config, groups),
    )


def swept(store: OperatorStateStore, clock: HandClock) -> None:
    """Let a whole sweep run, as a subtask without input does."""
    due_ms = store.sweep_due_ms()
    if due_ms is not None:
        clock.ms = max(clock.ms, due_ms)
        while (due_ms := store.sweep_due_ms()) is not None and due_ms <= clock.ms:
            store.tidy()


def entries(store: OperatorStateStore) -> int:
    """Entries in memory, expired or not: values, elements of lists, entries of maps."""
    return sum(
        len(list(value)) if table.kind in ("list", "map") else 1
        for tables in store.keyed._tables.values()
        for table in tables
        for group in range(len(table.tables))
        for _, value in table.entries(group)
    )


Entry = list[Any]  # A value and the time of its last touch.


class TtlMachine(RuleBasedStateMachine):
    """Every kind of state beside a plain model, over two subtasks, restores and rescalings."""

    state = IN_MEMORY

    @initialize(event_time=st.booleans(), on_read=st.booleans())
    def begin(self, event_time: bool, on_read: bool) -> None:
        self.event_time, self.on_read = event_time, on_read
        self.config = ttl(on_read=on_read, event_time=event_time)
        self.clock = HandClock()
        self.watermark = MIN_WATERMARK_MS
        self.record: int | None = None
        self.one: dict[tuple[str, Any], Entry] = {}
        self.lists: dict[Any, list[Entry]] = {}
        self.maps: dict[tuple[str, Any], dict[str, Entry]] = {}
        self.views: list[Any] = []
        self.open([], 1)

    def open(self, handles: list[StateHandle], parallelism: int) -> None:
        self.parallelism = parallelism
        self.stores = [
            opened(self.clock, handles, index=i, parallelism=parallelism, config=self.state)
            for i in range(parallelism)
        ]
        self.states: list[dict[str, Any]] = []
        for store in self.stores:
            store.keyed.time.on_watermark(self.watermark)
            store.keyed.time.record_ms = lambda: self.record
            self.states.append({d.name: state_of(store, d) for d in descriptors(self.config)})

    # The model.

    def now(self) -> int:
        return self.watermark if self.event_time else self.clock.ms

    def is_live(self, entry: Entry | None) -> bool:
        if entry is None:
            return False
        if entry[1] == MIN_WATERMARK_MS:
            return True
        return entry[1] + TTL_MS > self.now()

    def touch(self, before: Entry | None) -> int:
        if not self.event_time:
            return self.clock.ms
        known = [self.watermark]
        known += [] if self.record is None else [self.record]
        known += [] if before is None else [before[1]]
        return max(known)

    def model_read(self, entries: dict[Any, Entry], key: Any) -> Any:
        entry = entries.get(key)
        if entry is None or not self.is_live(entry):
            entries.pop(key, None)
            return None
        if self.on_read:
            entry[1] = self.touch(entry)
        return entry[0]

    def at(self, key: Any) -> dict[str, Any]:
        """The states under a key, in the subtask that owns it."""
        for store, states in zip(self.stores, self.states, strict=True):
            if store.owns(key):
                store.keyed.set_current_key(key)
                return states
        raise AssertionError(key)

    # Writes.

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from(["value", "basket"]), n=st.integers(0, 9))
    def update(self, key: Any, name: str, n: int) -> None:
        value = n if name == "value" else [n]
        self.at(key)[name].update(value)
        before = self.one.get((name, key))
        self.one[name, key] = [value, self.touch(before)]

    @rule(key=st.sampled_from(KEYS), n=st.integers(0, 9))
    def reduce(self, key: Any, n: int) -> None:
        self.at(key)["sum"].add(n)
        before = self.one.get(("sum", key))
        total = before[0] + n if before is not None and self.is_live(before) else n
        self.one["sum", key] = [total, self.touch(before)]

    @rule(key=st.sampled_from(KEYS), n=st.integers(0, 9))
    def fold(self, key: Any, n: int) -> None:
        self.at(key)["folded"].add(n)
        before = self.one.get(("folded", key))
        kept = before[0] if before is not None and self.is_live(before) else ()
        self.one["folded", key] = [(*kept, n), self.touch(before)]

    @rule(key=st.sampled_from(KEYS), values=st.lists(st.integers(0, 9), max_size=3))
    def extend(self, key: Any, values: list[int]) -> None:
        self.at(key)["list"].add_all(values)
        self.lists.setdefault(key, []).extend([n, self.touch(None)] for n in values)

    @rule(
        key=st.sampled_from(KEYS),
        name=st.sampled_from(["map", "deep"]),
        entry=st.sampled_from("xyz"),
        n=st.integers(0, 9),
    )
    def put(self, key: Any, name: str, entry: str, n: int) -> None:
        value = n if name == "map" else [n]
        self.at(key)[name].put(entry, value)
        held = self.maps.setdefault((name, key), {})
        held[entry] = [value, self.touch(held.get(entry))]

    @rule(key=st.sampled_from(KEYS), entry=st.sampled_from("xyz"))
    def remove(self, key: Any, entry: str) -> None:
        self.at(key)["map"].remove(entry)
        self.maps.get(("map", key), {}).pop(entry, None)

    # Reads.

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from(["value", "basket", "sum", "folded"]))
    def read(self, key: Any, name: str) -> None:
        state = self.at(key)[name]
        got = state.value() if name in ("value", "basket") else state.get()
        assert got == self.model_read(self.one, (name, key))

    @rule(key=st.sampled_from(KEYS))
    def read_list(self, key: Any) -> None:
        live = [entry for entry in self.lists.pop(key, []) if self.is_live(entry)]
        assert self.at(key)["list"].get() == [n for n, _ in live]
        self.lists[key] = [[n, self.touch([n, t]) if self.on_read else t] for n, t in live]

    @rule(
        key=st.sampled_from(KEYS),
        name=st.sampled_from(["map", "deep"]),
        entry=st.sampled_from("xyz"),
        contains=st.booleans(),
    )
    def read_entry(self, key: Any, name: str, entry: str, contains: bool) -> None:
        state = self.at(key)[name]
        expected = self.model_read(self.maps.get((name, key), {}), entry)
        if contains:
            assert state.contains(entry) == (expected is not None)
        else:
            assert state.get(entry) == expected

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from(["map", "deep"]))
    def read_map(self, key: Any, name: str) -> None:
        state = self.at(key)[name]
        held = self.maps.get((name, key), {})
        assert state.is_empty() == (not any(map(self.is_live, held.values())))
        seen = {entry: self.model_read(held, entry) for entry in list(held)}
        assert dict(state.items()) == {k: v for k, v in seen.items() if v is not None}

    # Time, and what happens beside.

    @rule(ms=st.integers(1, 700))
    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms

    @precondition(lambda self: self.event_time)
    @rule(ms=st.integers(1, 700))
    def pass_event_time(self, ms: int) -> None:
        self.watermark = max(self.watermark, 0) + ms
        for store in self.stores:
            store.keyed.time.on_watermark(self.watermark)

    @rule(ms=st.none() | st.integers(-300, 500))
    def next_record(self, ms: int | None) -> None:
        self.record = None if ms is None else max(0, self.watermark) + ms

    @rule()
    def sweep(self) -> None:
        for store in self.stores:
            swept(store, self.clock)
        if self.event_time and self.watermark > MIN_WATERMARK_MS:
            for entry in self.all_entries():
                if entry[1] == MIN_WATERMARK_MS:
                    entry[1] = self.watermark
        live = sum(map(self.is_live, self.all_entries()))
        assert sum(map(entries, self.stores)) <= live

    @rule()
    def freeze(self) -> None:
        """A snapshot begins; what changes from now on is not to be seen in it."""
        if not self.views:
            self.views = [(self.now(), s.freeze(CheckpointId(1))) for s in self.stores]
            self.seen = self.visible()

    @precondition(lambda self: self.views)
    @rule()
    def write(self) -> None:
        """The snapshot is written late; what it holds is what was alive at its barrier."""
        handles = [handle for _, parts in self.views for handle in written(parts)]
        self.views = []
        groups = [opened(HandClock(0), handles, index=i, parallelism=2) for i in (0, 1)]
        held = {}
        for store in groups:
            for descriptor in descriptors(self.config):
                state_of(store, descriptor)
            for key in KEYS:
                if store.owns(key):
                    held[key] = store.values_of(key)
        assert held == self.seen

    @rule(parallelism=st.integers(1, 2))
    def restart(self, parallelism: int) -> None:
        """The job goes on from a snapshot, with another parallelism."""
        for _, parts in self.views:
            for part in parts:
                part.release()
        self.views = []
        handles = [
            handle for store in self.stores for handle in written(store.freeze(CheckpointId(1)))
        ]
        self.open(handles, parallelism)

    def all_entries(self) -> Iterator[Entry]:
        yield from self.one.values()
        for elements in self.lists.values():
            yield from elements
        for held in self.maps.values():
            yield from held.values()

    def visible(self) -> dict[Any, dict[str, Any]]:
        return {
            key: values
            for store in self.stores
            for key in KEYS
            if store.owns(key)
            for values in [store.values_of(key)]
        }

    @invariant()
    def what_is_shown_is_what_is_alive(self) -> None:
        expected: dict[Any, dict[str, Any]] = {key: {} for key in KEYS}
        for (name, key), entry in self.one.items():
            if self.is_live(entry):
                expected[key][name] = list(entry[0]) if name == "folded" else entry[0]
        for key, elements in self.lists.items():
            if live := [n for n, t in elements if self.is_live([n, t])]:
                expected[key]["list"] = live
        for (name, key), held in self.maps.items():
            if shown := {k: entry[0] for k, entry in held.items() if self.is_live(entry)}:
                expected[key][name] = shown
        assert self.visible() == expected


TestTtl = TtlMachine.TestCase


# One by one.


def test_the_builder_has_flinks_defaults_and_refuses_what_is_no_time() -> None:
    config = StateTtlConfig.new_builder(Time.hours(1)).build()
    assert config.get_ttl() == Duration.of_hours(1)
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    time = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert config.get_ttl_time_characteristic() is time
    assert config.is_enabled()
    assert config.get_cleanup_strategies().is_cleanup_in_background()
    with pytest.raises(ConfigError, match="positive, not 0 ms"):
        StateTtlConfig.new_builder(0).build()
    with pytest.raises(ConfigError, match="no StateTtlConfig"):
        StateTtlConfig.new_builder(1).set_update_type("OnWrite").build()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is a StateTtlConfig"):
        ValueStateDescriptor("v", T.LONG()).enable_time_to_live(3600)  # type: ignore[arg-type]


def test_a_disabled_time_to_live_is_none() -> None:
    disabled = StateTtlConfig.UpdateType.Disabled
    config = StateTtlConfig.new_builder(1).set_update_type(disabled).build()
    clock = HandClock()
    store = opened(clock)
    state = state_of(store, descriptors(config)[0])
    store.keyed.set_current_key("a")
    state.update(1)
    clock.ms += 10
    assert state.value() == 1
    assert store.sweep_due_ms() is None


def test_a_state_declared_twice_has_one_time_to_live() -> None:
    store = opened(HandClock())
    state = state_of(store, descriptors(ttl())[0])
    assert state_of(store, descriptors(ttl())[0]) is state
    with pytest.raises(ConfigError, match="with another time-to-live"):
        state_of(store, descriptors(ttl(ms=5))[0])
    with pytest.raises(ConfigError, match="with another time-to-live"):
        state_of(store, descriptors(None)[0])


@pytest.mark.parametrize("index", range(7))
def test_what_has_expired_is_returned_once_where_that_is_allowed(index: int) -> None:
    clock = HandClock()
    store = opened(clock)
    state = state_of(store, descriptors(ttl(returns=True))[index])
    store.keyed.set_current_key("a")
    put: dict[str, Callable[[], Any]] = {
        "value": lambda: state.update(7 if index == 0 else [7]),
        "list": lambda: state.add(7),
        "map": lambda: state.put("x", 7 if index == 3 else [7]),
        "reducing": lambda: state.add(7),
        "aggregating": lambda: state.add(7),
    }
    get: dict[str, Callable[[], Any]] = {
        "value": lambda: state.value(),
        "list": lambda: state.get() or None,
        "map": lambda: list(state.values()) or None,
        "reducing": lambda: state.get(),
        "aggregating": lambda: state.get(),
    }
    kind = descriptors(None)[index].kind
    put[kind]()
    clock.ms += TTL_MS
    assert get[kind]() is not None
    assert get[kind]() is None
    assert entries(store) == 0
    put[kind]()
    clock.ms += TTL_MS
    swept(store, clock)
    assert get[kind]() is None


def test_a_sweep_without_traffic_leaves_only_what_lives() -> None:
    """Two intervals after the last record a tenth more than the live entries is the limit."""
    clock = HandClock()
    store = opened(clock)
    config = ttl(ms=8_000)
    values, maps = (state_of(store, descriptors(config)[index]) for index in (0, 3))
    store.keyed.set_current_key("one map")
    for entry in range(6_000):
        maps.put(str(entry), entry)
    for key in range(6_000):
        store.keyed.set_current_key(key)
        values.update(key)
    clock.ms += 7_500
    for key in range(100):
        store.keyed.set_current_key(key)
        values.update(key)
    clock.ms += 500
    assert entries(store) == 12_000
    slices, end_ms = 0, clock.ms + 2 * 2_000
    while (due_ms := store.sweep_due_ms()) is not None and due_ms <= end_ms:
        clock.ms = max(clock.ms, due_ms)
        store.tidy()
        slices += 1
    assert entries(store) == 100
    assert slices >= 6  # None of them looked at all entries.


def test_no_sweep_runs_where_it_is_disabled() -> None:
    clock = HandClock()
    store = opened(clock)
    config = StateTtlConfig.new_builder(TTL_MS).disable_cleanup_in_background().build()
    state = state_of(store, descriptors(config)[0])
    store.keyed.set_current_key("a")
    state.update(1)
    clock.ms += TTL_MS
    assert store.sweep_due_ms() is None
    assert entries(store) == 1
    assert entries(opened(clock, written(store.freeze(CheckpointId(1))))) == 0


def test_a_clock_that_is_set_back_shows_nothing_again_and_keeps_nothing_for_ever() -> None:
    clock = HandClock()
    store = opened(clock)
    state = state_of(store, descriptors(ttl())[0])
    store.keyed.set_current_key("a")
    state.update(1)
    clock.ms += TTL_MS
    assert state.value() is None
    state.update(2)
    clock.ms -= TTL_MS
    assert state.value() == 2
    handles = written(store.freeze(CheckpointId(1)))

    # The next driver's clock is a year behind: entries live on, but no longer than from now.
    behind = HandClock(NOON - 365 * 86_400_000)
    store = opened(behind, handles)
    state = state_of(store, descriptors(ttl())[0])
    store.keyed.set_current_key("a")
    swept(store, behind)
    assert state.value() == 2
    behind.ms += TTL_MS
    assert state.value() is None


def test_what_is_left_is_what_was_left_and_the_length_is_the_programs() -> None:
    clock = HandClock()
    store = opened(clock)
    state = state_of(store, descriptors(ttl())[0])
    store.keyed.set_current_key("a")
    state.update(1)
    clock.ms += 600
    handles = written(store.freeze(CheckpointId(1)))
    for length_ms, ends_ms in ((TTL_MS, 400), (2 * TTL_MS, 1_400), (500, 0)):
        later = HandClock(clock.ms)
        restored = opened(later, handles)
        state = state_of(restored, descriptors(ttl(ms=length_ms))[0])
        restored.keyed.set_current_key("a")
        later.ms += ends_ms - 1
        assert state.value() == (1 if ends_ms else None)
        later.ms += 1
        assert state.value() is None


def filled(store: OperatorStateStore, config: StateTtlConfig | None) -> None:
    """One entry under a key in every state."""
    made = {d.name: state_of(store, d) for d in descriptors(config)}
    store.keyed.set_current_key("a")
    made["value"].update(1)
    made["basket"].update([1])
    made["list"].add(1)
    made["map"].put("x", 1)
    made["deep"].put("x", [1])
    made["sum"].add(1)
    made["folded"].add(1)


ALL = {
    "value": 1, "basket": [1], "list": [1], "map": {"x": 1}, "deep": {"x": [1]}, "sum": 1,
    "folded": [1],
}  # fmt: skip


@pytest.mark.parametrize("before", [None, ttl(), ttl(event_time=True)], ids=["none", "p", "e"])
@pytest.mark.parametrize("after", [None, ttl(), ttl(event_time=True)], ids=["none", "p", "e"])
def test_a_time_to_live_is_added_taken_away_and_moved(
    before: StateTtlConfig | None, after: StateTtlConfig | None
) -> None:
    """As in Flink 2.2: what gets one has all of it from the restore on."""
    clock = HandClock()
    store = opened(clock)
    store.keyed.time.on_watermark(0)
    filled(store, before)
    clock.ms += 900
    store.keyed.time.on_watermark(900)
    told: list[Declaration] = []
    restored = opened(clock, written(store.freeze(CheckpointId(1))), judge=told.append)
    for descriptor in descriptors(after):
        state_of(restored, descriptor)
    is_same = before is after or before == after
    assert {d.evolution.verdict for d in told} == {Verdict.KEPT if is_same else Verdict.CHANGED}
    assert not any(d.evolution.losses for d in told)
    assert restored.values_of("a") == ALL
    restored.keyed.time.on_watermark(5_000 if not is_same else 900)
    if after == ttl(event_time=True):
        swept(restored, clock)  # Dates what had no event time.
    left_ms = (100 if is_same else TTL_MS) if after is not None else 10 * TTL_MS
    clock.ms = NOON + 900 + left_ms - 1
    restored.keyed.time.on_watermark(restored.keyed.time.reached_ms + left_ms - 1)
    assert restored.values_of("a") == ALL
    clock.ms += 1
    restored.keyed.time.on_watermark(restored.keyed.time.reached_ms + 1)
    assert restored.values_of("a") == ({} if after is not None else ALL)


def test_a_type_changes_under_a_time_to_live() -> None:
    def program(kind: TypeInformation) -> list[StateDescriptor]:
        made: list[StateDescriptor] = [
            ValueStateDescriptor("v", kind),
            ListStateDescriptor("l", kind),
            MapStateDescriptor("m", T.STRING(), kind),
        ]
        for descriptor in made:
            descriptor.enable_time_to_live(ttl())
        return made

    clock = HandClock()
    store = opened(clock)
    value, elements, entries_ = (state_of(store, d) for d in program(T.INT()))
    store.keyed.set_current_key("a")
    value.update(1)
    clock.ms += 400
    elements.add(2)
    entries_.put("x", 3)
    handles = written(store.freeze(CheckpointId(1)))
    restored = opened(clock, handles)
    for descriptor in program(T.DOUBLE()):
        state_of(restored, descriptor)
    shown = restored.values_of("a")
    assert shown == {"v": 1.0, "l": [2.0], "m": {"x": 3.0}}
    assert isinstance(shown["v"], float)
    clock.ms += 600
    assert restored.values_of("a").keys() == {"l", "m"}
    with pytest.raises(RestoreError, match="value of INT with a time-to-live in processing time"):
        state_of(opened(clock, handles), program(T.STRING())[0])


def test_event_time_does_not_end_with_the_input_nor_begin_before_it() -> None:
    clock = HandClock()
    store = opened(clock)
    state = state_of(store, descriptors(ttl(event_time=True))[0])
    store.keyed.set_current_key("a")
    state.update(1)
    clock.ms += 10 * TTL_MS
    assert state.value() == 1  # No event time yet.
    store.keyed.time.on_watermark(5_000)
    swept(store, clock)
    store.keyed.time.on_watermark(MAX_WATERMARK_MS)
    assert state.value() == 1
    store.keyed.time.on_watermark(5_000 + TTL_MS)
    assert state.value() is None


def test_an_undone_record_touches_nothing() -> None:
    clock = HandClock()
    store = opened(clock)
    changes = store.record_changes()
    states = {d.name: state_of(store, d) for d in descriptors(ttl(on_read=True))}
    store.keyed.set_current_key("a")
    for name, put in (("value", 1), ("basket", [1])):
        states[name].update(put)
    states["map"].put("x", 1)
    states["list"].add(1)
    changes.keep()
    clock.ms += 600
    assert states["value"].value() == 1
    assert states["basket"].value() == [1]
    assert states["map"].get("x") == 1
    assert states["list"].get() == [1]
    changes.undo()
    clock.ms += 400
    assert store.values_of("a") == {}


def test_keys_stay_with_their_group() -> None:
    """A rescale hands each subtask the entries of its keys, with their times."""
    clock = HandClock()
    store = opened(clock)
    state = state_of(store, descriptors(ttl())[0])
    for key in range(20):
        store.keyed.set_current_key(key)
        state.update(key)
    clock.ms += 500
    handles = written(store.freeze(CheckpointId(1)))
    seen = {}
    for index in (0, 1, 2):
        part = opened(clock, handles, index=index, parallelism=3)
        state_of(part, descriptors(ttl())[0])
        owned = [k for k in range(20) if key_group(k, GROUPS) in part.key_groups]
        seen |= {key: part.values_of(key)["value"] for key in owned}
        later = HandClock(clock.ms + 500)
        expired = opened(later, handles, index=index, parallelism=3)
        state_of(expired, descriptors(ttl())[0])
        assert all(not expired.values_of(key) for key in owned)
    assert seen == {key: key for key in range(20)}
