"""A directory on a machine's own disk, which the next process deletes if its own died before.

Its process holds a lock on a file beside it, which ends with the process in any way. The lock is
looked at only by processes of the same account.
"""

import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from weakref import finalize

from weir.errors import ConfigError

_DIRECTORY, _LOCK = "-db", ".lock"


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

    def __init__(self, parent: str | None, purpose: Purpose = ROCKSDB) -> None:
        """Make the directory, and delete those that processes left which are gone.

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
        self._delete = finalize(self, _delete, self.path, lock)  # Also where nothing closes it.
        _delete_abandoned(self.path.parent, purpose)

    def close(self) -> None:
        """Delete the directory."""
        self._delete()


def _delete(directory: Path, lock: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _lock_of(directory).unlink(missing_ok=True)
    os.close(lock)


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)


def _delete_abandoned(parent: Path, purpose: Purpose) -> None:
    for lock in parent.glob(f"{purpose.prefix}*{_LOCK}"):
        try:
            held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # Gone meanwhile, or of another account.
        try:
            if os.fstat(held).st_uid != os.getuid():
                continue
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_name(lock.name.removesuffix(_LOCK)), ignore_errors=True)
            lock.unlink(missing_ok=True)
        except OSError:
            continue  # Its process lives.
        finally:
            os.close(held)
