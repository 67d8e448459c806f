"""The first program of every process that a launcher starts; it becomes the process of user code.

It notes its pid and start time in a file of the launcher's, drops the launcher's rights for good,
and replaces itself by the command, which keeps pid, start time and session. So there is no moment
at which a process of user code runs and no file names it: a launcher that dies right after the
start leaves a note by which the next one finds the process.

Run as ``python -I -S starter.py SETTINGS COMMAND…`` with the settings as JSON: ``note`` (a path),
``boot``, ``umask`` (null: kept), ``uid`` (null: no switch) and ``groups``. Standard library only,
no package of Weir: it runs before user code and as root.

Source: credentials(7); prctl(2), PR_SET_NO_NEW_PRIVS.
"""

import ctypes
import json
import os
import sys
from typing import Any, NoReturn

EXIT_NOT_STARTED = 127  # As of a shell whose command cannot be run.
_PR_SET_NO_NEW_PRIVS = 38


def main(arguments: list[str]) -> NoReturn:
    """Become the command."""
    settings: dict[str, Any] = json.loads(arguments[0])
    command = arguments[1:]
    try:
        _write_note(settings["note"], settings["boot"])
        if settings["uid"] is not None:
            _drop(settings["uid"], settings["groups"])
        if settings["umask"] is not None:
            os.umask(settings["umask"])
        os.execvp(command[0], command)
    except OSError as error:
        print(f"weir: cannot start {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_NOT_STARTED)


def _write_note(path: str, boot: str) -> None:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    started_at = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    scratch = f"{path}.new"
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump({"boot": boot, "pid": os.getpid(), "started_at": started_at}, file)
    os.rename(scratch, path)


def _drop(uid: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setresgid(groups[0], groups[0], groups[0])
    os.setresuid(uid, uid, uid)  # Real, effective and saved: there is no way back.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:  # Nor one by a setuid program.
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")


if __name__ == "__main__":
    main(sys.argv[1:])
