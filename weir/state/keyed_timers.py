"""The timers of a keyed operator subtask, in event time and in processing time."""

from collections.abc import Mapping

from weir.ids import CheckpointId, KeyGroupRange
from weir.state.backends.base import Held, StateTables
from weir.state.backends.heap import HeapTables
from weir.state.timers import FrozenTimerQueue, TimerQueue

_DOMAINS = ("event_time", "processing_time")  # The names that snapshots use.


class KeyedTimers:
    """The timers of one keyed operator subtask."""

    def __init__(
        self, key_groups: KeyGroupRange, max_parallelism: int, tables: StateTables | None = None
    ) -> None:
        """No timers.

        Args:
            tables: The tables of the backend; None: in memory.
        """
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        backend = tables or HeapTables(key_groups)
        self.queues: Mapping[str, TimerQueue] = {
            domain: backend.timer_queue(domain, key_groups, max_parallelism) for domain in _DOMAINS
        }
        self.event_time, self.processing_time = (self.queues[domain] for domain in _DOMAINS)

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    def held(self) -> Held:
        """The timers in memory. From any thread."""
        return Held.sum(queue.held() for queue in self.queues.values())

    def freeze(self, checkpoint_id: CheckpointId) -> "FrozenTimers":
        """A view of all timers as they are now.

        Units: O(key groups + timers in memory, with RocksDB), the latter bounded.
        """
        frozen = {domain: queue.freeze(checkpoint_id) for domain, queue in self.queues.items()}
        return FrozenTimers(checkpoint_id, self.key_groups, self.max_parallelism, frozen)


class FrozenTimers:
    """All timers as they were at a barrier; safe to read from another thread."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        timers: dict[str, FrozenTimerQueue],
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.timers = timers  # By domain.

    def release(self) -> None:
        """End the sharing; on the loop thread, and without effect when repeated."""
        for view in self.timers.values():
            view.release()
        self.timers = {}
