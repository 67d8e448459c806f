"""The keys that changed between two barriers, in a file without a name on local disk.

A file of sorted runs: each increment that RocksDB takes in adds one for each table. Readers merge
them, a block of each in memory. A file that nothing refers to any more is gone with its descriptor.
A small value lies beside its key, because to look it up takes several times as long as to read it
here; a large one would cost a second writing.
"""

import heapq
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Final
from weakref import finalize

import numpy as np

VALUE_BYTES_MAX: Final = 512  # Beside a key.
REMOVED: Final = b""  # In the place of a value.
LOOKED_UP: Final = b"?"  # In the place of a large value. No pickle is so short.
_BLOCK_KEYS: Final = 256
_HEAD = Struct("<II")  # The keys of a block, and the bytes of keys and values.


class ChangedKeys:
    """The changed keys of all tables in one interval; appended to by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        with tempfile.TemporaryFile(dir=directory) as made:
            self._file = os.dup(made.fileno())
        finalize(self, os.close, self._file)
        self._runs: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # From, to.
        self._last = (-1, b"")  # The table and the key that were appended last.
        self.size = 0  # In bytes.

    def append(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add sorted keys of a table, and the pickle of each one's value or ``REMOVED``."""
        start = self.size
        for first in range(0, len(keys), _BLOCK_KEYS):
            block = [*keys[first : first + _BLOCK_KEYS]]
            count = len(block)
            for value in values[first : first + _BLOCK_KEYS]:
                block.append(value if len(value) <= VALUE_BYTES_MAX else LOOKED_UP)
            lengths = np.fromiter(map(len, block), np.uint32, 2 * count)
            head = _HEAD.pack(count, int(lengths.sum()))
            left = memoryview(b"".join((head, lengths.tobytes(), *block)))
            while left:  # A write may be partial.
                done = os.pwrite(self._file, left, self.size)
                self.size += done
                left = left[done:]
        runs = self._runs[table]
        if self._last[0] == table and self._last[1] < keys[0]:
            start = runs.pop()[0]  # They go on where the last ones ended.
        runs.append((start, self.size))
        self._last = table, keys[-1]

    def runs(self, table: int) -> Sequence[tuple[int, int]]:
        """The places of a table's sorted runs, those that were appended first before others."""
        return tuple(self._runs.get(table, ()))

    def read(self, at: int, end: int, number: int) -> Iterator[tuple[bytes, int, bytes]]:
        """Key, ``number`` and value of each change in a run."""
        while at < end:
            count, size = _HEAD.unpack(os.pread(self._file, _HEAD.size, at))
            at += _HEAD.size
            data = os.pread(self._file, 8 * count + size, at)
            at += len(data)
            lengths = np.frombuffer(data, np.uint32, 2 * count).tolist()
            parts = [data[a:b] for a, b in pairwise(accumulate(lengths, initial=8 * count))]
            for key, value in zip(parts[:count], parts[count:], strict=True):
                yield key, number, value


def merged(intervals: Iterable[ChangedKeys], table: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a table that changed in any of the intervals, sorted, each with its last value.

    ``intervals`` begin with the oldest.
    """
    runs = [(interval, *run) for interval in intervals for run in interval.runs(table)]
    newest_first = [
        interval.read(start, end, -number) for number, (interval, start, end) in enumerate(runs)
    ]
    for key, changes in groupby(heapq.merge(*newest_first), key=itemgetter(0)):
        yield key, next(changes)[2]
