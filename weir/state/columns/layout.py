"""The layouts of a columnar table: where the values of its columns lie.

*Column by column*, each in an array of its own: in memory, where what a slice of records reads and
writes of one column lies close together in the processor's cache.

*Row by row*, in one array of records: in files of which memory holds a part. There a row that is on
disk is one page to read and not one for each column, which is what counts.

Source: Copeland and Khoshafian, "A Decomposition Storage Model", SIGMOD 1985, which compares both.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.state.backends.arrays import Arrays

ROWS_MIN: Final = 1_024


class Layout(Protocol):
    """The arrays of some columns, each with room for as many rows."""

    def column(self, name: str) -> npt.NDArray[Any]:
        """The array of a column, as it is now: of the zeros of its type until they are set."""

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows, which may copy the values to other memory.

        Raises:
            StorageError: The local disk is full, or failed.
        """


def layout_in(arrays: Arrays, dtypes: Mapping[str, np.dtype[Any]]) -> Layout:
    """New columns of these types, laid out as is best for where the arrays lie."""
    return RowByRow(arrays, dtypes) if arrays.in_files else ColumnByColumn(arrays, dtypes)


class ColumnByColumn:
    """An array for each column."""

    def __init__(self, arrays: Arrays, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self._arrays = arrays
        self._columns = {name: arrays.zeros(ROWS_MIN, dtype) for name, dtype in dtypes.items()}

    def column(self, name: str) -> npt.NDArray[Any]:
        """The array of a column."""
        return self._columns[name]

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows."""
        for name, values in self._columns.items():
            if rows > len(values):
                self._columns[name] = self._arrays.grown(values, rows)


class RowByRow:
    """One array of records, with a field for each column."""

    def __init__(self, arrays: Arrays, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self._arrays = arrays
        # The widest first, so that there are no gaps between them to align each.
        widest_first = sorted(dtypes, key=lambda name: -dtypes[name].itemsize)
        self._fields = {name: f"f{at}" for at, name in enumerate(widest_first)}
        record = np.dtype([(self._fields[name], dtypes[name]) for name in widest_first], align=True)
        self._rows: npt.NDArray[Any] = arrays.zeros(ROWS_MIN, record)

    def column(self, name: str) -> npt.NDArray[Any]:
        """The array of a column, which has the other columns' values in between."""
        return self._rows[self._fields[name]]

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows."""
        if rows > len(self._rows):
            self._rows = self._arrays.grown(self._rows, rows)
