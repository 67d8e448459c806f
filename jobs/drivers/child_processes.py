"""Driver processes that this very process started: only their parent learns how they ended."""

import subprocess
import threading

_lock = threading.Lock()
_children: dict[tuple[int, float], subprocess.Popen[bytes]] = {}


def adopt(child: "subprocess.Popen[bytes]", started_at: float) -> None:
    """Keep a child, to be asked for its exit code later."""
    with _lock:
        _children[child.pid, started_at] = child


def exit_code(pid: int, started_at: float) -> int | None:
    """How a child ended; None where it runs, or somebody else started it.

    A child that has ended is reaped by this. Negative: the signal that killed it.
    """
    with _lock:
        child = _children.get((pid, started_at))
    return None if child is None else child.poll()


def forget(pid: int, started_at: float) -> None:
    """The child is gone and nobody will ask again."""
    with _lock:
        _children.pop((pid, started_at), None)
