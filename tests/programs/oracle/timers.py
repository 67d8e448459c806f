"""Timers of event time, and the context through which a function sets them."""

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from weir.datastream import TimeDomain

TIMERS_MAX = 2_000  # More than any program fires.


class Timers:
    """Timers of event time by key: one at a time, in the order of time, then of registration."""

    def __init__(self) -> None:
        self._numbers = count()
        self._heap: list[tuple[int, int, Any, Any, Any]] = []
        self._alive: dict[tuple[int, Any, Any], int] = {}

    def register(self, at: int, key: Any, shown: Any, namespace: Any = None) -> None:
        """Fire once the watermark is at ``at``."""
        name = (at, key, namespace)
        if name not in self._alive:
            self._alive[name] = number = next(self._numbers)
            heapq.heappush(self._heap, (at, number, key, namespace, shown))

    def delete(self, at: int, key: Any) -> None:
        """Do not fire."""
        self._alive.pop((at, key, None), None)

    def as_they_are(self) -> Callable[[], None]:
        """A function that brings the timers of now back."""
        heap, alive = list(self._heap), dict(self._alive)

        def undo() -> None:
            self._heap, self._alive = heap, alive

        return undo

    def due(self, until: int) -> Iterator[tuple[int, Any, Any, Any]]:
        """Time, key, namespace and the key as it was, of one timer after the other."""
        for fired in count():
            while (
                self._heap
                and self._alive.get((self._heap[0][0], self._heap[0][2], self._heap[0][3]))
                != self._heap[0][1]
            ):
                heapq.heappop(self._heap)
            if not self._heap or self._heap[0][0] > until:
                return
            assert fired < TIMERS_MAX, "the program fires timers for ever"
            at, _, key, namespace, shown = heapq.heappop(self._heap)
            del self._alive[at, key, namespace]
            yield at, key, namespace, shown


class Context:
    """The context of a process function, and its timer service."""

    def __init__(self, timers: Timers | None = None) -> None:
        self._timers = timers
        self.key: Any = None
        self.shown: Any = None
        self.at: int | None = None

    def timer_service(self) -> "Context":
        return self

    def timestamp(self) -> int | None:
        return self.at

    def get_current_key(self) -> Any:
        return self.shown

    def time_domain(self) -> TimeDomain:
        return TimeDomain.EVENT_TIME

    def register_event_time_timer(self, at: int) -> None:
        assert self._timers is not None
        self._timers.register(at, self.key, self.shown)

    def delete_event_time_timer(self, at: int) -> None:
        assert self._timers is not None
        self._timers.delete(at, self.key)
