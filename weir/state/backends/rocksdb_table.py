"""The values of one state beside RocksDB: fresh, sealed, and on local disk (``rocksdb``)."""

import heapq
import pickle
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from weir.common.typeinfo import TypeInformation
from weir.state.backends.base import Entries, Held
from weir.state.codec import SlotKey, canonical, slot_of
from weir.state.expiry import Expiry
from weir.state.shared import ChangeLog

if TYPE_CHECKING:
    from weir.state.backends.rocksdb import RocksTables

Values: TypeAlias = tuple[dict[SlotKey, Any], ...]  # By key group; None: removed.
UNKNOWN: Final = object()
_OLDER: Final = object()  # In a log of changes: the value was not fresh.


class Mark(Enum):
    """A stand-in for a value of another type than the table's."""

    DIVIDED = 0  # A list or map whose items lie in a table of their own (``rocksdb_items``).
    NOTHING = 1  # An item that is None.


class Group:
    """The values of one key group, as states use them."""

    __slots__ = ("_index", "_table")

    def __init__(self, table: "RocksTable", index: int) -> None:
        self._table = table
        self._index = index

    def get(self, slot: SlotKey, /) -> Any:
        """The value, for reading only; None: there is none."""
        value = self._table.fresh[self._index].get(slot, UNKNOWN)
        return self._table.sealed(self._index, slot)[0] if value is UNKNOWN else value

    def __setitem__(self, slot: SlotKey, value: Any, /) -> None:
        """Set a value that is logged already."""
        self._table.set(self._index, slot, value)


