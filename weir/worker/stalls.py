"""The stall watch, which detects a stalled loop from another thread and reports its stack.

The loop records which subtask it calls and since when. A long call is sampled: the frames of the
loop's thread, with the interpreter lock held, the user's in front. Outside of calls (asleep without
work, between two calls) the record is empty, so idleness is no stall.

A sample shows where the loop is, not that it hangs: a call that does a lot of work looks the same,
and its stack tells which work to make smaller. Which of the two it is the thread's processor time
tells, and the stack's last line says so of a call that waits. Time in which the whole process was
frozen or starved (``standstill``) is none of the call's.
"""

import sys
import time
from collections.abc import Callable
from typing import Protocol

from weir.common.clock import Clock
from weir.common.tracebacks import users_stack
from weir.ids import AttemptNumber, SubtaskId
from weir.protocol.messages import IT_WAITS, SubtaskStalled
from weir.worker.ports import Reporter
from weir.worker.stacks import frames_of

STALLED_NS = 1_000_000_000  # A slice is a few milliseconds of work.
AGAIN_NS = 1_000_000_000
WAITING_NS = 500_000_000  # A thread is judged over no less.
WAITING_SHARE = 0.05  # A thread that uses less of a processor waits.


class Calls(Protocol):
    """A loop's record of the call it is in; the time is set before the subtask."""

    calling_since_ns: int
    calling: SubtaskId | None  # None: it is in no call.


def cpu_ns(thread: int) -> int | None:
    """The processor time of a thread of this process, by its ident; None: the system has no clock.

    Source: ``pthread_getcpuclockid(3)``.
    """
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread))
    except OSError:
        return None


class StallWatch:
    """The watch over one loop; its methods run on the watching thread."""

    def __init__(
        self,
        loop: Calls,
        loop_thread: int,
        attempt: AttemptNumber,
        *,
        clock: Clock,
        reporter: Reporter,
        still_ns: Callable[[], int],
        cpu_ns: Callable[[int], int | None] = cpu_ns,
    ) -> None:
        self._loop = loop
        self._loop_thread = loop_thread  # The thread's ident.
        self._attempt = attempt
        self._still_ns = still_ns  # Of the time since the look before: the process hardly ran.
        self._clock = clock
        self._reporter = reporter
        self._cpu_ns = cpu_ns  # Of a thread.
        self._reported_since_ns = 0  # The beginning of the call that was reported last.
        self._reported_since_ms = 0  # The same on the wall clock.
        self._again_ns = 0
        self._met_since_ns = 0  # The beginning of the call in which the loop was met last,
        self._met_ns = 0  # when it was first met in it,
        self._met_used_ns = 0  # and the processor time of its thread by then.
        self._stood_ns = 0  # For how long of this call the process hardly ran.

    def look(self) -> None:
        """Report a call that has lasted too long, and again while it lasts."""
        since_ns, chain, now = (
            self._loop.calling_since_ns,
            self._loop.calling,
            self._clock.monotonic_ns(),
        )
        if chain is None:
            return
        still_ns = min(self._still_ns(), now - since_ns)
        self._stood_ns = still_ns + (self._stood_ns if since_ns == self._met_since_ns else 0)
        self._met_ns += still_ns
        waits = self._waits(since_ns, now)
        lasted_ns = now - since_ns - self._stood_ns
        if lasted_ns < STALLED_NS:
            return
        if since_ns == self._reported_since_ns and now < self._again_ns:
            return
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return  # The thread has ended.
        try:
            stack = users_stack(frames_of(frame))
            stack += f"  {IT_WAITS}\n" if waits else ""
        except Exception as error:  # Source lines come from import hooks, which may be user code.
            stack = f"the stack cannot be shown: {error!r}\n"
        if self._loop.calling is None or self._loop.calling_since_ns != since_ns:
            return  # The call ended meanwhile: the frames may be of another call, or of a sleep.
        if since_ns != self._reported_since_ns:
            self._reported_since_ns = since_ns
            self._reported_since_ms = self._clock.now_ms() - round((now - since_ns) / 1e6)
        self._again_ns = now + AGAIN_NS
        self._reporter.report(
            SubtaskStalled(self._attempt, chain, self._reported_since_ms, lasted_ns / 1e6, stack)
        )

    def _waits(self, since_ns: int, now_ns: int) -> bool:
        """Whether the loop's thread has used hardly any processor since a first look at this call.

        Then it waits in a call into C: Python code would use a processor.
        """
        used_ns = self._cpu_ns(self._loop_thread)
        if since_ns != self._met_since_ns or used_ns is None:
            self._met_since_ns, self._met_ns, self._met_used_ns = since_ns, now_ns, used_ns or 0
            return False
        met_ns = now_ns - self._met_ns
        return met_ns >= WAITING_NS and used_ns - self._met_used_ns < WAITING_SHARE * met_ns
