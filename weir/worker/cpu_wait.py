"""The wait for a processor: of one thread, of all threads of this process, and on this host.

A thread waits while it is ready to run and every processor is taken: the second number of
``/proc/<pid>/task/<tid>/schedstat``, in nanoseconds. Linux adds a wait to it when the wait ends, so
a thread that reads its own number misses none. Waits for a lock (the interpreter's is one), a file
or a connection are sleep and do not count: what counts are other programs of the host, and slots of
which there are more than processors.

The host is short of processors while any thread on it waits so, also one of a program that Weir
does not know: the pressure stall information of Linux, in microseconds. A slot that mostly sleeps
waits little on such a host, and yet is late each time it wakes.

Where a system has no such file, or does not show it, the wait stays 0.

Source: the Linux kernel's documentation, ``scheduler/sched-stats`` and ``accounting/psi``.
"""

import os
import re
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from weir.common.clock import Clock
from weir.protocol.driver_messages import DriverLoad

SCHEDSTAT = "/proc/thread-self/schedstat"
TASKS = "/proc/self/task"
PRESSURE = "/proc/pressure/cpu"
BYTES_MAX = 64  # Three numbers of 20 digits at most.
PRESSURE_BYTES_MAX = 256
LOAD_WINDOW_NS = 2_000_000_000
Sample: TypeAlias = tuple[int, int, int]  # A time, work and wait until then, in nanoseconds.
_SOME = re.compile(rb"some [^\n]*total=(\d+)")


class CpuWait:
    """The growth of one thread's wait; to be created on that thread."""

    def __init__(self, path: str | Path = SCHEDSTAT) -> None:
        # Kept open as long as the process: a reading is then one call into the kernel, 2 µs.
        self._file: int | None = None
        with suppress(FileNotFoundError, PermissionError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._began_ns = self._total_ns()

    def waited_ns(self) -> int:
        """Nanoseconds of waiting since the creation; never shrinks."""
        return self._total_ns() - self._began_ns

    def _total_ns(self) -> int:
        if self._file is None:
            return 0
        return int(os.pread(self._file, BYTES_MAX, 0).split()[1])


class CpuPressure:
    """The growth of the time in which some thread of this host waited for a processor."""

    def __init__(self, path: str | Path = PRESSURE) -> None:
        self._file: int | None = None
        with suppress(OSError):  # A kernel without the accounting refuses it in several ways.
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._began_ns = self._total_ns()

    def lacked_ns(self) -> int:
        """Nanoseconds since the creation; never shrinks."""
        return max(0, self._total_ns() - self._began_ns)

    def _total_ns(self) -> int:
        if self._file is None:
            return 0
        try:
            text = os.pread(self._file, PRESSURE_BYTES_MAX, 0)
        except OSError:  # The accounting was switched off at the start of the system.
            return 0
        some = _SOME.match(text)
        return 1_000 * int(some[1]) if some else 0


class ThreadsLoad:
    """The work of this process' threads and their wait, over about the last two seconds."""

    def __init__(self, clock: Clock, tasks: str | Path = TASKS) -> None:
        self._clock = clock
        self._tasks = Path(tasks)
        self._last = self._read()
        self._total = (0, 0)  # Work and wait of the threads that were there twice.
        self._samples: deque[Sample] = deque([(clock.monotonic_ns(), *self._total)])
        self._standstills: deque[tuple[int, int]] = deque()  # The end of each, and its length.

    def note_standstill(self, stood_ns: int) -> None:
        """A standstill of the process is over. From any thread."""
        self._standstills.append((self._clock.monotonic_ns(), stood_ns))

    def measure(self) -> DriverLoad | None:
        """The load up to now; None where the system does not tell it, or no time has passed."""
        now_ns, last = self._clock.monotonic_ns(), self._read()
        ran, waited = self._total
        for thread, (its_ran, its_waited) in last.items():
            if (before := self._last.get(thread)) is not None:  # Else it began meanwhile.
                ran += max(0, its_ran - before[0])
                waited += max(0, its_waited - before[1])
        self._last, self._total = last, (ran, waited)
        self._samples.append((now_ns, ran, waited))
        while len(self._samples) > 2 and now_ns - self._samples[1][0] >= LOAD_WINDOW_NS:
            self._samples.popleft()
        then_ns, ran_then, waited_then = self._samples[0]
        while self._standstills and self._standstills[0][0] < then_ns:
            self._standstills.popleft()
        stood_ns = max((stood_ns for _, stood_ns in self._standstills), default=0)
        if not last or now_ns <= then_ns:
            return None
        return DriverLoad(
            window_ms=(now_ns - then_ns) / 1e6,
            ran_ms=(ran - ran_then) / 1e6,
            waited_ms=(waited - waited_then) / 1e6,
            stood_ms=stood_ns / 1e6,
        )

    def _read(self) -> dict[str, tuple[int, int]]:
        """Work and wait of each thread, in nanoseconds since it began."""
        known = {}
        with suppress(FileNotFoundError, PermissionError):
            for thread in os.listdir(self._tasks):
                with suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
                    numbers = (self._tasks / thread / "schedstat").read_bytes().split()
                    known[thread] = int(numbers[0]), int(numbers[1])
        return known
