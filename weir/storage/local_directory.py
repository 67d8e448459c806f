"""A directory on a machine's own disk, which outlives its process only for one that takes over.

Its process holds a lock on a file beside it, which ends with the process in any way. The lock is
looked at only by processes of the same account. The directory of a process that died is abandoned:
the next process deletes it. One with an owner may have a label, which lies in the file of the lock:
a process with the same owner leaves it there, takes over its files if it gets the same label, and
deletes it with its own at the latest. Those of other owners leave it there for an hour, in which
the owner may come back.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Final
from weakref import finalize

from weir.errors import ConfigError

_DIRECTORY, _LOCK = "-db", ".lock"
_LABEL_BYTES_MAX = 4_096
_SPARED_S: Final = 3_600.0  # After its last file came or went.


@dataclass(frozen=True, slots=True)
class Purpose:
    """The content of local directories, which tells them from those of others, and errors."""

    prefix: str  # Of their names.
    content: str  # Of which an error says that it cannot be kept.
    setting: str  # The key that names another place.


ROCKSDB = Purpose("weir-state-", "state", "state.backend.rocksdb.localdir")
COPIES = Purpose(
    "weir-copies-", "local copies of state", "execution.checkpointing.local-backup.dirs"
)


class LocalDirectory:
    """A new directory, readable by its account alone, until ``close``."""

    def __init__(
        self, parent: str | None, purpose: Purpose = ROCKSDB, owner: str | None = None
    ) -> None:
        """Make the directory, and delete those that processes left which are gone.

        Args:
            owner: The job that the directory is for, which may leave it to a later process; None:
                all that are abandoned are deleted.

        Raises:
            ConfigError: The parent directory cannot be used.
        """
        try:
            if parent is not None:
                Path(parent).mkdir(parents=True, exist_ok=True)
            # Locked before it has its name: another process may look for abandoned ones just now.
            lock, made = tempfile.mkstemp(prefix=purpose.prefix, dir=parent)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = Path(f"{made}{_DIRECTORY}")
            os.rename(made, _lock_of(self.path))
            self.path.mkdir(mode=0o700)
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise ConfigError(
                f"{purpose.content} cannot be kept in {where}: {error.strerror}; name a directory "
                f"on each slot's machine with {purpose.setting}"
            ) from error
        self._purpose = purpose
        self._owner = owner
        self._lock = lock
        self._delete = finalize(self, _delete, self.path, lock)  # Also where nothing closes it.
        _delete_abandoned(self.path.parent, purpose, owner)

    def take_over(self, label: str) -> int:
        """Take the label, and move the files here that its owner's processes left under it.

        Returns:
            The number of files that came.

        Raises:
            OSError: The label cannot be written.
        """
        line = f"{self._owner} {label}\n".encode()
        os.ftruncate(self._lock, os.pwrite(self._lock, line, 0))
        count = 0
        for directory, held, abandoned in _abandoned(self.path.parent, self._purpose):
            if abandoned == line:
                fcntl.flock(held, fcntl.LOCK_EX)
                count += _move(directory, self.path)
        return count

    def leave(self, *, is_over: bool) -> None:
        """Delete the directory where its job is over; else a later process of its owner gets it."""
        if is_over:
            self.close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Leave the directory as the death of the process would."""
        if self._delete.detach() is not None:
            os.close(self._lock)

    def close(self) -> None:
        """Delete the directory; where it has an owner, those that are abandoned by now as well."""
        if not self._delete.alive:
            return
        self._delete()
        if self._owner is not None:
            _delete_abandoned(self.path.parent, self._purpose, self._owner, is_over=True)


def _delete(directory: Path, lock: int) -> None:
    _remove(directory)
    os.close(lock)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _lock_of(directory).unlink(missing_ok=True)


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)


def _delete_abandoned(
    parent: Path, purpose: Purpose, owner: str | None = None, *, is_over: bool = False
) -> None:
    """Delete what processes left; ``is_over``: those of this owner are not needed any more."""
    for directory, held, label in _abandoned(parent, purpose):
        if owner is None or not label:
            is_spared = False
        elif label.startswith(f"{owner} ".encode()):
            is_spared = not is_over
        else:
            is_spared = _age_s(directory) < _SPARED_S
        if not is_spared:
            fcntl.flock(held, fcntl.LOCK_EX)
            _remove(directory)


def _age_s(directory: Path) -> float:
    """The seconds since a file in a directory came or went; infinite where there is none."""
    try:
        return time.time() - directory.lstat().st_mtime
    except OSError:
        return float("inf")


def _abandoned(parent: Path, purpose: Purpose) -> Iterator[tuple[Path, int, bytes]]:
    """Each directory whose process is gone, its lock, and its label.

    The lock is shared: slots that begin at the same moment all look, and none takes another for the
    process of a directory. Before a directory is changed its lock is taken alone, after a moment.
    """
    for lock in parent.glob(f"{purpose.prefix}*{_LOCK}"):
        try:
            held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # Gone meanwhile, or of another account.
        try:
            if os.fstat(held).st_uid != os.getuid():
                continue
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            directory = lock.with_name(lock.name.removesuffix(_LOCK))
            yield directory, held, os.pread(held, _LABEL_BYTES_MAX, 0)
        except OSError:
            continue  # Its process lives.
        finally:
            os.close(held)


def _move(directory: Path, to: Path) -> int:
    """Move the files of a directory of this account, and delete the rest; how many came."""
    count = 0
    with suppress(OSError):  # Of what cannot be moved there is one copy less.
        inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(inside).st_uid == os.getuid():
                for name in os.listdir(inside):
                    if S_ISREG(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                        os.rename(name, to / name, src_dir_fd=inside)
                        count += 1
        finally:
            os.close(inside)
    _remove(directory)
    return count
