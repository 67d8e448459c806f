"""The arrays that columnar tables lie in: where they are made, and where they grow."""

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[Any]


class Arrays(Protocol):
    """The arrays of one operator subtask."""

    in_files: bool  # Whether large ones lie in files, of which memory holds a part.

    def zeros(self, count: int, dtype: npt.DTypeLike) -> Values:
        """A new array.

        Raises:
            StorageError: The local disk failed.
        """

    def grown(self, array: Values, count: int) -> Values:
        """The values of an array behind which there is room, for ``count`` of them at least.

        Raises:
            StorageError: The local disk failed.
        """

    def shares(self, array: Values, grown: Values) -> bool:
        """Whether an array has the memory of what it was grown to: a write to one is in both."""

    def memory_bytes(self, array: Values) -> int:
        """The bytes of memory that an array takes: none, where its pages can leave memory."""


class HeapArrays:
    """Arrays in memory."""

    in_files = False

    def zeros(self, count: int, dtype: npt.DTypeLike) -> Values:
        """A new array."""
        return np.zeros(count, dtype)

    def grown(self, array: Values, count: int) -> Values:
        """A copy, at least twice as long."""
        made = np.zeros(max(count, 2 * len(array)), array.dtype)
        made[: len(array)] = array
        return made

    def shares(self, array: Values, grown: Values) -> bool:
        """It never does."""
        return False

    def memory_bytes(self, array: Values) -> int:
        """All its bytes."""
        return array.nbytes
