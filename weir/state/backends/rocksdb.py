"""State on local disk: what changed last in memory, all else in a RocksDB of the operator subtask.

RocksDB's own memtable stays empty. Each table has *fresh* values, in one dictionary per key group.
A barrier, or too many of them, *seals* the fresh values: they become an increment, which nothing
changes any more, and new dictionaries take their place. Increments are written in the order in
which they were sealed, each table's values as a sorted file that RocksDB takes in when it is whole,
in pieces of at most 4,096 values. The value of a key is the fresh one, else that of the newest
increment which is not yet written, else RocksDB's; None stands for a removed one.

A view of a barrier is the state of RocksDB when the increment of the barrier, and none after it, is
written: an iterator for each table, which RocksDB keeps unchanged. So freezing costs O(key groups),
and the snapshot thread writes the increment before it reads. Any thread may write pieces, one at a
time under a lock: the snapshot thread for its view, the loop where memory would grow too much
between two barriers, a piece for a slice of records.

Each state has a column family, and one of lists or maps has another for the items of large ones
(``rocksdb_items``). A key is its key group in two bytes and the canonical form of the
key, so that a group is a range. Values are pickles, because no form is faster to make of a single
object: the database belongs to one process, no other reads it, and no restore does.

A mutable value that is read is fresh from then on, because it can be changed in place. One that an
increment holds is copied before.

The keys of what was written are kept by the interval between two barriers, with small values, so
that a checkpoint can tell what changed since the one it builds on (``weir.state.progress``).
"""

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import rocksdict

from weir.common.typeinfo import TypeInformation
from weir.errors import StorageError
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.arrays import Arrays
from weir.state.backends.base import FrozenView, StateTable
from weir.state.backends.budget import MemoryBudget
from weir.state.backends.changed_keys import REMOVED, ChangedKeys, merged
from weir.state.backends.mapped import MappedArrays
from weir.state.backends.rocksdb_items import CollectionTable, item_type, parts_of
from weir.state.backends.rocksdb_options import database_options, move_options
from weir.state.backends.rocksdb_table import RocksTable, Values
from weir.state.backends.rocksdb_timers import RocksTimerQueue
from weir.state.backends.rocksdb_views import (
    GROUP_BYTES,
    FrozenItems,
    FrozenRocks,
    FrozenRocksChanges,
    View,
)
from weir.state.codec import canonical
from weir.state.evolution import Converter
from weir.state.progress import Progress
from weir.state.timers import TimerQueue
from weir.storage.local_directory import LocalDirectory

PIECE_VALUES: Final = 4_096  # Some 5 ms.
PIECE_BYTES: Final = 1 << 20
FRESH_MAX: Final = 16_384  # Values in memory before they are sealed; fewer if they are large.
CHANGES_AT_ONCE: Final = 256  # Of notes that are read.
PIECE_VALUES_LARGE: Final = 64  # The least values of a piece, if the budget of memory has them.


class _Increment:
    """The values of all tables that were sealed at once."""

    def __init__(self, parts: list[tuple[RocksTable, Values]], view: View | None) -> None:
        self.parts = parts
        self.view = view
        self.left: Iterator[None] | None = None  # The pieces to write; None: not begun.


