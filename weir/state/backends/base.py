"""The contract of a state backend: the tables of one operator subtask, and their frozen views.

A value is a Python object, never None. The loop thread calls everything but ``FrozenEntries``,
which belongs to the snapshot thread.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self

from weir.common.sizes import object_bytes
from weir.common.typeinfo import TypeInformation
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.arrays import Arrays
from weir.state.codec import SlotKey
from weir.state.evolution import Converter
from weir.state.expiry import Expiry
from weir.state.shared import ChangeLog

if TYPE_CHECKING:
    from weir.state.timers import TimerQueue

_SAMPLE = 2  # Of each key group.


class Entries(Protocol):
    """The values of one key group by their slot; a dictionary, or the like."""

    def get(self, slot: SlotKey, /) -> Any:
        """The value, for reading only; None: there is none."""

    def __setitem__(self, slot: SlotKey, value: Any, /) -> None:
        """Set a value that is logged already."""


@dataclass(frozen=True, slots=True)
class Held:
    """The entries of a state that are in memory, and about their bytes."""

    entries: int
    bytes: int

    @classmethod
    def of_tables(cls, tables: Iterable[Mapping[Any, Any]]) -> Self:
        """The entries of dictionaries, sized from a sample of each; they may change meanwhile."""
        entries = size = 0
        for table in tables:
            # Copied in one step: the loop may change the table beside it.
            sample = list(islice(table.items(), _SAMPLE))
            if sample:
                each = sum(object_bytes(entry) for entry in sample) // len(sample)
                entries, size = entries + len(table), size + len(table) * each
        return cls(entries, size)

    @classmethod
    def sum(cls, parts: Iterable["Held"]) -> Self:
        """The sum of several."""
        known = list(parts)
        return cls(sum(part.entries for part in known), sum(part.bytes for part in known))


class StateTable(Protocol):
    """The values of one state."""

    name: str
    kind: str
    type_info: TypeInformation
    expiry: Expiry | None  # None: the state has no time-to-live, or is undeclared.

    @property
    def divides(self) -> bool:
        """Whether lists or maps that have ``grown`` too large for one value are divided."""

    @property
    def tables(self) -> Sequence[Entries]:
        """The values by key group; changes go through methods, or are logged before."""

    @property
    def views(self) -> Sequence[Any]:
        """Not empty: a change has to be logged."""

    @property
    def is_mutable(self) -> bool:
        """Whether its values can be changed in place."""

    def own(self, group: int, slot: SlotKey) -> Any:
        """The value, which the caller may change in place; None where there is none."""

    def put(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set a value."""

    def remove(self, group: int, slot: SlotKey) -> None:
        """Remove a value, if there is one."""

    def grown(self, group: int, slot: SlotKey) -> None:
        """Items were added to a list or map in place."""

    def log(self, group: int, slot: SlotKey) -> None:
        """Log a value that is about to change."""

    def load(self, group: int, slots: Iterable[SlotKey], values: Iterable[Any]) -> None:
        """Take over restored values, before any other use."""

    def add(self, group: int, slot: SlotKey, part: Any, removed: Sequence[Any] = ()) -> None:
        """Add a restored part of a list or map to what is there, and remove these keys of a map."""

    def unload(self, group: int, slots: Iterable[SlotKey]) -> None:
        """Drop restored values, which a later checkpoint had removed."""

    def entries(self, group: int) -> Iterator[tuple[SlotKey, Any]]:
        """The values of a group, which may change meanwhile."""

    def slots(self, group: int) -> Iterator[SlotKey]:
        """The slots of a group, which may change meanwhile."""

    def record_changes(self) -> ChangeLog[SlotKey]:
        """Log all changes from now on, so that ``undo`` can put values back."""

    def undo(self) -> None:
        """Put back every value that has changed since the log was cleared."""

    def held(self) -> Held:
        """The values in memory. From any thread."""


@dataclass(frozen=True, slots=True)
class Part:
    """Items of one list or map that is too large to be read or written at once."""

    group: int
    slot: SlotKey
    value: Any  # A list or map of them.
    removed: list[Any] = field(default_factory=list)  # Keys of a map.


