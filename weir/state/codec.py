"""Keys as columns: their hashes, and their form in a snapshot.

*Hashes* are the vectorised implementation of ``weir.graph.key_groups``: the hash of every row is
the scalar hash of the row's key, without making a Python object per row. A null is the key None;
several columns together are a tuple key. The type of a key is that of the Python value the column
yields: every integer type is an int, ``float32`` is a float, ``timestamp`` with a zone an aware
datetime. Types without a form of their own here (decimals, unsigned integers beyond 63 bits) go
through the scalar form once per distinct value.

*Slot keys* are the dictionary keys of state: ``1``, ``1.0`` and ``True`` are one dictionary key in
Python, and three keys in Weir. An int, a str and None stand for themselves; every other key is
looked up by its canonical bytes.

*Stored keys* are a typed Arrow column where all keys of a state have one simple type, so that any
Arrow reader can read it, and canonical bytes where they do not.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.common.types.basic import all_are, integers
from weir.errors import KeyTypeError, WeirError
from weir.graph import key_groups as scalar


class MixedKeysError(WeirError):
    """Keys were to be stored as a type that does not hold all of them."""


Hashes: TypeAlias = npt.NDArray[np.uint64]
SlotKey: TypeAlias = int | str | bytes | None

_OWN_SLOTS = {scalar.TAG_NONE, scalar.TAG_INT, scalar.TAG_STR}  # Keys that are their slot keys.
_NONE_HASH = np.uint64(scalar.hash_64(None))
_SHIFT_33 = np.uint64(33)
_FMIX_1 = np.uint64(scalar.FMIX_1)
_FMIX_2 = np.uint64(scalar.FMIX_2)
_WORD_MULTIPLIER = np.uint64(scalar.WORD_MULTIPLIER)
_WORD_SHIFT = np.uint64(scalar.WORD_SHIFT)
_LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)  # By bytes kept.
_VECTORISED_BYTES_MAX = (
    512  # Beyond, a pass per word over few rows costs more than the scalar hash.
)


def hash_column(array: pa.Array) -> npt.NDArray[np.uint32]:
    """``weir_hash`` of every value of ``array``.

    Shape: n values -> n hashes.

    Raises:
        KeyTypeError: A value is NaN, or of a type that cannot be a key.
    """
    return hash_64_column(array).astype(np.uint32)


def key_groups_of(columns: Sequence[pa.Array], max_parallelism: int) -> npt.NDArray[np.uint16]:
    """The key group of every row whose key is the value of one column, or the tuple of several.

    Shape: k columns of n rows -> n key groups.

    Raises:
        KeyTypeError: A value is NaN, or of a type that cannot be a key.
    """
    if not columns:
        raise KeyTypeError("a key needs at least one column")
    if len(columns) == 1:
        hashes = hash_64_column(columns[0])
    else:
        hashes = _start(scalar.TAG_TUPLE, np.full(len(columns[0]), 8 * len(columns), np.uint64))
        for column in columns:
            _mix_in(hashes, hash_64_column(column))
        _finish(hashes)
    return (hashes.astype(np.uint32) % np.uint32(max_parallelism)).astype(np.uint16)


def hash_64_column(array: pa.Array) -> Hashes:
    """``hash_64`` of every value of ``array``, in an array of the caller's own.

    Shape: n values -> n hashes.

    Raises:
        KeyTypeError: A value is NaN, or of a type that cannot be a key.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _dictionary(array)
    hashes: Hashes = next(hash_ for fits, hash_ in _BY_TYPE if fits(kind))(array)
    if array.null_count:
        hashes[_nulls(array)] = _NONE_HASH
    return hashes


