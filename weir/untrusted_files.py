"""Files in directories that user code can write: opened without links, regular only, bounded.

User code can put anything in the place of a file: a symbolic link to a secret that only the
reader may open, a second name of such a file, a FIFO whose opening blocks for ever, a device, a
sparse file of exabytes. A reader that runs with more rights than user code therefore names a
directory that it trusts, ``below``, and

- walks from there component by component, following no symbolic link (``O_NOFOLLOW``), so that
  swapping a component meanwhile changes nothing;
- opens without blocking (``O_NONBLOCK``) and keeps only a regular file with a single name;
- reads at most as many bytes as it says, and gives up at a deadline, checked between two pieces.

Links above ``below`` are followed: they are the administrator's.

Source: open(2), path_resolution(7).
"""

import errno
import io
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

DEADLINE_S = 10.0
PIECE_BYTES = 1 << 20

_PATH = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


class UntrustedFileError(OSError):
    """Something other than a plain file lies in the place of a file, so it is not read."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(errno.EPERM, f"not read, because {problem}", str(path))
        self.problem = problem


@contextmanager
def directory(path: Path, *, below: Path, makes: bool = False) -> Iterator[int]:
    """A descriptor of a directory, reached from ``below`` without following a link.

    Args:
        makes: Directories that are missing below ``below`` are made, and synced.

    Raises:
        UntrustedFileError: A component is a symbolic link, or no directory.
        OSError: The directory is missing or may not be entered.
        ValueError: The path does not lie below ``below``.
    """
    handle = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in _names(path, below):
            if makes:
                _make(handle, name)
            handle = _entered(handle, name, path)
        yield handle
    finally:
        os.close(handle)


def open_regular(
    path: Path, *, below: Path, may_have_links: bool = False, appends: bool = False
) -> BinaryIO:
    """Open a regular file for reading; its offset is 0.

    Args:
        may_have_links: The file may have a second name, as while ``link`` creates it.
        appends: The file is opened for writing at its end, too.

    Raises:
        UntrustedFileError: It is no regular file, has several names, or lies behind a link.
        OSError: It is missing or cannot be read.
        ValueError: The path does not lie below ``below``.
    """
    with directory(path.parent, below=below) as parent:
        # Opening a device may have effects, so its kind is looked at first, and again once open.
        _check(os.stat(path.name, dir_fd=parent, follow_symlinks=False), path, may_have_links)
        try:
            mode = os.O_RDWR | os.O_APPEND if appends else os.O_RDONLY
            flags = mode | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            handle = os.open(path.name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # Swapped for a link or a socket.
                raise UntrustedFileError(path, "it was replaced meanwhile") from error
            raise
    try:
        _check(os.fstat(handle), path, may_have_links)
        return os.fdopen(handle, "r+b" if appends else "rb")
    except BaseException:
        os.close(handle)
        raise


def first_kept(file: BinaryIO) -> int:
    """The offset of a file's first byte on the disk: the part before it was given back."""
    handle = file.fileno()
    position = os.lseek(handle, 0, os.SEEK_CUR)
    try:
        return os.lseek(handle, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # No byte of it is.
            return os.fstat(handle).st_size
        return 0  # This file system does not tell.
    finally:
        os.lseek(handle, position, os.SEEK_SET)


def read(
    file: BinaryIO, length: int, *, offset: int | None = None, deadline_s: float = DEADLINE_S
) -> bytes:
    """At most ``length`` bytes of an open file, from ``offset`` or where it stands.

    Raises:
        TimeoutError: The deadline passed first: the disk is too slow.
    """
    if offset is not None:
        file.seek(offset)
    deadline = time.monotonic() + deadline_s
    data = io.BytesIO()  # Whose value is no copy: state files take much memory.
    while length > 0 and (piece := file.read(min(length, PIECE_BYTES))):
        data.write(piece)
        length -= len(piece)
        if length > 0 and time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"reading took longer than {deadline_s:g} s")
    return data.getvalue()


def read_whole(
    path: Path,
    *,
    below: Path,
    bytes_max: int,
    deadline_s: float = DEADLINE_S,
    may_have_links: bool = False,
) -> bytes:
    """The contents of a file.

    Raises:
        UntrustedFileError: As ``open_regular``, or it has more than ``bytes_max`` bytes.
        OSError: It is missing, cannot be read, or took too long.
    """
    with open_regular(path, below=below, may_have_links=may_have_links) as file:
        data = read(file, bytes_max + 1, deadline_s=deadline_s)
    if len(data) > bytes_max:
        raise UntrustedFileError(path, f"it has more than {bytes_max:,} bytes")
    return data


def delete(path: Path, *, below: Path) -> None:
    """Delete a file, a link itself and not its target; a missing file is no error.

    Raises:
        UntrustedFileError: It lies behind a link.
        OSError: It may not be deleted.
    """
    try:
        with directory(path.parent, below=below) as parent:
            os.unlink(path.name, dir_fd=parent)
    except FileNotFoundError:
        return


def _names(path: Path, below: Path) -> tuple[str, ...]:
    names = path.relative_to(below).parts
    if ".." in names:
        raise ValueError(f"{path} leads out of {below}")
    return names


def _entered(handle: int, name: str, path: Path) -> int:
    """A descriptor of a directory's entry, in place of the directory's own."""
    try:
        inner = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=handle)
    except NotADirectoryError as error:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            raise
        raise UntrustedFileError(path, f"{name} is a symbolic link") from error
    os.close(handle)
    return inner


def _make(handle: int, name: str) -> None:
    """Make a directory inside another one, durably, unless something has its name."""
    try:
        os.mkdir(name, dir_fd=handle)
    except FileExistsError:
        return  # Others may make it at the same time.
    os.fsync(handle)


def _check(status: os.stat_result, path: Path, may_have_links: bool) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise UntrustedFileError(path, f"it is {_KINDS.get(kind, 'no regular file')}")
    if status.st_nlink > 1 and not may_have_links:
        raise UntrustedFileError(path, "it is another file's second name")
