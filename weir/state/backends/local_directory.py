"""A directory of one database, which the next one deletes if its process died before it could.

Its process holds a lock on a file beside it, which ends with the process in any way. The lock is
looked at only by processes of the same account.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from weakref import finalize

from weir.errors import ConfigError

_PREFIX, _DIRECTORY, _LOCK = "weir-state-", "-db", ".lock"


class LocalDirectory:
    """A new directory, readable by its account alone, until ``close``."""

    def __init__(self, parent: str | None) -> None:
        """Make the directory, and delete those that processes left which are gone.

        Raises:
            ConfigError: The parent directory cannot be used.
        """
        try:
            if parent is not None:
                Path(parent).mkdir(parents=True, exist_ok=True)
            # Locked before it has its name: another process may look for abandoned ones just now.
            lock, made = tempfile.mkstemp(prefix=_PREFIX, dir=parent)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = Path(f"{made}{_DIRECTORY}")
            os.rename(made, _lock_of(self.path))
            self.path.mkdir(mode=0o700)
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise ConfigError(
                f"state cannot be kept in {where}: {error.strerror}; name a directory on each "
                "slot's machine with state.backend.rocksdb.localdir"
            ) from error
        self._delete = finalize(self, _delete, self.path, lock)  # Also where nothing closes it.
        _delete_abandoned(self.path.parent)

    def close(self) -> None:
        """Delete the directory."""
        self._delete()


def _delete(directory: Path, lock: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _lock_of(directory).unlink(missing_ok=True)
    os.close(lock)


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _LOCK)


def _delete_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*{_LOCK}"):
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
