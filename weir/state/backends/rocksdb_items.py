"""Lists and maps beside RocksDB: small ones are one value, large ones lie in items of their own.

A list or map of more than ``WHOLE_MAX`` items, or of more than ``WHOLE_BYTES`` on disk, is
*divided*: each item is a value of a second table, and a mark stands in the first. So an access
reads or writes one item however many there are, and memory holds those that changed since values
were last sealed. A small one stays whole, because one read of all of it costs less than several.

An item's key is the length of the key's canonical form, that form, and then the map's key, or for a
list a number that grows: an element is appended without a look at those before it. So the items of
one key lie side by side. The keys of a map are in canonical form, but integers in a form that sorts
as they do: keys that follow one another lie in the same block of a file, and share most bytes.

A map whose items were removed for the larger part is looked at between two slices of records, and
is whole again if few are left. A list loses no single element: it is set anew, or cleared.

Never divided are a map whose keys may come back from their canonical form as other objects, and a
list whose elements can be changed in place: an increment adds the elements that changed, so none
may change twice.

Source: Flink, RocksDBMapState, which keeps each entry of every map apart.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from weir.common.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInformation
from weir.graph.key_groups import TAG_INT
from weir.state.backends.base import Held
from weir.state.backends.rocksdb_table import UNKNOWN, Group, Mark, RocksTable
from weir.state.codec import SlotKey, canonical, key_of_slot, slot_key, slot_of
from weir.state.shared import ChangeLog

if TYPE_CHECKING:
    from weir.state.backends.rocksdb import RocksTables

WHOLE_MAX: Final = 512  # Items of a list or map in one value.
WHOLE_BYTES: Final = 256 << 10
PART_ITEMS: Final = 4_096  # Taken over at once.
_LEAD: Final = 0xFF  # The first byte of all, which no canonical form begins with.
_HEAD: Final = Struct(">BI")  # That byte, length of the key.
_NUMBER: Final = Struct(">Q")  # Of an element.
_INT: Final = Struct(">BQ")  # An integer of 64 bits as a map's key; its tag, as in canonical form.
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
VIEWS_MAX: Final = 1_024  # Divided lists and maps known as such without a look at the database.
# Types whose values are the same after their canonical form: no float has NaN, no zone a name.
_KEPT: Final = {
    *("STRING", "CHAR", "BYTES", "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "BIG_INT"),
    *("SQL_DATE", "SQL_TIME", "SQL_TIMESTAMP"),
}

Place: TypeAlias = tuple[int, SlotKey]  # Group and slot.


def item_type(kind: str, type_info: TypeInformation) -> TypeInformation | None:
    """The type of the items of a list or map that can be divided; None: it cannot."""
    match kind, type_info:
        case "list", ListTypeInfo() if not type_info.element_type.is_mutable:
            return type_info.element_type
        case "map", MapTypeInfo() if _is_kept(type_info.key_type):
            return type_info.value_type
        case _:
            return None


def _is_kept(kind: TypeInformation) -> bool:
    if isinstance(kind, RowTypeInfo):
        return kind.is_tuple and all(map(_is_kept, kind.field_types))
    return str(kind) in _KEPT


def items_of(slot: SlotKey) -> bytes:
    """The first bytes of the keys of all items of a slot."""
    stored = canonical(slot)
    return _HEAD.pack(_LEAD, len(stored)) + stored


def slot_and_item(row: bytes) -> tuple[bytes, bytes]:
    """The canonical form of the slot of an item, and the rest of the item's key."""
    end = _HEAD.size + _HEAD.unpack_from(row)[1]
    return row[_HEAD.size : end], row[end:]


def item_of_key(key: Any) -> bytes:
    """The form of a map's key in its item's."""
    if type(key) is int and _INT_MIN <= key <= _INT_MAX:
        return _INT.pack(TAG_INT, key - _INT_MIN)
    return canonical(slot_key(key))


