"""Timers of keyed state: fire once at a time, per key and namespace.

In memory the existing timers are kept per key group, in dictionaries that frozen views share
(``shared``). Their due times are a heap beside them, whose entries count only while the dictionary
still holds their number; deleting a timer therefore costs one look-up. The heap is not part of a
snapshot: restoring builds it anew. Timers of one instant fire in the order of their registration.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from weir.errors import ProtocolError
from weir.graph.key_groups import Key, key_group
from weir.ids import CheckpointId, KeyGroupRange
from weir.state.backends.base import Held
from weir.state.codec import SlotKey, key_of_slot, slot_key
from weir.state.pieces import PieceSize, rows_of
from weir.state.shared import ChangeLog, FrozenTables, NotedKeys, SharedTables

TimerId: TypeAlias = tuple[int, SlotKey, SlotKey]  # Timestamp, key, namespace.
ChangedTimer: TypeAlias = tuple[int, TimerId, bool]  # Its key group, and whether it is there.

STALE_MIN: Final = 1_024  # Fewer stale heap entries than this are not worth a rebuild.
_TIMER_BYTES = 400  # In memory: its tuple, its place among those due, its number.


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fired or will fire."""

    timestamp_ms: int
    key: Key
    namespace: Key = None  # Distinguishes the timers of one key, e.g. by window.
    group: int = field(default=-1, compare=False)  # The key group, where the queue tells it.


class FrozenTimerQueue(Protocol):
    """The timers of one time domain as they were at a barrier."""

    def __len__(self) -> int:
        """The number of timers."""

    def rows(
        self, first: int, size: PieceSize, *, last: bool
    ) -> Iterator[tuple[pa.Array, Sequence[TimerId]]]:
        """Key groups and timers, some at a time; not read again after ``last``.

        ``first`` is the first key group of the subtask.

        Raises:
            StorageError: The local disk failed.
        """

    def noted(self, changes: NotedKeys[Any], first: int) -> Iterator[ChangedTimer]:
        """The timers that are noted as changed."""

    def end(self) -> None:
        """Drop what only reading needs: no timer is read again."""

    def release(self) -> None:
        """End the sharing; on the loop thread."""


class TimerQueue(Protocol):
    """The timers of one time domain."""

    def __len__(self) -> int:
        """The number of timers."""

    def register(
        self, timestamp_ms: int, key: Key, namespace: Key = None, *, group: int | None = None
    ) -> bool:
        """Register a timer; returns whether it is new.

        ``group`` spares the hashing where the caller knows the key's group.

        Raises:
            ProtocolError: The key belongs to another subtask.
        """

    def delete(
        self, timestamp_ms: int, key: Key, namespace: Key = None, *, group: int | None = None
    ) -> bool:
        """Delete a timer; returns whether it existed."""

    def times_of(self, key: Key) -> list[int]:
        """The times of a key's timers, ascending; all timers may be looked at.

        Raises:
            ProtocolError: The key belongs to another subtask.
        """

    def next_ms(self) -> int | None:
        """The time at which the next timer is due, or None where there is no timer."""

    def poll(self, now_ms: int) -> Timer | None:
        """The earliest timer due at or before ``now_ms``, removed; None where none is due.

        The next call sees timers registered and deleted meanwhile.

        Source: Flink, InternalTimerServiceImpl.advanceWatermark.
        """

    def freeze(self, checkpoint_id: CheckpointId) -> FrozenTimerQueue:
        """All timers as they are now."""

    def record_changes(self) -> ChangeLog[Any]:
        """Log all changes from now on, so that ``undo`` can put timers back."""

    def undo(self) -> None:
        """Put back the timers as they were when the log was cleared."""

    def note_changes(self, noted: NotedKeys[Any] | None) -> None:
        """Note all timers that come or go from now on; None: none of them."""

    def restore(self, timers: Iterable[tuple[int, TimerId]]) -> None:
        """Add timers with their key groups, none of which is there, before any other use."""

    def restore_changes(self, changes: Iterable[ChangedTimer]) -> None:
        """Add timers and remove others, as a later checkpoint has them; before any other use."""

    def held(self) -> Held:
        """The timers in memory. From any thread."""


