"""Processes of this machine, identified beyond doubt by pid, start time and boot.

A pid is reused one day; together with the time since boot at which its process started, and the
boot, it is unique. Wall clocks play no part, so a clock that jumps does no harm. Linux only.

A driver is a session of processes: spark-submit's JVM leads it, the Python driver is its child.
Either may be killed and leave the other behind, so the whole session is watched and ended.

Source: proc(5); setsid(2).
"""

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MARK = "WEIR_DRIVER"  # In the environment of a driver's processes: job and number.


@dataclass(frozen=True, slots=True)
class Process:
    """One process as ``/proc`` shows it. Units: ``started_at`` in seconds since the boot."""

    pid: int
    state: str
    session: int
    started_at: float

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended: a zombie only waits for its parent to reap it."""
        return self.state in "ZXx"


@cache
def host_name() -> str:
    """This machine's name, for people."""
    return socket.gethostname()


@cache
def boot_id() -> str:
    """The id of this boot and pid namespace: containers on one machine count apart."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat(_PROC / "self/ns/pid").st_ino
    return f"{boot}/{namespace}"


def find(pid: int) -> Process | None:
    """The process with this pid, if there is one."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold anything, parentheses too.
    fields = text.rpartition(")")[2].split()
    return Process(
        pid=pid,
        state=fields[0],
        session=int(fields[3]),
        started_at=int(fields[19]) / _TICKS_PER_S,
    )


def is_running(pid: int, started_at: float) -> bool:
    """Whether the process with this pid runs, and is the one started at this time."""
    process = find(pid)
    return process is not None and not process.is_gone and process.started_at == started_at


def session_of(leader: int, started_at: float) -> list[Process]:
    """The running processes of the session that this process led, itself included if it runs."""
    current = find(leader)
    if current is not None and current.started_at != started_at:
        return []  # The pid was reused, which cannot be while the session has members.
    return [
        process
        for process in _all()
        if process.session == leader and not process.is_gone and process.started_at >= started_at
    ]


def end_session(leader: int, started_at: float, signal_number: signal.Signals) -> int:
    """Signal the running processes of a session; return their number."""
    members = session_of(leader, started_at)
    for process in members:
        try:
            os.kill(process.pid, signal_number)
        except ProcessLookupError:
            continue
    return len(members)


def _all() -> Iterator[Process]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (process := find(int(entry))) is not None:
            yield process
