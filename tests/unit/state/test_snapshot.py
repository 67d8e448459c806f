"""Snapshots of keyed state: stored, damaged, rescaled, restored."""

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.state.snapshots import JOB, ONE, Subtask, due, snapshot_writer
from weir.common.row import Row
from weir.common.typeinfo import Types
from weir.errors import CorruptStateError, RestoreError, SchemaError
from weir.graph.key_groups import key_group, operator_index
from weir.ids import StateHandle
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from weir.state.snapshot import KeyedPart, restore
from weir.state.state_files import FORMAT_VERSION
from weir.state.timers import Timer
from weir.storage.layout import in_job
from weir.storage.local import LocalStore
from weir.storage.manifest import read_handle
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore
from weir.storage.writer import SnapshotCancelled

VALUE = ValueStateDescriptor("value", Types.LONG())
LIST = ListStateDescriptor("list", Types.STRING())
MAP = MapStateDescriptor("map", Types.STRING(), Types.DOUBLE())
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG())
MEAN = AggregatingStateDescriptor("mean", None, Types.TUPLE([Types.DOUBLE(), Types.LONG()]))
ROW = ValueStateDescriptor(
    "row", Types.ROW_NAMED(["at", "tags"], [Types.INSTANT(), Types.LIST(Types.STRING())])
)
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)


def put(subtask: Subtask, key: Any, number: int) -> None:
    keyed = subtask.keyed
    keyed.set_current_key(key)
    keyed.get_state(VALUE).update(number)
    keyed.get_list_state(LIST).add_all([str(number), str(number + 1)])
    keyed.get_map_state(MAP).put_all({"a": number / 2, "b": 0.5})
    keyed.get_reducing_state(SUM).add(number)
    keyed.get_state(ROW).update(
        Row(at=NOON + dt.timedelta(seconds=number), tags=["x", str(number)])
    )
    subtask.timers.event_time.register(number, key, (number, number + 60))
    subtask.timers.processing_time.register(number + 1, key)


def read(subtask: Subtask, key: Any) -> list[Any]:
    keyed = subtask.keyed
    keyed.set_current_key(key)
    return [
        keyed.get_state(VALUE).value(),
        keyed.get_list_state(LIST).get(),
        dict(keyed.get_map_state(MAP).items()),
        keyed.get_reducing_state(SUM).get(),
        keyed.get_state(ROW).value(),
    ]


def expected(number: int) -> list[Any]:
    return [
        number,
        [str(number), str(number + 1)],
        {"a": number / 2, "b": 0.5},
        number,
        Row(at=NOON + dt.timedelta(seconds=number), tags=["x", str(number)]),
    ]


KEYS: dict[str, list[Any]] = {
    "int": list(range(-50, 50)),
    "str": [f"N{number}" for number in range(100)],
    "date": [dt.date(2013, 1, 1) + dt.timedelta(days=number) for number in range(40)],
    "tuple": [(number, str(number)) for number in range(40)],
    "bytes": [bytes([number]) for number in range(40)],
    "huge": [2**70 + number for number in range(20)],
    "mixed": [None, 1, True, 1.0, "1", b"1", (1,), NOON],
}


@pytest.mark.parametrize("inline_max", [0, 20_000, None], ids=["files", "mixed", "inline"])
@pytest.mark.parametrize("kind", KEYS)
def test_everything_comes_back_after_rescaling_from_one_to_three_to_two(
    kind: str, inline_max: int | None
) -> None:
    store, keys = MemoryStore(), KEYS[kind]
    one = Subtask()
    for number, key in enumerate(keys):
        put(one, key, number)
    handles = one.snapshot(snapshot_writer(store, inline_max=inline_max))
    for parallelism in (3, 2):
        subtasks = [Subtask(index, parallelism) for index in range(parallelism)]
        for subtask in subtasks:
            subtask.restore(store, handles)
        keys_read = 0
        for number, key in enumerate(keys):
            owner = subtasks[operator_index(_group(key), 16, parallelism)]
            assert read(owner, key) == expected(number)
            keys_read += 1
        assert sum(len(list(s.keyed.keys("value"))) for s in subtasks) == keys_read == len(keys)
        fired = [t for s in subtasks for t in due(s.timers.event_time, 10**6)]
        wanted = [Timer(n, key, (n, n + 60)) for n, key in enumerate(keys)]
        assert sorted(fired, key=lambda t: t.timestamp_ms) == wanted
        assert sum(len(s.timers.processing_time) for s in subtasks) == len(keys)
        for number, key in enumerate(keys):  # What fired above is needed in the next round.
            owner = subtasks[operator_index(_group(key), 16, parallelism)]
            owner.timers.event_time.register(number, key, (number, number + 60))
        handles = [
            handle
            for subtask in subtasks
            for handle in subtask.snapshot(
                snapshot_writer(store, subtask.index + 10 * parallelism, inline_max=inline_max)
            )
        ]


