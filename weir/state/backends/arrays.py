"""The arrays that columnar tables lie in: where they are made, and where they grow."""

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[Any]


class Arrays(Protocol):
    """The arrays of one operator subtask."""

    def zeros(self, count: int, dtype: npt.DTypeLike) -> Values:
        """A new array.

        Raises:
            StorageError: The local disk failed.
        """

    def grown(self, array: Values, count: int) -> tuple[Values, bool]:
        """The values of an array behind which there is room, for ``count`` of them at least.

        Returns also whether both share their memory: what is written to one is then in the other.

        Raises:
            StorageError: The local disk failed.
        """

    def memory_bytes(self, array: Values) -> int:
        """The bytes of memory that an array takes: none, where its pages can leave memory."""


class HeapArrays:
    """Arrays in memory."""

    def zeros(self, count: int, dtype: npt.DTypeLike) -> Values:
        """A new array."""
        return np.zeros(count, dtype)

    def grown(self, array: Values, count: int) -> tuple[Values, bool]:
        """A copy, at least twice as long."""
        made = np.zeros(max(count, 2 * len(array)), array.dtype)
        made[: len(array)] = array
        return made, False

    def memory_bytes(self, array: Values) -> int:
        """All its bytes."""
        return array.nbytes
