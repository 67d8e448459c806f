"""The index of the keys of one column: their numbers, from 1 in the order in which they first came.

Null is 0, whether it came or not. Integers and texts are looked up as they are, for whole arrays at
a time. Keys of all other types are looked up by their canonical bytes, which are made once per
distinct key of an array.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.graph.key_groups import Key, decode_key, encode_key
from weir.state.backends.arrays import Arrays
from weir.state.codec import SlotKey, canonical, used_values
from weir.state.columns.bytes_index import BytesIndex
from weir.state.columns.integer_index import IntegerIndex, Numbers

Keys: TypeAlias = "npt.NDArray[Any] | pa.Array | Sequence[Key]"

_NULL = 0
_INT64 = np.iinfo(np.int64)


class KeyIndex:
    """Numbers for keys, and the key of each number."""

    def __init__(self, kind: pa.DataType | None, arrays: Arrays | None = None) -> None:
        """No keys of a type, in these arrays; type None: Python values of any key type.

        ``arrays`` None: in memory.
        """
        self._is_int = kind is not None and _is_int64(kind)
        self._is_text = kind is not None and _is_text(kind)
        self._index: IntegerIndex | BytesIndex
        if self._is_int:
            self._index = IntegerIndex(arrays)
        else:
            stored = pa.large_string() if self._is_text else pa.large_binary()
            self._index = BytesIndex(stored, arrays)

    def __len__(self) -> int:
        """The number of keys that are not null."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes."""
        return self._index.nbytes

    def stored(self) -> pa.Array:
        """All keys but null in the order of their numbers, as they lie: binaries are canonical.

        They are not copied, and later ones change nothing in it.
        """
        return self._index.stored()

    def find(self, key: SlotKey) -> int | None:
        """The number of a slot key; None: it is not in the index."""
        if key is None:
            return _NULL
        if self._is_int:
            is_known = type(key) is int and _INT64.min <= key <= _INT64.max
        else:
            is_known = not self._is_text or type(key) is str
        stored: Any = key if self._is_int or self._is_text else canonical(key)
        number = self._index.find(stored) if is_known else None
        return None if number is None else number + 1

    def take(self, numbers: Numbers) -> pa.Array | list[Key]:
        """The keys with these numbers, of which none is null: a list of keys without own form."""
        taken = self._index.take(numbers - 1)
        if self._is_int or self._is_text:
            return taken
        return [decode_key(value) for value in taken.to_pylist()]

    def add(self, keys: Keys) -> Numbers:
        """The numbers of keys; those not seen before get the next numbers.

        Shape: n keys -> n numbers.

        Raises:
            KeyTypeError: A key has no canonical encoding.
        """
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if isinstance(keys, np.ndarray):
            if self._is_int:
                return self._index.add(np.ascontiguousarray(keys, np.int64)) + 1
            keys = pa.array(keys)
        if not isinstance(keys, pa.Array):
            return self._add_python(keys)
        if pa.types.is_dictionary(keys.type):
            values, codes = used_values(keys)
            numbers: Numbers = np.append(self.add(values), _NULL)[codes]
            return numbers
        if self._is_int:
            return self._add_integers(keys)
        try:
            encoded = keys.dictionary_encode()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            return self._add_python(keys.to_pylist())
        values = encoded.dictionary
        if not self._is_text:
            values = self._binaries(values.to_pylist())
        codes = encoded.indices.fill_null(len(values)).to_numpy()
        numbers = np.append(self._index.add(values) + 1, _NULL)[codes]
        return numbers

    def _add_integers(self, keys: pa.Array) -> Numbers:
        if not keys.null_count:
            return self._index.add(keys.cast(pa.int64()).to_numpy()) + 1
        numbers = np.full(len(keys), _NULL, np.int64)
        is_valid = keys.is_valid().to_numpy(zero_copy_only=False)
        numbers[is_valid] = self._add_integers(keys.drop_null())
        return numbers

    def _add_python(self, keys: Sequence[Key]) -> Numbers:
        if self._is_int:
            return self.add(pa.array(keys, pa.int64()))
        if self._is_text:
            return self.add(pa.array(keys, pa.large_string()))
        numbers = np.full(len(keys), _NULL, np.int64)
        valid = [row for row, key in enumerate(keys) if key is not None]
        numbers[valid] = self._index.add(self._binaries([keys[row] for row in valid])) + 1
        return numbers

    @staticmethod
    def _binaries(keys: Sequence[Key]) -> pa.Array:
        return pa.array([encode_key(key) for key in keys], pa.large_binary())


def _is_int64(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind)) and not pa.types.is_uint64(kind)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())
