"""Sources, functions and sinks that measure; they travel to the workers by name.

Units: ``_ns`` wall clock where it crosses processes (``time.time_ns``), else monotonic.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.batch import Batch
from weir.datastream.connectors import DataGeneratorSource
from weir.ids import CheckpointId
from weir.operators.base import Operator, OperatorContext, Poll, SourceOperator
from weir.operators.sinks.pending_commits import Sink
from weir.operators.sources import SplitReader

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """``(key, value)`` of indexes: keys spread at random over ``keys`` of them."""

    keys: int

    def __call__(self, index: Indices) -> pa.RecordBatch:
        mixed = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        keys = (mixed >> np.uint64(33)).astype(np.int64) % self.keys
        return pa.record_batch([pa.array(keys), pa.array(index & 1023)], names=["key", "value"])


@dataclass(frozen=True, slots=True)
class CyclingKeys:
    """``(key, value)`` of indexes: ``keys`` of them in turn, so that they fill up soonest."""

    keys: int

    def __call__(self, index: Indices) -> pa.RecordBatch:
        return pa.record_batch(
            [pa.array(index % self.keys), pa.array(index & 1023)], names=["key", "value"]
        )


class TimedSource(DataGeneratorSource):
    """A generator that ends: after ``seconds``, or once the file ``stop`` is there.

    With ``fill_rows`` its subtasks together make that many rows as fast as they can, and only then
    keep to ``paced_rows_per_second``; they are polled without a pause meanwhile.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        seconds: float | None = None,
        stop: str | None = None,
        rows_per_second: float | None = None,
        vectorised: bool = True,
        fill_rows: int = 0,
        paced_rows_per_second: float | None = None,
    ) -> None:
        super().__init__(function, None, rows_per_second, vectorised=vectorised)
        self.seconds = seconds
        self.stop = stop
        self.fill_rows = fill_rows
        self.paced_rows_per_second = paced_rows_per_second

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        return _TimedReader(self, super().open(split, position), split)


class _TimedReader(SplitReader):
    def __init__(self, source: TimedSource, reader: SplitReader, split: dict[str, Any]) -> None:
        self._source = source
        self._reader = reader
        self._fill = source.fill_rows // split["stride"]
        paced = source.paced_rows_per_second
        self._rate = None if paced is None else paced / split["stride"]
        self._split = split
        self._end: float | None = None
        self._filled_at: float | None = None
        self._paced = 0

    @property
    def position(self) -> Any:
        return self._reader.position

    def read(self, rows_max: int) -> Batch | None:
        now = time.monotonic()
        if self._end is None:
            self._end = now + (self._source.seconds or float("inf"))
        if now >= self._end or (self._source.stop and os.path.exists(self._source.stop)):
            return None
        if self._rate is None:
            return self._reader.read(rows_max)
        made = (self.position - self._split["first"]) // self._split["stride"]
        if made < self._fill:
            return self._reader.read(min(rows_max, self._fill - made))
        if self._filled_at is None:
            self._filled_at = now
        due = int((now - self._filled_at) * self._rate) - self._paced
        if due < self._rate * 0.005:  # Small batches cost more than they are worth.
            return Batch.of_rows([])
        taken = min(due, rows_max)
        self._paced += taken
        return self._reader.read(taken)


class CreatedSource(DataGeneratorSource):
    """Keyed rows with the time at which each was due, at a steady rate.

    A row is made when the operator polls, but created when the rate says so: a source that was
    held up shows as latency. Below a fifth of a second, that is: what the operator's rate limit
    gives up is not made up for.
    """

    HELD_UP_MAX_NS = 200_000_000

    def __init__(self, function: KeyedRows, seconds: float, rows_per_second: float | None) -> None:
        super().__init__(function, None, rows_per_second, vectorised=True)
        self.seconds = seconds

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        return _CreatedReader(self, super().open(split, position), split)


class _CreatedReader(SplitReader):
    def __init__(self, source: CreatedSource, reader: SplitReader, split: dict[str, Any]) -> None:
        self._reader = reader
        total = source.rows_per_second
        self._step_ns = 0.0 if total is None else 1e9 * split["stride"] / total
        self._seconds = source.seconds
        self._end: float | None = None
        self._created_ns = 0.0  # Of the last row.

    @property
    def position(self) -> Any:
        return self._reader.position

    def read(self, rows_max: int) -> Batch | None:
        now_ns = time.time_ns()
        if self._end is None:
            self._end = time.monotonic() + self._seconds
            self._created_ns = now_ns - rows_max * self._step_ns
        if time.monotonic() >= self._end:
            return None
        batch = self._reader.read(rows_max)
        assert batch is not None  # It has no end of its own.
        span_ns = len(batch) * self._step_ns
        last_ns = self._created_ns + span_ns
        last_ns = min(now_ns, max(last_ns, now_ns - CreatedSource.HELD_UP_MAX_NS))
        created = np.linspace(last_ns - span_ns, last_ns, len(batch)).astype(np.int64)
        self._created_ns = last_ns
        return Batch.of_columns(batch.columns.append_column("created_ns", pa.array(created)))


class Ticker(DataGeneratorSource):
    """Makes nothing, and measures how long the worker's loop takes to come round.

    It is polled in every round, and the loop never sleeps. Each subtask leaves a file
    ``ticks-<index>``: the longest round of every checkpoint from its barrier to its completion, and
    the longest of every second without one, both after ``settle_s``.
    """

    def __init__(self, directory: Path, seconds: float, settle_s: float) -> None:
        super().__init__(int, None)
        self._arguments = (directory, seconds, settle_s)

    def create_operator_factory(self, parallelism: int) -> Callable[[], SourceOperator]:
        return _TickerFactory(*self._arguments)


