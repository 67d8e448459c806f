"""Threads that user code started in a slot, which keep the interpreter lock from the loop.

Python runs one thread at a time. One that computes yields the lock only some milliseconds after
another wants it, and to any of those that do. The loop gives it up at every look at its sockets, so
it waits for all such threads many times a second. To the system it sleeps meanwhile: its subtasks
are not busy, and there is a processor for it.

The watching thread wakes as often, and waits for the same lock: the time from the end of its sleep
until it runs, less that without a processor, and none where the process was frozen (``standstill``
tells that from a wait for the lock). A thread that computes without the lock, as NumPy does, makes
none wait.

Source: ``sys.setswitchinterval``.
"""

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, TypeAlias

from weir.common.clock import Clock
from weir.common.tracebacks import is_users_file
from weir.protocol.messages import ThreadsBeside
from weir.worker.stalls import cpu_ns
from weir.worker.standstill import asked_for_lock, sleeps

WINDOW_NS = 2_000_000_000
SAMPLES_MIN = 5
SHARE_MIN = 0.1  # Of a processor; threads that use less keep the lock from none.
FRAMES_MAX = 200
OWN_NAMES = "weir-"

Place: TypeAlias = tuple[str, str, int]  # Function, file and line; empty, and 0: no user's code.


class Sample(NamedTuple):
    """One look at the threads."""

    at_ns: int
    lock_wait_ns: int  # Of the looking thread, which had slept before.
    used_ns: int  # By the threads beside, since the look before.
    loop_used_ns: int
    places: tuple[Place, ...]  # Of those that used any.


class ThreadsWatch:
    """The threads beside one loop; for the watching thread, apart from ``beside``."""

    def __init__(
        self,
        loop_thread: int,
        *,
        clock: Clock,
        cpu_ns: Callable[[int], int | None] = cpu_ns,
        sleep: Callable[[float], None] = time.sleep,
        sleeps: Callable[[], int] = sleeps,
    ) -> None:
        self._loop_thread = loop_thread  # The thread's ident.
        self._clock = clock
        self._cpu_ns = cpu_ns  # Of a thread.
        self._sleep = sleep
        self._sleeps = sleeps  # Of the looking thread.
        self._used_ns: dict[int, int] = {}  # By thread, at the last look.
        self._samples: deque[Sample] = deque()

    def sleep(self, seconds: float, waited_ns: Callable[[], int]) -> None:
        """Sleep, then look at the threads.

        Args:
            waited_ns: The wait of this thread for a processor, which only grows.
        """
        began_ns, began_waited_ns = self._clock.monotonic_ns(), waited_ns()
        began_sleeps = self._sleeps()
        self._sleep(seconds)
        now_ns = self._clock.monotonic_ns()
        late_ns = now_ns - began_ns - round(1e9 * seconds) - (waited_ns() - began_waited_ns)
        if not asked_for_lock(self._sleeps() - began_sleeps, late_ns):
            late_ns = 0  # The process was frozen.
        self._samples.append(Sample(now_ns, max(0, late_ns), *self._look()))
        while now_ns - self._samples[0].at_ns > WINDOW_NS:
            self._samples.popleft()

    def _look(self) -> tuple[int, int, tuple[Place, ...]]:
        own = {t.ident for t in threading.enumerate() if t.name.startswith(OWN_NAMES)}
        beside_ns, loop_ns, places, used = 0, 0, [], {}
        for thread, frame in sys._current_frames().items():
            if thread in own or (used_ns := self._cpu_ns(thread)) is None:
                continue
            used[thread] = used_ns
            grown_ns = max(0, used_ns - self._used_ns.get(thread, used_ns))
            if thread == self._loop_thread:
                loop_ns = grown_ns
            elif grown_ns:
                beside_ns += grown_ns
                places.append(_place_in(frame))
        self._used_ns = used
        return beside_ns, loop_ns, tuple(places)

    def beside(self) -> ThreadsBeside | None:
        """The threads over the last two seconds; None: they used next to nothing. From any thread.

        An ident that the system gives to a new thread once more counts from the next look on.
        """
        samples = list(self._samples)
        if len(samples) < SAMPLES_MIN:
            return None
        # What the first one tells of came before the window.
        span_ns, later = max(1, samples[-1].at_ns - samples[0].at_ns), samples[1:]
        share = sum(sample.used_ns for sample in later) / span_ns
        loop_share = sum(sample.loop_used_ns for sample in later) / span_ns
        if share < SHARE_MIN:
            return None
        places = Counter(place for sample in later for place in sample.places)
        function, file, line = places.most_common(1)[0][0]
        wait_ns = sum(sample.lock_wait_ns for sample in later) / len(later)
        return ThreadsBeside(
            wait_ns / 1e6, min(1.0, share), min(1.0, loop_share), function, file, line
        )


def _place_in(frame: FrameType) -> Place:
    at: FrameType | None = frame
    for _ in range(FRAMES_MAX):
        if at is None:
            break
        if is_users_file(at.f_code.co_filename):
            return at.f_code.co_name, at.f_code.co_filename, at.f_lineno or 0
        at = at.f_back
    return "", "", 0
