"""Views of state in RocksDB: all values as they were at a barrier, and those that changed."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.changed_keys import ChangedKeys, merged
from weir.state.codec import slot_of
from weir.state.progress import Since

if TYPE_CHECKING:
    from weir.state.backends.rocksdb import RocksTable, RocksTables

GROUP_BYTES: Final = 2  # Of a key in RocksDB, before its canonical form.


class View:
    """A barrier: for each table an iterator, once the increment of the barrier is written."""

    def __init__(
        self,
        tables: "Sequence[RocksTable]",
        checkpoint_id: CheckpointId,
        base_id: CheckpointId | None,
    ) -> None:
        self.tables = tables
        self.checkpoint_id = checkpoint_id
        self.base_id = base_id
        self.iterators: list[Any] = []
        self.since: Since[ChangedKeys] | None = None
        self.is_released = False


class FrozenRocks:
    """The values of one state as they were at a barrier."""

    def __init__(self, store: "RocksTables", view: View, index: int) -> None:
        self._store = store
        self._view = view
        self._index = index

    @property
    def groups(self) -> range:
        """The indices of the key groups."""
        return range(self._store.groups)

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        iterator = self._iterator()
        iterator.seek_to_first()
        return not iterator.valid()

    def pieces(
        self, group: int, size: int, *, last: bool = False
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Slots and values of a group, at most ``size`` at a time."""
        slots: list[Any] = []
        values: list[Any] = []
        for key, data in self._store.read(self._iterator(), group):
            slots.append(slot_of(key))
            values.append(pickle.loads(data))
            if len(slots) == size:
                yield slots, values
                slots, values = [], []
        if slots:
            yield slots, values

    def end(self) -> None:
        """There is nothing to drop before the view is released."""

    def _iterator(self) -> Any:
        if not self._view.iterators:
            self._store.write_up_to(self._view)
        return self._view.iterators[self._index]


class FrozenRocksChanges:
    """The values of one state that changed since the checkpoint that a barrier's builds on."""

    def __init__(self, store: "RocksTables", view: View, index: int) -> None:
        self._store = store
        self._view = view
        self._index = index
        self._table = view.tables[index]

    @property
    def base(self) -> Sequence[StateHandle]:
        """The shared files of that checkpoint; empty: the state is to be written whole."""
        return self._since.files.get(self._table.number, ())

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return next(self._keys(), None) is None

    def pieces(
        self, without: KeyGroupRange | None, size: Callable[[], int]
    ) -> Iterator[tuple[list[int], list[Any], list[Any]]]:
        """Key groups, slots and values, at most ``size`` at a time; None: the value was removed."""
        iterator = self._view.iterators[self._index]
        groups: list[int] = []
        slots: list[Any] = []
        values: list[Any] = []
        for key in self._keys():
            group = int.from_bytes(key[:GROUP_BYTES], "big")
            if without is not None and group in without:
                continue
            iterator.seek(key)
            is_there = iterator.valid() and iterator.key() == key
            groups.append(group)
            slots.append(slot_of(key[GROUP_BYTES:]))
            values.append(pickle.loads(iterator.value()) if is_there else None)
            if len(slots) >= size():
                self._store.check(iterator)
                yield groups, slots, values
                groups, slots, values = [], [], []
        self._store.check(iterator)
        if slots:
            yield groups, slots, values

    def stored(self, handles: Sequence[StateHandle]) -> None:
        """The shared files of this checkpoint, for later ones to build on."""
        self._since.store(self._table.number, handles)

    def _keys(self) -> Iterator[bytes]:
        keys = merged(self._since.intervals, self._table.number)
        while (key := self._store.guarded(lambda: next(keys, None))) is not None:
            yield key

    @property
    def _since(self) -> Since[ChangedKeys]:
        if not self._view.iterators:
            self._store.write_up_to(self._view)
        assert self._view.since is not None
        return self._view.since
