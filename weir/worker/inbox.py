"""The inbox of a worker's loop, filled by the thread that serves the sockets and by others.

A ``deque`` does the work: its ``append`` is one call into C, safe from any thread and from a signal
handler, which no lock of ``threading`` is. Only the loop takes items out.

Its items are bounded elsewhere: elements by credit, commands by the coordinator, calls by the
snapshots under way.
"""

from collections import deque
from collections.abc import Callable

from weir.worker.ports import InboxItem


class ThreadInbox:
    """Items for the loop, in the order in which they were put."""

    def __init__(self, wake_loop: Callable[[], None]) -> None:
        """``wake_loop`` ends the loop's sleep, if it sleeps; callable as ``put`` is."""
        self._items: deque[InboxItem] = deque()
        self._wake_loop = wake_loop

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: InboxItem) -> None:
        """Add an item and wake the loop; callable from any thread and from a signal handler."""
        self._items.append(item)
        self._wake_loop()

    def drain(self) -> list[InboxItem]:
        """Take out the items that are there. The loop only."""
        return [self._items.popleft() for _ in range(len(self._items))]