class RocksTables:
    """The tables of one operator subtask."""

    def __init__(
        self,
        key_groups: KeyGroupRange,
        directory: str | None,
        *,
        is_incremental: bool = True,
        budget: MemoryBudget | None = None,
    ) -> None:
        """An empty database.

        Args:
            budget: The memory that it shares with others of its process; None: its own, unlimited.

        Raises:
            ConfigError: The directory cannot be used.
        """
        self.groups = len(key_groups)
        self.written = 0  # Bytes of changes since fresh values were last counted, by their weight.
        self._first = key_groups.first
        self.budget = budget or MemoryBudget()
        self._directory = LocalDirectory(directory)
        self.arrays: Arrays = MappedArrays(self._directory.path)
        self._options = database_options(self.budget)
        options = database_options(self.budget)
        options.create_if_missing(True)
        self._database = rocksdict.Rdict(str(self._directory.path / "db"), options=options)
        self.budget.join()
        self._tables: list[RocksTable] = []
        self._collections: list[CollectionTable] = []  # Of them.
        self._unweighed: list[RocksTable] = []  # Those of whose values none was measured yet.
        self._numbers = count()
        self._lock = threading.Lock()  # Of writing.
        self._sealed: deque[_Increment] = deque()
        self.is_incremental = is_incremental
        self._progress = Progress(partial(ChangedKeys, self._directory.path))

    # Tables.

    @property
    def weight_min(self) -> int:
        """The least weight of a value, in bytes: an object takes more than its bytes."""
        return -(-self.budget.fresh_bytes // FRESH_MAX)

    def timer_queue(
        self, domain: str, key_groups: KeyGroupRange, max_parallelism: int
    ) -> TimerQueue:
        """The timers of a time domain, none so far."""
        return RocksTimerQueue(self, domain, key_groups, max_parallelism)

    def table(self, name: str, kind: str, type_info: TypeInformation) -> RocksTable:
        """A new table."""
        of_items = item_type(kind, type_info)
        if of_items is None:
            return self._enter(RocksTable(self, self._family(), name, kind, type_info))
        items = self._enter(RocksTable(self, self._family(), name, kind, of_items))
        made = CollectionTable(self, self._family(), name, kind, type_info, items)
        self._collections.append(made)
        return self._enter(made)

    def evolved(
        self, table: StateTable, type_info: TypeInformation, convert: Converter | None
    ) -> StateTable:
        """The values of a table as another type, in its place; views keep the old values."""
        assert isinstance(table, RocksTable)
        made = self.table(table.name, table.kind, type_info)
        for group in range(self.groups):
            for slot, value in table.entries(group):
                for n, part in enumerate(parts_of(value, whole=not made.divides)):
                    own = pickle.loads(pickle.dumps(part))  # An increment may share it.
                    converted = own if convert is None else convert(own)
                    if n:
                        made.add(group, slot, converted)
                    else:
                        made.load(group, (slot,), (converted,))
        while self._sealed:  # No increment is to be written into a family that is gone.
            self._write_piece()
        self._drop(table)
        return made

    def _family(self) -> tuple[str, Any]:
        """A new column family, and its name."""
        name = f"{next(self._numbers)}"
        return name, self._database.create_column_family(name, database_options(self.budget))

    def _enter(self, table: RocksTable) -> RocksTable:
        self._tables.append(table)
        self._unweighed.append(table)
        return table

    def _drop(self, table: RocksTable) -> None:
        if isinstance(table, CollectionTable):
            self._collections.remove(table)
            self._drop(table.items)
        self._tables.remove(table)
        if table in self._unweighed:
            self._unweighed.remove(table)
        self._database.drop_column_family(table.family_name)

    def no_values(self) -> Values:
        """No value in any key group."""
        return tuple({} for _ in range(self.groups))

    def prefix(self, group: int) -> bytes:
        """The first bytes of all keys of a group."""
        return (self._first + group).to_bytes(GROUP_BYTES, "big")

    def read(self, iterator: Any, group: int, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a group that an iterator holds, from a key on.

        Raises:
            StorageError: The local disk failed.
        """
        prefix = self.prefix(group)
        iterator.seek(prefix + start)
        while iterator.valid():
            key = iterator.key()
            if not key.startswith(prefix):
                break
            yield key[GROUP_BYTES:], iterator.value()
            iterator.next()
        self.check(iterator)

    def check(self, iterator: Any) -> None:
        """Check that an iterator ended, if it did, because there is no more.

        Raises:
            StorageError: The local disk failed.
        """
        self.guarded(iterator.status)

    # Freezing and writing.

    def freeze(
        self,
        tables: Sequence[StateTable],
        checkpoint_id: CheckpointId,
        base_id: CheckpointId | None = None,
    ) -> FrozenView:
        """A view of tables as they are now."""
        mine = [table for table in tables if isinstance(table, RocksTable)]
        of_items = [table.items for table in mine if isinstance(table, CollectionTable)]
        base_id = base_id if self.is_incremental else None
        view = View(self, [*mine, *of_items], checkpoint_id, base_id)
        self._seal(view)

        def release() -> None:
            view.is_released = True  # Without the lock, for which the loop might have to wait.
            view.iterators = {}

        changes = None
        if base_id is not None:
            changes = [FrozenRocksChanges(self, view, table) for table in mine]
        parts = [
            FrozenItems(self, view, table, table.items)
            if isinstance(table, CollectionTable)
            else None
            for table in mine
        ]
        frozen = [FrozenRocks(self, view, table) for table in mine]
        return FrozenView(frozen, release, changes, parts)

    def go_on_from(
        self, checkpoint_id: CheckpointId, files: Mapping[StateTable, Sequence[StateHandle]]
    ) -> None:
        """The tables are as a checkpoint has them that the next may build on, with these files."""
        if not self.is_incremental:
            return
        self._seal(None)
        while self._sealed:
            self._write_piece()
        numbered = {t.number: tuple(own) for t, own in files.items() if isinstance(t, RocksTable)}
        self._progress.begin(checkpoint_id, numbered)

    def tidy(self) -> None:
        """Seal what was changed, if it is much, and write a piece of what is sealed."""
        for collection in self._collections:
            collection.tidy()
        if self._unweighed:
            self._weigh()
        if self.written >= self.budget.fresh_bytes:
            self._seal_if_many()
        if self._sealed:
            self._write_piece()
            while len(self._sealed) > 2:  # More is sealed than a piece a slice can keep up with.
                self._write_piece()

    def make_room(self) -> None:
        """Write all values, if they are many; while no record is being processed."""
        if self._unweighed:
            self._weigh()
        if self.written >= self.budget.fresh_bytes:
            self._seal_if_many()
            while self._sealed:
                self._write_piece()

    def give_back(self) -> None:
        """Write all values; between two slices of records, none of whose values is in use.

        Raises:
            StorageError: The local disk failed.
        """
        self._seal(None)
        while self._sealed:
            self._write_piece()

    def write_up_to(self, view: View) -> None:
        """Write increments until the view's own is written.

        Raises:
            StorageError: The local disk failed.
        """
        while not view.iterators:
            if view.is_released or not self._sealed:
                raise StorageError("state on local disk was read after its release")
            self._write_piece()
            time.sleep(0)  # Offers the interpreter lock to the loop.

    def close(self) -> None:
        """Delete the database."""
        with self._lock:
            self._sealed.clear()
            self._tables.clear()
            self._database.close()
            self._directory.close()
            self.budget.leave()

    def _weigh(self) -> None:
        """Measure a value of each table that has got its first ones."""
        for table in list(self._unweighed):
            fresh = (value for values in table.fresh for value in values.values())
            value = next((value for value in fresh if value is not None), None)
            if value is not None:
                size = len(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
                table.weight = max(self.weight_min, size)
                self._unweighed.remove(table)
                self._count()

    def _count(self) -> None:
        self.written = sum(
            len(values) * table.weight for table in self._tables for values in table.fresh
        )

    def _seal_if_many(self) -> None:
        self._count()
        if self.written >= self.budget.fresh_bytes:
            self._seal(None)

    def _seal(self, view: View | None) -> None:
        parts = []
        for table in self._tables:
            if any(table.fresh):
                values = table.fresh
                table.increments.append(values)  # First: other threads look at both.
                table.fresh = self.no_values()
                parts.append((table, values))
                for log in table.views:
                    log.clear()  # What it would put back is sealed.
        self.written = 0
        if parts or view is not None:
            self._sealed.append(_Increment(parts, view))

    def _write_piece(self) -> None:
        """Write the next piece of the oldest increment that is not wholly written."""
        with self._lock:
            if not self._sealed:
                return
            increment = self._sealed[0]
            if increment.left is None:
                increment.left = self._pieces(increment)
            try:
                next(increment.left)
                return
            except StopIteration:
                pass
            except BaseException:
                increment.left = None  # To be written anew, which gives the same.
                raise
            view = increment.view
            if view is not None:
                if view.base_id is not None:
                    view.since = self._progress.close(view.checkpoint_id, view.base_id)
                if not view.is_released:
                    view.iterators = {table: table.family.iter() for table in view.tables}
            self._sealed.popleft()
            for table, _ in increment.parts:
                table.increments.pop(0)

    def _piece_max(self, table: RocksTable) -> int:
        """The values of a table in a piece."""
        least = min(PIECE_VALUES_LARGE, max(1, self.budget.fresh_bytes // table.weight))
        return min(PIECE_VALUES, max(least, PIECE_BYTES // table.weight))

    def _pieces(self, increment: _Increment) -> Iterator[None]:
        """Write the increment, a piece with each step."""
        for table, values in increment.parts:
            path = self._directory.path / f"{next(self._numbers)}.sst"
            file = self.guarded(partial(_SortedFile, path, self._options))
            for piece in self._sorted(table, values):
                self._write(file, table, piece)
                yield
            self.guarded(file.finish)
            yield  # Each of the two waits for the disk with the interpreter lock held.
            self.guarded(partial(table.family.ingest_external_file, [str(path)], _MOVE))

    def _sorted(self, table: RocksTable, values: Values) -> Iterator[list[tuple[bytes, Any]]]:
        """The keys and values of a table in the order of keys, in pieces."""
        piece_max = self._piece_max(table)
        piece: list[tuple[bytes, Any]] = []
        for group, changed in enumerate(values):
            prefix = self.prefix(group)
            keyed = [(prefix + canonical(slot), value) for slot, value in changed.items()]
            keyed.sort(key=_first)
            start = 0
            while start < len(keyed):
                end = start + piece_max - len(piece)
                piece += keyed[start:end]
                start = end
                if len(piece) >= piece_max:
                    yield piece
                    piece, piece_max = [], self._piece_max(table)
        if piece:
            yield piece

    def _write(
        self, file: "_SortedFile", table: RocksTable, piece: Sequence[tuple[bytes, Any]]
    ) -> None:
        keys = [key for key, _ in piece]
        values = [
            REMOVED if value is None else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            for _, value in piece
        ]
        self.guarded(partial(file.write, keys, values))
        if table.is_noted and (changed := self._progress.now) is not None:
            self.guarded(partial(changed.append, table.number, keys, values))
            self._progress.limit()
        if size := sum(map(len, values)):
            table.weight = max(self.weight_min, size // len(piece))

    def changed(
        self, intervals: Sequence[ChangedKeys], table: RocksTable
    ) -> Iterator[tuple[bytes, bytes]]:
        """The keys of a table that changed in some intervals, with their values as noted.

        Raises:
            StorageError: The local disk failed.
        """
        changes = merged(intervals, table.number)
        while some := self.guarded(lambda: list(islice(changes, CHANGES_AT_ONCE))):
            yield from some

    def guarded(self, call: Callable[[], Any]) -> Any:
        """The result of a call that works with the local disk.

        Raises:
            StorageError: The local disk failed.
        """
        try:
            return call()
        except Exception as error:  # rocksdict raises no class of its own.
            raise StorageError(
                f"state on local disk, in {self._directory.path}, cannot be written or read: "
                f"{error}; see to its space, or name another directory with "
                "state.backend.rocksdb.localdir"
            ) from error


class _SortedFile:
    """A sorted file on the local disk; it goes with its database if it is never finished."""

    def __init__(self, path: Path, options: Any) -> None:
        self._writer = rocksdict.SstFileWriter(options)
        self._writer.open(str(path))

    def write(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Append keys and their values, or ``REMOVED``."""
        for key, value in zip(keys, values, strict=True):
            if value:
                self._writer[key] = value
            else:
                del self._writer[key]

    def finish(self) -> None:
        """The file is whole."""
        self._writer.finish()


_MOVE: Final = move_options()


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]
