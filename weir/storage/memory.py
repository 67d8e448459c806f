"""Checkpoint storage in the memory of the job master: gone with its process."""

from collections.abc import Sequence
from threading import Lock
from typing import Self

from weir.errors import StorageError
from weir.storage.store import (
    PathNotFoundError,
    Written,
    checked_directory,
    checked_path,
    checksum_of,
)


class MemoryStore:
    """Files in a dictionary; any thread may use it."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = Lock()

    @property
    def location(self) -> str:
        return "memory:"  # Of this process; no other one reads it.

    def put(self, path: str, data: bytes) -> None:
        path = checked_path(path)
        with self._lock:
            self._files[path] = bytes(data)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        path = checked_path(path)
        with self._lock:
            if path in self._files:
                return False
            self._files[path] = bytes(data)
            return True

    def open_writer(self, path: str) -> "MemoryWriter":
        return MemoryWriter(self, checked_path(path))

    def read(self, path: str) -> bytes:
        path = checked_path(path)
        with self._lock:
            data = self._files.get(path)
        if data is None:
            raise PathNotFoundError(f"the checkpoint storage in memory has no file {path}")
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read(path)[start : start + length]

    def exists(self, path: str) -> bool:
        path = checked_path(path)
        with self._lock:
            return path in self._files

    def list(self, directory: str = "") -> list[str]:
        below = _below(directory)
        with self._lock:
            return sorted(path for path in self._files if path.startswith(below))

    def list_temporary(self, directory: str = "") -> Sequence[str]:
        return ()  # A file in memory appears whole.

    def delete(self, path: str) -> None:
        path = checked_path(path)
        with self._lock:
            self._files.pop(path, None)

    def delete_prefix(self, directory: str) -> None:
        below = _below(directory)
        with self._lock:
            for path in [path for path in self._files if path.startswith(below)]:
                del self._files[path]

    def delete_if_empty(self) -> None:
        pass  # A store in memory has no directory to delete.


class MemoryWriter:
    """Collects the pieces of one file."""

    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store = store
        self._path = path
        self._pieces: list[bytes] | None = []

    def write(self, data: bytes | memoryview) -> int:
        if self._pieces is None:
            raise StorageError(f"{self._path} is closed")
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def close(self) -> Written:
        if self._pieces is None:
            raise StorageError(f"{self._path} is closed")
        data, self._pieces = b"".join(self._pieces), None
        self._store.put(self._path, data)
        return Written(len(data), checksum_of(data))

    def abort(self) -> None:
        self._pieces = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.abort()


def _below(directory: str) -> str:
    return f"{checked}/" if (checked := checked_directory(directory)) else ""