def _group(key: Any) -> int:
    return key_group(key, 16)


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (pa.int64(), [*range(-30, 60)]),
        (pa.int64(), [None, *range(60)]),
        (pa.int16(), [*range(40)]),
        (pa.int64(), [None]),
        (pa.string(), ["", None, *map(str, range(60))]),
        (pa.string(), [*map(str, range(60))]),
        (pa.date32(), [dt.date(2013, 1, day) for day in range(1, 31)]),
        (None, [(1, "a"), (2, None), None, 1, True, "1"]),
    ],
)
def test_a_table_comes_back_after_rescaling(key_type: pa.DataType | None, keys: list[Any]) -> None:
    columns = {"n": "int64", "mean": "float32", "seen": "bool", "at": "datetime64[ms]"}
    store = MemoryStore()

    def given_as(values: list[Any]) -> Any:
        return values if key_type is None else pa.array(values, key_type)

    one = Subtask()
    table = one.table("t", key_type, columns)
    slots = table.slots_of(given_as(keys))
    numbers = np.arange(len(keys))
    table.column("n").scatter(slots, numbers)
    table.column("mean").scatter(slots, numbers / 2)
    table.column("seen").scatter(slots, numbers % 2 == 1)
    table.column("at").scatter(slots, numbers.astype("datetime64[ms]"))
    handles = one.snapshot(snapshot_writer(store))
    for parallelism in (3, 2, 1):
        subtasks = [Subtask(index, parallelism) for index in range(parallelism)]
        for subtask in subtasks:
            subtask.restore(store, handles)
        assert sum(len(s.tables["t"]) for s in subtasks) == len(keys)
        for subtask in subtasks:
            restored = subtask.tables["t"]
            restored.expect(key_type, columns)
            mine = [n for n, key in enumerate(keys) if _group(key) in subtask.key_groups]
            at = restored.slots_of(given_as([keys[n] for n in mine]))
            assert restored.column("n").gather(at).tolist() == mine
            assert restored.column("mean").gather(at).tolist() == [n / 2 for n in mine]
            assert restored.column("seen").gather(at).tolist() == [n % 2 == 1 for n in mine]
            assert restored.column("at").gather(at).astype(np.int64).tolist() == mine
        handles = [
            handle
            for subtask in subtasks
            for handle in subtask.snapshot(
                snapshot_writer(store, subtask.index + 10 * parallelism, inline_max=0)
            )
        ]


@given(st.dictionaries(st.integers() | st.text(max_size=3), st.lists(st.text(max_size=2))))
def test_any_lists_come_back(held: dict[Any, list[str]]) -> None:
    one, two, store = Subtask(), Subtask(), MemoryStore()
    for key, values in held.items():
        one.keyed.set_current_key(key)
        one.keyed.get_list_state(LIST).update(values)
    two.restore(store, one.snapshot(snapshot_writer(store)))
    for key, values in held.items():
        two.keyed.set_current_key(key)
        assert two.keyed.get_list_state(LIST).get() == values


def test_a_stored_state_is_read_without_weir() -> None:
    one, store = Subtask(), MemoryStore()
    for number, key in enumerate(KEYS["str"]):
        put(one, key, number)
    handles = {h.name: h for h in one.snapshot(snapshot_writer(store, inline_max=0))}
    assert set(handles) == {
        "state.value",
        "state.list",
        "state.map",
        "state.sum",
        "state.row",
        "timers",
    }
    path = handles["state.value"].path
    assert path is not None
    table = pa.ipc.open_file(pa.py_buffer(store.read(in_job(JOB, path)))).read_all()
    assert table.schema.names == ["key_group", "key", "value"]
    assert table.schema.field("key").type == pa.string()
    groups = table["key_group"].to_pylist()
    assert groups == sorted(groups)
    rows = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert rows == {key: number for number, key in enumerate(KEYS["str"])}


def test_what_changes_while_a_snapshot_is_written_is_not_in_it() -> None:
    """The loop goes on changing every key while the snapshot thread writes."""
    one, store = Subtask(), MemoryStore()
    state = one.keyed.get_state(VALUE)
    keys = range(30_000)

    def write_all(number: int) -> None:
        for key in keys:
            one.keyed.set_current_key_and_group(key, key % 16)
            state.update(number)

    write_all(1)
    part = KeyedPart(one.keyed.freeze(ONE))
    handles: list[StateHandle] = []
    writer = snapshot_writer(store)
    thread = threading.Thread(target=lambda: handles.extend(part.write(writer)))
    thread.start()
    number = 1
    while number == 1 or thread.is_alive():  # Once at least, though the thread may be quick.
        number += 1
        write_all(number)
    thread.join()
    part.release()
    two = Subtask()
    two.restore(store, handles)
    restored = two.keyed.restored_table("value", "value", Types.LONG())
    assert len(restored) == len(keys)
    assert {value for table in restored.tables for value in table.values()} == {1}


