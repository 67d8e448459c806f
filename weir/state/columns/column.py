"""The value columns of a columnar table, and their frozen views.

Freezing is copy on write by chunk, with the copy on the view's side: the live array stays
one piece for the gather, and the first write into a chunk that a view still needs saves the old
chunk for the view. A chunk that the snapshot thread has copied before that needs no saving any
more. Where growing copies the values, a view keeps the old array; where the longer array is the
same memory (``weir.state.backends.mapped``), it goes on with that one.

The array may have other columns' values in between (``layout``); chunks for views have not.
"""

from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from weir.state.backends.arrays import Arrays
from weir.state.columns.changed_rows import ChangedRows, Slots
from weir.state.columns.layout import Layout
from weir.state.progress import Progress


class Column:
    """One value per slot; the zero of its type until it is set."""

    def __init__(self, name: str, layout: Layout, chunk_rows: int, arrays: Arrays) -> None:
        self.name = name
        self.progress: Progress[ChangedRows] | None = None  # None: changes are not noted.
        self._arrays = arrays
        self._layout = layout
        self._values = layout.column(name)
        self._chunk_rows = chunk_rows
        self._views: list[FrozenColumn] = []
        self._spares = Spares(arrays, self.dtype, chunk_rows)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self._values.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of memory that its values take, set or not."""
        return self._arrays.memory_bytes(self._values)

    def gather(self, slots: Slots) -> npt.NDArray[Any]:
        """The values of these slots.

        Shape: n slots -> n values, a copy.
        """
        values = self._values
        # ``take`` is the sooner, but copies all of an array first that has others' values in it.
        return values.take(slots) if values.flags.c_contiguous else values[slots]

    def scatter(self, slots: Slots, values: npt.ArrayLike) -> None:
        """Set the values of these slots; of a repeated slot the last one counts.

        Shape: n slots, n values or one for all.
        """
        self._begin_write(slots)
        self._values[slots] = values

    def add(self, slots: Slots, values: npt.NDArray[Any]) -> None:
        """Add values to those of these slots, row by row; integers beyond 64 bits wrap around.

        Shape: n slots, n values.
        """
        self._begin_write(slots)
        np.add.at(self._values, slots, values)

    def _begin_write(self, slots: Slots) -> None:
        for view in self._views:
            view.save_before_write(slots)
        if self.progress is not None and (changed := self.progress.now) is not None:
            changed.mark(slots)

    def magnitude(self, rows: int) -> int:
        """The largest absolute value of the first ``rows`` slots of a column of integers."""
        values = self._values[:rows]
        return max(int(values.max()), -int(values.min())) if rows else 0

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` slots."""
        if rows > len(self._values):
            self._layout.grow(rows)
            old, self._values = self._values, self._layout.column(self.name)
            if self._arrays.shares(old, self._values):
                for view in self._views:
                    view.follow(self._values)
            else:
                self._views.clear()  # They keep the old array, which is not written any more.

    def freeze(self, rows: int) -> "FrozenColumn":
        """A view of the first ``rows`` values as they are now."""
        view = FrozenColumn(self._values, rows, self._chunk_rows, self._spares)
        self._views.append(view)
        return view

    def set_all(self, other: "Column", rows: int) -> None:
        """Set the first ``rows`` values, for which there is room, to another column's."""
        self._values[:rows] = other._values[:rows]

    def release(self, view: "FrozenColumn") -> None:
        """End the sharing with this view."""
        if view in self._views:
            self._views.remove(view)
        view.give_back()
        if not self._views:
            self._spares.drop_files()


