"""The operating system's user that user code runs as: drivers, previews and comparisons.

A launcher that runs as root drops to ``WEIR_DRIVER_USER`` for every process that it starts, so that
user code can neither read the memory, environment or secrets of the services nor write logs and
answers, which stay the launcher's. Without the setting, and where the launcher may not switch,
processes keep the launcher's user.

Checkpoints, output and uploads are shared by the group: their directories are setgid, and the umask
of user code leaves the group its rights, so that retention deletes what drivers wrote. Everything
that a launcher gives to one process alone has mode 0600 and belongs to that user.
"""

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

GROUP_UMASK = 0o002
_PASSABLE = 0o051  # Read by the services' group, passed through by user code.


@dataclass(frozen=True, slots=True)
class Account:
    """A user and its groups, by number; the first group is that of new files."""

    uid: int
    groups: tuple[int, ...]
    name: str | None = None
    home: str | None = None

    @property
    def gid(self) -> int:
        """The group of new files."""
        return self.groups[0]


def driver_account() -> Account | None:
    """The account of user code; None: the launcher's own.

    Raises:
        ImproperlyConfigured: The settings name no such user or group, or the launcher may not
            become that user.
    """
    user, group = settings.WEIR_DRIVER_USER, settings.WEIR_DRIVER_GROUP
    if not user:
        if group:
            raise ImproperlyConfigured("WEIR_DRIVER_GROUP is set without WEIR_DRIVER_USER")
        return None
    uid, entry = _user(user)
    name, primary = (None, None) if entry is None else (entry.pw_name, entry.pw_gid)
    gid = primary if not group else _group(group)
    if gid is None:
        raise ImproperlyConfigured(
            f"WEIR_DRIVER_USER={user} has no entry with a primary group; set WEIR_DRIVER_GROUP"
        )
    if uid == 0 or gid == 0:
        raise ImproperlyConfigured(
            "WEIR_DRIVER_USER and WEIR_DRIVER_GROUP must not be root: drivers run the code of users"
        )
    if os.geteuid() != 0:
        raise ImproperlyConfigured(
            f"WEIR_DRIVER_USER={user} is set, and this launcher does not run as root, so it cannot "
            "become that user; start it as root (it drops its rights for each driver), or leave "
            "the setting empty"
        )
    others = os.getgrouplist(name, gid) if name else []
    groups = tuple(dict.fromkeys((gid, *(one for one in others if one != 0))))
    return Account(uid, groups, name, None if entry is None else entry.pw_dir)


def private_directory(path: Path, account: Account | None) -> None:
    """Make a directory for one process of user code alone."""
    path.mkdir(mode=0o700)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def launchers_directory(path: Path, account: Account | None) -> None:
    """Make a directory of the launcher's, through which user code passes to what it was given.

    Raises:
        NotADirectoryError: Something else lies there, perhaps put there by user code.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            raise NotADirectoryError(f"{path} is no directory; remove it") from None
    mode = stat.S_IMODE(path.stat().st_mode)
    if account is not None and mode & _PASSABLE != _PASSABLE:
        path.chmod(mode | _PASSABLE)


def write_private(path: Path, text: str, account: Account | None) -> None:
    """Write a new file that only the account can read; what lay there is removed."""
    handle = create(path, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        if account is not None:
            os.fchown(handle, account.uid, account.gid)
        file.write(text)


def create(path: Path, mode: int) -> int:
    """A descriptor of a new file, opened for appending; what lay there is removed.

    The file is created with its mode: at no time can another user open it.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def create_log(path: Path, account: Account | None) -> int:
    """A descriptor of a new log, which user code gets; it may not open the file itself."""
    return create(path, 0o600 if account is None else 0o640)


def _user(given: str) -> tuple[int, pwd.struct_passwd | None]:
    """The number of a user, and its entry; a number needs none."""
    try:
        entry = pwd.getpwuid(int(given)) if given.isdecimal() else pwd.getpwnam(given)
    except KeyError:
        if given.isdecimal():
            return int(given), None
        raise ImproperlyConfigured(
            f"WEIR_DRIVER_USER={given}: this machine has no such user"
        ) from None
    return entry.pw_uid, entry


def _group(given: str) -> int:
    if given.isdecimal():
        return int(given)
    try:
        return grp.getgrnam(given).gr_gid
    except KeyError:
        raise ImproperlyConfigured(
            f"WEIR_DRIVER_GROUP={given}: this machine has no such group"
        ) from None
