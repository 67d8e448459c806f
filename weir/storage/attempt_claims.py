"""The claim of an attempt: a file that one driver creates, and that describes its process.

::

    {"pid": 4711, "started": 81234567, "machine": "<boot id>/<pid namespace>"}    library mode
    {"managed": true, "control_plane": "https://weir.example", "driver": "0123456789abcdef"}
    (empty)                                                   written by an older version of Weir

A pid is reused one day; with the time since boot at which its process started, the boot and the pid
namespace it is unique, and containers on one machine count apart. So it can be told on the same
machine whether that driver lives. Elsewhere it cannot.

A managed driver is watched by the control plane that launched it, which knows it by the digest of
its token. Another control plane does not: one whose database is a copy.

Source: proc(5).
"""

import hashlib
import json
import os
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from weir.errors import StorageError
from weir.ids import AttemptNumber, JobId
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, PathNotFoundError

_PROC = Path("/proc")
_DRIVER_LENGTH = 16


class Standing(StrEnum):
    """The state of a job's newest attempt, as far as files and this machine's processes tell."""

    OVER = "its end is recorded"
    GONE = "its driver ran on this machine, and is gone"
    ALIVE = "its driver runs on this machine, as process {0}"
    MANAGED = "a control plane runs it"
    UNKNOWN = "its driver ran on another machine or before a reboot, or was an older Weir's"


@dataclass(frozen=True, slots=True)
class ManagedClaim:
    """The claim of a driver that a control plane launched; empty fields: an older version's."""

    control_plane: str  # Its URL, as people reach it.
    driver: str  # The beginning of the SHA-256 of its token, in hexadecimal.

    @classmethod
    def with_token(cls, control_plane: str, token: str) -> "ManagedClaim":
        """The claim of the driver to which the control plane gave this token."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        return cls(control_plane, digest[:_DRIVER_LENGTH])

    def dump(self) -> bytes:
        """The content of its file."""
        described = {"managed": True, "control_plane": self.control_plane, "driver": self.driver}
        return json.dumps(described).encode()


def load_managed(claim: bytes) -> ManagedClaim | None:
    """The claim of a managed driver, by its content; None: another's."""
    try:
        described = json.loads(claim)
        if described.get("managed") is True:
            given = (described.get(name, "") for name in ("control_plane", "driver"))
            return ManagedClaim(*map(str, given))
    except (ValueError, AttributeError):
        pass
    return None


def describe_process() -> bytes:
    """The content of a claim by this process; empty where the system shows no processes."""
    pid = os.getpid()
    started, machine = _started(pid), _machine()
    if started is None or machine is None:
        return b""
    return json.dumps({"pid": pid, "started": started, "machine": machine}).encode()


def check_claimed(store: CheckpointStore, job_id: JobId, attempt: AttemptNumber) -> None:
    """Check that a subtask's machine sees the storage in which the driver claimed the attempt.

    Another directory is under its path where a share is not mounted.

    Raises:
        StorageError: The claim is missing, or the storage failed.
    """
    if not store.exists(JobLayout(job_id).attempt(attempt)):
        raise StorageError(
            f"{store.location} is not the job's checkpoint storage on {socket.gethostname()}: "
            f"attempt {attempt} is missing there. Mount it as it is mounted for the driver"
        )


def newest_attempt(store: CheckpointStore, job_id: JobId) -> AttemptNumber:
    """The newest attempt that any driver has claimed; 0: there is none.

    Raises:
        StorageError: The storage failed.
    """
    layout = JobLayout(job_id)
    return max(map(layout.attempt_of, store.list(layout.attempts)), default=AttemptNumber(0))


def newest_claim(store: CheckpointStore, job_id: JobId) -> tuple[AttemptNumber, bytes]:
    """The newest attempt and the content of its claim; 0: there is none.

    Raises:
        StorageError: The storage failed.
    """
    newest = newest_attempt(store, job_id)
    return newest, _read(store, JobLayout(job_id).attempt(newest)) if newest else b""


def standing(store: CheckpointStore, job_id: JobId) -> tuple[Standing, int | None]:
    """The standing of a job's newest attempt, and the pid of its driver where it lives.

    Raises:
        StorageError: The storage failed.
    """
    layout = JobLayout(job_id)
    newest, claim = newest_claim(store, job_id)
    if not newest:
        return Standing.UNKNOWN, None
    if store.exists(layout.over(newest)) or _has_finished(store, layout, newest, claim):
        return Standing.OVER, None
    if load_managed(claim) is not None:
        return Standing.MANAGED, None
    try:
        described = json.loads(claim)
        pid, started = int(described["pid"]), int(described["started"])
        is_here = described["machine"] == _machine()
    except (ValueError, KeyError, TypeError, AttributeError):
        return Standing.UNKNOWN, None
    if not is_here:
        return Standing.UNKNOWN, None
    return (Standing.ALIVE, pid) if _started(pid) == started else (Standing.GONE, None)


def _has_finished(
    store: CheckpointStore, layout: JobLayout, newest: AttemptNumber, claim: bytes
) -> bool:
    """Whether the job finished in this attempt; a newer driver may be about to run it again."""
    try:
        finished = store.read(layout.finished)
    except PathNotFoundError:
        return False
    # An older version names no attempt, neither there nor in the claim.
    return finished == b"%d" % newest or not (finished or claim)


def _read(store: CheckpointStore, path: str) -> bytes:
    try:
        return store.read(path)
    except PathNotFoundError:
        return b""


def _started(pid: int) -> int | None:
    """The start of a running process, in clock ticks since the boot; None: there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold anything, parentheses too.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZXx" else int(fields[19])


def _machine() -> str | None:
    """The id of this boot and pid namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None
