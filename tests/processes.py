"""Processes of a test or of a whole run, by the directory that they work on; stopped ones."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.waiting import wait_until


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is stopped, and goes on unless it was replaced meanwhile."""
    process = psutil.Process(pid)
    try:
        process.suspend()
        wait_until(
            lambda: not process.is_running() or process.status() == psutil.STATUS_STOPPED,
            f"process {pid} is stopped",
        )
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def processes_of(directory: Path) -> list[psutil.Process]:
    """The other processes that name a directory in their command, environment or working place.

    The environment and working place of an undumpable process are for root alone.
    """
    processes = []
    for process in psutil.process_iter():
        words = []
        with suppress(psutil.Error):
            words += process.cmdline()
            words += [*process.environ().values(), process.cwd()]
        if process.pid != psutil.Process().pid and any(str(directory) in word for word in words):
            processes.append(process)
    return processes
