"""Incremental checkpoints of columnar tables: the rows that changed, now and then all of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.state.backends.test_increments import HEAP, LAYOUT, ROCKS, opened, writer
from weir.cli.inspect import valid_rows
from weir.config import StateConfig
from weir.ids import CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.protocol.restore import CHANGES, WHOLE
from weir.state.chains import TABLE_FILES_LONG
from weir.state.columns import changed_rows, table
from weir.state.columns.table import ColumnarTable
from weir.state.store import OperatorStateStore
from weir.storage.memory import MemoryStore

ROWS = 200_000  # Several chunks.
COLUMNS = {"n": np.int64, "half": np.float64}
ROW_BYTES = 26  # Of columns, key and key group.


class Line:
    """One subtask's table and its checkpoints, each of which completes unless it is aborted."""

    def __init__(self, key_type: pa.DataType | None, config: StateConfig = ROCKS) -> None:
        self.key_type, self.store = key_type, MemoryStore()
        self.number = self.base = CheckpointId(0)
        self.handles: tuple[StateHandle, ...] = ()
        self.subtask = opened(config, self.store, {}, 1, 0, 1)

    @property
    def table(self) -> ColumnarTable:
        return self.subtask.table("rows", self.key_type, COLUMNS)

    def put(self, keys: Any, n: int) -> None:
        slots = self.table.slots_of(pa.array(keys, self.key_type))
        self.table.column("n").scatter(slots, n)
        self.table.column("half").scatter(slots, n / 2)

    def checkpoint(self, *, completes: bool = True, meanwhile: Any = None) -> list[StateHandle]:
        """The files of the table."""
        self.number = CheckpointId(self.number + 1)
        parts = self.subtask.freeze(self.number, self.base)
        if meanwhile is not None:
            self.put(*meanwhile)
        out = writer(self.store, self.number)
        handles = tuple(handle for part in parts for handle in part.write(out))
        for part in parts:
            part.release()
        if completes:
            self.handles, self.base = handles, self.number
        return [handle for handle in handles if handle.name == "table.rows"]

    def new_bytes(self, files: list[StateHandle]) -> int:
        of_this = f"shared/1-{self.number}/"
        return sum(file.size for file in files if str(file.path).startswith(of_this))

    def restored(self, config: StateConfig = HEAP) -> OperatorStateStore:
        return opened(config, self.store, {0: self.handles}, 1, 0, 1, self.base)

    def go_on(self) -> None:
        """A new attempt, from the newest checkpoint."""
        self.subtask.close()
        self.subtask = self.restored(ROCKS)


def values_of(store: OperatorStateStore, key_type: pa.DataType | None) -> dict[Any, Any]:
    table = store.table("rows", key_type, COLUMNS)
    slots = np.arange(1, table.rows)
    slots = np.append(slots, 0) if len(table) == table.rows else slots
    keys = table.keys_of(slots)
    known = keys if isinstance(keys, list) else keys.to_pylist()
    n, half = (table.column(name).gather(slots).tolist() for name in COLUMNS)
    assert half == [value / 2 for value in n]
    return dict(zip(known, n, strict=True))


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line(pa.int64())
    yield made
    made.subtask.close()


def test_an_increment_has_the_rows_that_changed(line: Line) -> None:
    line.put(range(ROWS), 0)
    whole = line.new_bytes(line.checkpoint())
    values, sizes = dict.fromkeys(range(ROWS), 0), []
    for n in range(1, 61):
        changed = range(n, ROWS, 100)
        line.put(changed, n)
        values |= dict.fromkeys(changed, n)
        sizes.append(line.new_bytes(line.checkpoint()))
        if n == 7:
            line.go_on()
    anew = [size for size in sizes if size > whole / 2]
    assert len(anew) == 1, "written anew once its changes had half of its bytes"
    assert sum(sizes) / len(sizes) < whole / 20
    assert max(size for size in sizes if size not in anew) < whole / 60
    assert values_of(line.restored(), pa.int64()) == values
    assert line.new_bytes(line.checkpoint()) == 0, "nothing has changed"


def test_few_changes_are_in_so_many_files_and_no_more(line: Line) -> None:
    line.put(range(ROWS), 0)
    line.checkpoint()
    counts = []
    for n in range(1, TABLE_FILES_LONG + 4):
        line.put([n], n)
        counts.append(sum(file.mode == CHANGES for file in line.checkpoint()))
    assert max(counts) == TABLE_FILES_LONG
    assert counts[-1] < 5


