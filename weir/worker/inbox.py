"""The inbox of a worker's loop, filled by other threads.

``queue.SimpleQueue`` does the work: its ``put`` is one call into C, safe from any thread and from a
signal handler, which no lock of ``threading`` is. Only the loop takes items out, so the number of
items it reads before draining can only grow.

Its items are bounded elsewhere: elements by credit, commands by the coordinator, calls by the
snapshots under way.
"""

from queue import Empty, SimpleQueue

from weir.worker.ports import InboxItem


class ThreadInbox:
    """Items for the loop, in the order in which they were put."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[InboxItem] = SimpleQueue()
        self._awaited: list[
            InboxItem
        ] = []  # The item that ended the last wait; precedes the queue.

    def put(self, item: InboxItem) -> None:
        """Add an item and wake the loop; callable from any thread and from a signal handler."""
        self._queue.put(item)

    def drain(self) -> list[InboxItem]:
        """Take all items out. The loop only."""
        items, self._awaited = self._awaited, []
        items += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        return items

    def wait(self, timeout: float) -> None:
        """Wait for an item, at most ``timeout`` seconds. The loop only."""
        if self._awaited:
            return
        try:
            self._awaited.append(self._queue.get(timeout=max(0.0, timeout)))
        except Empty:
            return
