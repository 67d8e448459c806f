"""The keys that changed between two barriers, in a file without a name on local disk.

A file of sorted runs: each increment that RocksDB takes in adds one for each table. Readers merge
them, a block of each in memory. A file that nothing refers to any more is gone with its descriptor.
"""

import heapq
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from struct import Struct
from typing import Final
from weakref import finalize

import numpy as np

_BLOCK_KEYS: Final = 256
_HEAD = Struct("<II")  # The keys of a block, and their bytes.


class ChangedKeys:
    """The changed keys of all tables in one interval; appended to by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        with tempfile.TemporaryFile(dir=directory) as made:
            self._file = os.dup(made.fileno())
        finalize(self, os.close, self._file)
        self._runs: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # From, to.
        self._last = (-1, b"")  # The table and the key that were appended last.
        self.size = 0  # In bytes.

    def append(self, table: int, keys: Sequence[bytes]) -> None:
        """Add sorted keys of a table, without an empty one."""
        start = self.size
        for first in range(0, len(keys), _BLOCK_KEYS):
            block = keys[first : first + _BLOCK_KEYS]
            lengths = np.fromiter(map(len, block), np.uint32, len(block)).tobytes()
            data = b"".join((_HEAD.pack(len(block), sum(map(len, block))), lengths, *block))
            left = memoryview(data)
            while left:  # A write may be partial.
                done = os.pwrite(self._file, left, self.size)
                self.size += done
                left = left[done:]
        runs = self._runs[table]
        if self._last[0] == table and self._last[1] < keys[0]:
            start = runs.pop()[0]  # They go on where the last ones ended.
        runs.append((start, self.size))
        self._last = table, keys[-1]

    def runs(self, table: int) -> Iterator[Iterator[bytes]]:
        """The keys of a table, in several sorted runs."""
        for start, end in tuple(self._runs.get(table, ())):
            yield self._run(start, end)

    def _run(self, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            count, size = _HEAD.unpack(os.pread(self._file, _HEAD.size, at))
            at += _HEAD.size
            data = os.pread(self._file, 4 * count + size, at)
            at += len(data)
            lengths = np.frombuffer(data, np.uint32, count).tolist()
            for begin, stop in pairwise(accumulate(lengths, initial=4 * count)):
                yield data[begin:stop]


def merged(intervals: Iterable[ChangedKeys], table: int) -> Iterator[bytes]:
    """The keys of a table that changed in any of the intervals, sorted, each once."""
    runs = [run for interval in intervals for run in interval.runs(table)]
    for key, _ in groupby(heapq.merge(*runs)):
        yield key