def used_values(array: pa.DictionaryArray) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The values that the rows of a dictionary column have.

    A dictionary may hold values that no row has: once rows were dealt out by key, each subtask gets
    those of all others as well. It may also hold null, or a value twice.

    Shape: n rows -> at most as many values as in the dictionary, without null; and for each row the
    index of its value, where one past the last means null.
    """
    values = array.dictionary
    codes: npt.NDArray[np.int64]
    codes = pc.fill_null(array.indices.cast(pa.int64()), len(values)).to_numpy()
    is_used = np.zeros(len(values) + 1, np.bool_)
    is_used[codes] = True
    if values.null_count:
        is_used[:-1] &= ~_nulls(values)
    kept = np.flatnonzero(is_used[:-1])
    if len(kept) == len(values):
        return values, codes
    numbers = np.full(len(values) + 1, len(kept), np.int64)
    numbers[kept] = np.arange(len(kept))
    return values.take(pa.array(kept)), numbers[codes]


def _dictionary(array: pa.DictionaryArray) -> Hashes:
    values, codes = used_values(array)
    picked: Hashes = np.append(hash_64_column(values), _NONE_HASH)[codes]
    return picked


def _integers(array: pa.Array) -> Hashes:
    if pa.types.is_uint64(array.type) and (pc.max(array).as_py() or 0) >= 1 << 63:
        return _by_value(array)
    return _fmix(_raw(array.cast(pa.int64()), np.int64).astype(np.uint64))


def _floats(array: pa.Array) -> Hashes:
    values = _raw(array.cast(pa.float64()), np.float64)
    refused = np.isnan(values)
    if array.null_count:
        refused &= ~_nulls(array)
    if refused.any():
        raise KeyTypeError(scalar.NAN_KEY)
    return _one_word(scalar.TAG_FLOAT, 8, (values + 0.0).view(np.uint64))


def _booleans(array: pa.Array) -> Hashes:
    return _one_word(scalar.TAG_BOOL, 1, _raw(array.cast(pa.uint8()), np.uint8).astype(np.uint64))


def _dates(array: pa.Array) -> Hashes:
    days = _raw(array.cast(pa.date32()), np.int32).view(np.uint32).astype(np.uint64)
    return _one_word(scalar.TAG_DATE, 4, days)


def _times(array: pa.Array) -> Hashes:
    microseconds = _raw(_to_microseconds(array, pa.time64("us")), np.int64).view(np.uint64)
    return _one_word(scalar.TAG_TIME, 8, microseconds)


def _timestamps(array: pa.Array) -> Hashes:
    tag = scalar.TAG_DATETIME if array.type.tz is None else scalar.TAG_DATETIME_UTC
    values = _to_microseconds(array, pa.timestamp("us", array.type.tz))
    return _one_word(tag, 8, _raw(values, np.int64).view(np.uint64))


def _strings(array: pa.Array) -> Hashes:
    return _bytes(scalar.TAG_STR, array.cast(pa.large_string()))


def _binaries(array: pa.Array) -> Hashes:
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    return _bytes(scalar.TAG_BYTES, array.cast(pa.large_binary()))


def _uuids(array: pa.ExtensionArray) -> Hashes:
    return _bytes(scalar.TAG_UUID, array.storage.cast(pa.binary()).cast(pa.large_binary()))


def _by_value(array: pa.Array) -> Hashes:
    try:
        encoded = array.dictionary_encode()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # Nested types: few, and mostly refused.
        return np.array([scalar.hash_64(value) for value in array.to_pylist()], np.uint64)
    hashes = [scalar.hash_64(value) for value in encoded.dictionary.to_pylist()]
    by_index = np.array([*hashes, _NONE_HASH], np.uint64)
    picked: Hashes = by_index[pc.fill_null(encoded.indices, len(hashes)).to_numpy()]
    return picked


_BY_TYPE: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], Hashes]]] = (
    (pa.types.is_integer, _integers),
    (
        lambda kind: (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
        ),
        _strings,
    ),
    (
        lambda kind: (
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_binary_view(kind)
            or pa.types.is_fixed_size_binary(kind)
        ),
        _binaries,
    ),
    (pa.types.is_floating, _floats),
    (pa.types.is_boolean, _booleans),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times),
    (pa.types.is_timestamp, _timestamps),
    (lambda kind: isinstance(kind, pa.UuidType), _uuids),
    (lambda kind: True, _by_value),
)


def _raw(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """The values of a fixed-width array as they lie in memory; those of nulls are arbitrary."""
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _to_microseconds(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as cause:
        raise KeyTypeError(
            f"a key column of type {array.type} holds values finer than a microsecond, which a"
            " Python key cannot; cast it to microseconds or to int64 before key_by"
        ) from cause


def _fmix(words: Hashes) -> Hashes:
    """Finalise ``words`` in place; the caller must own the array."""
    words ^= words >> _SHIFT_33
    words *= _FMIX_1
    words ^= words >> _SHIFT_33
    words *= _FMIX_2
    words ^= words >> _SHIFT_33
    return words


def _start(tag: int, lengths: Hashes) -> Hashes:
    return (lengths ^ np.uint64(tag << 56)) * _WORD_MULTIPLIER


def _mix_in(mixed: Hashes, words: Hashes) -> None:
    words = words * _WORD_MULTIPLIER
    words ^= words >> _WORD_SHIFT
    words *= _WORD_MULTIPLIER
    mixed ^= words
    mixed *= _WORD_MULTIPLIER


_finish = _fmix


def _one_word(tag: int, length: int, words: Hashes) -> Hashes:
    mixed = _start(tag, np.full(len(words), length, np.uint64))
    _mix_in(mixed, words)
    return _finish(mixed)


def _bytes(tag: int, array: pa.Array) -> Hashes:
    """Hash the values of a large string or binary array, word by word over all rows at once."""
    count = len(array)
    if count == 0:
        return np.empty(0, np.uint64)
    _, offset_buffer, data = array.buffers()
    bounds = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + count + 1]
    low, high = int(bounds[0]), int(bounds[-1])
    starts, lengths = bounds[:-1] - low, np.diff(bounds)
    padded = np.zeros(high - low + 8, np.uint8)  # So that the last word can be read whole.
    if high > low:
        padded[:-8] = np.frombuffer(data, np.uint8)[low:high]
    # A word may begin at any byte: overlapping views, one per start.
    words_at: Hashes = np.ndarray((high - low + 1,), np.dtype("<u8"), padded, strides=(1,))

    mixed = _start(tag, lengths.astype(np.uint64))
    done, longest = 0, int(lengths.max())
    while done < min(longest, _VECTORISED_BYTES_MAX):
        left = lengths - done
        if int(left.min()) > 0:
            words = words_at[starts + done] & _LOW_BYTES[np.minimum(left, 8)]
            _mix_in(mixed, words)
        else:
            rows = np.flatnonzero(left > 0)
            words = words_at[starts[rows] + done] & _LOW_BYTES[np.minimum(left[rows], 8)]
            part = mixed[rows]
            _mix_in(part, words)
            mixed[rows] = part
        done += 8
    _finish(mixed)
    for row in np.flatnonzero(lengths > _VECTORISED_BYTES_MAX) if done < longest else ():
        value = padded[starts[row] : starts[row] + lengths[row]].tobytes()
        mixed[row] = scalar.mix_words(tag, len(value), scalar.words_of(value))
    return mixed


def slot_key(key: scalar.Key) -> SlotKey:
    """The slot key of ``key``: equal exactly for keys that are the same key in Weir."""
    kind = type(key)
    if kind is int or kind is str or key is None:
        return key  # type: ignore[return-value]
    return scalar.encode_key(key)


def key_of_slot(slot: SlotKey) -> scalar.Key:
    """The key of a slot key."""
    return scalar.decode_key(slot) if type(slot) is bytes else slot


def canonical(slot: SlotKey) -> bytes:
    """The canonical form of a slot key."""
    return slot if type(slot) is bytes else scalar.encode_key(slot)


def slot_of(stored: bytes) -> SlotKey:
    """The slot key of a canonical form."""
    return slot_key(scalar.decode_key(stored)) if stored[0] in _OWN_SLOTS else stored


def stored_key_type(slots: Iterable[Sequence[Any]]) -> pa.DataType | None:
    """The column type for all these keys, in pieces; None: only canonical bytes can hold them."""
    common: pa.DataType | None = None
    for piece in slots:
        kinds = set(map(type, piece))
        if kinds == {int}:
            fits = min(piece) >= -(1 << 63) and max(piece) < 1 << 63
            kind = pa.int64() if fits else None
        elif kinds == {str}:
            kind = pa.string()
        elif kinds == {bytes}:
            tags = {slot[0] for slot in piece}
            kind = _TYPE_OF_TAG.get(tags.pop()) if len(tags) == 1 else None
        else:
            kind = None
        if kind is None or (common is not None and kind != common):
            return None
        common = kind
    return common


def store_keys(slots: Sequence[SlotKey], kind: pa.DataType | None) -> pa.Array:
    """Keys as a column of a type that ``stored_key_type`` gave.

    Raises:
        MixedKeysError: A key is of another type; only canonical bytes can hold all of them.
    """
    if kind is None:
        return pa.array([canonical(slot) for slot in slots], pa.binary())
    if pa.types.is_int64(kind):
        try:
            array = integers(slots)
        except OverflowError as cause:
            raise MixedKeysError("a key needs more than 64 bits") from cause
        if array is not None:
            return array
    if pa.types.is_string(kind) and all_are(str, slots):
        return pa.array(slots, kind)
    if all_are(bytes, slots) and stored_key_type([slots]) == kind:
        return pa.array([key_of_slot(slot) for slot in slots], kind)
    raise MixedKeysError(f"not every key is of type {kind}")


def load_keys(array: pa.Array, *, canonical: bool) -> list[SlotKey]:
    """The slot keys of a stored column."""
    values: list[Any] = array.to_pylist()
    if canonical:
        # Decoding checks them, and gives an int or a str back its own form.
        return [slot_key(scalar.decode_key(value)) for value in values]
    if pa.types.is_int64(array.type) or pa.types.is_string(array.type):
        return values
    return [slot_key(value) for value in values]


_TYPE_OF_TAG: dict[int, pa.DataType] = {
    scalar.TAG_BOOL: pa.bool_(),
    scalar.TAG_FLOAT: pa.float64(),
    scalar.TAG_BYTES: pa.binary(),
    scalar.TAG_DATE: pa.date32(),
    scalar.TAG_TIME: pa.time64("us"),
    scalar.TAG_DATETIME: pa.timestamp("us"),
    scalar.TAG_DATETIME_UTC: pa.timestamp("us", "UTC"),
}
