"""The stall watch, which detects a stalled loop from another thread and reports its stack.

The loop records which subtask it calls and since when. A long call is sampled: the frames of the
loop's thread, with the interpreter lock held, the user's in front. Outside of calls (asleep without
work, between two calls) the record is empty, so idleness is no stall.

A sample shows where the loop is, not that it hangs: a call that does a lot of work looks the same,
and its stack tells which work to make smaller.
"""

import sys
from typing import Protocol

from weir.common.clock import Clock
from weir.common.tracebacks import users_stack
from weir.ids import AttemptNumber, SubtaskId
from weir.protocol.messages import SubtaskStalled
from weir.worker.ports import Reporter
from weir.worker.stacks import frames_of

STALLED_NS = 1_000_000_000  # A slice is a few milliseconds of work.
AGAIN_NS = 1_000_000_000
LOOK_INTERVAL_S = 0.25


class Calls(Protocol):
    """A loop's record of the call it is in; the time is set before the subtask."""

    calling_since_ns: int
    calling: SubtaskId | None  # None: it is in no call.


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
    ) -> None:
        self._loop = loop
        self._loop_thread = loop_thread  # The thread's ident.
        self._attempt = attempt
        self._clock = clock
        self._reporter = reporter
        self._reported_since_ns = 0  # The beginning of the call that was reported last.
        self._reported_since_ms = 0  # The same on the wall clock.
        self._again_ns = 0

    def look(self) -> None:
        """Report a call that has lasted too long, and again while it lasts."""
        since_ns, chain, now = (
            self._loop.calling_since_ns,
            self._loop.calling,
            self._clock.monotonic_ns(),
        )
        if chain is None or now - since_ns < STALLED_NS:
            return
        if since_ns == self._reported_since_ns and now < self._again_ns:
            return
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return  # The thread has ended.
        try:
            stack = users_stack(frames_of(frame))
        except Exception as error:  # Source lines come from import hooks, which may be user code.
            stack = f"the stack cannot be shown: {error!r}\n"
        if self._loop.calling is None or self._loop.calling_since_ns != since_ns:
            return  # The call ended meanwhile: the frames may be of another call, or of a sleep.
        stalled_ms = (now - since_ns) / 1e6
        if since_ns != self._reported_since_ns:
            self._reported_since_ns = since_ns
            self._reported_since_ms = self._clock.now_ms() - round(stalled_ms)
        self._again_ns = now + AGAIN_NS
        self._reporter.report(
            SubtaskStalled(self._attempt, chain, self._reported_since_ms, stalled_ms, stack)
        )