@pytest.mark.parametrize("inline_max", [0, 20_000, None], ids=["files", "mixed", "inline"])
@pytest.mark.parametrize(
    "odd", [map(str, range(99)), (2**70 + n for n in range(99)), ((n,) for n in range(99))]
)
def test_a_late_key_of_another_type_loses_nothing(odd: Any, inline_max: int | None) -> None:
    """All keys look alike until the last group; by then the loop has changed every value."""
    keys = [key for key in range(20_000) if _group(key) < 15]
    late = next(key for key in odd if _group(key) == 15)
    one, store = Subtask(), MemoryStore()
    value = one.keyed.get_state(VALUE)
    for number, key in enumerate([*keys, late]):
        one.keyed.set_current_key(key)
        value.update(number)
        one.timers.event_time.register(number, key)
    asked = 0

    def change() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            for key in [*keys, late]:
                one.keyed.set_current_key(key)
                value.update(-1)
        return False

    handles = one.snapshot(snapshot_writer(store, inline_max=inline_max, cancelled=change))
    assert len(store.list()) == sum(handle.path is not None for handle in handles)
    for handle in handles:
        stored = pa.ipc.open_file(pa.py_buffer(read_handle(store, JOB, handle))).read_all()
        assert stored.schema.field("key").type == pa.binary()
        assert len(stored) == len(keys) + 1
    two = Subtask()
    two.restore(store, handles)
    restored = two.keyed.get_state(VALUE)
    for number, key in enumerate([*keys, late]):
        two.keyed.set_current_key(key)
        assert restored.value() == number
    fired = due(two.timers.event_time, 10**6)
    assert [timer.key for timer in fired] == [*keys, late]


def test_a_stored_table_lies_as_in_memory_and_is_read_without_weir() -> None:
    one, store = Subtask(), MemoryStore()
    table, keys = one.table("t", pa.int64(), {"n": "int64"}), list(range(100, 0, -1))
    table.column("n").scatter(table.slots_of(pa.array(keys)), np.arange(100))
    (handle,) = one.snapshot(snapshot_writer(store))
    stored = pa.ipc.open_file(pa.py_buffer(read_handle(store, JOB, handle))).read_all()
    assert stored.to_pydict() == {
        "key_group": [_group(key) for key in keys],
        "key": keys,
        "n": list(range(100)),
    }


def test_an_empty_state_stores_nothing() -> None:
    one = Subtask()
    one.keyed.get_state(VALUE)
    one.table("t", pa.int64(), {"n": "int64"})
    assert one.snapshot(snapshot_writer(MemoryStore())) == []


@pytest.fixture
def local(tmp_path: Path) -> CheckpointStore:
    return LocalStore(tmp_path)


def full(store: CheckpointStore) -> list[StateHandle]:
    one = Subtask()
    for number in range(500):
        put(one, number, number)
    return one.snapshot(snapshot_writer(store, inline_max=0))


