"""Time as a process of the runtime sees it: a clock that nothing sets.

A machine's wall clock is set now and then: by hand, by a time server, when a suspended machine goes
on. Whatever counts a time-out, a pause or a rate by it then stands still for as long as the clock
went back, or finds everything overdue at once. So the wall clock is read once, when a process
begins; from there on the monotonic clock counts. The same reading serves for deadlines and for
stamps, which therefore compare.

The price: after the wall clock was set, the stamps of a process that runs, and what its operators
take for processing time, differ by as much from other clocks, until it is replaced. That does no
harm because no instant is compared with one of another process:

- worker processes take over the clock of their driver when they are deployed (``follow``), which
  differs from it by the time of one message from then on;
- heartbeats carry no time, they are dated by those who receive them;
- a trigger of the control plane comes with its age (``CommandBatch.sent_at_ms``).

While a machine is suspended this clock stands still, as the monotonic clock of Linux does.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Time as a subtask or a job master sees it; a seeded one in simulations."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; it never steps, so that deadlines may be counted by it."""

    def monotonic_ns(self) -> int:
        """For measuring; never crosses processes."""

    def thread_ns(self) -> int:
        """Processor time of the calling thread: what its work costs, whoever else is at work."""


class SystemClock:
    """The clocks of the machine, as they were when this object was made."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """The wall clock when this object was made, and what has passed since."""
        return (self._base_ns + time.monotonic_ns()) // 1_000_000

    def monotonic_ns(self) -> int:
        """For measuring; never crosses processes."""
        return time.monotonic_ns()

    def thread_ns(self) -> int:
        """Processor time of the calling thread."""
        return time.thread_time_ns()

    def follow(self, now_ms: int) -> None:
        """Go on from another process's ``now_ms``, which was read just now.

        The one step that this clock makes; to be taken before deadlines are counted by it.
        """
        self._base_ns = now_ms * 1_000_000 - time.monotonic_ns()
