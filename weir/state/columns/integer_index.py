"""An index of distinct integers: each has a number, from 0 in the order in which they first came.

The numbers lie in *places*, looked up for whole arrays at a time: one gather of the numbers, and
one of their keys where these have to be compared, which the processor overlaps. A look-up key by
key would wait for memory each time. Keys are never removed.

*Direct*: where the keys lie close together, as ids do that were counted up, a key's place is its
distance from the lowest place, and no other key's.

*Hashed*: open addressing. A key's *home* is the high bits of a multiplicative hash; the key lies
there or in a place behind it, with no empty place between. Only the few rows whose home holds
another key go on to the next place. This hash is not that of key groups (``weir.state.codec``): it
takes a third of the time, and it is no part of any stored form.

The form is chosen whenever the places are made anew, because they are too few or because a key lies
outside of them.

Source: Knuth, The Art of Computer Programming, volume 3, section 6.4, multiplicative hashing and
linear probing.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.state.backends.arrays import Arrays, HeapArrays

Integers: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio, and odd.
_MASK_64 = (1 << 64) - 1
_SHIFT_32 = np.uint64(32)
_PLACES_MIN = 1 << 10
# Hashed: at most a quarter full, so that one row in eight needs a second place; a place is 4 bytes.
_PLACES_PER_KEY = 4
# Or half full, from so many keys on: the processor's cache has none of them, however full they are.
_MANY_KEYS = 1 << 21
_PLACES_PER_MANY = 2
# Direct: counted ids, of which this subtask has every eighth at least.
_SPAN_PER_KEY = 8
_SETTLED_AT_ONCE = 1 << 18  # Keys: what that takes is memory beside the arrays.
_EMPTY = -1
_CLAIM = -2  # The claim of row 0 on a place, while keys are appended; below it those of others.


class IntegerIndex:
    """Numbers for integers, and the integer of each number."""

    def __init__(self, arrays: Arrays | None = None) -> None:
        """No keys, in these arrays; None: in memory."""
        self._arrays = arrays or HeapArrays()
        self._count = 0
        self._keys: Integers = self._arrays.zeros(_PLACES_MIN // _PLACES_PER_KEY, np.int64)
        self._places = self._empty_places(_PLACES_MIN)
        self._low: int | None = None  # The key whose place is the first; None: hashed.

    def __len__(self) -> int:
        return self._count

    @property
    def is_direct(self) -> bool:
        """Whether each key has a place of its own."""
        return self._low is not None

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes."""
        of_array = self._arrays.memory_bytes
        return of_array(self._keys) + of_array(self._places)

    def find(self, key: int) -> int | None:
        """The number of a key; None: it is not in the index."""
        keys = np.array([key], np.int64)
        if self.is_direct and not self._spans(keys):
            return None
        at = self.homes(keys)
        numbers = self._places.take(at)
        if not self.is_direct:
            self._probe(keys, at, numbers)
        return None if numbers[0] == _EMPTY else int(numbers[0])

    def homes(self, keys: Integers) -> Places:
        """The place at which the look-up of each key begins; direct: beyond all, if it has none."""
        if self._low is not None:
            # Modulo 2**64: the distance of a key below the lowest place is beyond all places.
            distances = keys.view(np.uint64) - np.uint64(self._low & _MASK_64)
            return distances.view(np.int64)
        hashes = keys.view(np.uint64) >> _SHIFT_32  # High bits count as well as low ones.
        hashes ^= keys.view(np.uint64)
        hashes *= _GOLDEN
        hashes >>= np.uint64(65 - len(self._places).bit_length())
        return hashes.view(np.int64)

    def take(self, numbers: Numbers) -> pa.Array:
        """The keys with these numbers."""
        return pa.array(self._keys[numbers], pa.int64())

    def stored(self) -> pa.Array:
        """All keys in the order of their numbers.

        They are not copied, and later ones change nothing in it.
        """
        return pa.array(self._keys[: self._count])

    def add(self, keys: Integers) -> Numbers:
        """The numbers of keys; those not seen before get the next numbers.

        Shape: n keys -> n numbers.
        """
        if not len(keys):
            return np.empty(0, np.int64)
        if self._low is not None and not self._spans(keys):
            self._make_places(self._count, keys)
        at = self.homes(keys)
        numbers = self._places.take(at)
        unknown = (
            self._probe(keys, at, numbers)
            if self._low is None
            else np.flatnonzero(numbers == _EMPTY)
        )
        assigned = numbers.astype(np.int64)
        if len(unknown):
            assigned[unknown] = self._append(keys[unknown], at[unknown])
        return assigned

    def _probe(self, keys: Integers, at: Places, numbers: npt.NDArray[np.int32]) -> Places:
        """Go on with the rows whose home holds another key, in ``at`` and ``numbers``.

        Returns the rows of keys that are not in the index, whose place is the empty one.
        """
        last = len(self._places) - 1
        # The number of an empty place reads a key as well, which proves nothing.
        left = np.flatnonzero((self._keys.take(numbers) != keys) | (numbers == _EMPTY))
        unknown: list[Places] = []
        while len(left):
            ends = numbers[left] == _EMPTY
            if ends.any():
                unknown.append(left[ends])
                left = left[~ends]
            at[left] = (at[left] + 1) & last
            numbers[left] = following = self._places.take(at[left])
            left = left[(self._keys.take(following) != keys[left]) | (following == _EMPTY)]
        if len(unknown) == 1:
            return unknown[0]
        return np.sort(np.concatenate(unknown)) if unknown else np.empty(0, np.int64)

    def _append(self, keys: Integers, at: Places) -> Numbers:
        """Number keys that are not in the index, in the order in which they first occur.

        ``at`` holds the place at which the look-up of each key ended. There each row leaves its
        claim, the first row last, so that it stands; rows of other keys then go on to the next
        place. Rows of one key go the same way together.
        """
        if self._make_room(self._count + len(keys), keys, places_per_key=2):
            at = self.homes(keys)
        places, last = self._places, len(self._places) - 1
        first_row = np.empty(len(keys), np.int64)  # Of those that have the row's key.
        rows = np.arange(len(keys), dtype=np.int32)
        while len(rows):
            is_free = places.take(at[rows]) == _EMPTY
            claiming = rows[is_free]
            claimed = at[claiming]
            places[claimed[::-1]] = _CLAIM - claiming[::-1]
            standing = _CLAIM - places.take(claimed)
            is_own = keys.take(standing) == keys.take(claiming)
            first_row[claiming[is_own]] = standing[is_own]
            is_free[is_free] = is_own
            rows = rows[~is_free]
            at[rows] = (at[rows] + 1) & last
        firsts = np.flatnonzero(first_row == np.arange(len(keys)))
        new = slice(self._count, self._count + len(firsts))
        numbers = np.arange(new.start, new.stop)
        self._keys[new] = keys.take(firsts)
        places[at.take(firsts)] = numbers
        self._count = new.stop
        self._make_room(self._count, keys, places_per_key=_places_per_key(self._count))
        of_row = np.empty(len(keys), np.int64)
        of_row[firsts] = numbers
        appended: Numbers = of_row.take(first_row)
        return appended

    def _make_room(self, count: int, keys: Integers, *, places_per_key: int) -> bool:
        """Make room for ``count`` keys, ``keys`` among them; whether the places are others now."""
        if count > len(self._keys):
            self._keys = self._arrays.grown(self._keys, count)
        if self._low is not None or count * places_per_key <= len(self._places):
            return False
        self._make_places(count, keys)
        return True

    def _make_places(self, count: int, keys: Integers) -> None:
        """Make the places anew, for ``count`` keys; ``keys`` may not have a place so far."""
        known = self._keys[: self._count]
        low, high = int(keys.min()), int(keys.max())
        if self._count:
            low, high = min(low, int(known.min())), max(high, int(known.max()))
        size = high - low + 1
        if size > max(self._count * _SPAN_PER_KEY, _PLACES_MIN):
            self._low = None
            size = 1 << (max(_places_per_key(count) * count, _PLACES_MIN) - 1).bit_length()
        elif self._low is None:
            self._low = low
        else:
            # Twice as many, so that counting on seldom makes them anew; the new ones lie on the
            # side on which keys went beyond the old ones.
            size = max(size, 2 * len(self._places))
            self._low = low if low >= self._low else high + 1 - size
        self._places = self._empty_places(size)
        for start in range(0, self._count, _SETTLED_AT_ONCE):
            some = known[start : start + _SETTLED_AT_ONCE]
            self._settle(np.arange(start, start + len(some), dtype=np.int32), some)

    def _settle(self, numbers: npt.NDArray[np.int32], keys: Integers) -> None:
        """Put distinct keys into free places, all at once; of several for one, one stays there."""
        places, last = self._places, len(self._places) - 1
        at = self.homes(keys)
        while len(numbers):
            is_free = places.take(at) == _EMPTY
            places[at[is_free]] = numbers[is_free]
            moves = np.flatnonzero(places.take(at) != numbers)
            numbers, at = numbers[moves], (at[moves] + 1) & last

    def _spans(self, keys: Integers) -> bool:
        """Whether each key has a place of its own, directly."""
        return bool(self.homes(keys).view(np.uint64).max() < len(self._places))

    def _empty_places(self, count: int) -> npt.NDArray[np.int32]:
        places = self._arrays.zeros(count, np.int32)
        places.fill(_EMPTY)
        return places


def _places_per_key(count: int) -> int:
    """The least places per key, hashed."""
    return _PLACES_PER_KEY if count < _MANY_KEYS else _PLACES_PER_MANY
