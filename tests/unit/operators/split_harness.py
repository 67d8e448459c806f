"""Subtasks of a source of listed times, their event time, and their snapshots dealt out anew."""

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tests.unit.operators.connector_harness import Collected, Harness, Snapshot
from weir.common import WatermarkStrategy
from weir.common.batch import Batch
from weir.operators.base import Poll, SourceOperator
from weir.operators.sources.split_source import Source, SplitReader
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

Row = tuple[int, int, int]  # Split, index within it, time.


class ListedSource(Source):
    """Splits as lists of times; None in a list is a time at which there is nothing yet.

    With ``tells_lowest`` every split knows its lowest time.
    """

    def __init__(
        self,
        *splits: list[Any],
        bounded: bool = True,
        tells_lowest: bool = False,
        rows_per_second: float | None = None,
    ) -> None:
        super().__init__(rows_per_second)
        self.splits = splits
        self.bounded = bounded
        self.tells_lowest = tells_lowest

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        return [{"number": i} for i in range(len(self.splits))]

    def discover_in_event_time(self, parallelism: int, column: str) -> list[dict[str, Any]]:
        splits = self.discover(parallelism)
        if self.tells_lowest:
            splits.sort(key=lambda split: min(self.splits[split["number"]]))
        return splits

    def lowest_ms(self, split: dict[str, Any], column: str) -> int | None:
        return min(self.splits[split["number"]]) if self.tells_lowest else None

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        return _ListReader(split["number"], self.splits[split["number"]], position or 0, self)


class _ListReader(SplitReader):
    def __init__(self, number: int, times: list[Any], index: int, source: ListedSource) -> None:
        self._number = number
        self._times = times
        self._index = index
        self._bounded = source.bounded
        self._columnar = source.tells_lowest

    @property
    def position(self) -> int:
        return self._index

    def read(self, rows_max: int) -> Batch | None:
        rows: list[Row] = []
        while self._index < len(self._times) and len(rows) < rows_max:
            at = self._times[self._index]
            if at is None and rows:
                break
            self._index += 1
            if at is None:
                break
            rows.append((self._number, self._index - 1, at))
        if not rows and self._index == len(self._times) and self._bounded:
            return None
        return _columns(rows) if self._columnar and rows else Batch.of_rows(rows)


def _columns(rows: list[Row]) -> Batch:
    names = ["split", "index", "ts"]
    arrays = [pa.array(column) for column in zip(*rows, strict=True)]
    return Batch.of_columns(pa.RecordBatch.from_arrays(arrays, names=names))


class Events(Collected):
    """The output of a source, in order: rows, ``("watermark", t)`` and ``("idle",)``."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.watermark_ms = MIN_WATERMARK_MS

    def emit(self, batch: Batch) -> None:
        for records, watermark_ms in batch.cut():  # As for an operator behind.
            super().emit(records)
            self.events += [tuple(row) for row in records.rows]
            if watermark_ms is not None:
                self.emit_watermark(watermark_ms)

    def emit_watermark(self, timestamp_ms: int) -> None:
        assert timestamp_ms >= self.watermark_ms, "a watermark went back"
        self.watermark_ms = timestamp_ms
        self.events.append(("watermark", timestamp_ms))

    def emit_idle(self) -> None:
        self.events.append(("idle",))


class Timed(Harness):
    """One subtask of a source that tells event time."""

    output: Events

    def __init__(self, factory: Callable[[], SourceOperator], **kwargs: Any) -> None:
        super().__init__(factory, output=Events(), **kwargs)
        self.has_ended = False

    def read(self, records_max: int = 1_000) -> list[Any]:
        """The output of one poll."""
        before = len(self.output.events)
        if self.poll(records_max) is Poll.END and not self.has_ended:
            self.has_ended = True
            self.operator.on_watermark(MAX_WATERMARK_MS)
        return self.output.events[before:]

    def read_rest(self, records_max: int = 1_000) -> list[Any]:
        """The output of all polls until the end."""
        before = len(self.output.events)
        while not self.has_ended:
            self.read(records_max)
        return self.output.events[before:]


def started(source: Source, strategy: WatermarkStrategy, parallelism: int = 1) -> list[Timed]:
    """The subtasks of a job that begins."""
    return _subtasks(source, strategy, parallelism, None)


def rescaled(
    source: Source, strategy: WatermarkStrategy, parallelism: int, snapshots: list[Snapshot]
) -> list[Timed]:
    """The subtasks that snapshots were dealt out to, as ``weir.protocol.restore`` deals."""
    if len(snapshots) == parallelism:
        return _subtasks(source, strategy, parallelism, snapshots)
    dealt: list[Snapshot] = [{"splits": []} for _ in range(parallelism)]
    for at, snapshot in enumerate(snapshots):
        for i, item in enumerate(snapshot["splits"]):
            dealt[(i + at) % parallelism]["splits"].append(item)
    return _subtasks(source, strategy, parallelism, dealt)


def _subtasks(
    source: Source,
    strategy: WatermarkStrategy,
    parallelism: int,
    restored: list[Snapshot] | None,
) -> list[Timed]:
    factory = source.create_timed_operator_factory(parallelism, strategy)
    if strategy.assign is None:
        factory = pickle.loads(pickle.dumps(factory))
    return [
        Timed(factory, index=i, parallelism=parallelism, restored=restored)
        for i in range(parallelism)
    ]