class FrozenParts(Protocol):
    """The lists and maps of one state, as they were at a barrier, that are read in parts.

    They are not among the ``FrozenEntries``. It belongs to the snapshot thread.
    """

    @property
    def is_empty(self) -> bool:
        """Whether there is no part."""

    def parts(self, groups: range, size: Callable[[], int]) -> Iterator[list[Part]]:
        """All parts of some groups, given by their indices, at most ``size`` items at a time.

        Raises:
            StorageError: The local disk failed.
        """

    def changes(
        self, without: KeyGroupRange | None, size: Callable[[], int]
    ) -> Iterator[list[Part]]:
        """The items that changed since the checkpoint that this one builds on, likewise.

        A list or map that came to be read in parts since then, or anew, is among the
        ``FrozenChanges`` as removed.

        Raises:
            StorageError: The local disk failed.
        """


class FrozenEntries(Protocol):
    """The values of one state as they were at a barrier."""

    @property
    def groups(self) -> range:
        """The indices of the key groups."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no value at all."""

    def pieces(
        self, group: int, size: Callable[[], int], *, last: bool = False
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Slots and values of a group, at most ``size`` at a time; not read again after ``last``.

        The lists belong to the caller.

        Raises:
            StorageError: The local disk failed.
        """

    def end(self) -> None:
        """Drop what only reading needs: no group is read again."""


class FrozenChanges(Protocol):
    """The values of one state that changed since the checkpoint that this one builds on.

    It belongs to the snapshot thread.
    """

    @property
    def base(self) -> Sequence[StateHandle]:
        """The shared files of that checkpoint; empty: the state is to be written whole.

        Raises:
            StorageError: The local disk failed.
        """

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""

    def pieces(
        self, without: KeyGroupRange | None, size: Callable[[], int]
    ) -> Iterator[tuple[list[int], list[Any], list[Any]]]:
        """Key groups, slots and values, at most ``size`` at a time; None: the value was removed.

        Raises:
            StorageError: The local disk failed.
        """

    def stored(self, handles: Sequence[StateHandle]) -> None:
        """The shared files of this checkpoint, for later ones to build on; empty: it has none."""


@dataclass(frozen=True, slots=True)
class FrozenView:
    """The states of a backend as they were at a barrier."""

    entries: Sequence[FrozenEntries]  # One for each of the tables given.
    release: Callable[[], None]  # Ends the sharing; on the loop thread.
    changes: Sequence[FrozenChanges] | None = None  # Likewise. None: all is to be written.
    parts: Sequence[FrozenParts | None] | None = None  # Likewise. None: nothing is read in parts.


class StateTables(Protocol):
    """All tables of one operator subtask."""

    is_incremental: bool  # Whether checkpoints hold what changed, and share the rest.
    arrays: Arrays  # Of columnar tables.

    def table(self, name: str, kind: str, type_info: TypeInformation) -> StateTable:
        """A new table, empty."""

    def timer_queue(
        self, domain: str, key_groups: KeyGroupRange, max_parallelism: int
    ) -> "TimerQueue":
        """The timers of a time domain, none so far; of each domain once."""

    def evolved(
        self, table: StateTable, type_info: TypeInformation, convert: Converter | None
    ) -> StateTable:
        """The values of a table as another type, in its place; views keep the old values.

        Units: O(keys).
        """

    def freeze(
        self,
        tables: Sequence[StateTable],
        checkpoint_id: CheckpointId,
        base_id: CheckpointId | None = None,
    ) -> FrozenView:
        """A view of tables as they are now.

        Args:
            base_id: The completed checkpoint that this one may build on; 0: later ones may build on
                this one; None: neither.

        Units: O(states x key groups), independent of the number of keys.
        """

    def go_on_from(
        self, checkpoint_id: CheckpointId, files: Mapping[StateTable, Sequence[StateHandle]]
    ) -> None:
        """The tables are as a checkpoint has them that the next may build on, with these files."""

    def tidy(self) -> None:
        """Do a slice of work in the background; between two slices of records, none of whose
        values is in use.

        Raises:
            StorageError: The local disk failed.
        """

    def give_back(self) -> None:
        """Move to disk what can be; between two slices of records, none of whose values is in use.

        Raises:
            StorageError: The local disk failed.
        """

    def close(self) -> None:
        """Release what the tables hold; none of them is used again."""
