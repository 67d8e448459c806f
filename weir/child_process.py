"""Child processes: begun so that an interrupted start leaves none, and killed with their group."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypedDict, Unpack

import psutil

from weir.errors import ExternalError

KILL_TIMEOUT_S = 10.0
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.02


class Leader(Protocol):
    """The part of a child that leads a process group by which the group is killed."""

    pid: int

    def wait(self) -> int:
        """The exit code, once it has ended."""


class ProcessOptions(TypedDict, total=False):
    """Further arguments of ``subprocess.Popen``."""

    cwd: str  # Left out: the starter's.
    env: dict[str, str]  # Left out: the starter's.
    user: int
    group: int
    extra_groups: list[int]
    umask: int


def popen(
    command: Sequence[str], *, stdout: int, stderr: int, **options: Unpack[ProcessOptions]
) -> "subprocess.Popen[bytes]":
    """Start a child without input that leads a session; a start that is interrupted leaves none.

    Ctrl-C in the terminal reaches the starter alone, which then ends all in order. One that comes
    while the child has begun and ``subprocess.Popen`` has not returned it ends the child here.
    """
    child: subprocess.Popen[bytes] | None = None
    try:
        with _handlers_held():
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                **options,
            )
    except BaseException:
        if child is not None:
            kill_group(child)
        raise
    return child


@contextmanager
def _handlers_held() -> Iterator[None]:
    """Let Python's handlers of the signals that end this process run after the block.

    Signals are not blocked, since a child would begin with them blocked. No other thread than the
    main one runs handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {
        number: handler for number in END_SIGNALS if callable(handler := signal.getsignal(number))
    }
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in arrived:
            signal.raise_signal(late)


def kill_group(leader: Leader) -> None:
    """Kill a child that leads a process group, and the rest of it; none of them writes then.

    Raises:
        ExternalError: One of them still runs after ``KILL_TIMEOUT_S``.
    """
    os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while _group_runs(leader.pid):
        if time.monotonic() > deadline:
            raise ExternalError(f"processes of group {leader.pid} still run after SIGKILL")
        time.sleep(_POLL_S)


def _group_runs(group: int) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and is_alive(process):
                return True
    return False


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that only waits for its parent to notice does not.

    A process of several threads is shown as a zombie from the end of its first one on, while the
    others still hold its files and its port.
    """
    try:
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return process.is_running() and not (is_zombie and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return False
