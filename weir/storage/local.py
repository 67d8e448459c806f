"""Checkpoint storage in a directory, shared by all machines that take part.

A file appears under its name by ``rename`` or ``link`` of a synced temporary file beside it, and
its directory is synced after that: a crash leaves the old file, the new one or a temporary one,
never half of one. ``link`` fails where the name exists, which makes it create-if-absent even over
NFS, once it is checked which file that name links to; opening the final name with O_EXCL would show
readers an empty file first.
"""

import builtins
import errno
import getpass
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from weir import untrusted_files
from weir.errors import StorageError
from weir.storage.store import (
    TEMPORARY,
    PathNotFoundError,
    WriteRefusedError,
    Written,
    checked_directory,
    checked_path,
    new_checksum,
)

_LASTING = {  # Errors that a retry does not repair; a full disk may have room again.
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
}


READ_BYTES_MAX = 256 << 20  # Of a file that is read whole; state is read in ranges.
_READ_S = 600.0  # The deadline of one read: it ends what never ends, not a slow disk.
_GONE = (errno.ENOENT, errno.ESTALE)  # Deleted by another process; over NFS the second.


class LocalStore:
    """Files below ``root``, which is created with the first write."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(root))  # A later chdir must not move the store.

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def location(self) -> str:
        return os.path.realpath(self.root)

    def put(self, path: str, data: bytes) -> None:
        with self.open_writer(path) as writer:
            writer.write(data)
            writer.close()

    def create_if_absent(self, path: str, data: bytes) -> bool:
        final = self._file(path)
        with LocalWriter(self, final) as writer:
            writer.write(data)
            return writer.close_if_absent()

    def open_writer(self, path: str) -> "LocalWriter":
        return LocalWriter(self, self._file(path))

    def read(self, path: str) -> bytes:
        file = self._file(path)
        with self.explained("read", file):
            return untrusted_files.read_whole(
                file,
                below=self.root,
                bytes_max=READ_BYTES_MAX,
                deadline_s=_READ_S,
                may_have_links=True,
            )

    def read_range(self, path: str, start: int, length: int) -> bytes:
        file = self._file(path)
        with (
            self.explained("read", file),
            untrusted_files.open_regular(file, below=self.root, may_have_links=True) as opened,
        ):
            return untrusted_files.read(opened, length, offset=start, deadline_s=_READ_S)

    def exists(self, path: str) -> bool:
        file = self._file(path)
        with self.explained("read", file):
            return file.is_file()

    def list(self, directory: str = "") -> list[str]:
        return self._listed(directory, temporary=False)

    def list_temporary(self, directory: str = "") -> Sequence[str]:
        return self._listed(directory, temporary=True)

    def _listed(self, directory: str, *, temporary: bool) -> "builtins.list[str]":
        top = self.root / checked_directory(directory)
        paths: builtins.list[str] = []

        def fail(error: OSError) -> None:
            if error.errno not in _GONE:  # Deleted meanwhile, or never created.
                raise error

        with self.explained("list", top):
            for folder, _, names in os.walk(top, onerror=fail):
                inside = Path(folder).relative_to(self.root).as_posix()
                prefix = "" if inside == "." else f"{inside}/"
                paths += [
                    prefix + name for name in names if name.startswith(TEMPORARY) is temporary
                ]
        return sorted(paths)

    def delete(self, path: str) -> None:
        file = self._file(path)
        with self.explained("delete", file):
            untrusted_files.delete(file, below=self.root)

    def delete_prefix(self, directory: str) -> None:
        top = self.root / checked_directory(directory)
        with self.explained("delete", top):
            _remove_tree(top, self.root)

    def delete_if_empty(self) -> None:
        with self.explained("delete", self.root):
            for folder, _, _ in os.walk(self.root, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError as error:
                    if error.errno not in (*_GONE, errno.ENOTEMPTY, errno.EEXIST):
                        raise

    @contextmanager
    def explained(self, action: str, file: Path) -> Iterator[None]:
        """Turn errors of the operating system into storage errors that say what to do."""
        try:
            yield
        except FileNotFoundError as cause:
            raise PathNotFoundError(f"the checkpoint storage has no file {file}") from cause
        except untrusted_files.UntrustedFileError as cause:
            raise WriteRefusedError(
                f"{file} in the checkpoint storage was not touched, because {cause.problem}"
            ) from cause
        except OSError as cause:
            kind = WriteRefusedError if cause.errno in _LASTING else StorageError
            raise kind(
                f"cannot {action} {file}: {cause.strerror or cause}; {self._advice(cause, file)}"
            ) from cause

    def _file(self, path: str) -> Path:
        return self.root / checked_path(path)

    def _advice(self, cause: OSError, file: Path) -> str:
        match cause.errno:
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return (
                    f"this process runs as {_user()} and {_nearest(file)}; give that user write "
                    "access, or choose another directory as checkpoint storage"
                )
            case errno.ENOSPC | errno.EDQUOT:
                return f"free some space below {self.root}, or retain fewer checkpoints"
            case errno.ENOTDIR | errno.EEXIST | errno.EISDIR:
                return "a file stands where a directory is needed; choose an empty directory"
            case _:
                return f"check that {self.root} is a directory on a working disk"


class LocalWriter:
    """Writes a temporary file beside the final one and moves it there when closed."""

    def __init__(self, store: LocalStore, final: Path) -> None:
        self._store = store
        self._final = final
        self._size = 0
        self._checksum = new_checksum()
        self._held = ExitStack()
        with store.explained("write", final), ExitStack() as held:
            make_directories(store.root)
            # User code writes here too: a link in the place of a directory is not followed.
            self._directory = held.enter_context(
                untrusted_files.directory(final.parent, below=store.root, makes=True)
            )
            # Not tempfile, whose files only their owner may read: the driver and the slots may run
            # as different users of one group.
            temporary = f"{TEMPORARY}{uuid.uuid4().hex}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(temporary, flags, 0o666, dir_fd=self._directory)
            self._file = os.fdopen(handle, "wb", buffering=0)
            self._held = held.pop_all()
        self._temporary: str | None = temporary

    def write(self, data: bytes | memoryview) -> int:
        whole = left = memoryview(data).cast("B")
        # The checksum first: it brings the bytes into the cache, from where the system copies them.
        self._checksum.update(whole)
        with self._store.explained("write", self._final):
            while left:  # An unbuffered write may be partial.
                left = left[self._file.write(left) :]
        self._size += len(whole)
        return len(whole)

    def close(self) -> Written:
        temporary, inside = self._synced(), self._directory
        with self._store.explained("write", self._final):
            os.replace(temporary, self._final.name, src_dir_fd=inside, dst_dir_fd=inside)
            self._temporary = None
            os.fsync(inside)
        self.abort()
        return Written(self._size, self._checksum.hexdigest())

    def close_if_absent(self) -> bool:
        """Like ``close``, unless the file exists; returns whether this call created it."""
        temporary, inside = self._synced(), self._directory
        with self._store.explained("create", self._final):
            try:
                os.link(temporary, self._final.name, src_dir_fd=inside, dst_dir_fd=inside)
                created = True
            except OSError as error:
                # Over NFS a request whose answer was lost is repeated, and meets its own link.
                created = _is_link_to(self._final.name, temporary, inside)
                if not created and not isinstance(error, FileExistsError):
                    raise
            if created:
                os.unlink(temporary, dir_fd=inside)
                self._temporary = None
                os.fsync(inside)
        self.abort()
        return created

    def abort(self) -> None:
        self._file.close()
        if self._temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._directory)
            self._temporary = None
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.abort()

    def _synced(self) -> str:
        if self._temporary is None:
            raise StorageError(f"{self._final} is closed")
        with self._store.explained("write", self._final):
            os.fsync(self._file.fileno())
            self._file.close()
        return self._temporary


def _remove_tree(top: Path, root: Path) -> None:
    """Delete a directory, through no link; files that others delete meanwhile are no error."""

    def failed(function: object, path: str, raised: Any) -> None:
        error = raised[1] if isinstance(raised, tuple) else raised
        if error.errno is None:  # A text alone, which Python 3.13 hides behind the path it adds.
            raise OSError(*error.args) from error
        if error.errno not in _GONE:
            raise error

    if top == root:
        parent, below = root.parent, root.parent
    else:
        parent, below = top.parent, root
    try:
        with untrusted_files.directory(parent, below=below) as inside:
            if sys.version_info >= (3, 12):
                shutil.rmtree(top.name, onexc=failed, dir_fd=inside)
            else:
                shutil.rmtree(top.name, onerror=failed, dir_fd=inside)
    except OSError as error:
        if error.errno not in _GONE:  # Its parent is gone, or was never made.
            raise


def _is_link_to(final: str, temporary: str, inside: int) -> bool:
    """Whether the link exists, for a file that no other process links to.

    Source: open(2) on O_EXCL over NFS: the link count tells, not what link(2) returned.
    """
    own = os.stat(temporary, dir_fd=inside, follow_symlinks=False)
    if own.st_nlink > 1:
        return True
    with suppress(FileNotFoundError):
        return os.path.samestat(own, os.stat(final, dir_fd=inside, follow_symlinks=False))
    return False


def make_directories(directory: Path) -> None:
    """Make a directory and those above it, durably, where they are missing."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)  # Others may create it at the same time.
        _sync_directory(new.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _nearest(file: Path) -> str:
    """Owner and mode of the nearest existing directory above ``file``, for a message."""
    for directory in file.parents:
        with suppress(OSError):
            status = directory.stat()
            return f"{directory} is {stat.filemode(status.st_mode)} of user id {status.st_uid}"
    return f"{file.parent} cannot be seen"


def _user() -> str:
    with suppress(KeyError, OSError):  # A container's user id may have no name.
        return f"{getpass.getuser()} (user id {os.geteuid()})"
    return f"user id {os.geteuid()}"
