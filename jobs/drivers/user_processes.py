"""Processes of user code: started under their own account, noted before they run, cleaned up after.

The launcher's part is here, that of the new process in ``starter``. Standard output and error are
descriptors of files that the launcher made.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.drivers import driver_account, processes, starter
from jobs.drivers.driver_account import Account
from jobs.drivers.processes import Process
from weir.untrusted_files import read_whole

logger = logging.getLogger(__name__)

_NOTE_BYTES_MAX = 4_096
_removals: set[int] = set()  # Processes to be reaped, which only their parent can.


def start(
    command: Sequence[str],
    *,
    note: Path,
    cwd: Path,
    output: int,
    errors: int,
    environment: Mapping[str, str],
    account: Account | None,
    descriptors: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a process of user code in a session of its own.

    A command that cannot be run ends the process with ``starter.EXIT_NOT_STARTED``, and ``errors``
    has the reason.

    Args:
        note: The file that will name the process, in a directory of the launcher's.
        account: The user it becomes; None: the launcher's.
        descriptors: Further ones that it inherits.
    """
    settings = {
        "note": str(note),
        "boot": processes.boot_id(),
        "uid": None if account is None else account.uid,
        "groups": [] if account is None else list(account.groups),
        "umask": None if account is None else driver_account.GROUP_UMASK,
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", starter.__file__, json.dumps(settings), *command],
        env={**environment, **_own_variables(account, cwd)},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        pass_fds=tuple(descriptors),
    )


def _own_variables(account: Account | None, cwd: Path) -> dict[str, str]:
    """The variables that name the user and its home, which are the launcher's otherwise."""
    if account is None:
        return {}
    home = account.home if account.home and Path(account.home).is_dir() else str(cwd)
    name = account.name or str(account.uid)
    return {"HOME": home, "USER": name, "LOGNAME": name}


def noted(note: Path, root: Path) -> Process | None:
    """The process that a note below ``root`` names, if it runs."""
    try:
        told = json.loads(read_whole(note, below=root, bytes_max=_NOTE_BYTES_MAX))
        boot, pid, started_at = told["boot"], int(told["pid"]), float(told["started_at"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        logger.warning("the note %s of a process is not readable: %s", note, error)
        return None
    if boot != processes.boot_id() or not processes.is_running(pid, started_at):
        return None
    process = processes.find(pid)
    return process if process is not None and process.session == pid else None


def remove(directory: Path) -> None:
    """Begin to delete a directory that user code has written, however much is in it.

    A process of its own does that, which no launcher waits for; it follows no link.
    """
    reap()
    if not directory.exists():
        return
    pid = os.posix_spawnp(
        "rm",
        ["rm", "-rf", "--one-file-system", "--", str(directory)],
        {"PATH": os.environ.get("PATH", os.defpath)},
        setsid=True,  # It goes on without the launcher.
        file_actions=[
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)
        ],
    )
    _removals.add(pid)


def reap() -> None:
    """Reap the deletions that are done."""
    for pid in list(_removals):
        try:
            is_done = os.waitpid(pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:  # Reaped by other means.
            is_done = True
        if is_done:
            _removals.discard(pid)
