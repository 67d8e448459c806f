"""Copies of state files on a slot's own disk, from which a restart reads instead of the storage.

A copy is named by checksum and size, which every state handle carries: no list of them is kept, a
file that several checkpoints share has one copy, and a copy of anything else is never taken for it.
The stored file remains the truth. A restore takes a copy only while the stored file is there, and
only if its bytes have the size and checksum of the handle; so a copy is not synced to the disk, and
may be torn, changed or gone.

Nothing here fails a checkpoint or a restore: a copy that cannot be written is dropped, one that
cannot be read is passed over, and the log says so. The directory belongs to one slot, whose workers
come one after the other. A worker that is being killed may still write beside its successor, which
does no harm to files that appear whole, under the name of their content.

Source: Flink's task-local recovery.
"""

import logging
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from weakref import finalize

from weir.errors import ConfigError
from weir.ids import CheckpointId, StateHandle
from weir.storage.layout import within
from weir.storage.manifest import read_handle
from weir.storage.store import (
    TEMPORARY,
    CheckpointStore,
    StoreWriter,
    Written,
    checksum_of,
    is_temporary,
)

logger = logging.getLogger(__name__)

_INHERITED: Final = CheckpointId(0)  # In the place of the checkpoint that a worker restored.


class LocalCopies:
    """The copies of one slot. Restores come before snapshots, whose thread has all other calls.

    A copy is needed as long as a checkpoint names it that is under way or completed last. Until the
    first one of a worker completes, what the workers before it left is needed as well.
    """

    def __init__(self, directory: Path, bytes_max: int) -> None:
        """Open the slot's directory, with what the workers before left there, the newest of it.

        Raises:
            ConfigError: It is another account's.
            OSError: It is missing, or cannot be read.
        """
        self.bytes_max = bytes_max
        self.damaged: list[str] = []  # Of each copy that was met damaged: why it was not taken.
        self.size = 0  # Of all copies and of those being written, in bytes.
        self._sizes: dict[str, int] = {}
        self._named: dict[CheckpointId, set[str]] = {}
        self._warned: set[str] = set()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.directory = os.open(directory, flags)
        finalize(self, os.close, self.directory)
        owner = os.fstat(self.directory).st_uid
        if owner != os.geteuid():
            raise ConfigError(
                f"local copies of state are not kept in {directory}: it belongs to user id {owner} "
                f"and this process runs as user id {os.geteuid()}; name another directory with "
                "execution.checkpointing.local-backup.dirs"
            )
        written_ns: dict[str, int] = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if is_temporary(entry.name):  # Its worker was killed.
                    self.remove(entry.name)
                    continue
                with suppress(FileNotFoundError):  # By a worker that is being killed.
                    status = entry.stat(follow_symlinks=False)
                    self._sizes[entry.name] = status.st_size
                    written_ns[entry.name] = status.st_mtime_ns
        self.size = sum(self._sizes.values())
        for name in sorted(written_ns, key=written_ns.__getitem__):
            if self.size <= bytes_max:  # More where a lost slot's were taken over.
                break
            self._delete(name)
        self._named[_INHERITED] = set(self._sizes)

    # Writing.

    def begin(self, checkpoint_id: CheckpointId) -> "Copy":
        """A copy of a file that is being written for a checkpoint."""
        self._named.setdefault(checkpoint_id, set())
        return Copy(self, checkpoint_id)

    def put(self, checkpoint_id: CheckpointId, data: bytes, checksum: str) -> None:
        """Copy a whole file of a checkpoint."""
        copy = self.begin(checkpoint_id)
        copy.write(data)
        copy.keep(Written(len(data), checksum))

    def kept(self, checkpoint_id: CheckpointId, name: str, size: int) -> None:
        """A copy has its name; its size counts already."""
        self.size -= self._sizes.get(name, 0)  # Of one with the same content that it replaced.
        self._sizes[name] = size
        self._named[checkpoint_id].add(name)

    def warn(self, kind: str, text: str) -> None:
        """Write a line to the log, once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s; this is said once", text)

    # Space.

    def name(self, checkpoint_id: CheckpointId, handles: Iterable[StateHandle]) -> None:
        """A subtask's part of a checkpoint consists of these files, older ones among them."""
        names = {_name_of(handle) for handle in handles if handle.path is not None}
        self._named.setdefault(checkpoint_id, set()).update(names)

    def withdrawn(self, checkpoint_id: CheckpointId, handle: StateHandle) -> None:
        """A file of a checkpoint that is under way is not needed after all."""
        name = _name_of(handle)
        self._named[checkpoint_id].discard(name)
        self._delete_unneeded({name})

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Delete what neither this checkpoint nor a later one names.

        One that no file was written for here, as a savepoint, changes nothing.
        """
        if checkpoint_id in self._named:
            self._named = {
                number: names for number, names in self._named.items() if number >= checkpoint_id
            }
            self._delete_unneeded(set(self._sizes))

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Delete what this checkpoint alone names."""
        self._delete_unneeded(self._named.pop(checkpoint_id, set()))

    def _delete_unneeded(self, names: set[str]) -> None:
        for name in names.intersection(self._sizes).difference(*self._named.values()):
            self._delete(name)

    def _delete(self, name: str) -> None:
        if self.remove(name):  # Else it still counts, so that the space stays bounded.
            self.size -= self._sizes.pop(name)

    def remove(self, name: str) -> bool:
        """Remove a file of the directory; returns whether it is gone."""
        try:
            os.unlink(name, dir_fd=self.directory)
        except FileNotFoundError:
            return True
        except OSError as error:
            self.warn("delete", f"a local copy of state cannot be deleted: {error.strerror}")
            return False
        return True

    # Reading.

    def read(self, handle: StateHandle) -> bytes | None:
        """The checked bytes of a handle; None: there is no whole copy of them."""
        name = _name_of(handle)
        if name not in self._sizes:
            return None
        try:
            data, problem = self._checked(name, handle)
        except FileNotFoundError:
            self.size -= self._sizes.pop(name)
            return None
        except OSError as error:
            data, problem = b"", f"it cannot be read: {error.strerror}"
        if not problem:
            return data
        self._delete(name)
        self.damaged.append(f"the local copy of {handle.path} was not taken: {problem}")
        logger.warning("%s; the stored file is read instead", self.damaged[-1])
        return None

    def _checked(self, name: str, handle: StateHandle) -> tuple[bytes, str]:
        """The bytes of a copy, and why they are not those of the handle, if they are not."""
        # Without waiting for a writer, where something else lies in its place.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(name, flags, dir_fd=self.directory)
        try:
            size = os.fstat(opened).st_size
            if size != handle.size:
                return b"", f"it has {size} bytes instead of {handle.size}"
            with open(opened, "rb", buffering=0, closefd=False) as file:
                data = file.readall()
            matches = checksum_of(data) == handle.checksum
            return data, "" if matches else "its checksum does not match"
        finally:
            os.close(opened)


