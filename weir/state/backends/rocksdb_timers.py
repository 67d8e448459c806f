"""Timers beside RocksDB: the earliest in a heap in memory, the others on local disk.

Those before the *horizon* are *near*: they are in memory. The others are the keys of a table of one
group (``rocksdb``), in the order in which they are due: time, key group, length of the key, key,
namespace, each of them so that bytes sort as it does. Timers of one instant fire in that order,
which is the same after a restore.

All timers are near as long as they fit. Where too many are, the later half goes into the table, and
the first of these is the horizon. Once no timer is near, the earliest ones are read from the table,
and the horizon is the first that was not read. The table keeps what was read until it fires or is
deleted; before the horizon it holds near timers alone, which count once. So a job with few timers
writes none of them to disk.

Source: Flink, RocksDBCachingPriorityQueueSet, for a cache of the first timers of each key group.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from weir.common.typeinfo import Types
from weir.errors import UserError
from weir.graph.key_groups import Key
from weir.ids import CheckpointId, KeyGroupRange
from weir.state.backends.base import FrozenView, Held
from weir.state.codec import canonical, key_of_slot, slot_key, slot_of
from weir.state.pieces import PieceSize
from weir.state.shared import ChangeLog, NotedKeys
from weir.state.timers import STALE_MIN, ChangedTimer, Timer, TimerId, checked_group

if TYPE_CHECKING:
    from weir.state.backends.rocksdb import RocksTables
    from weir.state.backends.rocksdb_table import RocksTable

NEAR_MAX: Final = 8_192  # To sort or read more at once would hold the loop.
_GROUP: Final = 0  # Of the table.
_LEAD: Final = 0xFF  # The first byte of all, which no canonical form of a key begins with.
_HEAD: Final = Struct(">BQHI")  # That byte, time, key group, length of the key.
_TIME_MIN: Final = -(1 << 63)
_NEAR_BYTES: Final = 200  # In memory: its bytes, its places in the heap and among those near.


class RocksTimerQueue:
    """The timers of one time domain."""

    def __init__(
        self, store: "RocksTables", domain: str, key_groups: KeyGroupRange, max_parallelism: int
    ) -> None:
        self._store = store
        self._domain = domain
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._made: RocksTable | None = None
        self._near: set[bytes] = set()
        self._heap: list[bytes] = []  # An entry counts while its timer is near.
        self._horizon: bytes | None = None  # None: all are near.
        self._count = 0
        self._changes: ChangeLog[bytes] | None = None  # Of each whether it was there.
        self._noted: NotedKeys[bytes] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def _table(self) -> "RocksTable":
        if self._made is None:
            name = f"timers of {self._domain}"
            self._made = self._store.table(name, "timers", Types.BOOLEAN())
            self._made.is_noted = False  # The queue notes its timers, wherever they are.
        return self._made

    def register(
        self, timestamp_ms: int, key: Key, namespace: Key = None, *, group: int | None = None
    ) -> bool:
        """Register a timer; returns whether it is new.

        Raises:
            UserError: The time leaves 64 bits.
        """
        slot = self._slot(timestamp_ms, key, namespace, group)
        if self._exists(slot):
            return False
        self._log(slot, False)
        self._add(slot)
        return True

    def delete(
        self, timestamp_ms: int, key: Key, namespace: Key = None, *, group: int | None = None
    ) -> bool:
        """Delete a timer; returns whether it existed."""
        slot = self._slot(timestamp_ms, key, namespace, group)
        if not self._exists(slot):
            return False
        self._log(slot, True)
        self._remove(slot)
        return True

    def times_of(self, key: Key) -> list[int]:
        """The times of a key's timers, ascending.

        Units: O(timers).
        """
        checked_group(key, None, self._key_groups, self._max_parallelism)
        wanted, slots = slot_key(key), list(self._near)
        if self._horizon is not None:
            slots += self._table.first_slots(_GROUP, self._horizon, self._count)[0]
        timers = (_timer(slot)[1] for slot in slots)
        return sorted(at for at, own, _ in timers if own == wanted)

    def next_ms(self) -> int | None:
        """The time at which the next timer is due, or None where there is no timer."""
        slot = self._first()
        return None if slot is None else _time(slot)

    def poll(self, now_ms: int) -> Timer | None:
        """The earliest timer due at or before ``now_ms``, removed; None where none is due."""
        slot = self._first()
        if slot is None or _time(slot) > now_ms:
            return None
        self._log(slot, True)
        self._remove(slot)
        group, (timestamp_ms, key, namespace) = _timer(slot)
        return Timer(timestamp_ms, key_of_slot(key), key_of_slot(namespace), group)

    def freeze(self, checkpoint_id: CheckpointId) -> "FrozenRocksTimers":
        """All timers as they are now.

        Units: O(near timers).
        """
        near = list(self._near)
        if self._horizon is None:
            return FrozenRocksTimers(self._count, near)
        view = self._store.freeze([self._table], checkpoint_id)
        return FrozenRocksTimers(self._count, near, view, self._horizon)

    def record_changes(self) -> ChangeLog[Any]:
        """Log all changes from now on, so that ``undo`` can put timers back."""
        if self._changes is None:
            self._changes = ChangeLog()
        return self._changes

    def undo(self) -> None:
        """Put back the timers as they were when the log was cleared."""
        log = self.record_changes()
        for slot, existed in log.logs[_GROUP].items():
            if existed != self._exists(slot):
                if existed:
                    self._add(slot)
                else:
                    self._remove(slot)
        log.clear()

    def note_changes(self, noted: NotedKeys[bytes] | None) -> None:
        """Note all timers that come or go from now on; None: none of them."""
        self._noted = noted

    def restore(self, timers: Iterable[tuple[int, TimerId]]) -> None:
        """Add timers with their key groups."""
        far: list[bytes] = []
        for group, timer in timers:
            slot = _slot(group, timer)
            self._count += 1
            if self._is_near(slot):
                self._enter(slot)
            else:
                far.append(slot)
        if far:
            self._table.load(_GROUP, far, repeat(True, len(far)))

    def restore_changes(self, changes: Iterable[ChangedTimer]) -> None:
        """Add timers and remove others, as a later checkpoint has them."""
        for group, timer, is_there in changes:
            slot = _slot(group, timer)
            if is_there != self._exists(slot):
                if is_there:
                    self._add(slot)
                else:
                    self._remove(slot)

    def held(self) -> Held:
        """The near timers, and changes of the others that are not yet written."""
        near = len(self._near)
        unwritten = 0 if self._made is None else self._made.held().bytes
        return Held(near, near * _NEAR_BYTES + unwritten)

    def _slot(self, timestamp_ms: int, key: Key, namespace: Key, group: int | None) -> bytes:
        group = checked_group(key, group, self._key_groups, self._max_parallelism)
        return _slot(group, (timestamp_ms, slot_key(key), slot_key(namespace)))

    def _log(self, slot: bytes, existed: bool) -> None:
        if self._changes is not None:
            self._changes.logs[_GROUP].setdefault(slot, existed)

    def _is_near(self, slot: bytes) -> bool:
        return self._horizon is None or slot < self._horizon

    def _exists(self, slot: bytes) -> bool:
        if self._is_near(slot):
            return slot in self._near
        return self._table.tables[_GROUP].get(slot) is not None

    def _add(self, slot: bytes) -> None:
        self._count += 1
        if self._noted is not None:
            self._noted[_GROUP][slot] = True
        if self._is_near(slot):
            self._enter(slot)
        else:
            self._table.put(_GROUP, slot, True)

    def _remove(self, slot: bytes) -> None:
        self._count -= 1
        if self._noted is not None:
            self._noted[_GROUP][slot] = False
        if self._is_near(slot):
            self._near.remove(slot)
            if len(self._heap) > 2 * len(self._near) + STALE_MIN:
                self._heap = sorted(self._near)
        if self._made is not None:
            self._made.remove(_GROUP, slot)

    def _enter(self, slot: bytes) -> None:
        """Make a timer near, and the later half of them far where there are too many."""
        self._near.add(slot)
        heapq.heappush(self._heap, slot)
        near_max = self._near_max
        if len(self._near) > 2 * near_max:
            slots = sorted(self._near)
            far = slots[near_max:]
            for later in far:
                self._table.put(_GROUP, later, True)
            self._horizon = far[0]
            self._heap = slots[:near_max]
            self._near = set(self._heap)

    def _first(self) -> bytes | None:
        """The first timer, which is near then."""
        heap, near = self._heap, self._near
        while heap and heap[0] not in near:
            heapq.heappop(heap)
        if not heap and self._horizon is not None:
            heap, self._horizon = self._table.first_slots(_GROUP, self._horizon, self._near_max)
            self._heap, self._near = heap, set(heap)
        return heap[0] if heap else None

    @property
    def _near_max(self) -> int:
        """The near timers after a read of the table; twice as many before some leave."""
        return min(NEAR_MAX, self._store.budget.fresh_bytes // (2 * _NEAR_BYTES))


class FrozenRocksTimers:
    """The timers of one time domain as they were at a barrier."""

    def __init__(
        self, count: int, near: list[bytes], view: FrozenView | None = None, horizon: bytes = b""
    ) -> None:
        """Near timers, and a view of the table, whose timers count from the horizon on."""
        self._count = count  # Of all.
        self._near = near
        self._view = view
        self._horizon = horizon

    def __len__(self) -> int:
        return self._count

    def rows(
        self, first: int, size: PieceSize, *, last: bool
    ) -> Iterator[tuple[pa.Array, Sequence[TimerId]]]:
        """Key groups and timers, some at a time."""
        for at in range(0, len(self._near), size.objects):
            yield _rows(self._near[at : at + size.objects])
        if self._view is None:
            return
        (entries,) = self._view.entries
        for slots, _ in entries.pieces(_GROUP, lambda: size.objects, last=last):
            if far := [slot for slot in slots if slot >= self._horizon]:
                yield _rows(far)

    def noted(self, changes: NotedKeys[bytes], first: int) -> Iterator[ChangedTimer]:
        """The timers that are noted as changed."""
        for slot, is_there in changes.get(_GROUP, {}).items():
            yield *_timer(slot), is_there

    def end(self) -> None:
        """There is nothing to drop before the view is released."""

    def release(self) -> None:
        """End the sharing."""
        if self._view is not None:
            self._view.release()


def _rows(slots: Sequence[bytes]) -> tuple[pa.Array, Sequence[TimerId]]:
    """The key groups of timers, and the timers."""
    groups, timers = zip(*map(_timer, slots), strict=True)
    return pa.array(np.array(groups, np.uint16)), timers


def _slot(group: int, timer: TimerId) -> bytes:
    """The key of a timer in the table.

    Raises:
        UserError: The time leaves 64 bits.
    """
    timestamp_ms, key, namespace = timer
    stored = canonical(key)
    try:
        head = _HEAD.pack(_LEAD, timestamp_ms - _TIME_MIN, group, len(stored))
    except StructError as error:
        raise UserError(
            f"a timer at {timestamp_ms} is beyond 64 bits; times are milliseconds since 1970"
        ) from error
    return head + stored + canonical(namespace)


def _timer(slot: Any) -> tuple[int, TimerId]:
    """The key group and the timer of a key in the table."""
    _, time, group, size = _HEAD.unpack_from(slot)
    end = _HEAD.size + size
    return group, (time + _TIME_MIN, slot_of(slot[_HEAD.size : end]), slot_of(slot[end:]))


def _time(slot: bytes) -> int:
    return int.from_bytes(slot[1:9], "big") + _TIME_MIN