def key_of_item(item: bytes) -> Any:
    """The key of a map from its form in its item's."""
    if item[0] == TAG_INT:
        number: int = _INT.unpack(item)[1]
        return number + _INT_MIN
    return key_of_slot(slot_of(item))


def value_of_item(stored: Any) -> Any:
    """The value of an item, which may be None."""
    return None if stored is Mark.NOTHING else stored


class _Group(Group):
    """The lists or maps of one key group."""

    __slots__ = ()
    _table: "CollectionTable"

    def get(self, slot: SlotKey, /) -> Any:
        """The list or map, for reading only."""
        table = self._table
        if table.views_of_items and (view := table.views_of_items.get((self._index, slot, False))):
            return view
        value = super().get(slot)
        return table.items_at(self._index, slot) if value is Mark.DIVIDED else value


class CollectionTable(RocksTable):
    """The lists or maps of one state."""

    divides = True

    def __init__(
        self,
        store: "RocksTables",
        family: tuple[str, Any],
        name: str,
        kind: str,
        type_info: TypeInformation,
        items: RocksTable,
    ) -> None:
        super().__init__(store, family, name, kind, type_info)
        self.tables = [_Group(self, index) for index in range(len(self.fresh))]
        self.items = items
        self.views_of_items: dict[tuple[int, SlotKey, bool], _Divided] = {}
        self._numbers = count()
        self._has_divided = False
        self._too_large: set[Place] = set()
        self._removals_left: dict[Place, int] = {}  # Until a map is looked at.
        self._due: set[Place] = set()  # The maps to look at.

    def own(self, group: int, slot: SlotKey) -> Any:
        """The list or map, or its items, which the caller may change in place."""
        if self.views_of_items and (view := self.views_of_items.get((group, slot, True))):
            return view
        value = super().own(group, slot)
        return self.items_at(group, slot, owned=True) if value is Mark.DIVIDED else value

    def set(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set a value that is logged already; None removes it."""
        if self.views_of_items:
            for owned in (False, True):
                self.views_of_items.pop((group, slot, owned), None)
        super().set(group, slot, value)

    def put(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set a list or map: a small one, or items of another table."""
        self._clear(group, slot)
        if value is None or isinstance(value, (list, dict)):
            self.replace(group, slot, value)
            self.grown(group, slot)
        else:
            self.replace(group, slot, None)
            for part in parts_of(value):
                self.add(group, slot, part)

    def grown(self, group: int, slot: SlotKey) -> None:
        """Divide a list or map, which was changed in place, if it is too large now."""
        value = self.fresh[group].get(slot)
        if isinstance(value, (list, dict)) and len(value) > WHOLE_MAX:
            self._divide(group, slot, value)

    def _divide(self, group: int, slot: SlotKey, whole: Any) -> None:
        """Keep the items of a list or map apart from now on."""
        self.put_items(group, items_of(slot), whole)
        self.replace(group, slot, Mark.DIVIDED)
        self._has_divided = True
        self._removals_left[group, slot] = max(1, len(whole) // 2)

    def load(self, group: int, slots: Iterable[SlotKey], values: Iterable[Any]) -> None:
        """Take over restored lists or maps."""
        self.views_of_items.clear()
        small: dict[SlotKey, Any] = {}
        for slot, value in zip(slots, values, strict=True):
            self._clear(group, slot)
            if value is None or len(value) <= WHOLE_MAX:
                small[slot] = value
                continue
            self._has_divided = True
            super().load(group, [slot], [Mark.DIVIDED])
            for rows in _parts(self._rows_of(items_of(slot), value), PART_ITEMS):
                self.items.load(group, *zip(*rows, strict=True))
        super().load(group, small, small.values())

    def add(self, group: int, slot: SlotKey, part: Any, removed: Sequence[Any] = ()) -> None:
        """Add a part of a restored list or map to what is there, and remove these keys of a map."""
        kept = self.own(group, slot)
        if kept is None:
            if part:
                self.load(group, (slot,), (part,))
            return
        if self.kind == "list":
            kept.extend(part)
        else:
            for key in removed:
                if key in kept:
                    del kept[key]
            kept.update(part)
        if isinstance(kept, (list, dict)):
            if not kept:
                self.replace(group, slot, None)
            self.grown(group, slot)
        self._store.make_room()

    def record_changes(self) -> ChangeLog[SlotKey]:
        """Log all changes from now on, so that ``undo`` can put values and items back."""
        return _Logs(super().record_changes(), self.items.record_changes())

    def held(self) -> Held:
        """The values and items that are not yet written."""
        return Held.sum((super().held(), self.items.held()))

    def undo(self) -> None:
        """Put back every list, map and item that has changed since the log was cleared."""
        super().undo()
        self.items.undo()
        self.views_of_items.clear()

    def items_at(self, group: int, slot: SlotKey, *, owned: bool = False) -> "_Divided":
        """The items of a divided list or map; not ``owned``: for reading only."""
        if len(self.views_of_items) >= VIEWS_MAX:
            self.views_of_items.clear()
        kind = DividedList if self.kind == "list" else DividedMap
        view = self.views_of_items[group, slot, owned] = kind(self, group, slot, owned=owned)
        return view

    def put_items(self, group: int, prefix: bytes, values: Any) -> None:
        """Append elements to a divided list, or set entries of a divided map."""
        for row, value in self._rows_of(prefix, values):
            self.items.put(group, row, value)

    def count_removal(self, group: int, slot: SlotKey) -> None:
        """An item of a divided map was removed."""
        place = group, slot
        left = self._removals_left.pop(place, WHOLE_MAX // 4) - 1
        if left > 0:
            self._removals_left[place] = left
        else:
            self._due.add(place)

    def tidy(self) -> None:
        """Divide one that is too large on disk, and look at the maps of which much was removed."""
        if self._too_large:
            place = self._too_large.pop()
            if isinstance(whole := super().own(*place), (list, dict)):
                self._divide(*place, whole)
        for place in self._due:
            if self._is_divided(*place):
                self._look_at(*place)
        self._due.clear()

    def _look_at(self, group: int, slot: SlotKey) -> None:
        """Make a divided map whole if little of it is left."""
        left: dict[Any, Any] = {}
        size = 0
        for key, value in DividedMap(self, group, slot, owned=True).items():
            left[key] = value
            size += len(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
            if len(left) > WHOLE_MAX // 2 or size > WHOLE_BYTES // 2:
                self._removals_left[group, slot] = max(1, len(left) // 2)
                return
        self._clear(group, slot)
        self.replace(group, slot, left or None)

    def _clear(self, group: int, slot: SlotKey) -> None:
        """Remove the items of a list or map, if it is divided.

        Units: O(items), and as many notes of removal in memory.
        """
        if self._is_divided(group, slot):
            self._removals_left.pop((group, slot), None)
            for row, _ in self.items.rows(group, items_of(slot)):
                self.items.remove(group, row)

    def _is_divided(self, group: int, slot: SlotKey) -> bool:
        if not self._has_divided:
            return False
        if (group, slot, True) in self.views_of_items:
            return True
        value = self.fresh[group].get(slot, UNKNOWN)
        if value is UNKNOWN:
            value = self.sealed(group, slot)[0]
        return value is Mark.DIVIDED

    def _rows_of(self, prefix: bytes, whole: Any) -> Iterator[tuple[bytes, Any]]:
        """The items of a list or map with their keys."""
        if self.kind == "list":
            for value in whole:
                yield prefix + _NUMBER.pack(next(self._numbers)), _stored(value)
        else:
            for key, value in whole.items():
                yield prefix + item_of_key(key), _stored(value)

    def _loaded(self, group: int, slot: SlotKey, data: bytes) -> Any:
        if len(data) > WHOLE_BYTES:
            self._too_large.add((group, slot))
        return super()._loaded(group, slot, data)


class _Logs(ChangeLog[SlotKey]):
    """The log of a table's changes, which is cleared together with that of its items."""

    __slots__ = ("_items",)

    def __init__(self, own: ChangeLog[SlotKey], items: ChangeLog[SlotKey]) -> None:
        self.logs = own.logs
        self._items = items

    def clear(self) -> None:
        """Forget the changes so far: they stay."""
        super().clear()
        self._items.clear()


class _Divided:
    """The items of one key."""

    __slots__ = ("_group", "_items", "_owned", "_prefix", "_slot", "_table")

    def __init__(self, table: CollectionTable, group: int, slot: SlotKey, *, owned: bool) -> None:
        self._table = table
        self._items = table.items
        self._group = group
        self._slot = slot
        self._prefix = items_of(slot)
        self._owned = owned and table.items.is_mutable

    def _rows(self) -> Iterator[tuple[bytes, Any]]:
        """The items as they are now; changes made meanwhile are not among them."""
        rows = self._items.rows(self._group, self._prefix)
        return self._owned_rows(rows) if self._owned else rows

    def _owned_rows(self, rows: Iterable[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        for row, value in rows:
            owned = self._items.own(self._group, row)
            yield row, value if owned is None else owned  # It was removed meanwhile.


class DividedList(_Divided):
    """A list of which each element lies apart."""

    def __iter__(self) -> Iterator[Any]:
        return (value_of_item(value) for _, value in self._rows())

    def append(self, value: Any) -> None:
        """Add an element."""
        self._table.put_items(self._group, self._prefix, (value,))

    def extend(self, values: Iterable[Any]) -> None:
        """Add elements."""
        self._table.put_items(self._group, self._prefix, values)

    def __setitem__(self, all_of_it: slice, values: list[Any]) -> None:
        self._table.put(self._group, self._slot, values)


class DividedMap(_Divided):
    """A map of which each entry lies apart.

    An iteration does not see changes made meanwhile, but of values that can be changed in place.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under a key."""
        row = self._row(key)
        if self._owned:
            value = self._items.own(self._group, row)
        else:
            value = self._items.tables[self._group].get(row)
        return default if value is None else value_of_item(value)

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, UNKNOWN)
        if value is UNKNOWN:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items.put(self._group, self._row(key), _stored(value))

    def __delitem__(self, key: Any) -> None:
        self._items.remove(self._group, self._row(key))
        self._table.count_removal(self._group, self._slot)

    def __contains__(self, key: Any) -> bool:
        return self._items.tables[self._group].get(self._row(key)) is not None

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def keys(self) -> Iterator[Any]:
        """All keys."""
        rows = self._items.rows(self._group, self._prefix)
        start = len(self._prefix)
        return (key_of_item(row[start:]) for row, _ in rows)

    def values(self) -> Iterator[Any]:
        """All values."""
        return (value_of_item(value) for _, value in self._rows())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys and values."""
        start = len(self._prefix)
        return ((key_of_item(row[start:]), value_of_item(value)) for row, value in self._rows())

    def update(self, values: Mapping[Any, Any]) -> None:
        """Set several values."""
        self._table.put_items(self._group, self._prefix, values)

    def _row(self, key: Any) -> bytes:
        return self._prefix + item_of_key(key)


def parts_of(value: Any, *, whole: bool = False) -> Iterator[Any]:
    """The parts of a divided list or map, or the whole of it; any other value is one part."""
    if isinstance(value, DividedMap):
        yield from map(dict, _parts(value.items(), None if whole else PART_ITEMS))
    elif isinstance(value, DividedList):
        yield from _parts(value, None if whole else PART_ITEMS)
    else:
        yield value


def _parts(items: Iterable[Any], size: int | None) -> Iterator[list[Any]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


def _stored(value: Any) -> Any:
    return Mark.NOTHING if value is None else value