def test_new_keys_and_the_null_key_are_changes(line: Line) -> None:
    line.put(range(1_000), 1)
    line.checkpoint()
    line.table.slots_of(pa.array([5_000, None], pa.int64()))  # Their values stay zero.
    assert [file.mode for file in line.checkpoint()] == [WHOLE, CHANGES]
    expected: dict[Any, int] = dict.fromkeys(range(1_000), 1) | {5_000: 0, None: 0}
    assert values_of(line.restored(), pa.int64()) == expected
    line.put([None], 3)
    line.checkpoint()
    assert values_of(line.restored(), pa.int64()) == expected | {None: 3}


@pytest.mark.parametrize("row", [0, 999, 1_000, 4_999])
def test_a_single_change_counts_wherever_it_is(
    line: Line, monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr(changed_rows, "_COUNTED_AT_ONCE", 1_000)
    line.put(range(5_000), 1)
    line.checkpoint()
    line.put([row], 2)
    line.checkpoint(completes=False)
    line.put([(row + 2_500) % 5_000], 3)
    assert [file.mode for file in line.checkpoint()] == [WHOLE, CHANGES]
    changed = {row: 2, (row + 2_500) % 5_000: 3}
    assert values_of(line.restored(), pa.int64()) == dict.fromkeys(range(5_000), 1) | changed


@pytest.mark.parametrize("key_type", [pa.string(), None], ids=str)
def test_keys_of_any_type(key_type: pa.DataType | None) -> None:
    line = Line(key_type)
    line.put([f"key {n}" for n in range(20_000)], 1)
    line.checkpoint()
    line.put([f"key {n}" for n in range(0, 20_000, 7)], 2)
    assert [file.mode for file in line.checkpoint()] == [WHOLE, CHANGES]
    assert values_of(line.restored(), key_type) == {
        f"key {n}": 1 if n % 7 else 2 for n in range(20_000)
    }
    line.subtask.close()


def test_the_last_changed_key_may_be_of_another_type() -> None:
    line = Line(None)
    line.put([1, 2, 3], 1)
    line.checkpoint()
    line.table.slots_of([1, "last"])  # Its values stay zero.
    line.put([1], 2)
    files = line.checkpoint(meanwhile=([1], 9))  # Values of a barrier are read once.
    assert [file.mode for file in files] == [WHOLE, CHANGES]
    assert values_of(line.restored(), None) == {1: 2, 2: 1, 3: 1, "last": 0}
    line.subtask.close()


def test_changes_of_a_checkpoint_that_came_to_nothing_are_in_the_next(line: Line) -> None:
    line.put(range(ROWS), 0)
    line.checkpoint()
    line.put([1], 1)
    line.checkpoint(completes=False)
    line.put([2], 2)
    files = line.checkpoint()
    assert [file.mode for file in files] == [WHOLE, CHANGES]
    restored = values_of(line.restored(), pa.int64())
    assert (restored[1], restored[2]) == (1, 2)


def test_what_is_written_behind_the_barrier_is_in_the_next_checkpoint_alone(line: Line) -> None:
    line.put(range(ROWS), 0)
    line.checkpoint()
    line.put([1, ROWS - 1], 1)
    line.checkpoint(meanwhile=(range(ROWS), 9))
    changed = {1: 1, ROWS - 1: 1}
    assert values_of(line.restored(), pa.int64()) == dict.fromkeys(range(ROWS), 0) | changed
    line.put([1], 1)
    line.checkpoint(meanwhile=(range(2 * ROWS), 8))  # The columns grow.
    assert values_of(line.restored(), pa.int64()) == dict.fromkeys(range(ROWS), 9) | {1: 1}
    line.checkpoint()
    assert values_of(line.restored(), pa.int64()) == dict.fromkeys(range(2 * ROWS), 8)


@pytest.mark.parametrize("at_once", [1, 2, 16])
@pytest.mark.parametrize("meanwhile", [(), (1,), (70_000, 199_999), range(ROWS)], ids=len)
def test_changes_of_several_chunks_are_those_at_the_barrier(
    line: Line, monkeypatch: pytest.MonkeyPatch, at_once: int, meanwhile: Sequence[int]
) -> None:
    """However many chunks are read in one go, and whichever are written to beside it."""
    monkeypatch.setattr(table, "BYTES_AT_ONCE", at_once * table.CHUNK_ROWS * ROW_BYTES)
    line.put(range(ROWS), 0)
    line.checkpoint()
    changed = range(0, ROWS, 3)
    line.put(changed, 1)
    files = line.checkpoint(meanwhile=(meanwhile, 9))
    assert [file.mode for file in files] == [WHOLE, CHANGES]
    expected = dict.fromkeys(range(ROWS), 0) | dict.fromkeys(changed, 1)
    assert values_of(line.restored(), pa.int64()) == expected
    line.checkpoint()
    expected |= dict.fromkeys(meanwhile, 9)
    assert values_of(line.restored(), pa.int64()) == expected


def test_changes_are_stored_in_batches_no_longer_than_a_chunk(line: Line) -> None:
    """A restore looks up the keys of a batch at once, which takes memory."""
    line.put(range(ROWS), 0)
    line.checkpoint()
    changed = range(0, ROWS, 2)
    line.put(changed, 1)
    file = line.checkpoint()[-1]
    assert file.mode == CHANGES
    data = line.store.read(f"{LAYOUT.directory}/{file.path}")
    reader = pa.ipc.open_file(data)
    lengths = [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)]
    assert sum(lengths) == len(changed)
    assert max(lengths) == table.CHUNK_ROWS


