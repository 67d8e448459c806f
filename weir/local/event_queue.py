"""The time of a cluster in one process: actions in an order, and delays between its parts."""

import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeAlias

from weir.common.clock import Clock, SystemClock

Action: TypeAlias = Callable[[], None]


class WaitingClock(Clock, Protocol):
    """Time that the event queue can wait for."""

    def wait_until(self, monotonic_ns: int) -> None:
        """Return at that time, or at once if it is past."""


class RealClock(SystemClock):
    """The time of the machine."""

    def wait_until(self, monotonic_ns: int) -> None:
        """Sleep until that time."""
        left_ns = monotonic_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)


class EventQueue:
    """Actions in the order of their times; of equal times, in the order they were added."""

    def __init__(self, clock: WaitingClock) -> None:
        self.clock = clock
        self._events: list[tuple[int, int, Action]] = []
        self._numbers = count()

    def at(self, monotonic_ns: int, action: Action) -> None:
        """Run ``action`` at that time."""
        heapq.heappush(self._events, (monotonic_ns, next(self._numbers), action))

    def after(self, delay_ns: int, action: Action) -> None:
        """Run ``action`` after that delay."""
        self.at(self.clock.monotonic_ns() + delay_ns, action)

    @property
    def next_ns(self) -> int | None:
        """The time of the next action; None where there is none."""
        return self._events[0][0] if self._events else None

    def run_next(self) -> bool:
        """Wait for the next action and run it; False where there is none."""
        if not self._events:
            return False
        at_ns, _, action = heapq.heappop(self._events)
        self.clock.wait_until(at_ns)
        action()
        return True


class Latencies:
    """The delays of a cluster's connections and steps: none here; a simulation overrides them."""

    def delay_ns(self, what: str) -> int:
        """The delay of a step: loop, channel, report, command, io, snapshot or start."""
        return 0

    def take(self, waiting: int) -> int:
        """The number of waiting inbox items that a worker takes in one round."""
        return waiting


class DelayedLink:
    """A connection in one direction: delivers everything, in order, each item after a delay."""

    __slots__ = ("_conditions", "_events", "_last_ns", "_what", "cut")

    def __init__(self, events: EventQueue, conditions: Latencies, what: str) -> None:
        self.cut = False  # Items under way do not arrive any more.
        self._events = events
        self._conditions = conditions
        self._what = what
        self._last_ns = 0

    def send(self, deliver: Action) -> None:
        """Call ``deliver`` at the other end, after the delay."""

        def arrive() -> None:
            if not self.cut:
                deliver()

        due_ns = self._events.clock.monotonic_ns() + self._conditions.delay_ns(self._what)
        self._last_ns = max(self._last_ns, due_ns)
        self._events.at(self._last_ns, arrive)
