"""The timers of a keyed operator subtask, in event time and in processing time.

Where checkpoints are incremental, the timers that come or go are noted in memory, by the interval
between two barriers (``weir.state.progress``), so that a checkpoint can hold those alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.base import Held, StateTables
from weir.state.backends.heap import HeapTables
from weir.state.progress import ONLY, Progress, Since
from weir.state.shared import NotedKeys
from weir.state.timers import ChangedTimer, FrozenTimerQueue, TimerQueue

_DOMAINS: Final = ("event_time", "processing_time")  # The names that snapshots use.
_NOTED_BYTES_MAX: Final = 64 << 20  # Some 600,000 timers: more are written with all others.
_STORED_BYTES: Final = 40  # Of a timer, about.


class NotedTimers:
    """The timers that came or went in one interval between two barriers, by time domain."""

    def __init__(self) -> None:
        self.by_domain: Mapping[str, NotedKeys[Any]] = {domain: NotedKeys() for domain in _DOMAINS}

    @property
    def count(self) -> int:
        """The number of timers."""
        return sum(noted.count for noted in self.by_domain.values())

    @property
    def size(self) -> int:
        """The bytes that the notes take, about."""
        return sum(noted.size for noted in self.by_domain.values())


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
        self._progress = Progress(NotedTimers) if backend.is_incremental else None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    def held(self) -> Held:
        """The timers in memory. From any thread."""
        return Held.sum(queue.held() for queue in self.queues.values())

    def freeze(
        self, checkpoint_id: CheckpointId, base_id: CheckpointId | None = None
    ) -> "FrozenTimers":
        """A view of all timers as they are now.

        Args:
            base_id: The completed checkpoint that this one may build on; 0: later ones may build on
                this one; None: neither.

        Units: O(key groups + timers in memory, with RocksDB), the latter bounded.
        """
        frozen = {domain: queue.freeze(checkpoint_id) for domain, queue in self.queues.items()}
        since = None
        if self._progress is not None and base_id is not None:
            since = self._progress.close(checkpoint_id, base_id)
            self._note(self._progress.now)
        return FrozenTimers(checkpoint_id, self.key_groups, self.max_parallelism, frozen, since)

    def go_on_from(self, checkpoint_id: CheckpointId, files: Sequence[StateHandle]) -> None:
        """The timers are as a checkpoint has them that the next may build on, with these files."""
        if self._progress is not None:
            self._progress.begin(checkpoint_id, {ONLY: files})
            self._note(self._progress.now)

    def tidy(self) -> None:
        """Note no more, until the next barrier, where notes are too many."""
        if self._progress is not None:
            self._progress.limit_at_times(_NOTED_BYTES_MAX)
            if self._progress.now is None:
                self._note(None)

    def _note(self, noted: NotedTimers | None) -> None:
        for domain, queue in self.queues.items():
            queue.note_changes(None if noted is None else noted.by_domain[domain])


class FrozenTimers:
    """All timers as they were at a barrier; safe to read from another thread."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        timers: dict[str, FrozenTimerQueue],
        since: Since[NotedTimers] | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.timers = timers  # By domain.
        self.since = since  # None: all is to be written.

    def __len__(self) -> int:
        return sum(map(len, self.timers.values()))

    @property
    def nbytes(self) -> int:
        """About the bytes of the timers, as they are stored."""
        return _STORED_BYTES * len(self)

    @property
    def base(self) -> Sequence[StateHandle]:
        """The shared files of the checkpoint that this one may build on; empty: there are none."""
        return () if self.since is None else self.since.files.get(ONLY, ())

    @property
    def changed(self) -> int:
        """The timers that came or went since that checkpoint; one may count several times."""
        return 0 if self.since is None else sum(one.count for one in self.since.intervals)

    def changes(self) -> Iterator[tuple[str, Iterator[ChangedTimer]]]:
        """The timers that came or went since that checkpoint, each once, by domain."""
        assert self.since is not None
        for domain, queue in self.timers.items():
            noted = NotedKeys.merged(one.by_domain[domain] for one in self.since.intervals)
            yield domain, queue.noted(noted, self.key_groups.first)

    def stored(self, handles: Sequence[StateHandle]) -> None:
        """The shared files of this checkpoint, for later ones to build on; empty: it has none."""
        if self.since is not None:
            self.since.store(ONLY, handles)

    def release(self) -> None:
        """End the sharing; on the loop thread, and without effect when repeated."""
        for view in self.timers.values():
            view.release()
        self.timers = {}