@dataclass(frozen=True, slots=True)
class _TickerFactory:
    directory: Path
    seconds: float
    settle_s: float

    def __call__(self) -> SourceOperator:
        return _TickerOperator(self.directory, self.seconds, self.settle_s)


class _TickerOperator(SourceOperator):
    def __init__(self, directory: Path, seconds: float, settle_s: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._settle_s = settle_s
        self._inside: list[float] = []
        self._outside: list[float] = []
        self._pending: CheckpointId | None = None
        self._longest_ns = 0

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._last_ns = time.monotonic_ns()
        self._end_ns = self._last_ns + int(self._seconds * 1e9)
        self._settled_ns = self._last_ns + int(self._settle_s * 1e9)
        self._window_ns = self._settled_ns

    def poll(self, records_max: int) -> Poll:
        now = time.monotonic_ns()
        self._longest_ns = max(self._longest_ns, now - self._last_ns)
        self._last_ns = now
        if self._pending is None and now - self._window_ns > 500_000_000:
            self._note(self._outside)
        return Poll.END if now >= self._end_ns else Poll.MORE

    def snapshot(self, checkpoint_id: CheckpointId) -> tuple[()]:
        self._note(self._outside)
        self._pending = checkpoint_id
        return ()

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        if self._pending is not None and checkpoint_id >= self._pending:
            now = time.monotonic_ns()
            self._longest_ns = max(self._longest_ns, now - self._last_ns)
            self._last_ns = now
            self._note(self._inside)
            self._pending = None

    def _note(self, windows: list[float]) -> None:
        if self._window_ns > self._settled_ns:
            windows.append(self._longest_ns / 1e6)
        self._window_ns = max(self._settled_ns, time.monotonic_ns())
        self._longest_ns = 0

    def finish(self) -> None:
        stalls = {"inside": self._inside, "outside": self._outside}
        path = self._directory / f"ticks-{self.ctx.subtask.index}"
        path.write_text(json.dumps(stalls))


class Thrower:
    """Raises once whenever the file ``order`` appears, and leaves the time in ``thrown-<ns>``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        order = self._directory / "order"
        if order.exists():
            try:
                order.unlink()
            except FileNotFoundError:
                return batch  # Another subtask was quicker.
            (self._directory / f"thrown-{time.time_ns()}").touch()
            raise RuntimeError("the benchmark asked for it")
        return batch


@dataclass(frozen=True, slots=True)
class FirstOutputSink(Sink):
    """Leaves a file ``first-<attempt>-<subtask>-<ns>`` when an attempt's first output arrives."""

    into: Path

    def create_operator_factory(self) -> Callable[[], Operator]:
        return _FirstOutputFactory(self.into)


@dataclass(frozen=True, slots=True)
class _FirstOutputFactory:
    directory: Path

    def __call__(self) -> Operator:
        return _FirstOutputOperator(self.directory)


class _FirstOutputOperator(Operator):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = False

    def on_batch(self, batch: Batch, input_index: int) -> None:
        if not self._seen:
            self._seen = True
            at, ctx = time.time_ns(), self.ctx
            (self._directory / f"first-{ctx.attempt}-{ctx.subtask.index}-{at}").touch()


@dataclass(frozen=True, slots=True)
class LatencySink(Sink):
    """Compares ``created_ns`` with the clock; leaves a histogram ``latency-<index>.npy``."""

    into: Path
    settle_s: float

    def create_operator_factory(self) -> Callable[[], Operator]:
        return _LatencyFactory(self.into, self.settle_s)


@dataclass(frozen=True, slots=True)
class _LatencyFactory:
    directory: Path
    settle_s: float

    def __call__(self) -> Operator:
        return _LatencyOperator(self.directory, self.settle_s)


BIN_US = 100
BINS = 50_000  # Five seconds; what is later counts as that.


class _LatencyOperator(Operator):
    def __init__(self, directory: Path, settle_s: float) -> None:
        self._directory = directory
        self._settle_s = settle_s
        self._counts = np.zeros(BINS, np.int64)

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._from = time.monotonic() + self._settle_s

    def on_batch(self, batch: Batch, input_index: int) -> None:
        if time.monotonic() < self._from:
            return
        created = batch.columns.column("created_ns").to_numpy()
        bins = np.clip((time.time_ns() - created) // (BIN_US * 1000), 0, BINS - 1)
        self._counts += np.bincount(bins, minlength=BINS)

    def finish(self) -> None:
        np.save(self._directory / f"latency-{self.ctx.subtask.index}.npy", self._counts)


@dataclass(frozen=True, slots=True)
class SlowSink(Sink):
    """Blocks for a while per row, so that everything before it is held back."""

    row_s: float

    def create_operator_factory(self) -> Callable[[], Operator]:
        return _SlowFactory(self.row_s)


@dataclass(frozen=True, slots=True)
class _SlowFactory:
    row_s: float

    def __call__(self) -> Operator:
        return _SlowOperator(self.row_s)


class _SlowOperator(Operator):
    def __init__(self, row_s: float) -> None:
        self._row_s = row_s

    def on_batch(self, batch: Batch, input_index: int) -> None:
        time.sleep(len(batch) * self._row_s)
