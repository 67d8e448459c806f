"""Processes of a test or of a whole run, by the directory that they work on."""

from pathlib import Path

import psutil


def processes_of(directory: Path) -> list[psutil.Process]:
    """The other processes that name a directory in their command, environment or working place."""
    processes = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
        except psutil.Error:
            continue
        if process.pid != psutil.Process().pid and any(str(directory) in word for word in words):
            processes.append(process)
    return processes
