"""The time that a thread waited for a processor: ready to run while every processor was taken.

The second number of ``/proc/<pid>/task/<tid>/schedstat``, in nanoseconds. Linux adds a wait to it
when the wait ends, so a thread that reads its own number misses none. Waits for a lock (the
interpreter's is one), a file or a connection are sleep and do not count: what counts are other
programs of the host, and slots of which there are more than processors.

Where a system has no such file, or does not show it, the wait stays 0.
"""

import os
from contextlib import suppress
from pathlib import Path

SCHEDSTAT = "/proc/thread-self/schedstat"
BYTES_MAX = 64  # Three numbers of 20 digits at most.


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
