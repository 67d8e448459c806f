"""Running aggregates whose columns are mapped files, beside the same in memory.

One subtask's table, filled once. Then all its pages are resident; or those that the rows do not
touch were written out and taken from memory, as the system does when it runs short; or some rows
belong to keys whose pages are out: with the disk, which shows by the clock more than here.
"""

import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.benchmarks.report import Row, speed_row
from weir.config import ChannelConfig, StateBackendKind, StateConfig
from weir.ids import KeyGroupRange
from weir.operators.aggregates import AggregateSpec, PartTable, parts_of, raw_parts
from weir.operators.base import OperatorContext
from weir.state.backends.choice import open_tables
from weir.state.backends.mapped import _Map
from weir.state.store import OperatorStateStore

SLICE = ChannelConfig().batch_rows_max
GROUPS = KeyGroupRange(0, 127)
SUMS = 4
STEP = 1_000_003  # Between keys, so that each is hashed.
HOT_SHARE = 0.01
COLD_ROWS = 0.001
AT_LEAST = 0.5
_PAGEOUT = 21  # MADV_PAGEOUT, which Python 3.11 does not name.
_SPECS = tuple(AggregateSpec(f"n{i}", f"n{i}", "sum") for i in range(SUMS))
_PARTS = parts_of(_SPECS)


class Sums:
    """Running sums by key, as their operator merges and emits them."""

    def __init__(self, kind: StateBackendKind, directory: str) -> None:
        tables = open_tables(StateConfig(backend=kind, directory=directory), GROUPS)
        self.store = OperatorStateStore(
            GROUPS, 128, keyed=True, read=lambda handle: b"", tables=tables
        )
        ctx = cast(OperatorContext, SimpleNamespace(name="sums", state=self.store))
        self._table = PartTable(ctx, "sums", [pa.int64()], raw_parts(_rows(1), _PARTS, "sums"))

    def merge(self, numbers: "npt.NDArray[np.int64]") -> None:
        """Add a row to each of these keys' sums."""
        parts = raw_parts(_rows(len(numbers)), _PARTS, "sums")
        slots, _ = self._table.merge([pa.array(numbers * STEP)], parts)
        self._table.results(slots, _SPECS)


def mapped_columns(quick: bool) -> list[Row]:
    """Rows per CPU-second of running sums in mapped files against those in memory."""
    keys, slices, rounds = (300_000, 50, 2) if quick else (5_000_000, 300, 5)
    rng = np.random.default_rng(1)
    newest = f"rows of the newest {HOT_SHARE:.0%}"
    kinds = (
        ("all pages in memory", 1.0, 0.0, AT_LEAST),
        (f"{newest}, what those do not touch on disk", HOT_SHARE, 0.0, AT_LEAST),
        (f"{newest} and {COLD_ROWS:.1%} of any key, on disk", HOT_SHARE, COLD_ROWS, None),
    )
    rows = []
    with _both(keys) as (mapped, heap):
        for what, hot, cold, at_least in kinds:
            pairs, came, kept = [], 0, 1.0
            for _ in range(rounds):
                if hot < 1:
                    before = _resident_files()
                    _page_out()
                    _rate(mapped, [_drawn(rng, keys, hot, 0.0) for _ in range(slices)])
                    kept = min(kept, _resident_files() / before)
                numbers = [_drawn(rng, keys, hot, cold) for _ in range(slices)]
                read = _pages_read()
                pairs.append((_rate(mapped, numbers), _rate(heap, numbers)))
                came += _pages_read() - read
            note = f"{came // rounds:,} pages came back from disk"
            if kept < 1:
                note = f"{kept:.0%} of the files' pages in memory before; {note}"
            rows.append(
                speed_row(
                    f"{SUMS} running sums of {keys:,} keys in mapped files, {what}",
                    "rows/s",
                    pairs,
                    against="the same in memory",
                    at_least=at_least,
                    note=f"per CPU-second; {note}",
                )
            )
    return rows


def _drawn(rng: np.random.Generator, keys: int, hot: float, cold: float) -> "npt.NDArray[np.int64]":
    newest = rng.integers(keys - int(keys * hot), keys, SLICE)
    return np.where(rng.random(SLICE) < cold, rng.integers(0, keys, SLICE), newest)


def _rate(sums: Sums, slices: list["npt.NDArray[np.int64]"]) -> float:
    started = time.process_time()
    for numbers in slices:
        sums.merge(numbers)
    return len(slices) * SLICE / (time.process_time() - started)


def _rows(count: int) -> pa.RecordBatch:
    values = np.arange(count)
    return pa.record_batch({f"n{i}": values for i in range(SUMS)})


@contextmanager
def _both(keys: int) -> Iterator[tuple[Sums, Sums]]:
    """A table in mapped files and one in memory, each with all keys."""
    with TemporaryDirectory(prefix="weir-bench-") as directory:
        made = [
            Sums(kind, directory) for kind in (StateBackendKind.ROCKSDB, StateBackendKind.HASHMAP)
        ]
        for start in range(0, keys, SLICE):
            for one in made:
                one.merge(np.arange(start, min(start + SLICE, keys)))
        yield made[0], made[1]
        for one in made:
            one.store.close()


def _pages_read() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _page_out() -> None:
    """Write all mapped files to disk and take their pages from memory."""
    for known in gc.get_objects():
        if isinstance(known, _Map):
            known.flush()
            known.madvise(_PAGEOUT)


def _resident_files() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssFile:")[2].split()[0]) << 10
