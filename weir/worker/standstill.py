"""Standstills: times in which no thread of a process ran Python code, of a worker or a driver.

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
from dataclasses import dataclass

from weir.common.clock import Clock
from weir.common.tracebacks import users_stack
from weir.ids import AttemptNumber, SubtaskId
from weir.protocol.messages import IT_KEPT_THE_LOCK, IT_WAS_FROZEN, SubtaskStalled
from weir.worker.ports import Reporter
from weir.worker.stacks import frames_of
from weir.worker.stalls import STALLED_NS, Calls

SHARE = 0.5  # Of the time: of a processor used, or waited for.


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which the looking thread did not run, although it had a processor."""

    ns: int
    at_work: bool  # Another thread of the process used a processor meanwhile.


class Standstills:
    """The standstills of this process; to be created, and to look, on a thread that wakes often."""

    def __init__(
        self,
        clock: Clock,
        *,
        waited_ns: Callable[[], int],
        used_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._clock = clock
        self._waited_ns = waited_ns  # For a processor, of the looking thread.
        self._used_ns = used_ns  # Of processors, by all threads of the process.
        self._last = clock.monotonic_ns(), waited_ns(), used_ns()

    def look(self) -> Standstill | None:
        """The standstill since the last look; None: there was none."""
        last_ns, last_waited_ns, last_used_ns = self._last
        now_ns, waited_ns, used_ns = self._clock.monotonic_ns(), self._waited_ns(), self._used_ns()
        self._last = now_ns, waited_ns, used_ns
        stood_ns = now_ns - last_ns
        if stood_ns < STALLED_NS or waited_ns - last_waited_ns >= SHARE * stood_ns:
            return None
        return Standstill(stood_ns, used_ns - last_used_ns >= SHARE * stood_ns)


class StandstillWatch:
    """The reports of a worker's standstills; its methods run on the looking thread."""

    def __init__(
        self,
        loop: Calls,
        loop_thread: int,
        attempt: AttemptNumber,
        chain: SubtaskId,
        *,
        standstills: Standstills,
        clock: Clock,
        reporter: Reporter,
    ) -> None:
        self._loop = loop
        self._loop_thread = loop_thread  # The thread's ident.
        self._attempt = attempt
        self._chain = chain  # Of the slot's: told where the loop was in no call.
        self._standstills = standstills
        self._clock = clock
        self._reporter = reporter

    def look(self) -> None:
        """Report a standstill since the last look, if there was one."""
        stood = self._standstills.look()
        if stood is None:
            return
        if not stood.at_work:
            self._report(self._loop.calling or self._chain, stood.ns, f"  {IT_WAS_FROZEN}\n")
            return
        chain, since_ns = self._loop.calling, self._loop.calling_since_ns
        frame = sys._current_frames().get(self._loop_thread)
        if chain is None or frame is None:
            return
        if since_ns >= self._clock.monotonic_ns() - stood.ns // 2:
            return  # The loop has gone on, and is in another call.
        # Other threads had their turns first, so the loop may have moved on a little.
        stack = f"{users_stack(frames_of(frame))}  {IT_KEPT_THE_LOCK}\n"
        self._report(chain, stood.ns, stack)

    def _report(self, chain: SubtaskId, stood_ns: int, stack: str) -> None:
        stood_ms = stood_ns / 1e6
        since_ms = self._clock.now_ms() - round(stood_ms)
        self._reporter.report(SubtaskStalled(self._attempt, chain, since_ms, stood_ms, stack))
