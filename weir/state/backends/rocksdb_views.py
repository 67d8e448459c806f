"""Views of state in RocksDB: all values as they were at a barrier, and those that changed."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.base import Part
from weir.state.backends.changed_keys import LOOKED_UP, ChangedKeys
from weir.state.backends.rocksdb_items import key_of_item, slot_and_item, value_of_item
from weir.state.backends.rocksdb_table import Mark
from weir.state.codec import slot_of
from weir.state.progress import Since

if TYPE_CHECKING:
    from weir.state.backends.rocksdb import RocksTables
    from weir.state.backends.rocksdb_table import RocksTable

GROUP_BYTES: Final = 2  # Of a key in RocksDB, before its canonical form.


class View:
    """A barrier: for each table an iterator, once the increment of the barrier is written."""

    def __init__(
        self,
        store: "RocksTables",
        tables: "Sequence[RocksTable]",
        checkpoint_id: CheckpointId,
        base_id: CheckpointId | None,
    ) -> None:
        self.tables = tables
        self.checkpoint_id = checkpoint_id
        self.base_id = base_id
        self.iterators: dict[RocksTable, Any] = {}
        self.since: Since[ChangedKeys] | None = None
        self.is_released = False
        self._store = store

    def iterator(self, table: "RocksTable") -> Any:
        """An iterator over a table as it was at the barrier, whose increment is written first.

        Raises:
            StorageError: The local disk failed.
        """
        if not self.iterators:
            self._store.write_up_to(self)
        return self.iterators[table]

    @property
    def changed(self) -> Since[ChangedKeys]:
        """The keys that changed since the checkpoint that the barrier's builds on.

        Raises:
            StorageError: The local disk failed.
        """
        if not self.iterators:
            self._store.write_up_to(self)
        assert self.since is not None
        return self.since


class FrozenRocks:
    """The values of one state as they were at a barrier."""

    def __init__(self, store: "RocksTables", view: View, table: "RocksTable") -> None:
        self._store = store
        self._view = view
        self._table = table

    @property
    def groups(self) -> range:
        """The indices of the key groups."""
        return range(self._store.groups)

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        iterator = self._view.iterator(self._table)
        iterator.seek_to_first()
        return not iterator.valid()

    def pieces(
        self, group: int, size: Callable[[], int], *, last: bool = False
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Slots and values of a group, at most ``size`` at a time."""
        slots: list[Any] = []
        values: list[Any] = []
        most = size()
        for key, data in self._store.read(self._view.iterator(self._table), group):
            value = pickle.loads(data)
            if value is Mark.DIVIDED:
                continue
            slots.append(slot_of(key))
            values.append(value)
            if len(slots) == most:
                yield slots, values
                slots, values, most = [], [], size()
        if slots:
            yield slots, values

    def end(self) -> None:
        """There is nothing to drop before the view is released."""


class FrozenRocksChanges:
    """The values of one state that changed since the checkpoint that a barrier's builds on."""

    def __init__(self, store: "RocksTables", view: View, table: "RocksTable") -> None:
        self._store = store
        self._view = view
        self._table = table

    @property
    def base(self) -> Sequence[StateHandle]:
        """The shared files of that checkpoint; empty: the state is to be written whole."""
        return self._view.changed.files.get(self._table.number, ())

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return next(self._changed(), None) is None

    def pieces(
        self, without: KeyGroupRange | None, size: Callable[[], int]
    ) -> Iterator[tuple[list[int], list[Any], list[Any]]]:
        """Key groups, slots and values, at most ``size`` at a time; None: the value was removed."""
        iterator = self._view.iterator(self._table)
        groups: list[int] = []
        slots: list[Any] = []
        values: list[Any] = []
        for key, data in self._changed():
            group = int.from_bytes(key[:GROUP_BYTES], "big")
            if without is not None and group in without:
                continue
            value = changed_value(iterator, key, data)
            groups.append(group)
            slots.append(slot_of(key[GROUP_BYTES:]))
            values.append(None if value is Mark.DIVIDED else value)  # Its items follow.
            if len(slots) >= size():
                self._store.check(iterator)
                yield groups, slots, values
                groups, slots, values = [], [], []
        self._store.check(iterator)
        if slots:
            yield groups, slots, values

    def stored(self, handles: Sequence[StateHandle]) -> None:
        """The shared files of this checkpoint, for later ones to build on."""
        self._view.changed.store(self._table.number, handles)

    def _changed(self) -> Iterator[tuple[bytes, bytes]]:
        return self._store.changed(self._view.changed.intervals, self._table)