def test_a_damaged_state_file_is_noticed(local: CheckpointStore) -> None:
    handles = full(local)
    path = in_job(JOB, handles[0].path or "")
    data = bytearray(local.read(path))
    data[len(data) // 2] ^= 1
    local.put(path, bytes(data))
    with pytest.raises(CorruptStateError, match="checksum"):
        Subtask().restore(local, handles)


def test_bytes_that_are_no_state_are_corrupt() -> None:
    store = MemoryStore()
    handles = full(store)
    whole = store.read(in_job(JOB, handles[0].path or ""))
    plain = pa.BufferOutputStream()
    with pa.ipc.new_file(plain, pa.schema([("a", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch({"a": [1]}))
    target = Subtask()
    for data in (b"", b"ARROW1", whole[: len(whole) // 2], plain.getvalue().to_pybytes()):
        with pytest.raises(CorruptStateError, match="another checkpoint"):
            restore(data, target.key_groups, target)


def test_state_of_a_newer_format_is_refused_by_its_version() -> None:
    store = MemoryStore()
    table = pa.ipc.open_file(store.read(in_job(JOB, full(store)[0].path or ""))).read_all()
    named = {**table.schema.metadata, b"weir.version": str(FORMAT_VERSION + 1).encode()}
    newer, target = pa.BufferOutputStream(), Subtask()
    with pa.ipc.new_file(newer, table.schema.with_metadata(named)) as stream:
        stream.write_table(table)
    with pytest.raises(RestoreError, match=f"version {FORMAT_VERSION + 1}.*up to version"):
        restore(newer.getvalue().to_pybytes(), target.key_groups, target)


def test_a_cancelled_snapshot_stops_and_leaves_no_file(local: CheckpointStore) -> None:
    one = Subtask()
    for number in range(20_000):
        one.keyed.set_current_key(number)
        one.keyed.get_state(VALUE).update(number)
    asked = iter([False, False, True])
    writer = snapshot_writer(local, inline_max=0, cancelled=lambda: next(asked))
    part = KeyedPart(one.keyed.freeze(ONE))
    with pytest.raises(SnapshotCancelled):
        part.write(writer)
    part.release()
    writer.discard()
    assert local.list() == []


def test_pickled_state_is_restored_only_with_consent() -> None:
    pickled = ValueStateDescriptor("any", Types.PICKLED_BYTE_ARRAY())
    one, store = Subtask(), MemoryStore()
    one.keyed.set_current_key(1)
    one.keyed.get_state(pickled).update({1, 2})
    handles = one.snapshot(snapshot_writer(store))
    with pytest.raises(RestoreError, match=r"'any' holds pickles.*--allow-pickled-state"):
        Subtask().restore(store, handles)
    two = Subtask()
    two.restore(store, handles, pickles=True)
    two.keyed.set_current_key(1)
    assert two.keyed.get_state(pickled).value() == {1, 2}


def test_a_value_that_does_not_fit_its_type_is_refused_when_it_is_put() -> None:
    one = Subtask()
    one.keyed.set_current_key(1)
    with pytest.raises(SchemaError, match=r"state 'value': 'text' of type str does not fit LONG"):
        one.keyed.get_state(VALUE).update("text")


def test_a_program_that_declares_another_type_is_refused() -> None:
    store = MemoryStore()
    handles = full(store)
    two = Subtask()
    two.restore(store, handles)
    with pytest.raises(RestoreError, match=r"value of LONG in the checkpoint.*value of STRING"):
        two.keyed.get_state(ValueStateDescriptor("value", Types.STRING()))
    with pytest.raises(RestoreError, match="new name"):
        two.keyed.get_list_state(ListStateDescriptor("value", Types.LONG()))


def test_another_max_parallelism_is_refused() -> None:
    store = MemoryStore()
    handles = full(store)
    with pytest.raises(RestoreError, match="max parallelism 16, the job has 32"):
        Subtask(groups=32).restore(store, handles)


def test_restored_state_that_is_not_asked_for_stays_in_the_next_snapshot() -> None:
    store = MemoryStore()
    two, three = Subtask(), Subtask()
    two.restore(store, full(store))
    three.restore(store, two.snapshot(snapshot_writer(store, 2, inline_max=0)))
    assert read(three, 7) == expected(7)


def test_an_accumulator_comes_back() -> None:
    class Mean:
        def create_accumulator(self) -> tuple[float, int]:
            return 0.0, 0

        def add(self, value: float, held: tuple[float, int]) -> tuple[float, int]:
            return held[0] + value, held[1] + 1

        def get_result(self, held: tuple[float, int]) -> float:
            return held[0] / held[1]

    mean = AggregatingStateDescriptor("mean", Mean(), MEAN.type_info)
    one, two, store = Subtask(), Subtask(), MemoryStore()
    one.keyed.set_current_key("k")
    one.keyed.get_aggregating_state(mean).add(1.0)
    one.keyed.get_aggregating_state(mean).add(2.0)
    two.restore(store, one.snapshot(snapshot_writer(store)))
    two.keyed.set_current_key("k")
    state = two.keyed.get_aggregating_state(mean)
    state.add(6.0)
    assert state.get() == 3.0


def test_state_too_long_for_a_file_is_written_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore holds one file in memory, and a storage need not read more than that at once."""
    monkeypatch.setattr("weir.state.state_files.FILE_BYTES", 20_000)
    monkeypatch.setattr("weir.storage.manifest._VERIFY_PIECE_BYTES", 7_000)
    monkeypatch.setattr("weir.storage.local.READ_BYTES_MAX", 10_000)
    store = LocalStore(tmp_path)
    subtask = Subtask()
    for key in range(5_000):
        put(subtask, key, key)
    put(subtask, "of another type", 1)  # So that some are begun anew.
    handles = subtask.snapshot(snapshot_writer(store, inline_max=0))
    names = [handle.name for handle in handles]
    assert names.count("state.value") > 1
    assert names.count("timers") > 1
    stored = [path for path in store.list(JOB) if "manifest" not in path]
    assert sorted(stored) == sorted(in_job(JOB, handle.path or "") for handle in handles)
    restored = Subtask()
    restored.restore(store, handles)
    for key in (0, 1, 2_500, 4_999, "of another type"):
        assert restored.keyed.values_of(key) == subtask.keyed.values_of(key)
        assert len(restored.keyed.values_of(key)) == 5
    assert sum(1 for _ in restored.keyed.keys("value")) == 5_001
