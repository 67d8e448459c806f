"""Pieces of frozen state: as many objects as are converted in one go, beside the running loop."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir.state.backends.base import FrozenEntries

PIECE_OBJECTS = 8_192  # Converted in one go: about 1 ms of the interpreter lock.
PIECE_BYTES = 1 << 20  # Fewer objects, where they are larger than an eighth of a kilobyte.
FIRST_OBJECTS = 8  # As long as their size is not known.
GROWTH = 16  # Of a piece over the one before: larger objects may follow.


@dataclass(slots=True)
class PieceSize:
    """The objects to convert in one go, by the bytes of those before."""

    objects: int = FIRST_OBJECTS
    weight: int = 1  # The objects of the last piece.

    def measured(self, bytes_converted: int) -> None:
        """The last piece had this size."""
        per_object = max(1, bytes_converted // max(1, self.weight))
        most = min(PIECE_OBJECTS, GROWTH * self.objects)
        self.objects = max(1, min(most, PIECE_BYTES // per_object))


def keys_of(tables: FrozenEntries, groups: range | None = None) -> Iterator[list[Any]]:
    """The keys of frozen entries, some at a time; None: of all groups."""
    for group in tables.groups if groups is None else groups:
        for slots, _ in tables.pieces(group, lambda: FIRST_OBJECTS):
            yield slots


def rows_of(
    tables: FrozenEntries,
    first: int,
    size: PieceSize,
    *,
    groups: range | None = None,
    sized: bool = False,
    last: bool,
) -> Iterator[tuple[pa.Array, list[Any], list[Any]]]:
    """Key groups, keys and values of frozen entries, of the key groups ``first`` and on.

    Small groups share a piece. ``groups`` are those to read; None: all. ``sized`` values count for
    as many objects as they hold. ``last``: no group is read again.
    """
    numbers: list[int] = []
    counts: list[int] = []
    keys: list[Any] = []
    values: list[Any] = []
    weight = 0

    def room() -> int:
        left = size.objects - weight
        return max(1, min(left, size.objects // 8) if sized else left)

    for index in tables.groups if groups is None else groups:
        for piece, piece_values in tables.pieces(index, room, last=last):
            numbers.append(first + index)
            counts.append(len(piece))
            if keys:
                keys += piece
                values += piece_values
            else:  # Not copied, where one piece of a group is enough.
                keys, values = piece, piece_values
            weight += sum(map(len, piece_values)) if sized else len(piece)
            if weight >= size.objects - size.objects // 8:
                size.weight = weight
                yield _repeated(numbers, counts), keys, values
                numbers, counts, keys, values, weight = [], [], [], [], 0
    if keys:
        size.weight = weight
        yield _repeated(numbers, counts), keys, values


def _repeated(groups: list[int], counts: list[int]) -> pa.Array:
    return pa.array(np.repeat(np.array(groups, np.uint16), counts))