class RocksTable:
    """The values of one state."""

    divides = False

    def __init__(
        self,
        store: "RocksTables",
        family: tuple[str, Any],
        name: str,
        kind: str,
        type_info: TypeInformation,
    ) -> None:
        self.name = name
        self.kind = kind
        self.type_info = type_info
        self.expiry: Expiry | None = None
        self.fresh = store.no_values()
        self.increments: list[Values] = []  # Sealed and not wholly written, oldest first.
        self.family_name, self.family = family
        self.number = int(self.family_name)
        self.is_noted = True  # Whether a checkpoint can hold what changed alone.
        self.weight = store.weight_min  # Of a value, in bytes: that of the last ones written.
        self.tables: Sequence[Entries] = [Group(self, i) for i in range(len(self.fresh))]
        self.views: tuple[ChangeLog[SlotKey], ...] = ()  # The log of changes, if there is one.
        self._store = store
        self._copier = type_info.copier

    @property
    def is_mutable(self) -> bool:
        """Whether its values can be changed in place."""
        return self._copier is not None

    def own(self, group: int, slot: SlotKey) -> Any:
        """The value, which the caller may change in place; None where there is none."""
        value = self.fresh[group].get(slot, UNKNOWN)
        if value is UNKNOWN:
            value, is_shared = self.sealed(group, slot)
            if value is None or self._copier is None or type(value) is Mark:
                return value
            value = self._copier(value) if is_shared else value
            self.replace(group, slot, value)
        elif (
            self.views
            and self._copier is not None
            and value is not None
            and type(value) is not Mark
            and slot not in self.views[0].logs[group]
        ):
            value = self._copier(value)
            self.replace(group, slot, value)
        return value

    def put(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set a value."""
        self.replace(group, slot, value)

    def replace(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set a value of which nothing lies elsewhere."""
        if self.views:
            self.log(group, slot)
        self.set(group, slot, value)

    def remove(self, group: int, slot: SlotKey) -> None:
        """Remove a value, if there is one."""
        self.put(group, slot, None)

    def grown(self, group: int, slot: SlotKey) -> None:
        """A value of this table may have any size."""

    def set(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set a value that is logged already; None removes it."""
        self.fresh[group][slot] = value
        self._store.written += self.weight

    def log(self, group: int, slot: SlotKey) -> None:
        """Log a value that is about to change."""
        self.views[0].logs[group].setdefault(slot, self.fresh[group].get(slot, _OLDER))

    def load(self, group: int, slots: Iterable[SlotKey], values: Iterable[Any]) -> None:
        """Take over restored values, before any other use."""
        values_of_group = self.fresh[group]
        before = len(values_of_group)
        values_of_group.update(zip(slots, values, strict=True))
        self._store.written += (len(values_of_group) - before) * self.weight
        self._store.make_room()

    def add(self, group: int, slot: SlotKey, part: Any, removed: Sequence[Any] = ()) -> None:
        """Take over a restored value, which is all there is."""
        self.load(group, (slot,), (part,))

    def unload(self, group: int, slots: Iterable[SlotKey]) -> None:
        """Drop restored values."""
        dropped = list(slots)
        self.load(group, dropped, [None] * len(dropped))

    def entries(self, group: int) -> Iterator[tuple[SlotKey, Any]]:
        """The values of a group, which may change meanwhile."""
        for slot in self.slots(group):
            value = self.tables[group].get(slot)
            if value is not None:
                yield slot, value

    def slots(self, group: int) -> Iterator[SlotKey]:
        """The slots of a group, which may change meanwhile."""
        known = self._unwritten(group)
        written = self._store.read(self.family.iter(), group)
        yield from [slot for slot, value in known.items() if value is not None]
        for key, _ in written:
            if (slot := slot_of(key)) not in known:
                yield slot

    def first_slots(self, group: int, start: bytes, count: int) -> tuple[list[bytes], bytes | None]:
        """The first slots of a group from one on, and the one after them; None: there is none.

        Of a table whose slots are bytes, in their order.
        """
        known: dict[Any, Any] = self._unwritten(group)
        slots: list[bytes] = []
        after: bytes | None = None
        for key, _ in self._store.read(self.family.iter(), group, start):
            if key not in known:
                if len(slots) == count:
                    after = key
                    break
                slots.append(key)
        slots += [
            slot
            for slot, value in known.items()
            if value is not None and slot >= start and (after is None or slot < after)
        ]
        slots.sort()
        return slots[:count], slots[count] if len(slots) > count else after

    def rows(self, group: int, prefix: bytes) -> Iterator[tuple[bytes, Any]]:
        """Slots that begin with a prefix, in their order, and their values, all as they are now.

        Of a table whose slots are bytes.
        """
        known: dict[Any, Any] = {}
        for values in (*self.increments, self.fresh):
            of_group: dict[Any, Any] = values[group]
            known |= {slot: of_group[slot] for slot in of_group if slot.startswith(prefix)}
        unwritten = ((slot, 0, known[slot]) for slot in sorted(known))
        stored = (
            (slot, 1, data) for slot, data in self._store.read(self.family.iter(), group, prefix)
        )
        both = heapq.merge(unwritten, takewhile(lambda row: row[0].startswith(prefix), stored))
        return _newest(both)

    def _unwritten(self, group: int) -> dict[SlotKey, Any]:
        """The values of a group that are not wholly written, a copy; None: removed."""
        known: dict[SlotKey, Any] = {}
        for values in (*self.increments, self.fresh):
            known |= values[group]
        return known

    def record_changes(self) -> ChangeLog[SlotKey]:
        """Log all changes from now on, so that ``undo`` can put values back."""
        if not self.views:
            self.views = (ChangeLog(),)
        return self.views[0]

    def undo(self) -> None:
        """Put back every value that has changed since the log was cleared."""
        for log in self.views:
            for group, before in log.logs.items():
                for slot, value in before.items():
                    if value is _OLDER:
                        self.fresh[group].pop(slot, None)
                    else:
                        self.set(group, slot, value)
            log.clear()

    def held(self) -> Held:
        """The values that are not yet written."""
        return Held.of_tables(
            values for of_state in (*self.increments, self.fresh) for values in of_state
        )

    def sealed(self, group: int, slot: SlotKey) -> tuple[Any, bool]:
        """The value as it is sealed or written, and whether an increment shares it."""
        # The list is copied in one step, before RocksDB is asked: an increment that leaves it
        # meanwhile is either in the copy or in RocksDB.
        for values in self.increments[::-1]:
            value = values[group].get(slot, UNKNOWN)
            if value is not UNKNOWN:
                return value, True
        data = self.family.get(self._store.prefix(group) + canonical(slot))
        return (None if data is None else self._loaded(group, slot, data)), False

    def _loaded(self, group: int, slot: SlotKey, data: bytes) -> Any:
        """The value that lay on disk."""
        return pickle.loads(data)


def _newest(rows: Iterable[tuple[bytes, int, Any]]) -> Iterator[tuple[bytes, Any]]:
    """The rows of which one is not older than another one of its slot, but those removed."""
    last = None
    for slot, is_stored, value in rows:
        if slot != last:
            last = slot
            if is_stored:
                yield slot, pickle.loads(value)
            elif value is not None:
                yield slot, value
