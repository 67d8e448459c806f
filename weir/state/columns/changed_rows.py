"""The rows of a columnar table that changed between two barriers."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from weir.state.backends.arrays import Arrays, HeapArrays

ROWS_AT_ONCE: Final = 1 << 20  # That are looked at in one go.

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
        return np.flatnonzero(_either(intervals, start, end)) + start

    @staticmethod
    def count(intervals: "Sequence[ChangedRows]", rows: int) -> int:
        """The number of rows below ``rows`` that changed in any of the intervals."""
        spans = ((at, min(at + ROWS_AT_ONCE, rows)) for at in range(0, rows, ROWS_AT_ONCE))
        return sum(int(np.count_nonzero(_either(intervals, *span))) for span in spans)


def _either(intervals: Sequence[ChangedRows], start: int, end: int) -> npt.NDArray[np.bool_]:
    """Whether each row changed in any of the intervals; rows behind the last note did not."""
    notes = [interval._is_changed[start:end] for interval in intervals]
    if len(notes) == 1:
        return notes[0]
    is_changed = np.zeros(end - start, np.bool_)
    for own in notes:
        is_changed[: len(own)] |= own
    return is_changed
