"""Keyed state in columns, for aggregates that are computed over whole slices.

Every key has a dense row number, its *slot*; a value column is one NumPy array indexed by slot. So
a slice costs one look-up of its keys and a gather and a scatter per column.

Freezing is copy on write by chunk (``column``). Keys and their groups are only ever appended, so a
view simply keeps those arrays and their length.

Row 0 belongs to the null key and is empty where there is none.

Where checkpoints are incremental, the rows that are written to are noted by the interval between
two barriers (``weir.state.progress``), so that a checkpoint can read those alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import ConfigError, ProtocolError, RestoreError
from weir.graph.key_groups import Key, key_group
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.codec import key_groups_of, slot_key
from weir.state.columns.changed_rows import ChangedRows, Slots, changed_in, count_changed
from weir.state.columns.column import Column
from weir.state.columns.key_index import KeyIndex, Keys
from weir.state.columns.layout import ROWS_MIN, layout_in
from weir.state.progress import ONLY, Progress, Since

CHUNK_ROWS = 65_536
BYTES_AT_ONCE = 16 << 20  # Of chunks whose changes are read together, were all their rows changed.
_NULL_SLOT = 0


class ColumnarTable:
    """Value columns over the keys of one operator subtask."""

    def __init__(
        self,
        name: str,
        key_type: pa.DataType | None,
        columns: Mapping[str, npt.DTypeLike],
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        chunk_rows: int = CHUNK_ROWS,
        notes_changes: bool = False,
        arrays: Arrays | None = None,
    ) -> None:
        """An empty table; with ``key_type`` None keys are Python values of any key type.

        Args:
            notes_changes: Whether checkpoints may hold what changed.
            arrays: The arrays that it lies in; None: in memory.

        Raises:
            ConfigError: A column is of a type that has no fixed size.
        """
        for column, dtype in columns.items():
            if np.dtype(dtype).kind not in "biufmM":
                raise ConfigError(
                    f"column {column!r} of table {name!r} is of {np.dtype(dtype)}; columns hold "
                    "numbers, bools or times"
                )
        self.name = name
        self.key_type = key_type
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.arrays = arrays or HeapArrays()
        layout = layout_in(self.arrays, {key: np.dtype(dtype) for key, dtype in columns.items()})
        self.columns = {key: Column(key, layout, chunk_rows, self.arrays) for key in columns}
        self.chunk_rows = chunk_rows
        self._index = KeyIndex(key_type, self.arrays)
        self._has_null = False
        self._groups: npt.NDArray[np.uint16] = self.arrays.zeros(ROWS_MIN, np.uint16)
        self._groups[_NULL_SLOT] = key_group(None, max_parallelism)
        self._progress = self._new_progress() if notes_changes else None
        for made in self.columns.values():
            made.progress = self._progress

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._index) + self._has_null

    @property
    def rows(self) -> int:
        """One more than the highest slot given out so far: a slot at or above it is new."""
        return len(self._index) + 1

    @property
    def nbytes(self) -> int:
        """The bytes of memory that its keys and values take."""
        return self._index.nbytes + sum(column.nbytes for column in self.columns.values())

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The types of the columns, by name."""
        return {name: column.dtype for name, column in self.columns.items()}

    def expect(self, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]) -> None:
        """Check that this table, which may be restored, has the types that the program declares.

        Raises:
            RestoreError: Its key type or columns differ.
        """
        mine = self.dtypes
        wanted = {name: np.dtype(dtype) for name, dtype in columns.items()}
        if key_type != self.key_type or wanted != mine:
            raise RestoreError(
                f"table {self.name!r} has keys of {self.key_type} and columns {_listed(mine)}, but "
                f"the program declares keys of {key_type} and columns {_listed(wanted)}; keep the "
                "old types, or use a new name"
            )

    def evolved(
        self, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> "ColumnarTable":
        """The same keys with these columns: values as they were or widened, new columns zero.

        The types must be ones that ``weir.state.evolution`` maps. This table must not be changed
        any more; its views stay valid.

        Units: O(keys) for every column that is new or widened.
        """
        mine = self.dtypes
        other = {name: dtype for name, dtype in columns.items() if mine.get(name) != dtype}
        made = ColumnarTable(
            self.name, key_type, other, self.key_groups, self.max_parallelism,
            chunk_rows=self.chunk_rows, notes_changes=self._progress is not None,
            arrays=self.arrays,
        )  # fmt: skip
        made._index, made._groups = self._index, self._groups
        made._has_null = self._has_null
        made._progress = None if self._progress is None else made._new_progress()
        for name, column in made.columns.items():
            column.grow(self.rows)
            if name in self.columns:
                column.set_all(self.columns[name], self.rows)
        both = self.columns | made.columns
        made.columns = {name: both[name] for name in columns}
        for column in made.columns.values():
            column.progress = made._progress
        return made

    def slots_of(self, keys: Keys) -> Slots:
        """The slots of keys; a key not seen before gets a new one, whose values are zero.

        Shape: n keys -> n slots.

        Raises:
            KeyTypeError: A key has no canonical encoding.
            ProtocolError: A key belongs to another subtask.
        """
        before = len(self._index)
        slots = self._index.add(keys)
        if len(self._index) > before:
            new = self._index.take(np.arange(before + 1, self.rows))
            if isinstance(new, pa.Array):
                groups = key_groups_of([new], self.max_parallelism)
            else:
                groups = np.array([key_group(key, self.max_parallelism) for key in new], np.uint16)
            self._appended(groups)
        if not self._has_null and len(slots) and slots.min() == _NULL_SLOT:
            self._check(self._groups[:1])
            self._has_null = True
            self._note_new(_NULL_SLOT, _NULL_SLOT + 1)
        return slots

    def column(self, name: str) -> Column:
        """The value column of this name."""
        return self.columns[name]

    def keys_of(self, slots: Slots) -> pa.Array | list[Key]:
        """The keys of slots: an Arrow column, or a list where ``key_type`` is None.

        Shape: n slots -> n keys.
        """
        null = slots == _NULL_SLOT
        if not null.any():
            return self._typed(self._index.take(slots))
        keys: list[Key] = [None] * len(slots)
        taken = self._index.take(slots[~null])
        values = taken if isinstance(taken, list) else taken.to_pylist()
        for row, key in zip(np.flatnonzero(~null).tolist(), values, strict=True):
            keys[row] = key
        return self._typed(keys)

    def values_of(self, key: Key) -> dict[str, Any]:
        """A key's values by column; empty where the table does not have it."""
        slot = self._index.find(slot_key(key))
        if slot is None or (slot == _NULL_SLOT and not self._has_null):
            return {}
        row = np.array([slot])
        return {name: column.gather(row)[0].item() for name, column in self.columns.items()}

    def freeze(
        self, checkpoint_id: CheckpointId, base_id: CheckpointId | None = None
    ) -> "FrozenColumns":
        """A view of the table as it is now.

        Args:
            base_id: The completed checkpoint that this one may build on; 0: later ones may build on
                this one; None: neither.

        Units: O(columns x chunks), independent of the number of keys.
        """
        since = None
        if self._progress is not None and base_id is not None:
            self._progress.limit()
            since = self._progress.close(checkpoint_id, base_id)
        return FrozenColumns(checkpoint_id, self, since)

    def go_on_from(self, checkpoint_id: CheckpointId, files: Sequence[StateHandle]) -> None:
        """The table is as a checkpoint has it that the next may build on, with these files."""
        if self._progress is not None:
            self._progress.begin(checkpoint_id, {ONLY: files})

    def _new_progress(self) -> Progress[ChangedRows]:
        # Without the table itself: one that is dropped goes at once, and its files with it.
        index, arrays = self._index, self.arrays
        return Progress(lambda: ChangedRows(len(index) + 1, arrays))

    def view_parts(self) -> tuple[pa.Array, int, npt.NDArray[np.uint16], bool]:
        """Stored keys, rows, key groups and whether there is a null key: all append-only."""
        return self._index.stored(), self.rows, self._groups, self._has_null

    def _typed(self, keys: pa.Array | list[Key]) -> pa.Array | list[Key]:
        if self.key_type is None:
            return keys
        if isinstance(keys, pa.Array):
            return keys.cast(self.key_type)
        return pa.array(keys, self.key_type)

    def _appended(self, groups: npt.NDArray[np.uint16]) -> None:
        """Make room for the keys that the index has just added, and store their key groups."""
        self._check(groups)
        rows = self.rows
        if rows > len(self._groups):
            self._groups = self.arrays.grown(self._groups, rows)
        self._groups[rows - len(groups) : rows] = groups
        for column in self.columns.values():
            column.grow(rows)
        self._note_new(rows - len(groups), rows)

    def _note_new(self, start: int, end: int) -> None:
        if self._progress is not None and (changed := self._progress.now) is not None:
            changed.append(start, end)

    def _check(self, groups: npt.NDArray[np.uint16]) -> None:
        owned = self.key_groups
        if len(groups) and not (owned.first <= groups.min() and groups.max() <= owned.last):
            raise ProtocolError(
                f"table {self.name!r} got keys of key groups {groups.min()} to {groups.max()}, its "
                f"subtask owns {owned.first} to {owned.last}"
            )


class FrozenColumns:
    """A columnar table as it was at a barrier; safe to read from another thread."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        table: ColumnarTable,
        since: Since[ChangedRows] | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.since = since  # None: all is to be written.
        self.name = table.name
        self.key_type = table.key_type
        self.key_groups = table.key_groups
        self.max_parallelism = table.max_parallelism
        self.keys, self.rows, self.groups, self.has_null = table.view_parts()
        self.columns = {name: column.freeze(self.rows) for name, column in table.columns.items()}
        self._chunk_rows = table.chunk_rows
        self._table: ColumnarTable | None = table

    def __len__(self) -> int:
        return self.rows - 1 + self.has_null

    @property
    def nbytes(self) -> int:
        """About the bytes of its keys and values, as they are stored."""
        return self.rows * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return 10 + sum(column.dtype.itemsize for column in self.columns.values())

    @property
    def base(self) -> Sequence[StateHandle]:
        """The shared files of the checkpoint that this one may build on; empty: there are none."""
        return () if self.since is None else self.since.files.get(ONLY, ())

    @property
    def changed(self) -> int:
        """The number of rows that changed since that checkpoint. Units: O(rows)."""
        assert self.since is not None
        return count_changed(self.since.intervals, self.rows)

    def changed_rows(self) -> Iterator[Slots]:
        """The rows that changed since that checkpoint, ascending, some chunks at a time.

        Units: O(rows).
        """
        assert self.since is not None
        for chunks in self._chunks_at_once():
            start, end = chunks.start * self._chunk_rows, chunks.stop * self._chunk_rows
            yield changed_in(self.since.intervals, start, end)

    def _chunks_at_once(self) -> Iterator[range]:
        """The numbers of all chunks, those together whose changes are read in one go."""
        chunks = range(-(-self.rows // self._chunk_rows))
        at_once = max(1, BYTES_AT_ONCE // (self._chunk_rows * self._row_bytes))
        return (chunks[at : at + at_once] for at in chunks[::at_once])

    def stored(self, handles: Sequence[StateHandle]) -> None:
        """The shared files of this checkpoint, for later ones to build on; empty: it has none."""
        if self.since is not None:
            self.since.store(ONLY, handles)

    def changes(self) -> Iterator[tuple[Slots, list[npt.NDArray[Any]]]]:
        """The changed rows, once, and the columns' values; on the snapshot thread."""
        for chunks, rows in zip(self._chunks_at_once(), self.changed_rows(), strict=True):
            yield rows, [column.values_at(chunks, rows) for column in self.columns.values()]

    def chunks(self) -> Iterator[tuple[int, int, list[npt.NDArray[Any]]]]:
        """All rows, once: start, end and the columns' values, valid until the next chunk.

        On the snapshot thread. Row 0 is among them even where there is no null key.
        """
        spans = range(0, self.rows, self._chunk_rows)
        columns = [column.chunks() for column in self.columns.values()]
        for start, *values in zip(spans, *columns, strict=True):
            yield start, min(start + self._chunk_rows, self.rows), values

    def release(self) -> None:
        """End the sharing; on the loop thread, and without effect when repeated."""
        if self._table is not None:
            for name, view in self.columns.items():
                self._table.columns[name].release(view)
            self._table = None
            self.columns = {}


def _listed(columns: Mapping[str, np.dtype[Any]]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in columns.items()) or "none"