def test_a_small_table_is_whole_in_each_checkpoint(line: Line) -> None:
    line.put(range(10), 1)
    first = line.subtask.freeze(CheckpointId(1), CheckpointId(0))
    out = writer(line.store, CheckpointId(1), inline_max=1 << 16)
    (handle,) = (h for part in first for h in part.write(out))
    assert (handle.mode, handle.path) == (None, None)


def test_a_changed_type_is_written_whole(line: Line) -> None:
    line.put(range(1_000), 1)
    line.checkpoint()
    line.go_on()
    wider = line.subtask.table("rows", pa.int64(), COLUMNS | {"new": np.int64})
    wider.column("new").scatter(wider.slots_of(pa.array([3])), 7)
    assert [file.mode for file in line.checkpoint()] == [WHOLE]
    wider.column("n").scatter(wider.slots_of(pa.array([5])), 8)
    wider.column("half").scatter(wider.slots_of(pa.array([5])), 4.0)
    line.checkpoint()
    restored = line.restored().table("rows", pa.int64(), wider.dtypes)
    slots = restored.slots_of(pa.array([3, 4, 5]))
    assert restored.column("n").gather(slots).tolist() == [1, 1, 8]
    assert restored.column("new").gather(slots).tolist() == [7, 0, 0]


def test_checkpoints_that_have_no_files_share_nothing(line: Line) -> None:
    line.put(range(1_000), 1)
    for number in (1, 2):
        parts = line.subtask.freeze(CheckpointId(number), CheckpointId(number - 1))
        out = writer(line.store, CheckpointId(number), inline_max=None)
        (handle,) = (handle for part in parts for handle in part.write(out))
        assert (handle.mode, handle.path) == (None, None)


def test_a_backend_without_increments_notes_nothing() -> None:
    line = Line(pa.int64(), HEAP)
    line.put(range(1_000), 1)
    line.checkpoint()
    line.put([1], 2)
    (file,) = line.checkpoint()
    assert file.mode is None


def test_inspect_shows_a_tables_columns_whatever_their_names() -> None:
    store = opened(HEAP, MemoryStore(), {}, 1, 0, 1)
    table = store.table("rows", pa.int64(), {"adds": np.int64, "removed": np.int64})
    table.column("adds").scatter(table.slots_of(pa.array([7])), 1)
    part = store.freeze(CheckpointId(1), None)[-1]
    files = part.write(writer(own := MemoryStore(), CheckpointId(1), inline_max=None))
    (row,) = valid_rows(own, LAYOUT.directory, SubtaskId(OperatorId("op"), 0), files)
    assert (row.values["adds"], row.values["removed"]) == (1, 0)
    store.close()


def test_inspect_shows_each_row_once(line: Line) -> None:
    line.put(range(2_000), 1)
    line.checkpoint()
    line.put([5, 6], 2)
    files = line.checkpoint()
    rows = list(valid_rows(line.store, LAYOUT.directory, SubtaskId(OperatorId("op"), 0), files))
    assert {row.values["key"]: row.values["n"] for row in rows} == {
        n: 2 if n in (5, 6) else 1 for n in range(2_000)
    }
    assert len(rows) == 2_000
