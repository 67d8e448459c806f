"""The rows of a columnar table that changed between two barriers."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weir.state.arrays import Arrays, HeapArrays

Slots: TypeAlias = npt.NDArray[np.int64]


class ChangedRows:
    """The rows of one interval. The loop marks them; other threads read once it is over."""

    def __init__(self, rows: int, arrays: Arrays | None = None) -> None:
        """None of ``rows`` has changed; the notes lie in these arrays, None: in memory."""
        self._arrays = arrays or HeapArrays()
        self._is_changed = self._arrays.zeros(rows, np.bool_)

    @property
    def size(self) -> int:
        """The bytes that the notes take."""
        return self._is_changed.nbytes

    def mark(self, slots: Slots) -> None:
        """Rows have changed, all of which were there or were appended."""
        self._is_changed[slots] = True

    def append(self, start: int, end: int) -> None:
        """Rows from ``start`` to ``end`` are new."""
        if end > len(self._is_changed):
            self._is_changed, _ = self._arrays.grown(self._is_changed, end)
        self._is_changed[start:end] = True

    @staticmethod
    def of_all(intervals: "Sequence[ChangedRows]", start: int, end: int) -> Slots:
        """The rows from ``start`` to ``end`` that changed in any of the intervals, ascending."""
        is_changed = np.zeros(end - start, np.bool_)
        for interval in intervals:
            own = interval._is_changed[start:end]
            is_changed[: len(own)] |= own
        return np.flatnonzero(is_changed) + start
