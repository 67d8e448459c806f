"""The memory that tables on local disk may take, shared by all of a worker process.

Of what a limit leaves beside an idle worker process a quarter goes to RocksDB's blocks: one cache,
with the indexes and filters in it, for all databases. A sixteenth is for fresh values, divided
among the operator subtasks: each may have that much of them three times, as they change, sealed,
and being written, and once more of timers that are due soon, in each time domain. RocksDB's own
write buffers stay empty. The rest is for records, and for what snapshots and compactions read.
Columns in files take none of it.
"""

from typing import Final

from weir.config import SLOT_MEMORY_BYTES_MIN

CACHE_BYTES: Final = 32 << 20  # Without a limit.
CACHE_BYTES_MIN: Final = 8 << 20
FRESH_BYTES: Final = 16 << 20  # Of an operator subtask; more is not worth its longer writes.
FRESH_BYTES_MIN: Final = 1 << 20
_CACHE_PART = 4  # Of what a limit leaves.
_FRESH_PART = 16


class MemoryBudget:
    """The shares of one worker process."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        """Plan with a limit of the process's resident memory; None: there is none."""
        self.cache_bytes = CACHE_BYTES
        self._fresh_bytes: int | None = None
        self._users = 0  # Operator subtasks.
        if limit_bytes is not None:
            room = max(0, limit_bytes - SLOT_MEMORY_BYTES_MIN)
            self.cache_bytes = max(CACHE_BYTES_MIN, room // _CACHE_PART)
            self._fresh_bytes = room // _FRESH_PART

    @property
    def fresh_bytes(self) -> int:
        """The fresh values of one operator subtask."""
        if self._fresh_bytes is None:
            return FRESH_BYTES
        share = self._fresh_bytes // max(1, self._users)
        return min(FRESH_BYTES, max(FRESH_BYTES_MIN, share))

    def join(self) -> None:
        """One more operator subtask has tables."""
        self._users += 1

    def leave(self) -> None:
        """One of them closed its tables."""
        self._users -= 1
