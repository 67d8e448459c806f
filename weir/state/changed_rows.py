"""The rows of a columnar table that changed between two barriers."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Slots: TypeAlias = npt.NDArray[np.int64]


class ChangedRows:
    """The rows of one interval. The loop marks them; other threads read once it is over."""

    def __init__(self, rows: int) -> None:
        """None of ``rows`` has changed."""
        self._is_changed = np.zeros(rows, np.bool_)

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
            grown = np.zeros(max(end, 2 * len(self._is_changed)), np.bool_)
            grown[: len(self._is_changed)] = self._is_changed
            self._is_changed = grown
        self._is_changed[start:end] = True

    @staticmethod
    def of_all(intervals: "Sequence[ChangedRows]", rows: int) -> Slots:
        """The rows below ``rows`` that changed in any of the intervals, ascending."""
        is_changed = np.zeros(rows, np.bool_)
        for interval in intervals:
            own = interval._is_changed[:rows]
            is_changed[: len(own)] |= own
        return np.flatnonzero(is_changed)
