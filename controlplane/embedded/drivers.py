"""The Spark drivers that this home's launcher started.

Drivers run in sessions of their own, so that they outlive the launcher. Ending the whole stack has
to find them, also while PostgreSQL is down: a driver's environment carries a mark, and its command
line names its job file, which lies below the home's ``drivers`` directory.
"""

import os
import signal
from pathlib import Path

import psutil

from jobs.drivers.processes import MARK

END_TIMEOUT_S = 10.0


def driver_processes(directory: Path) -> list[psutil.Process]:
    """Every process of every driver below ``directory``: the JVM, its Python, its workers."""
    sessions: dict[int, list[psutil.Process]] = {}
    ours: set[int] = set()
    prefix = f"{directory}{os.sep}"
    for process in psutil.process_iter():
        try:
            session = os.getsid(process.pid)
            sessions.setdefault(session, []).append(process)
            # The mark as well: a program that reads a driver's log names the directory too.
            if any(prefix in word for word in process.cmdline()) and MARK in process.environ():
                ours.add(session)
        except (ProcessLookupError, psutil.Error):  # It has ended, or is another user's.
            continue
    return [process for session in ours for process in sessions[session]]


def end_drivers(directory: Path) -> int:
    """End the drivers below ``directory``; return the number of their processes.

    SIGTERM comes first, so that Spark removes its scratch files, then SIGKILL.
    """
    running = driver_processes(directory)
    _signal(running, signal.SIGTERM)
    psutil.wait_procs(running, timeout=END_TIMEOUT_S)
    # Looked up again: a driver may have started workers while it was being ended.
    left = {*driver_processes(directory), *(one for one in running if one.is_running())}
    _signal(list(left), signal.SIGKILL)
    psutil.wait_procs(list(left), timeout=END_TIMEOUT_S)
    return len(running)


def _signal(processes: list[psutil.Process], signal_number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(signal_number)
        except psutil.NoSuchProcess:
            continue
