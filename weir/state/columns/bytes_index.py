"""An index of distinct texts or byte strings: each has a number, from 0 in the order they came.

The values lie one behind the other in one array, the end of each in another. They are looked up for
whole arrays at a time by their 64-bit hashes, which an index of integers numbers
(``integer_index``); then the values that are stored under these numbers are compared with those
that are looked up. Few bytes of it are Python objects, so that all of it can lie in files.

Of two values with one hash the later one gets a *stand-in*, the next hash that no value has. Such
values are in a dictionary: there are none among less than some billions by accident.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.codec import hash_64_column
from weir.state.columns.integer_index import IntegerIndex, Numbers

_ROWS_MIN = 256
_BYTES_MIN = 1 << 12
_MASK_64 = (1 << 64) - 1


class BytesIndex:
    """Numbers for texts or byte strings, and the value of each number."""

    def __init__(self, kind: pa.DataType, arrays: Arrays | None = None) -> None:
        """No values, of ``large_string`` or ``large_binary``, in these arrays; None: in memory."""
        self._kind = kind
        self._arrays = arrays or HeapArrays()
        self._numbers = IntegerIndex(self._arrays)  # Of hashes.
        self._bounds: npt.NDArray[np.int64] = self._arrays.zeros(_ROWS_MIN, np.int64)
        self._bytes: npt.NDArray[np.uint8] = self._arrays.zeros(_BYTES_MIN, np.uint8)
        self._stand_ins: dict[Any, int] = {}  # By value.
        self._taken = np.empty(0, np.int64)  # The hashes that such values would have.

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes, but for stand-ins."""
        of_array = self._arrays.memory_bytes
        return self._numbers.nbytes + of_array(self._bounds) + of_array(self._bytes)

    def stored(self) -> pa.Array:
        """All values in the order of their numbers.

        They are not copied, and later ones change nothing in it.
        """
        buffers = [None, pa.py_buffer(self._bounds), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(self._kind, len(self), buffers)

    def take(self, numbers: Numbers) -> pa.Array:
        """The values with these numbers."""
        return self.stored().take(pa.array(numbers))

    def find(self, value: Any) -> int | None:
        """The number of a value; None: it is not in the index."""
        values = pa.array([value], self._kind)
        number = self._numbers.find(int(self._hashes(values)[0]))
        if number is None or self.take(np.array([number])) != values:
            return None
        return number

    def add(self, values: pa.Array) -> Numbers:
        """The numbers of values, none of them null; those not seen before get the next numbers.

        Shape: n values -> n numbers.
        """
        values = values.cast(self._kind)
        hashes = self._hashes(values)
        numbers = self._add(values, hashes)
        differs = pc.not_equal(self.take(numbers), values)
        if pc.any(differs).as_py():
            for row in np.flatnonzero(differs.to_numpy(zero_copy_only=False)).tolist():
                stand_in = self._stand_in(values[row].as_py(), int(hashes[row]))
                numbers[row] = self._add(values.slice(row, 1), np.array([stand_in]))[0]
        return numbers

    def _hashes(self, values: pa.Array) -> npt.NDArray[np.int64]:
        hashes = hash_64_column(values).view(np.int64)
        if self._stand_ins:
            for row in np.flatnonzero(np.isin(hashes, self._taken)).tolist():
                hashes[row] = self._stand_ins.get(values[row].as_py(), hashes[row])
        return hashes

    def _add(self, values: pa.Array, hashes: npt.NDArray[np.int64]) -> Numbers:
        """The numbers of hashes; for each not seen before one of its values is stored."""
        before = len(self)
        numbers = self._numbers.add(hashes)
        if count := len(self) - before:
            rows = np.flatnonzero(numbers >= before)
            row_of = np.empty(count, np.int64)
            row_of[numbers[rows] - before] = rows
            self._store(before, values.take(pa.array(row_of)))
        return numbers

    def _store(self, before: int, values: pa.Array) -> None:
        """Append values that begin at the start of their buffers."""
        _, bounds, data = values.buffers()
        ends = np.frombuffer(bounds, np.int64, len(values), offset=8)
        start, size, count = int(self._bounds[before]), int(ends[-1]), before + len(ends)
        if count >= len(self._bounds):
            self._bounds = self._arrays.grown(self._bounds, count + 1)
        if start + size > len(self._bytes):
            self._bytes = self._arrays.grown(self._bytes, start + size)
        if size:
            self._bytes[start : start + size] = np.frombuffer(data, np.uint8, size)
        self._bounds[before + 1 : count + 1] = ends + start

    def _stand_in(self, value: Any, taken: int) -> int:
        """The hash of a value whose own is that of another."""
        if value not in self._stand_ins:
            free = taken
            while self._numbers.find(free) is not None:
                free = (free + 1 + (1 << 63) & _MASK_64) - (1 << 63)
            self._stand_ins[value] = free
            self._taken = np.append(self._taken, taken)
        return self._stand_ins[value]
