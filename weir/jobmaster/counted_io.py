"""Storage I/O that runs elsewhere, counted: a driver does not end while some is under way."""

from collections.abc import Callable
from typing import Any, TypeAlias

Io: TypeAlias = Callable[[Callable[[], Any], Callable[[Any], None]], None]


class CountedIo:
    """Runs work elsewhere by ``Cluster.io``, and its continuation on the job master's thread."""

    def __init__(self, io: Io) -> None:
        self._io = io
        self._count = 0

    @property
    def is_busy(self) -> bool:
        """Whether storage is being read, written or deleted."""
        return self._count > 0

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run ``work`` elsewhere, then ``done`` with its result or exception."""
        self._count += 1

        def finished(outcome: Any) -> None:
            self._count -= 1
            done(outcome)

        self._io(work, finished)