class HeapTimerQueue:
    """The timers of one time domain, in memory."""

    def __init__(self, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._numbers = SharedTables[TimerId](len(key_groups))  # The number tells stale entries.
        self._heap: list[tuple[int, int, int, TimerId]] = []  # Timestamp, number, group, timer.
        self._number = 0
        self._count = 0
        self._noted: NotedKeys[TimerId] | None = None

    def __len__(self) -> int:
        return self._count

    def register(
        self, timestamp_ms: int, key: Key, namespace: Key = None, *, group: int | None = None
    ) -> bool:
        """Register a timer; returns whether it is new."""
        index = self._index(key, group)
        return self._add(index, (timestamp_ms, slot_key(key), slot_key(namespace)))

    def delete(
        self, timestamp_ms: int, key: Key, namespace: Key = None, *, group: int | None = None
    ) -> bool:
        """Delete a timer; returns whether it existed."""
        index = self._index(key, group)
        timer = (timestamp_ms, slot_key(key), slot_key(namespace))
        if timer not in self._numbers.tables[index]:
            return False
        self._remove(index, timer)
        if len(self._heap) > 2 * self._count + STALE_MIN:
            self._rebuild()
        return True

    def times_of(self, key: Key) -> list[int]:
        """The times of a key's timers, ascending.

        Units: O(timers of the key's group).
        """
        slot = slot_key(key)
        return sorted(
            at for at, of, _ in self._numbers.tables[self._index(key, None)] if of == slot
        )

    def next_ms(self) -> int | None:
        """The time at which the next timer is due, or None where there is no timer."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def poll(self, now_ms: int) -> Timer | None:
        """The earliest timer due at or before ``now_ms``, removed; None where none is due."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, index, timer = heapq.heappop(self._heap)
        self._remove(index, timer)
        timestamp_ms, key, namespace = timer
        group = index + self._key_groups.first
        return Timer(timestamp_ms, key_of_slot(key), key_of_slot(namespace), group)

    def freeze(self, checkpoint_id: CheckpointId) -> "FrozenHeapTimers":
        """All timers as they are now."""
        return FrozenHeapTimers(self._numbers)

    def record_changes(self) -> ChangeLog[TimerId]:
        """Log all changes from now on, so that ``undo`` can put timers back."""
        return self._numbers.record_changes()

    def undo(self) -> None:
        """Put back the timers as they were when the log was cleared."""
        changed = [
            (index, timer) for index, log in self.record_changes().logs.items() for timer in log
        ]
        tables = self._numbers.tables
        before = sum(timer in tables[index] for index, timer in changed)
        self._numbers.undo()
        for index, timer in changed:
            number = tables[index].get(timer)
            if number is not None:  # Its entry may have left the heap; a second one is stale.
                heapq.heappush(self._heap, (timer[0], number, index, timer))
                self._count += 1
            if self._noted is not None:
                self._noted.note(index, timer, number is not None)
        self._count -= before

    def note_changes(self, noted: NotedKeys[TimerId] | None) -> None:
        """Note all timers that come or go from now on; None: none of them."""
        self._noted = noted

    def restore(self, timers: Iterable[tuple[int, TimerId]]) -> None:
        """Add timers with their key groups."""
        for group, timer in timers:
            self._add(group - self._key_groups.first, timer)

    def restore_changes(self, changes: Iterable[ChangedTimer]) -> None:
        """Add timers and remove others; one that is there already comes after the others."""
        for group, timer, is_there in changes:
            index = group - self._key_groups.first
            if self._numbers.tables[index].get(timer) is not None:
                self._remove(index, timer)
            if is_there:
                self._add(index, timer)

    def held(self) -> Held:
        """All timers."""
        return Held(self._count, self._count * _TIMER_BYTES)

    def _index(self, key: Key, group: int | None) -> int:
        owned = self._key_groups
        return checked_group(key, group, owned, self._max_parallelism) - owned.first

    def _add(self, index: int, timer: TimerId) -> bool:
        if timer in self._numbers.tables[index]:
            return False
        self._number += 1
        self._numbers.put(index, timer, self._number)
        heapq.heappush(self._heap, (timer[0], self._number, index, timer))
        self._count += 1
        if self._noted is not None:
            self._noted.note(index, timer, True)
        return True

    def _remove(self, index: int, timer: TimerId) -> None:
        self._numbers.remove(index, timer)
        self._count -= 1
        if self._noted is not None:
            self._noted.note(index, timer, False)

    def _drop_stale(self) -> None:
        heap, tables = self._heap, self._numbers.tables
        while heap and tables[heap[0][2]].get(heap[0][3]) != heap[0][1]:
            heapq.heappop(heap)

    def _rebuild(self) -> None:
        self._heap = [
            (timer[0], number, index, timer)
            for index, table in enumerate(self._numbers.tables)
            for timer, number in table.items()
        ]
        heapq.heapify(self._heap)


class FrozenHeapTimers:
    """The timers of one time domain in memory, as they were at a barrier."""

    def __init__(self, numbers: SharedTables[TimerId]) -> None:
        self._numbers = numbers
        self._tables: FrozenTables[TimerId] = numbers.freeze()

    def __len__(self) -> int:
        return len(self._tables)

    def rows(
        self, first: int, size: PieceSize, *, last: bool
    ) -> Iterator[tuple[pa.Array, Sequence[TimerId]]]:
        """Key groups and timers by key group, some at a time."""
        for groups, timers, _ in rows_of(self._tables, first, size, last=last):
            yield groups, timers

    def noted(self, changes: NotedKeys[TimerId], first: int) -> Iterator[ChangedTimer]:
        """The timers that are noted as changed."""
        for index, timers in changes.items():
            for timer, is_there in timers.items():
                yield first + index, timer, is_there

    def end(self) -> None:
        """Drop the logs: no timer is read again."""
        self._tables.end()

    def release(self) -> None:
        """End the sharing."""
        self._numbers.release(self._tables)


def checked_group(
    key: Key, group: int | None, key_groups: KeyGroupRange, max_parallelism: int
) -> int:
    """The key group of a timer's key, which the caller may know.

    Raises:
        ProtocolError: It belongs to another subtask.
    """
    group = key_group(key, max_parallelism) if group is None else group
    if group not in key_groups:
        raise ProtocolError(
            f"a timer for key {key!r} of key group {group} belongs to another subtask"
        )
    return group