def open_copies(directory: str | None, bytes_max: int) -> LocalCopies | None:
    """The copies in a slot's directory; None: the job keeps none, or the directory is gone.

    Raises:
        ConfigError: The directory is another account's.
    """
    if directory is None:
        return None
    try:
        return LocalCopies(Path(directory), bytes_max)
    except OSError as error:
        logger.warning(
            "state gets no local copies: %s cannot be used: %s", directory, error.strerror
        )
        return None


class Copy:
    """One copy that is being written. Errors are logged, and drop it."""

    def __init__(self, copies: LocalCopies, checkpoint_id: CheckpointId) -> None:
        self._copies = copies
        self._checkpoint_id = checkpoint_id
        self._temporary = f"{TEMPORARY}{uuid.uuid4().hex}"
        self._size = 0
        self._file = -1
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._temporary, flags, 0o600, dir_fd=copies.directory)
        except OSError as error:
            self._fail(error)

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``, unless the copy was dropped."""
        left = memoryview(data).cast("B")
        if self._file < 0:
            return
        if self._copies.size + len(left) > self._copies.bytes_max:
            self._copies.warn(
                "bound",
                "a state file gets no local copy: all of them would have more than "
                f"{self._copies.bytes_max:,} bytes (weir.local-backup.max-size)",
            )
            self.drop()
            return
        self._size += len(left)
        self._copies.size += len(left)
        try:
            while left:  # A write may be partial.
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self._fail(error)

    def keep(self, written: Written) -> None:
        """The stored file is whole, and so is its copy, unless it was dropped."""
        if self._file < 0:
            return
        inside, name = self._copies.directory, _name(written.checksum, written.size)
        try:
            os.replace(self._temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
        except OSError as error:
            self._fail(error)
            return
        self._copies.kept(self._checkpoint_id, name, self._size)
        self._close()

    def drop(self) -> None:
        """Leave no trace of the copy. Harmless after ``keep``."""
        if self._file >= 0:
            self._copies.remove(self._temporary)
            self._copies.size -= self._size
            self._close()

    def _fail(self, error: OSError) -> None:
        self._copies.warn("write", f"a state file gets no local copy: {error.strerror}")
        self.drop()

    def _close(self) -> None:
        with suppress(OSError):  # Of a late write: the checksum tells.
            os.close(self._file)
        self._file = -1


class CopiedWriter:
    """Writes one file to the storage, and beside it the copy."""

    def __init__(self, stored: StoreWriter, copy: Copy) -> None:
        self._stored = stored
        self._copy = copy

    def write(self, data: bytes | memoryview) -> int:
        size = self._stored.write(data)
        self._copy.write(data)
        return size

    def close(self) -> Written:
        written = self._stored.close()
        self._copy.keep(written)
        return written

    def abort(self) -> None:
        self._stored.abort()
        self._copy.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.abort()


class StateReader:
    """Reads the state that one subtask restores: whole local copies, else the stored files."""

    def __init__(
        self, store: CheckpointStore, directory: str, copies: LocalCopies | None = None
    ) -> None:
        """``directory`` is what the paths of handles are relative to; see ``read_handle``."""
        self.local_size = 0  # Of what was read from copies, in bytes.
        self._store = store
        self._directory = directory
        self._copies = copies
        self._first = 0 if copies is None else len(copies.damaged)  # Of its own damaged ones.

    def details(self) -> dict[str, object]:
        """The copies that it met, for the report of the subtask's start; empty where none are kept.

        Units: ``restored_local_bytes``.
        """
        if self._copies is None:
            return {}
        damaged = self._copies.damaged[self._first :]
        return {"restored_local_bytes": self.local_size, "damaged_copies": damaged}

    def read(self, handle: StateHandle) -> bytes:
        """The checked bytes of a handle.

        Raises:
            CorruptStateError: The stored file is missing, or no copy is whole nor the stored file.
            StorageError: The storage failed.
        """
        data = None
        # Checkpoints to come may name a stored file, which must not be missed only then.
        if (
            self._copies is not None
            and handle.path is not None
            and self._store.exists(within(self._directory, handle.path))
        ):
            data = self._copies.read(handle)
        if data is None:
            return read_handle(self._store, self._directory, handle)
        self.local_size += len(data)
        return data


def _name_of(handle: StateHandle) -> str:
    return _name(handle.checksum, handle.size)


def _name(checksum: str, size: int) -> str:
    return f"{checksum}-{size}"
