"""The interface of checkpoint storage, its errors, and the store of a URI.

Checksums find damage: bits that flipped, writes that were cut short, files mixed up. They are
XXH3-128, about as fast as memory, where a cryptographic hash takes longer than the disk. They are
no protection against deliberate changes of a checkpoint, which the permissions of the storage have
to prevent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

import xxhash

from weir.errors import ConfigError, StorageError

# Begins the name of a file that is being written. No reader lists such files; a crash may leave
# one behind.
TEMPORARY = ".weir-tmp-"


class PathNotFoundError(StorageError):
    """The storage has no file of this name."""

    retryable = False


class WriteRefusedError(StorageError):
    """The storage refuses the write until its permissions or its location are changed."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Written:
    """Size and checksum of a finished file.

    Units: ``size`` in bytes; ``checksum`` is the hex XXH3-128 of them.
    """

    size: int
    checksum: str


class StoreWriter(Protocol):
    """Writes one file piece by piece; the file exists once ``close`` returned, else never."""

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``, whose memory is the caller's again when this returns."""

    def close(self) -> Written:
        """Make the file durable under its name; returns size and checksum."""

    def abort(self) -> None:
        """Leave no trace of the file. Harmless after ``close``."""

    def __enter__(self) -> Self:
        """Leaving the block without ``close`` aborts the file."""

    def __exit__(self, *raised: object) -> None: ...


class CheckpointStore(Protocol):
    """Files by relative path; a write is durable when its method returns.

    A *directory* argument is a path up to a slash: ``j/chk-1`` never means files of ``j/chk-10``;
    the empty one means everything. Every method raises ``StorageError`` when the storage fails or
    the path leaves it.
    """

    @property
    def location(self) -> str:
        """The place of the storage, by which it differs from a copy; one place, one text."""

    def put(self, path: str, data: bytes) -> None:
        """Write a file whole, in place of any older one."""

    def create_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file whole unless it exists; of several callers exactly one gets True."""

    def open_writer(self, path: str) -> StoreWriter:
        """Write a file piece by piece."""

    def read(self, path: str) -> bytes:
        """The whole file.

        Raises:
            PathNotFoundError: There is no such file.
        """

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``; fewer at the end of the file.

        Raises:
            PathNotFoundError: There is no such file.
        """

    def exists(self, path: str) -> bool:
        """Whether the file exists."""

    def list(self, directory: str = "") -> list[str]:
        """The paths of all files below a directory, sorted; none where there is no directory."""

    def list_temporary(self, directory: str = "") -> "Sequence[str]":
        """The paths of temporary files below a directory: of writes under way, or cut off."""

    def delete(self, path: str) -> None:
        """Delete a file; nothing happens where there is none."""

    def delete_prefix(self, directory: str) -> None:
        """Delete a directory and everything below it; nothing happens where there is none.

        Several processes may do so at once; all files are deleted once one of the calls returns.
        """

    def delete_if_empty(self) -> None:
        """Delete the store's own directory if it holds no file; files written meanwhile stay."""


def store_for(uri: str | None) -> CheckpointStore:
    """The store that a setting names: a directory or ``file:`` URI; None keeps it in memory.

    Raises:
        ConfigError: The scheme is not supported.
    """
    # The implementations import this module for its protocol, so they are imported only now.
    from weir.storage.local import LocalStore
    from weir.storage.memory import MemoryStore

    if uri is None:
        return MemoryStore()
    parts = urlsplit(uri)
    if not parts.scheme:
        return LocalStore(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return LocalStore(unquote(parts.path))
    raise ConfigError(
        f"checkpoint storage {uri!r} is not supported; give a directory that all machines of the "
        "cluster share, as a path or as file:///path, or leave it out to keep checkpoints in the "
        "driver's memory"
    )


def checked_path(path: str) -> str:
    """Check that ``path`` names a file inside the store, and return it.

    Raises:
        StorageError: It is empty or absolute, or has a part that is empty, ``.`` or ``..``.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path:
        raise StorageError(f"{path!r} is no path inside the checkpoint storage")
    return path


def checked_directory(directory: str) -> str:
    """Check a directory in the same way; the empty path is the store itself."""
    return checked_path(directory.rstrip("/")) if directory else ""


def is_temporary(path: str) -> bool:
    """Whether the name is that of a file that was being written."""
    return path.rpartition("/")[2].startswith(TEMPORARY)


def checksum_of(data: bytes | memoryview) -> str:
    """The hex XXH3-128 of ``data``."""
    return xxhash.xxh3_128_hexdigest(data)


def new_checksum() -> xxhash.xxh3_128:
    """A running checksum."""
    return xxhash.xxh3_128()
