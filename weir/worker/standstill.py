"""The standstill watch: times in which no thread of the process ran Python code.

A thread that wakes every few hundredths of a second finds that a second or more has passed. Then
either the process was *frozen* (stopped, swapped out, or its host was suspended), so that it used
no processor; or one thread stayed in a call into C and kept the interpreter lock, and used one. The
stall watch can report neither, since it stood still itself. The report comes afterwards, which is
in time for the checkpoint that waited.

A thread that waited for a processor meanwhile tells of a starved host, not of a standstill.
"""

import sys
import time
from collections.abc import Callable

from weir.common.clock import Clock
from weir.common.tracebacks import users_stack
from weir.ids import AttemptNumber, SubtaskId
from weir.protocol.messages import IT_KEPT_THE_LOCK, IT_WAS_FROZEN, SubtaskStalled
from weir.worker.ports import Reporter
from weir.worker.stacks import frames_of
from weir.worker.stalls import STALLED_NS, Calls

SHARE = 0.5  # Of the time: of a processor used, or waited for.


class StandstillWatch:
    """The watch over one process; to be created, and to look, on a thread that wakes often."""

    def __init__(
        self,
        loop: Calls,
        loop_thread: int,
        attempt: AttemptNumber,
        chain: SubtaskId,
        *,
        clock: Clock,
        reporter: Reporter,
        waited_ns: Callable[[], int],
        used_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._loop = loop
        self._loop_thread = loop_thread  # The thread's ident.
        self._attempt = attempt
        self._chain = chain  # Of the slot's: told where the loop was in no call.
        self._clock = clock
        self._reporter = reporter
        self._waited_ns = waited_ns  # For a processor, of the looking thread.
        self._used_ns = used_ns  # Of processors, by all threads of the process.
        self._last = clock.monotonic_ns(), waited_ns(), used_ns()

    def look(self) -> None:
        """Report a standstill since the last look, if there was one."""
        last_ns, last_waited_ns, last_used_ns = self._last
        now_ns, waited_ns, used_ns = self._clock.monotonic_ns(), self._waited_ns(), self._used_ns()
        self._last = now_ns, waited_ns, used_ns
        stood_ns = now_ns - last_ns
        if stood_ns < STALLED_NS or waited_ns - last_waited_ns >= SHARE * stood_ns:
            return
        if used_ns - last_used_ns < SHARE * stood_ns:
            self._report(self._loop.calling or self._chain, stood_ns, f"  {IT_WAS_FROZEN}\n")
            return
        chain, since_ns = self._loop.calling, self._loop.calling_since_ns
        frame = sys._current_frames().get(self._loop_thread)
        if chain is None or frame is None or since_ns >= last_ns + stood_ns // 2:
            return  # The call has returned, and the loop is in another one.
        stack = f"{users_stack(frames_of(frame))}  {IT_KEPT_THE_LOCK}\n"
        self._report(chain, stood_ns, stack)

    def _report(self, chain: SubtaskId, stood_ns: int, stack: str) -> None:
        stood_ms = stood_ns / 1e6
        since_ms = self._clock.now_ms() - round(stood_ms)
        self._reporter.report(SubtaskStalled(self._attempt, chain, since_ms, stood_ms, stack))
