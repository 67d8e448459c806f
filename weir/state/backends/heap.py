"""State in memory: dictionaries, one per state and key group, shared with frozen views.

A mutable value is copied the first time it is returned or changed after a freeze, once per key and
freeze, while the frozen view lives (``shared``). An object that user code kept from before the
barrier is not protected: a function must read its state anew for each record, as functions do
anyway.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weir.common.typeinfo import TypeInformation
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.backends.base import FrozenView, Held, StateTable
from weir.state.codec import SlotKey
from weir.state.evolution import Converter
from weir.state.expiry import Expiry
from weir.state.shared import SharedTables
from weir.state.timers import HeapTimerQueue, TimerQueue


class HeapTable(SharedTables[SlotKey]):
    """The values of one state."""

    __slots__ = ("_copier", "expiry", "kind", "name", "type_info")
    divides = False

    def __init__(self, name: str, kind: str, type_info: TypeInformation, groups: int) -> None:
        super().__init__(groups, values_mutable=type_info.is_mutable)
        self.name = name
        self.kind = kind
        self.type_info = type_info
        self.expiry: Expiry | None = None
        self._copier = type_info.copier

    @property
    def is_mutable(self) -> bool:
        """Whether its values can be changed in place."""
        return self._copier is not None

    def own(self, group: int, slot: SlotKey) -> Any:
        """The value, copied where a view shares it; None where there is none."""
        value = self.tables[group].get(slot)
        if not self.views or self._copier is None or value is None:
            return value
        log = self.views[-1].logs[group]
        if log is None or slot not in log:  # Not replaced since the newest freeze.
            value = self._copier(value)
            self.put(group, slot, value)
        return value

    def load(self, group: int, slots: Iterable[SlotKey], values: Iterable[Any]) -> None:
        """Take over restored values."""
        self.tables[group].update(zip(slots, values, strict=True))

    def add(self, group: int, slot: SlotKey, part: Any, removed: Sequence[Any] = ()) -> None:
        """Add a restored part of a list or map."""
        kept = self.tables[group].setdefault(slot, part)
        if kept is not part:
            if self.kind == "list":
                kept.extend(part)
            else:
                kept.update(part)
                for key in removed:
                    kept.pop(key, None)
        if not kept:
            del self.tables[group][slot]

    def unload(self, group: int, slots: Iterable[SlotKey]) -> None:
        """Drop restored values."""
        for slot in slots:
            self.tables[group].pop(slot, None)

    def grown(self, group: int, slot: SlotKey) -> None:
        """A list or map may have any size."""

    def entries(self, group: int) -> Iterator[tuple[SlotKey, Any]]:
        """The values of a group."""
        return iter(list(self.tables[group].items()))

    def held(self) -> Held:
        """All values."""
        return Held.of_tables(self.tables)

    def slots(self, group: int) -> Iterator[SlotKey]:
        """The slots of a group, copied: a dictionary that changes cannot be iterated."""
        return iter(list(self.tables[group]))

    def evolved(self, type_info: TypeInformation, convert: Converter | None) -> "HeapTable":
        """The same values as another type; views keep their values.

        Units: O(keys).
        """
        made = HeapTable(self.name, self.kind, type_info, len(self.tables))
        copier = self._copier if self.views else None
        for old, new in zip(self.tables, made.tables, strict=True):
            values: Iterable[Any] = old.values()
            if copier is not None:
                values = map(copier, values)
            if convert is not None:
                values = map(convert, values)
            new.update(zip(old, values, strict=True))
        return made


class HeapTables:
    """The tables of one operator subtask, in memory."""

    is_incremental = False

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self.arrays: Arrays = HeapArrays()

    def table(self, name: str, kind: str, type_info: TypeInformation) -> StateTable:
        """A new table."""
        return HeapTable(name, kind, type_info, self._groups)

    def timer_queue(
        self, domain: str, key_groups: KeyGroupRange, max_parallelism: int
    ) -> TimerQueue:
        """The timers of a time domain, none so far."""
        return HeapTimerQueue(key_groups, max_parallelism)

    def evolved(
        self, table: StateTable, type_info: TypeInformation, convert: Converter | None
    ) -> StateTable:
        """The values of a table as another type."""
        assert isinstance(table, HeapTable)
        return table.evolved(type_info, convert)

    def freeze(
        self,
        tables: Sequence[StateTable],
        checkpoint_id: CheckpointId,
        base_id: CheckpointId | None = None,
    ) -> FrozenView:
        """A view that shares all data with the tables; which values changed is not known."""
        shared = [(table, table.freeze()) for table in tables if isinstance(table, HeapTable)]

        def release() -> None:
            for table, view in shared:
                table.release(view)

        return FrozenView([view for _, view in shared], release)

    def go_on_from(
        self, checkpoint_id: CheckpointId, files: Mapping[StateTable, Sequence[StateHandle]]
    ) -> None:
        """There is nothing to build on."""

    def tidy(self) -> None:
        """There is nothing to do."""

    def give_back(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """There is nothing to release."""
