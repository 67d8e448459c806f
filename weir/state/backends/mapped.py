"""Arrays on local disk: files mapped into memory, whose pages leave memory when it runs short.

Small arrays stay in memory; one that grows large is copied to a file once. A file loses its name as
soon as it is open, so that a killed process leaves nothing. It grows with its array, which needs no
copy: both are maps of one file. Its blocks are reserved before they are mapped. Otherwise a full
disk would end the process with SIGBUS at some write to memory; so it is an error where the array
grows. A disk that fails to read or write a page still is such a signal.

A file takes two descriptors of its process, whose limit is raised as far as it may be when there is
a first one.

Source: Linux, ``mmap(2)``, ``posix_fallocate(3)``.
"""

import mmap
import os
import resource
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import numpy as np
import numpy.typing as npt

from weir.errors import StorageError
from weir.state.backends.arrays import Values

FILE_BYTES_MIN: Final = 256 << 10


class _File:
    """A file without a name, closed once nothing maps it."""

    def __init__(self, directory: Path) -> None:
        _raise_files_max()
        self.descriptor, name = tempfile.mkstemp(dir=directory)
        finalize(self, os.close, self.descriptor)
        os.unlink(name)
        self._size = 0

    def map(self, size: int) -> "_Map":
        """The first ``size`` bytes, all of whose blocks are reserved."""
        if size > self._size:
            os.posix_fallocate(self.descriptor, self._size, size - self._size)
            self._size = size
        made = _Map(self.descriptor, size)
        made.madvise(mmap.MADV_RANDOM)
        made.file = self
        return made


class _Map(mmap.mmap):
    """A mapped file."""

    file: _File


class MappedArrays:
    """The arrays of one operator subtask, the large ones in files."""

    in_files = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def zeros(self, count: int, dtype: npt.DTypeLike) -> Values:
        """A new array.

        Raises:
            StorageError: The local disk is full, or failed.
        """
        kind = np.dtype(dtype)
        size = count * kind.itemsize
        if size < FILE_BYTES_MIN:
            return np.zeros(count, kind)
        return self._mapped(None, size, kind)[:count]

    def grown(self, array: Values, count: int) -> Values:
        """The same file, half as long again; or the copy of an array that was in memory.

        Raises:
            StorageError: The local disk is full, or failed.
        """
        known = _map_of(array)
        if known is not None:
            size = max(count, len(array) + len(array) // 2) * array.itemsize
            return self._mapped(known.file, size, array.dtype)
        made = self.zeros(max(count, 2 * len(array)), array.dtype)
        made[: len(array)] = array
        return made

    def shares(self, array: Values, grown: Values) -> bool:
        """Both lie in the same file."""
        one, other = _map_of(array), _map_of(grown)
        return one is not None and other is not None and one.file is other.file

    def memory_bytes(self, array: Values) -> int:
        """None of an array in a file."""
        return array.nbytes if _map_of(array) is None else 0

    def _mapped(self, file: _File | None, size: int, dtype: np.dtype[Any]) -> Values:
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            own = file or _File(self._directory)
            return np.frombuffer(own.map(size), dtype, size // dtype.itemsize)
        except OSError as error:
            raise StorageError(
                f"columns of state on local disk, in {self._directory}, cannot grow to "
                f"{size:,} bytes: {error.strerror}; see to its space, or name another directory "
                "with state.backend.rocksdb.localdir"
            ) from error


def _map_of(array: Values) -> _Map | None:
    """The file that an array lies in; None: it lies in memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, _Map) else None


@cache
def _raise_files_max() -> None:
    """Let this process have as many open files as it may, once."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
