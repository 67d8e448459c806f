"""Driver processes started by this process: only the parent of a process gets its exit code."""

import subprocess
import threading
from contextlib import suppress

_lock = threading.Lock()
_children: dict[tuple[int, float], subprocess.Popen[bytes]] = {}


def adopt(child: "subprocess.Popen[bytes]", started_at: float) -> None:
    """Keep a child, whose exit code is read later."""
    with _lock:
        _children[child.pid, started_at] = child


def exit_code(pid: int, started_at: float, *, wait_s: float = 0.0) -> int | None:
    """The exit code of a child; None while it runs, or where another process started it.

    Reaps a child that has ended. Negative: the signal that killed the child.

    Args:
        wait_s: For a child that is ending: its threads may end a moment after its main one.
    """
    with _lock:
        child = _children.get((pid, started_at))
    if child is None:
        return None
    with suppress(subprocess.TimeoutExpired):
        child.wait(wait_s)
    return child.returncode


def forget(pid: int, started_at: float) -> None:
    """Drop a child that has ended: its exit code is not read again."""
    with _lock:
        _children.pop((pid, started_at), None)