class Spares:
    """Memory for the saved chunks of a column's views, used again and again.

    Memory fresh from the system would cost more than the copy. Chunks are parts of blocks, each as
    long as all before it, so that few of those are files.
    """

    def __init__(self, arrays: Arrays, dtype: np.dtype[Any], chunk_rows: int) -> None:
        self._arrays = arrays
        self._dtype = dtype
        self._chunk_rows = chunk_rows
        self._made = 0
        self._unused: list[npt.NDArray[Any]] = []  # Both threads only append and pop.

    def take(self) -> npt.NDArray[Any]:
        """A chunk of any content; on the loop thread.

        Raises:
            StorageError: The local disk is full, or failed.
        """
        if not self._unused:
            count = max(1, self._made)
            block = self._arrays.zeros(count * self._chunk_rows, self._dtype)
            self._unused.extend(block.reshape(count, self._chunk_rows))
            self._made += count
        return self._unused.pop()

    def give(self, chunk: npt.NDArray[Any]) -> None:
        """Return a chunk."""
        self._unused.append(chunk)

    def drop_files(self) -> None:
        """Free those that lie in files, before they are written to disk for nothing."""
        kept = [chunk for chunk in self._unused if self._arrays.memory_bytes(chunk)]
        if len(kept) < len(self._unused):
            self._unused, self._made = kept, len(kept)


class FrozenColumn:
    """The values of a column as they were at a barrier."""

    def __init__(
        self,
        live: npt.NDArray[Any],
        rows: int,
        chunk_rows: int,
        spares: Spares,
    ) -> None:
        chunks = -(-rows // chunk_rows)
        self._live = live
        self._rows = rows
        self._chunk_rows = chunk_rows
        self._spares = spares
        self._needed = np.ones(chunks, np.bool_)  # The chunk is still read from the live array.
        self._saved: dict[int, npt.NDArray[Any]] = {}
        self._lock = Lock()

    def save_before_write(self, slots: Slots) -> None:
        """Save the chunks of ``slots`` that the view still needs; on the loop thread."""
        if not self._needed.any():
            return
        touched = np.zeros(self._live.size // self._chunk_rows + 1, np.bool_)
        touched[slots // self._chunk_rows] = True
        touched = touched[: len(self._needed)]
        for chunk in np.flatnonzero(touched & self._needed).tolist():
            with self._lock:
                if self._needed[chunk]:
                    spare = self._spares.take()
                    span = self._span(chunk)
                    spare[: span.stop - span.start] = self._live[span]
                    self._saved[chunk] = spare
                    self._needed[chunk] = False

    def follow(self, live: npt.NDArray[Any]) -> None:
        """The live array is longer now, in the same memory; on the loop thread."""
        self._live = live

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self._live.dtype

    def chunks(self) -> Iterator[npt.NDArray[Any]]:
        """All values in order, chunk by chunk, once; on the snapshot thread.

        An array is valid until the next one is taken: its memory is reused, so that it stays in the
        processor's cache.

        Shape: one value per row at the time of the freeze.
        """
        copied = np.empty(self._chunk_rows, self._live.dtype)
        for chunk in range(len(self._needed)):
            span = self._span(chunk)
            size = span.stop - span.start
            if chunk not in self._saved:
                copied[:size] = self._live[span]
            saved = self._taken(chunk)
            if saved is None:
                yield copied[:size]
            else:
                yield saved[:size]
                self._spares.give(saved)

    def values_at(self, chunks: range, rows: Slots) -> npt.NDArray[Any]:
        """The values of ascending rows of some chunks, each chunk once; on the snapshot thread."""
        values = self._live[rows]
        for chunk in chunks:
            saved = self._taken(chunk)
            if saved is not None:
                start = chunk * self._chunk_rows
                first, last = np.searchsorted(rows, (start, start + self._chunk_rows))
                values[first:last] = saved[rows[first:last] - start]
                self._spares.give(saved)
        return values

    def _taken(self, chunk: int) -> npt.NDArray[Any] | None:
        """The saved chunk. None: what was copied before is right, for a write saves it first."""
        with self._lock:
            self._needed[chunk] = False
            return self._saved.pop(chunk, None)

    def give_back(self) -> None:
        """Return the saved chunks that were not read."""
        with self._lock:
            for saved in self._saved.values():
                self._spares.give(saved)
            self._saved.clear()
            self._needed[:] = False

    def _span(self, chunk: int) -> slice:
        start = chunk * self._chunk_rows
        return slice(start, min(start + self._chunk_rows, self._rows))
