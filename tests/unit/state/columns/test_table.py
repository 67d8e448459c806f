"""Columnar keyed state: slots, columns, and views that never change."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.state.snapshots import ONE
from weir.errors import ConfigError, KeyTypeError, ProtocolError, RestoreError
from weir.graph.key_groups import key_group
from weir.ids import CheckpointId, KeyGroupRange
from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.columns.column import FrozenColumn
from weir.state.columns.table import ColumnarTable, FrozenColumns

ALL = KeyGroupRange(0, 15)


def table(key_type: pa.DataType | None, chunk_rows: int = 8, **columns: Any) -> ColumnarTable:
    return ColumnarTable(
        "t", key_type, columns or {"n": np.int64}, ALL, len(ALL), chunk_rows=chunk_rows
    )


@pytest.mark.parametrize(
    ("key_type", "first", "second"),
    [
        (pa.int64(), [5, -3, 5], [7, -3]),
        (pa.int32(), [5, -3, 5], [7, -3]),
        (pa.uint64(), [5, 2**64 - 1, 5], [7, 2**64 - 1]),
        (pa.string(), ["a", "", "a"], ["b", ""]),
        (pa.binary(), [b"a", b"", b"a"], [b"b", b""]),
        (pa.float64(), [1.5, -1.0, 1.5], [0.0, -1.0]),
        (pa.bool_(), [True, False, True], [True, False]),
        (pa.decimal128(9, 2), [1, 2, 1], [3, 2]),
    ],
)
def test_a_key_keeps_its_slot(key_type: pa.DataType, first: list[Any], second: list[Any]) -> None:
    made = table(key_type)
    slots = made.slots_of(pa.array(first, key_type))
    assert slots.dtype == np.int64
    assert slots[0] == slots[2] != slots[1]
    again = made.slots_of(pa.array(second, key_type))
    assert again[1] == slots[1]
    kept = pa.array([*first, *second], key_type)
    assert made.keys_of(np.concatenate([slots, again])).to_pylist() == kept.to_pylist()
    assert made.keys_of(slots).type == key_type
    assert len(made) == len(set(kept.to_pylist()))


@pytest.mark.parametrize("key_type", [pa.int64(), pa.string()], ids=str)
def test_null_is_a_key(key_type: pa.DataType) -> None:
    made = table(key_type)
    values = [None, "1", None] if key_type == pa.string() else [None, 1, None]
    slots = made.slots_of(pa.array(values, key_type))
    assert slots.tolist() == [0, 1, 0]
    assert len(made) == 2
    assert made.keys_of(slots).to_pylist() == values
    made.column("n").scatter(slots[:1], 7)
    assert made.column("n").gather(slots).tolist() == [7, 0, 7]


def test_numpy_arrays_dictionaries_and_chunks_are_keys_as_well() -> None:
    made = table(pa.int64())
    slots = made.slots_of(np.array([3, 1], np.int16))
    assert made.slots_of(pa.chunked_array([[1], [3]])).tolist() == slots[::-1].tolist()
    assert made.slots_of([3, 1]).tolist() == slots.tolist()
    texts = table(pa.string())
    coded = pa.array(["x", None, "y", "x"]).dictionary_encode()
    assert (
        texts.slots_of(coded).tolist() == texts.slots_of(pa.array(["x", None, "y", "x"])).tolist()
    )
    assert texts.slots_of(np.array(["y"])).tolist() == texts.slots_of(["y"]).tolist()


@pytest.mark.parametrize("key_type", [pa.int64(), pa.string(), None], ids=str)
def test_a_keys_values_are_looked_up_and_no_key_is_made_by_that(
    key_type: pa.DataType | None,
) -> None:
    made = table(key_type, n=np.int64, half=np.float64)
    keys: list[Any] = ["a", "b"] if key_type == pa.string() else [5, -(1 << 63)]
    slots = made.slots_of(keys)
    made.column("n").scatter(slots, [7, 8])
    made.column("half").scatter(slots, [3.5, 4.0])
    assert [made.values_of(key) for key in keys] == [{"n": 7, "half": 3.5}, {"n": 8, "half": 4.0}]
    others: list[Any] = [0, 1, "0", 1 << 63, True, None, (1, 2)]
    assert [made.values_of(key) for key in others] == [{}] * len(others)
    assert len(made) == 2


def test_python_keys_are_told_apart_as_everywhere() -> None:
    made = table(None)
    keys = [(1, "a"), (True, "a"), 1, True, None, "1", b"1", (1, "a")]
    slots = made.slots_of(keys)
    assert slots[0] == slots[-1]
    assert len(set(slots.tolist())) == len(keys) - 1
    assert made.keys_of(slots) == keys
    with pytest.raises(KeyTypeError, match="key_type"):
        made.slots_of([[1]])  # type: ignore[list-item]


def test_values_survive_growth() -> None:
    made = table(pa.int64(), n=np.int64, mean=np.float64, seen=np.bool_, at="datetime64[ms]")
    expected = {}
    rng = np.random.default_rng(1)
    for _ in range(30):
        keys = np.unique(rng.integers(-10_000, 10_000, 500))
        slots = made.slots_of(keys)
        made.column("n").scatter(slots, made.column("n").gather(slots) + keys)
        made.column("mean").scatter(slots, keys / 2)
        made.column("seen").scatter(slots, True)
        for key in keys.tolist():
            expected[key] = expected.get(key, 0) + key
    slots = made.slots_of(np.array(list(expected)))
    assert made.column("n").gather(slots).tolist() == list(expected.values())
    assert made.column("mean").gather(slots).tolist() == [key / 2 for key in expected]
    assert made.column("seen").gather(slots).all()
    assert len(made) == len(expected) == made.rows - 1


def test_a_new_key_is_zero_and_its_slot_is_at_or_above_the_rows_before() -> None:
    made = table(pa.int64())
    made.column("n").scatter(made.slots_of([1]), 5)
    before = made.rows
    slots = made.slots_of([2, 1])
    assert (slots >= before).tolist() == [True, False]
    assert made.column("n").gather(slots).tolist() == [0, 5]


@pytest.mark.parametrize("key_type", [pa.int64(), pa.string()], ids=str)
def test_a_key_of_another_subtask_is_refused(key_type: pa.DataType) -> None:
    made = ColumnarTable("t", key_type, {"n": np.int64}, KeyGroupRange(0, 3), 16)
    keys = pa.array(range(40)).cast(key_type)
    mine = [key for key in keys.to_pylist() if key_group(key, 16) <= 3]
    made.slots_of(pa.array(mine, key_type))
    with pytest.raises(ProtocolError, match="owns 0 to 3"):
        made.slots_of(keys)


def test_a_column_of_objects_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'n'"):
        table(pa.int64(), n=object)


def test_asking_for_other_columns_than_were_restored_is_refused() -> None:
    made = table(pa.int64())
    made.expect(pa.int64(), {"n": "int64"})
    with pytest.raises(RestoreError, match=r"n int64.*n float64"):
        made.expect(pa.int64(), {"n": np.float64})
    with pytest.raises(RestoreError, match="new name"):
        made.expect(pa.string(), {"n": np.int64})


def values_of(frozen: FrozenColumns) -> dict[int, int]:
    """By key the number of which all columns tell."""
    keys = [*frozen.keys[: frozen.rows - 1].tolist()]
    chunks = [[values.copy() for values in columns] for _, _, columns in frozen.chunks()]
    numbers = numbers_of([np.concatenate(column) for column in zip(*chunks, strict=True)])
    assert len(numbers) == frozen.rows
    return dict(zip(keys, numbers[1:], strict=True))


def numbers_of(columns: list[npt.NDArray[Any]]) -> list[int]:
    numbers, halves, is_odd = columns
    assert halves.tolist() == (numbers / 2).tolist()
    assert is_odd.tolist() == (numbers % 2 == 1).tolist()
    return numbers.tolist()


def all_values(frozen: FrozenColumns) -> npt.NDArray[Any]:
    return np.concatenate([values.copy() for _, _, (values,) in frozen.chunks()])


class FreezingColumns(RuleBasedStateMachine):
    """A frozen view holds what was there at the freeze, for all later writes and growth."""

    arrays: Arrays = HeapArrays()

    def __init__(self) -> None:
        super().__init__()
        columns = {"n": np.int64, "half": np.float32, "is_odd": np.bool_}
        self.table = ColumnarTable(
            "t", pa.int64(), columns, ALL, len(ALL), chunk_rows=4, arrays=self.arrays
        )
        self.model: dict[int, int] = {}
        self.views: list[tuple[FrozenColumns, dict[int, int]]] = []
        self.number = 0

    @rule(keys=st.sets(st.integers(0, 40), min_size=1, max_size=8))
    def write(self, keys: set[int]) -> None:
        self.number += 1
        slots = self.table.slots_of(sorted(keys))
        self.table.column("n").scatter(slots, self.number)
        self.table.column("half").scatter(slots, self.number / 2)
        self.table.column("is_odd").scatter(slots, self.number % 2)
        self.model |= dict.fromkeys(keys, self.number)

    @rule(start=st.integers(100, 5_000))
    def grow(self, start: int) -> None:
        self.write(set(range(start, start + 700)))

    @rule()
    def freeze(self) -> None:
        if len(self.views) < 3:
            self.views.append((self.table.freeze(ONE), dict(self.model)))

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        if self.views:
            frozen, expected = self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))
            assert values_of(frozen) == expected
            frozen.release()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.views:
            frozen, _ = self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))
            frozen.release()
            frozen.release()

    @invariant()
    def live_values_are_the_model(self) -> None:
        slots = self.table.slots_of(list(self.model))
        columns = [column.gather(slots) for column in self.table.columns.values()]
        assert numbers_of(columns) == list(self.model.values())

    def teardown(self) -> None:
        for frozen, expected in self.views:
            assert values_of(frozen) == expected


TestFreezingColumns = FreezingColumns.TestCase
TestFreezingColumns.settings = settings(deadline=None)


def test_a_view_taken_beside_a_writing_loop_is_consistent() -> None:
    """The snapshot thread takes chunks while the loop overwrites every one of them."""
    made = table(pa.int64(), chunk_rows=512)
    column, keys = made.column("n"), np.arange(20_000)
    slots = made.slots_of(keys)
    for number in range(30):
        column.scatter(slots, number)
        frozen = made.freeze(ONE)
        taken: list[Any] = []
        thread = threading.Thread(target=lambda f=frozen, t=taken: t.append(all_values(f)))
        thread.start()
        while thread.is_alive():
            column.scatter(slots, -1)
        thread.join()
        assert (taken[0][1:] == number).all()
        frozen.release()


def test_a_write_right_behind_a_chunk_that_was_taken_changes_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a whole view, and of one of changes: values are read before their chunk is let go."""
    made = ColumnarTable(
        "t", pa.int64(), {"n": np.int64}, ALL, len(ALL), chunk_rows=8, notes_changes=True
    )
    slots = made.slots_of(np.arange(100))
    made.column("n").scatter(slots, 1)
    made.freeze(ONE, CheckpointId(0)).release()
    made.column("n").scatter(slots, 2)
    taken, chunks = FrozenColumn._taken, []

    def let_go(view: FrozenColumn, chunk: int) -> Any:
        saved = taken(view, chunk)
        made.column("n").scatter(slots, 3)
        chunks.append(chunk)
        return saved

    monkeypatch.setattr(FrozenColumn, "_taken", let_go)
    frozen = made.freeze(CheckpointId(2), ONE)
    changed = [(rows.tolist(), values.tolist()) for rows, (values,) in frozen.changes()]
    assert [row for rows, _ in changed for row in rows] == slots.tolist()
    assert {value for _, values in changed for value in values} == {2}
    made.column("n").scatter(slots, 2)
    assert all_values(made.freeze(ONE))[1:].tolist() == [2] * 100
    assert len(chunks) == 26


@pytest.mark.parametrize(("columns", "chunks"), [(1, 4), (3, 2), (20, 1)])
def test_changes_that_are_read_together_are_no_more_than_some_bytes(
    monkeypatch: pytest.MonkeyPatch, columns: int, chunks: int
) -> None:
    """A chunk alone where its rows are wide: beside columns on disk it is memory all the same."""
    monkeypatch.setattr("weir.state.columns.table.BYTES_AT_ONCE", 4 * 8 * 18)
    kinds = {f"n{i}": np.int64 for i in range(columns)}
    made = ColumnarTable("t", pa.int64(), kinds, ALL, len(ALL), chunk_rows=8, notes_changes=True)
    slots = made.slots_of(np.arange(99))
    made.freeze(ONE, CheckpointId(0)).release()
    made.column("n0").scatter(slots, 1)
    frozen = made.freeze(CheckpointId(2), ONE)
    lengths = [len(rows) for rows, _ in frozen.changes()]
    assert sum(lengths) == 99
    assert max(lengths) == 8 * chunks
