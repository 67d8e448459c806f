"""Secrets of the job in this process: from the launcher, the job master, or the environment.

Under the control plane the launcher *hands* the values to the driver through a pipe, which is empty
once it was read: no value is in an environment, a command line or a file. ``WEIR_SECRETS_FD`` holds
the pipe's number and inode. Between launcher and driver there may be spark-submit's JVM, which
closes the descriptors of its child; the driver then reads its parent's, through ``/proc``. The job
master hands the values on to the slots over their control connections.

In library mode a value is that of ``WEIR_SECRET_<NAME>``, or the contents of the file that
``WEIR_SECRET_<NAME>_FILE`` names, without a line break at its end.

Each value that this process knows is masked (``masking``) in what Weir says about the job.

Source: pipe(7); proc(5), /proc/pid/fd.
"""

import json
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from weir.config import SECRET_NAME_RULE, is_secret_name
from weir.errors import ConfigError
from weir.secrets.masking import Masker

PREFIX = "WEIR_SECRET_"
HANDED = "WEIR_SECRETS_FD"
_FILE = "_FILE"
_lock = threading.Lock()
_handed: dict[str, str] | None = None  # None: library mode, values are in the environment.
_known: dict[str, str] = {}  # Values that this process has given out.
_masker = Masker()


def get_secret(name: str) -> str:
    """The value of a secret of this process's job.

    Raises:
        ConfigError: There is none of this name; the message says how to set it.
    """
    if _handed is not None:
        return chosen(name, _handed)
    value = _from_environment(name)
    if value is None:
        raise ConfigError(_missing(name))
    _learn({name: value})
    return value


def chosen(name: str, values: Mapping[str, str]) -> str:
    """The secret of this name among the job's.

    Raises:
        ConfigError: There is none; the message says how to set it.
    """
    value = values.get(name)
    if value is None:
        raise ConfigError(_missing(name))
    return value


def job_secrets() -> dict[str, str]:
    """All secrets of the job, for its slots: those handed over, or those of the environment.

    Raises:
        ConfigError: The file of a secret cannot be read.
    """
    if _handed is not None:
        return dict(_handed)
    names = {
        name.removeprefix(PREFIX).removesuffix(_FILE)
        for name in os.environ
        if name.startswith(PREFIX)
    }
    values = {name: _from_environment(name) for name in names if is_secret_name(name)}
    given = {name: value for name, value in values.items() if value is not None}
    _learn(given)
    return given


def hold(values: Mapping[str, str]) -> None:
    """Make these the secrets of this process's job, in a process that was handed them."""
    global _handed
    with _lock:
        _handed = dict(values)
    _learn(values)


def masker() -> Masker:
    """The masker of all values that this process knows."""
    return _masker


def _learn(values: Mapping[str, str]) -> None:
    global _masker
    with _lock:
        if all(_known.get(name) == value for name, value in values.items()):
            return
        _known.update(values)
        _masker = Masker(_known.values())


# From the launcher ------------------------------------------------------------------------------


def receive(expected: Iterable[str] = ()) -> bool:
    """Take the secrets that the launcher handed to this process; False: it handed none.

    Removes ``WEIR_SECRETS_FD`` from the environment: child processes get no secrets by it.

    Args:
        expected: Names that the job needs.

    Raises:
        ConfigError: The pipe is gone, was read already, or lacks a name that the job needs.
    """
    mark = os.environ.pop(HANDED, None)
    wanted = sorted(set(expected))
    if mark is None and not wanted:
        return False
    values = {} if mark is None else _read_handed(mark)
    if missing := [name for name in wanted if name not in values]:
        raise ConfigError(
            f"the launcher handed over no value of {', '.join(missing)}; store the secrets in the "
            "control plane, and use one version of Weir for launcher and drivers"
        )
    hold(values)
    return True


def _read_handed(mark: str) -> dict[str, str]:
    try:
        number, inode = map(int, mark.split(":"))
        data = _drained(number, inode)
        values = json.loads(data)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the secrets that the launcher handed over are lost: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError("the secrets that the launcher handed over are not an object")
    return {str(name): str(value) for name, value in values.items()}


def _drained(number: int, inode: int) -> bytes:
    """The contents of a pipe of this process or of its parent, the JVM."""
    for process in ("self", str(os.getppid())):
        path = f"/proc/{process}/fd/{number}"
        try:
            status = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISFIFO(status.st_mode) or status.st_ino != inode:
            continue  # Another file that has the number here.
        with open(path, "rb") as pipe:
            data = pipe.read()
        if process == "self":
            os.close(number)
        return data
    raise FileNotFoundError(f"neither this process nor its parent has the pipe {number}")


# From the environment ---------------------------------------------------------------------------


def _from_environment(name: str) -> str | None:
    if not is_secret_name(name):
        raise ConfigError(f"{name!r} is no name of a secret; {SECRET_NAME_RULE}")
    value, file = os.environ.get(PREFIX + name), os.environ.get(PREFIX + name + _FILE)
    if value is not None and file is not None:
        raise ConfigError(
            f"{PREFIX}{name} and {PREFIX}{name}{_FILE} are both set; keep one of them"
        )
    if file is None:
        return value
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{PREFIX}{name}{_FILE}={file} cannot be read: {error}") from error


def _missing(name: str) -> str:
    if not is_secret_name(name):
        return f"{name!r} is no name of a secret; {SECRET_NAME_RULE}"
    return (
        f"this job has no secret {name}; under the control plane store it on the page Secrets and "
        f'submit the job with "secrets": ["{name}"]; for python or weir run set {PREFIX}{name}, or '
        f"{PREFIX}{name}{_FILE} to a file that holds it"
    )