class FrozenItems:
    """The items of the divided lists or maps of one state as they were at a barrier."""

    def __init__(
        self, store: "RocksTables", view: View, table: "RocksTable", items: "RocksTable"
    ) -> None:
        self._store = store
        self._view = view
        self._table = table
        self._items = items
        self._is_list = table.kind == "list"

    @property
    def is_empty(self) -> bool:
        """Whether no list or map is divided, but perhaps empty ones."""
        iterator = self._view.iterator(self._items)
        iterator.seek_to_first()
        return not iterator.valid()

    def parts(self, groups: range, size: Callable[[], int]) -> Iterator[list[Part]]:
        """All items of some groups, given by their indices."""
        iterator = self._view.iterator(self._items)
        rows = (
            (self._store.prefix(group), row, pickle.loads(data))
            for group in groups
            for row, data in self._store.read(iterator, group)
        )
        return self._parts(rows, size)

    def changes(
        self, without: KeyGroupRange | None, size: Callable[[], int]
    ) -> Iterator[list[Part]]:
        """The items that changed since the checkpoint that the barrier's builds on."""
        return self._parts(self._changed(without), size)

    def _changed(self, without: KeyGroupRange | None) -> Iterator[tuple[bytes, bytes, Any]]:
        """Key groups, items' keys and values of lists and maps that are divided; None: removed."""
        wholes, iterator = self._view.iterator(self._table), self._view.iterator(self._items)
        last, is_divided = b"", False
        for key, data in self._store.changed(self._view.changed.intervals, self._items):
            group, row = key[:GROUP_BYTES], key[GROUP_BYTES:]
            if without is not None and int.from_bytes(group, "big") in without:
                continue
            slot = group + slot_and_item(row)[0]
            if slot != last:
                last, is_divided = slot, value_at(wholes, slot) is Mark.DIVIDED
            if is_divided:
                yield group, row, changed_value(iterator, key, data)
        self._store.check(wholes)
        self._store.check(iterator)

    def _parts(
        self, rows: Iterator[tuple[bytes, bytes, Any]], size: Callable[[], int]
    ) -> Iterator[list[Part]]:
        parts: list[Part] = []
        last, left = b"", size()
        for group, row, value in rows:
            slot, item = slot_and_item(row)
            if not left:
                yield parts
                parts, last, left = [], b"", size()
            if group + slot != last:
                last = group + slot
                number = int.from_bytes(group, "big")
                parts.append(Part(number, slot_of(slot), [] if self._is_list else {}))
            left -= 1
            part = parts[-1]
            if self._is_list:
                if value is not None:  # An element leaves with all others, which a row tells.
                    part.value.append(value_of_item(value))
            elif value is None:
                part.removed.append(key_of_item(item))
            else:
                part.value[key_of_item(item)] = value_of_item(value)
        if parts:
            yield parts


def changed_value(iterator: Any, key: bytes, data: bytes) -> Any:
    """The value that a note of a change has, or an iterator at its key; None: it was removed."""
    if data == LOOKED_UP:
        return value_at(iterator, key)
    return pickle.loads(data) if data else None


def value_at(iterator: Any, key: bytes) -> Any:
    """The value of a key that an iterator holds; None: there is none."""
    iterator.seek(key)
    return pickle.loads(iterator.value()) if iterator.valid() and iterator.key() == key else None
