"""State in memory: dictionaries, one per state and key group, shared with frozen views.

A mutable value is copied the first time it is returned or changed after a freeze, once per key and
freeze, while the frozen view lives (``shared``). An object that user code kept from before the
barrier is not protected: a function must read its state anew for each record, as functions do
anyway.

Where checkpoints are incremental, each table notes the keys whose values are put, removed or
handed out to be changed, by the interval between two barriers (``weir.state.progress``). A
checkpoint writes these keys with their values of the barrier.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from weir.common.typeinfo import TypeInformation
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.backends.base import FrozenView, Held, StateTable
from weir.state.codec import SlotKey
from weir.state.evolution import Converter
from weir.state.expiry import Expiry
from weir.state.progress import ONLY, Progress, Since
from weir.state.shared import FrozenTables, NotedKeys, SharedTables
from weir.state.timers import HeapTimerQueue, TimerQueue


class HeapTable(SharedTables[SlotKey]):
    """The values of one state."""

    __slots__ = ("_copier", "_progress", "expiry", "kind", "name", "type_info")
    divides = False

    def __init__(self, name: str, kind: str, type_info: TypeInformation, groups: int) -> None:
        super().__init__(groups, values_mutable=type_info.is_mutable)
        self.name = name
        self.kind = kind
        self.type_info = type_info
        self.expiry: Expiry | None = None
        self._copier = type_info.copier
        self._progress = Progress(NotedKeys[SlotKey])

    @property
    def is_mutable(self) -> bool:
        """Whether its values can be changed in place."""
        return self._copier is not None

    def own(self, group: int, slot: SlotKey) -> Any:
        """The value, copied where a view shares it; None where there is none."""
        value = self.tables[group].get(slot)
        if not self.views or self._copier is None or value is None:
            return value
        if self._logs:
            log = self._logs[-1].logs[group]
            if log is None or slot not in log:  # Not replaced since the newest freeze.
                value = self._copier(value)
                self.put(group, slot, value)
                return value
        if self.noted is not None:
            self.noted[group][slot] = True
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
        copier = self._copier if self._logs else None
        for old, new in zip(self.tables, made.tables, strict=True):
            values: Iterable[Any] = old.values()
            if copier is not None:
                values = map(copier, values)
            if convert is not None:
                values = map(convert, values)
            new.update(zip(old, values, strict=True))
        return made

    def close(
        self, checkpoint_id: CheckpointId, base_id: CheckpointId
    ) -> Since[NotedKeys[SlotKey]]:
        """A barrier ends the interval before it; the files and changes of its checkpoint."""
        since = self._progress.close(checkpoint_id, base_id)
        self.note_changes(self._progress.now)
        return since

    def go_on_from(self, checkpoint_id: CheckpointId, files: Sequence[StateHandle]) -> None:
        """The values are as a checkpoint has them that the next may build on, with these files."""
        self._progress.begin(checkpoint_id, {ONLY: files})
        self.note_changes(self._progress.now)

    def limit(self) -> None:
        """Note changed keys no more, until the next barrier, where they are too many."""
        self._progress.limit_at_times()
        if self._progress.now is None:
            self.note_changes(None)


class FrozenHeapChanges:
    """The values of one state that changed since the checkpoint that a barrier's builds on."""

    def __init__(
        self, values: FrozenTables[SlotKey], since: Since[NotedKeys[SlotKey]], first: int
    ) -> None:
        """``first`` is the first key group of the subtask."""
        self._values = values
        self._since = since
        self._first = first

    @property
    def base(self) -> Sequence[StateHandle]:
        """The shared files of that checkpoint; empty: the state is to be written whole."""
        return self._since.files.get(ONLY, ())

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not any(self._since.intervals)

    def pieces(
        self, without: KeyGroupRange | None, size: Callable[[], int]
    ) -> Iterator[tuple[list[int], list[Any], list[Any]]]:
        """Key groups, slots and values, at most ``size`` at a time; None: the value was removed."""
        groups: list[int] = []
        slots: list[SlotKey] = []
        values: list[Any] = []
        changed = NotedKeys.merged(self._since.intervals)
        for index in self._values.groups:
            group = index + self._first
            if without is not None and group in without:
                continue
            left = iter(changed.get(index, ()))
            while some := list(islice(left, size() - len(slots))):
                groups += [group] * len(some)
                slots += some
                values += self._values.values_of(index, some)
                if len(slots) >= size():
                    yield groups, slots, values
                    groups, slots, values = [], [], []
        if slots:
            yield groups, slots, values

    def stored(self, handles: Sequence[StateHandle]) -> None:
        """The shared files of this checkpoint, for later ones to build on."""
        self._since.store(ONLY, handles)


class HeapTables:
    """The tables of one operator subtask, in memory."""

    def __init__(self, key_groups: KeyGroupRange, *, is_incremental: bool = False) -> None:
        self.arrays: Arrays = HeapArrays()
        self.is_incremental = is_incremental
        self._key_groups = key_groups
        self._noting: Sequence[HeapTable] = ()

    def table(self, name: str, kind: str, type_info: TypeInformation) -> StateTable:
        """A new table."""
        return HeapTable(name, kind, type_info, len(self._key_groups))

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
        """A view that shares all data with the tables."""
        mine = [table for table in tables if isinstance(table, HeapTable)]
        shared = [(table, table.freeze()) for table in mine]

        def release() -> None:
            for table, view in shared:
                table.release(view)

        changes = None
        if self.is_incremental and base_id is not None:
            first = self._key_groups.first
            changes = [
                FrozenHeapChanges(view, table.close(checkpoint_id, base_id), first)
                for table, view in shared
            ]
            self._noting = mine
        return FrozenView([view for _, view in shared], release, changes)

    def go_on_from(
        self, checkpoint_id: CheckpointId, files: Mapping[StateTable, Sequence[StateHandle]]
    ) -> None:
        """The tables are as a checkpoint has them that the next may build on, with these files."""
        if self.is_incremental:
            self._noting = [table for table in files if isinstance(table, HeapTable)]
            for table in self._noting:
                table.go_on_from(checkpoint_id, files[table])

    def tidy(self) -> None:
        """Look at the size of notes, now and then."""
        for table in self._noting:
            table.limit()

    def give_back(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """There is nothing to release."""
