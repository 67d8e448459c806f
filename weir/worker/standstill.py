"""Standstills: times in which no thread of a process ran Python code, of a worker or a driver.

A thread that wakes every few hundredths of a second finds that a second or more has passed. Then
either the process was *frozen* (stopped, swapped out, or its host was suspended); or one thread
stayed in a call into C and *kept the interpreter lock*, at work or waiting itself. The looking
thread tells them apart by its own sleeps: one that waits for the interpreter lock wakes once per
switch interval to ask for it, and a frozen one never. The stall watch can report neither, since it
stood still itself. The report comes afterwards, which is in time for the checkpoint that waited.

A thread that waited for a processor meanwhile tells of a starved host, not of a standstill.

Source: CPython, ``take_gil`` in ``ceval_gil.h``; getrusage(2), ``ru_nvcsw``.
"""

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass

from weir.common.clock import Clock
from weir.common.tracebacks import users_stack
from weir.ids import AttemptNumber, SubtaskId
from weir.protocol.messages import IT_KEPT_THE_LOCK, IT_WAS_FROZEN, SubtaskStalled
from weir.worker.ports import Reporter
from weir.worker.stacks import frames_of
from weir.worker.stalls import STALLED_NS, Calls

WAITED_SHARE = 0.5  # Of the time, for a processor.
ASKED_SHARE = 0.1  # Of the switch intervals.
STILL_NS = STALLED_NS // 2  # Looks at a loop are less than this apart, also while it sleeps.


def sleeps() -> int:
    """The number of times that the calling thread went to sleep."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def asked_for_lock(sleeps: int, ns: int) -> bool:
    """Whether a thread that slept so often in ``ns`` waited for the interpreter lock meanwhile."""
    return sleeps >= ASKED_SHARE * ns / 1e9 / sys.getswitchinterval()


@dataclass(frozen=True, slots=True)
class Standstill:
    """A time in which the looking thread did not run, although it had a processor."""

    ns: int
    kept_the_lock: bool  # Another thread of the process did; else the process was frozen.


class Standstills:
    """The standstills of this process; to be created, and to look, on a thread that wakes often."""

    def __init__(
        self,
        clock: Clock,
        *,
        waited_ns: Callable[[], int],
        sleeps: Callable[[], int] = sleeps,
    ) -> None:
        self._clock = clock
        self._waited_ns = waited_ns  # For a processor, of the looking thread.
        self._sleeps = sleeps  # Of the looking thread.
        self._last = clock.monotonic_ns(), waited_ns(), sleeps()
        # The time since the look before in which hardly any thread of the process ran: it was
        # frozen or starved. 0: they ran, or it was short.
        self.still_ns = 0

    def look(self) -> Standstill | None:
        """The standstill since the last look; None: there was none."""
        last_ns, last_waited_ns, last_sleeps = self._last
        now_ns, waited_ns, sleeps = self._clock.monotonic_ns(), self._waited_ns(), self._sleeps()
        self._last = now_ns, waited_ns, sleeps
        stood_ns = now_ns - last_ns
        kept_the_lock = asked_for_lock(sleeps - last_sleeps, stood_ns)
        self.still_ns = stood_ns if stood_ns >= STILL_NS and not kept_the_lock else 0
        if stood_ns < STALLED_NS or waited_ns - last_waited_ns >= WAITED_SHARE * stood_ns:
            return None
        return Standstill(stood_ns, kept_the_lock)


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
        if not stood.kept_the_lock:
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
