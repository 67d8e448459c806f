"""The clock of a runtime process, which never steps.

A machine's wall clock is set now and then: by hand, by a time server, when a suspended machine
resumes. A time-out, pause or rate counted by it then stands still for as long as the clock went
back, or everything is overdue at once. So the wall clock is read once, when a process begins; from
there on the monotonic clock counts. The same reading serves for deadlines and for stamps, which
therefore compare.

The price: after the wall clock was set, the stamps and the processing time of a running process
differ by as much from other clocks, until the process is replaced. That does no harm because no
instant is compared with one of another process:

- worker processes take over the clock of their driver when they are deployed (``follow``). They are
  behind by the time that this message was on its way, and step ahead to the stamp of a trigger or
  barrier that comes from later than their present (``at_least``): so they are never behind what
  they measure, and after a few checkpoints by the quickest message only (Cristian, 1989);
- heartbeats carry no time: their receivers date them;
- a trigger of the control plane comes with its age (``CommandBatch.sent_at_ms``).

While a machine is suspended this clock stands still, as the monotonic clock of Linux does.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The clock of a subtask or a job master; a seeded one in simulations."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; it never steps, so that deadlines may be counted by it."""

    def monotonic_ns(self) -> int:
        """Monotonic time, for measuring; never crosses processes."""

    def thread_ns(self) -> int:
        """Processor time of the calling thread: the cost of its work alone."""


class SystemClock:
    """The clock of the machine, free of later steps of the wall clock."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """The wall clock at construction plus the monotonic time since."""
        return (self._base_ns + time.monotonic_ns()) // 1_000_000

    def monotonic_ns(self) -> int:
        """Monotonic time, for measuring; never crosses processes."""
        return time.monotonic_ns()

    def thread_ns(self) -> int:
        """Processor time of the calling thread."""
        return time.thread_time_ns()

    def follow(self, now_ms: int) -> None:
        """Continue from another process's ``now_ms``, which was read just now.

        The only step back that this clock may make; before deadlines are counted by it.
        """
        self._base_ns = now_ms * 1_000_000 - time.monotonic_ns()

    def at_least(self, now_ms: int) -> None:
        """Step ahead to a stamp of the clock that this one follows; never back."""
        self._base_ns = max(self._base_ns, now_ms * 1_000_000 - time.monotonic_ns())
