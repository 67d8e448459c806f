"""Processes of a test or of a whole run: by the directory that they work on, stopped, cut off."""

import ctypes
import os
import socket
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


_PIDFD_GETFD = 438  # Linux has one number for it on all machines; Python has no function.


def cut(process: psutil.Process, peer: psutil.Process | None = None) -> int:
    """End all TCP connections of a process, or those to a peer, as the network does.

    Returns how many. Those of an undumpable process are for root alone.

    Raises:
        psutil.Error: The process is gone, or another user's.
    """
    peers = None if peer is None else {end.laddr for end in peer.net_connections("tcp")}
    libc, pidfd, count = ctypes.CDLL(None, use_errno=True), os.pidfd_open(process.pid), 0
    try:
        for connection in process.net_connections("tcp"):
            if connection.status != psutil.CONN_ESTABLISHED:
                continue
            if peers is not None and connection.raddr not in peers:
                continue
            fd = libc.syscall(_PIDFD_GETFD, pidfd, connection.fd, 0)
            if fd < 0:  # Closed meanwhile.
                continue
            with socket.socket(fileno=fd) as shared, suppress(OSError):  # The peer was quicker.
                shared.shutdown(socket.SHUT_RDWR)
                count += 1
    finally:
        os.close(pidfd)
    return count


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
