"""The ready queue of a worker: the subtasks that have work, and the timers of those that wait.

A subtask enters when an element arrives for it, when credit comes back for its output, when a
command that was carried out on it left it work, and when its next timer is due. Taken out it does
one slice, and enters again, behind all others, unless it rests. So a subtask waits for one slice of
each other one at most, and one without work costs nothing, however many of them a slot holds.

Timers are in one heap. A subtask has one entry there, which may be earlier than its timer: a timer
that moves on with every record (the idle timeout of a watermark) changes no entry. An entry that
comes up before its timer is put back.
"""

from heapq import heappop, heappush
from itertools import count

from weir.worker.subtask import Subtask


class ReadyQueue:
    """Subtasks in the order in which they got work, and the next timer of each of the others."""

    def __init__(self) -> None:
        self._ready: dict[Subtask, None] = {}
        self._timers: dict[Subtask, int] = {}  # By ``Clock.now_ms``.
        self._heap: list[tuple[int, int, Subtask]] = []
        self._entries: dict[Subtask, int] = {}  # The earliest time in the heap.
        self._order = count()  # Of entries of the same time.

    def __bool__(self) -> bool:
        return bool(self._ready)

    def add(self, subtask: Subtask) -> None:
        """A subtask has, or may have, work; it keeps its place if it is in the queue already."""
        self._ready[subtask] = None

    def take(self) -> list[Subtask]:
        """Take out all that are ready, in order. What enters from now on is for the next round."""
        taken = list(self._ready)
        self._ready.clear()
        return taken

    def wait(self, subtask: Subtask, timer_ms: int | None) -> None:
        """A subtask has no work before its next timer; None: it has none."""
        if timer_ms is None:
            self._timers.pop(subtask, None)
            return
        self._timers[subtask] = timer_ms
        if timer_ms < self._entries.get(subtask, timer_ms + 1):
            self._push(subtask, timer_ms)

    def next_timer_ms(self) -> int | None:
        """The time of the earliest timer; None where there is none."""
        while self._heap:
            at_ms, _, subtask = self._heap[0]
            timer_ms = self._timers.get(subtask)
            if timer_ms == at_ms:
                return at_ms
            heappop(self._heap)
            if self._entries.get(subtask) == at_ms:
                del self._entries[subtask]
                if timer_ms is not None:
                    self._push(subtask, timer_ms)
        return None

    def wake(self, now_ms: int) -> None:
        """Let those enter whose timer is due."""
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= now_ms:
            _, _, subtask = heappop(self._heap)
            del self._timers[subtask], self._entries[subtask]
            self.add(subtask)

    def _push(self, subtask: Subtask, at_ms: int) -> None:
        self._entries[subtask] = at_ms
        heappush(self._heap, (at_ms, next(self._order), subtask))
