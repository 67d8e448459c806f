"""Entries of one large map in RocksDB, each of which lies apart, beside those of many small maps.

One subtask, as many entries in both: read and written one by one, in slices of records.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from tests.benchmarks.report import Row, speed_row
from weir.common.typeinfo import Types
from weir.config import StateBackendKind, StateConfig
from weir.ids import KeyGroupRange
from weir.state.backends.choice import open_tables
from weir.state.descriptors import MapStateDescriptor
from weir.state.keyed import MapState
from weir.state.store import OperatorStateStore

GROUPS = KeyGroupRange(0, 127)
SMALL = 100  # Entries of a small map.
SLICE = 2_048  # Entries between two looks of the backend at what it has in memory.
_DESCRIPTOR = MapStateDescriptor("map", Types.LONG(), Types.LONG())


class Maps:
    """Entries with the numbers from 0 on, in maps of a size."""

    def __init__(self, kind: StateBackendKind, size: int, directory: str) -> None:
        tables = open_tables(StateConfig(backend=kind, directory=directory), GROUPS)
        self.store = OperatorStateStore(
            GROUPS, 128, keyed=True, read=lambda handle: b"", tables=tables
        )
        self._map: MapState = self.store.keyed.get_map_state(_DESCRIPTOR)
        self._size = size

    def add_one(self, numbers: "npt.NDArray[np.int64]") -> None:
        """Add 1 to each of these entries."""
        keyed, entries, size = self.store.keyed, self._map, self._size
        for number in numbers.tolist():
            keyed.set_current_key(number // size)
            entries.put(number, (entries.get(number) or 0) + 1)
        self.store.tidy()


def large_maps(quick: bool) -> list[Row]:
    """Entries of one map of a million, read and written in RocksDB, against those of small maps."""
    count, slices, rounds = (50_000, 5, 2) if quick else (1_000_000, 40, 5)
    rng = np.random.default_rng(1)
    rows = []
    with _both(count) as (large, small):
        for what, most in (("of any", count), ("of the first 10,000", 10_000)):
            pairs = []
            for _ in range(rounds):
                numbers = [rng.integers(0, most, SLICE) for _ in range(slices)]
                pairs.append((_rate(large, numbers), _rate(small, numbers)))
            rows.append(
                speed_row(
                    f"entries {what} of one map of {count:,} in RocksDB, read and written",
                    "rows/s",
                    pairs,
                    against=f"the same entries in maps of {SMALL}",
                    at_least=None,
                    note="per CPU-second",
                )
            )
    return rows


def _rate(maps: Maps, slices: list["npt.NDArray[np.int64]"]) -> float:
    started = time.process_time()
    for numbers in slices:
        maps.add_one(numbers)
    return len(slices) * SLICE / (time.process_time() - started)


@contextmanager
def _both(count: int) -> Iterator[tuple[Maps, Maps]]:
    """All entries in one map, and in small ones."""
    with TemporaryDirectory(prefix="weir-bench-") as directory:
        made = [Maps(StateBackendKind.ROCKSDB, size, directory) for size in (count, SMALL)]
        for start in range(0, count, SLICE):
            for one in made:
                one.add_one(np.arange(start, min(start + SLICE, count)))
        yield made[0], made[1]
        for one in made:
            one.store.close()
