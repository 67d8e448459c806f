"""The rows of a columnar table that changed between two barriers.

Few are listed, as they came: so an interval begins with an empty list, however large the table is.
Once the list takes as much memory as a flag for each row, or some megabytes, further ones have
flags instead.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from weir.state.backends.arrays import Arrays, HeapArrays

_COUNTED_AT_ONCE: Final = 1 << 20
LISTED_BYTES_MAX: Final = 4 << 20

Slots: TypeAlias = npt.NDArray[np.int64]


class ChangedRows:
    """The rows of one interval. The loop marks them; one other thread reads once it is over."""

    def __init__(self, rows: int, arrays: Arrays | None = None) -> None:
        """None of ``rows`` has changed; flags lie in these arrays, None: in memory."""
        self._arrays = arrays or HeapArrays()
        self._old = self._rows = rows  # At its beginning, and now; all in between are new.
        self._listed: list[Slots] = []
        self._listed_bytes = 0
        self._flags: npt.NDArray[np.bool_] | None = None  # Of rows that are not listed.
        self._sorted: Slots | None = None  # What is listed, each row once; when it is over.

    @property
    def size(self) -> int:
        """The bytes that the notes take."""
        return self._listed_bytes + (0 if self._flags is None else self._flags.nbytes)

    def mark(self, slots: Slots) -> None:
        """Rows have changed, all of which were there or were appended."""
        if self._flags is not None:
            self._flags[slots] = True
        elif not self._listed or not np.array_equal(self._listed[-1], slots):  # Another column's.
            self._listed.append(slots.copy())
            self._listed_bytes += slots.nbytes
            if self._listed_bytes > min(self._rows, LISTED_BYTES_MAX):
                self._flags = self._arrays.zeros(self._rows, np.bool_)

    def append(self, start: int, end: int) -> None:
        """Rows from ``start`` to ``end`` are new."""
        self._rows = max(self._rows, end)
        if self._flags is not None and end > len(self._flags):
            self._flags = self._arrays.grown(self._flags, end)
        if start < self._old:  # The null key's, which comes at any time.
            self.mark(np.arange(start, end))

    def between(self, start: int, end: int) -> Slots:
        """The rows from ``start`` to ``end`` that changed, ascending."""
        if (flags := self._all_flags()) is not None:
            return np.flatnonzero(flags[start:end]) + start
        known = self._known()
        first, last = np.searchsorted(known, (start, end))
        new = np.arange(max(start, self._old), min(end, self._rows))
        return np.concatenate([known[first:last], new])

    def count(self, rows: int) -> int:
        """The number of rows below ``rows`` that changed."""
        if (flags := self._all_flags()) is not None:
            return int(np.count_nonzero(flags[:rows]))
        return int(np.searchsorted(self._known(), rows)) + max(0, min(rows, self._rows) - self._old)

    def _all_flags(self) -> npt.NDArray[np.bool_] | None:
        """The flags, of listed and new rows as well; None: there are none."""
        if self._flags is not None and self._listed:
            for slots in self._listed:
                self._flags[slots] = True
            self._flags[self._old : self._rows] = True
            self._listed.clear()
        return self._flags

    def _known(self) -> Slots:
        """Those listed that are not new, ascending."""
        if self._sorted is None:
            # Sooner than by ``numpy.unique``, which hashes.
            known = np.sort(np.concatenate([np.empty(0, np.int64), *self._listed]))
            known = known[: np.searchsorted(known, self._old)]
            self._sorted = known[np.diff(known, prepend=-1) > 0]
        return self._sorted


def changed_in(intervals: Sequence[ChangedRows], start: int, end: int) -> Slots:
    """The rows from ``start`` to ``end`` that changed in any of the intervals, ascending."""
    if len(intervals) == 1:
        return intervals[0].between(start, end)
    is_changed = np.zeros(end - start, np.bool_)
    for interval in intervals:
        is_changed[interval.between(start, end) - start] = True
    return np.flatnonzero(is_changed) + start


def count_changed(intervals: Sequence[ChangedRows], rows: int) -> int:
    """The number of rows below ``rows`` that changed in any of the intervals."""
    if len(intervals) == 1:
        return intervals[0].count(rows)
    spans = ((at, min(at + _COUNTED_AT_ONCE, rows)) for at in range(0, rows, _COUNTED_AT_ONCE))
    return sum(len(changed_in(intervals, *span)) for span in spans)
