"""Aggregates over columns per key and window.

Every open window has a table of its own, by key: few windows are open at a time, a fired window
goes by dropping its table, and the key group of a row is the key's, whatever the window. A row of a
table is *due* (a flag column) when it has something to emit: from its first record until it fires,
and again after a late but allowed record. Firing goes through a window a slice of rows at a time
and clears the flags, so a snapshot in between holds exactly what is still to be emitted.

Whether a record is late is decided here and nowhere else, per window, by this operator's watermark:
a window whose last moment plus the allowed lateness has passed takes nothing more. The combiner
before the exchange merges rows of one key and window of one slice, and holds nothing back, so
merging never makes a row late. It is left out where late rows are wanted one by one in a side
output.

Source: Flink, WindowOperator (isWindowLate, cleanupTime) and EventTimeTrigger.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.batch import Batch
from weir.errors import RestoreError, SchemaError
from weir.operators.aggregates import (
    EVERY_ROW,
    AggregateSpec,
    CombineOperator,
    Part,
    PartColumn,
    PartReader,
    PartTable,
    part_batch,
    parts_of,
    raw_parts,
)
from weir.operators.base import Operator, OperatorContext
from weir.operators.event_time import WatermarkState
from weir.operators.keys import ColumnKeySelector
from weir.operators.output_tag import OutputTag
from weir.operators.window_assigners import TumblingWindows
from weir.protocol.elements import MIN_WATERMARK_MS

WINDOW_START = "window_start"
WINDOW_END = "window_end"
_DUE = "due"
_ROWS = Part("count", EVERY_ROW)  # How many records came late is counted in records, not parts.


@dataclass(frozen=True, slots=True)
class WindowCombineFactory:
    """Makes the combiner of a window aggregate."""

    selector: ColumnKeySelector
    specs: tuple[AggregateSpec, ...]
    windows: TumblingWindows

    def __call__(self) -> Operator:
        """A new operator."""
        return WindowCombineOperator(self.selector, _window_parts(self.specs), self.windows)


@dataclass(frozen=True, slots=True)
class WindowAggregateFactory:
    """Makes the final operator of a window aggregate; ``combined`` says what its input is."""

    selector: ColumnKeySelector
    specs: tuple[AggregateSpec, ...]
    windows: TumblingWindows
    lateness_ms: int = 0
    late_tag: OutputTag | None = None
    combined: bool = True

    def __call__(self) -> Operator:
        """A new operator."""
        return WindowAggregateOperator(self)


class WindowCombineOperator(CombineOperator):
    """Each slice as one row of parts per key and window."""

    def __init__(
        self, selector: ColumnKeySelector, parts: tuple[Part, ...], windows: TumblingWindows
    ) -> None:
        super().__init__(selector, parts)
        self._windows = windows

    def group_columns(self, batch: Batch) -> tuple[list[pa.Array], list[str]]:
        """The key columns and the start of the window."""
        columns, names = super().group_columns(batch)
        starts = self._windows.starts_of(event_times(batch, self.ctx.name))
        return [*columns, pa.array(starts)], [*names, WINDOW_START]


class WindowAggregateOperator(Operator):
    """Keeps the parts of open windows and emits their aggregates when they end."""

    def __init__(self, config: WindowAggregateFactory) -> None:
        self._selector = config.selector
        self._specs = config.specs
        self._windows = config.windows
        self._lateness_ms = config.lateness_ms
        self._late_tag = config.late_tag
        self._combined = config.combined
        self._parts = _window_parts(config.specs)
        self._reader = PartReader(self._parts)
        self._watermark = MIN_WATERMARK_MS
        self._open: dict[int, PartTable] = {}  # By the start of the window.
        self._schema: pa.Schema | None = None  # Of the keys and parts; known with the first record.
        self._fired: set[int] = set()  # Kept for late records; nothing of them is due.
        self._due: list[_Firing] = []
        self._watermark_held = False  # To be passed on after the last firing.

    def open(self, ctx: OperatorContext) -> None:
        """Find the windows that were open at the checkpoint."""
        super().open(ctx)
        self._saved_watermark = WatermarkState(ctx)
        self._watermark = self._saved_watermark.restored_ms
        # Union: after rescaling any subtask may own keys of any window.
        self._saved = ctx.state.list_state("windows", "union")
        for item in self._saved.get():
            self._schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(item["schema"])))
            self._check_fits(self._schema)
            for start in item["starts"]:
                self._window(start)

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Merge a slice into its windows."""
        if not len(batch):
            return
        columns, starts = self._read(batch)
        keys = self._selector.columns_of(Batch.of_columns(columns))
        if self._schema is None:
            self._schema = columns.schema
        parts = self._reader.read(columns)
        for start in np.unique(starts).tolist():
            rows = np.flatnonzero(starts == start)
            if self._is_over(start):
                self._late(batch, parts, rows)
            elif len(rows) == len(starts):
                self._merge(start, keys, parts)
            else:
                taken = pa.array(rows)
                self._merge(
                    start,
                    [key.take(taken) for key in keys],
                    [PartColumn(p.part, p.values[rows], p.own_type) for p in parts],
                )

    def on_watermark(self, timestamp_ms: int) -> None:
        """Note which windows ended; they fire in ``advance``."""
        self._watermark = max(self._watermark, timestamp_ms)
        if self._windows.is_event_time:
            self._end_windows(self._watermark)
        if self._due:
            self._watermark_held = True
        else:
            self.ctx.output.emit_watermark(self._watermark)

    @property
    def has_pending(self) -> bool:
        """Whether windows are firing."""
        return bool(self._due)

    def advance(self, records_max: int) -> None:
        """Emit some rows of the windows that ended."""
        if self._due and self._fire(self._due[0], records_max):
            self._due.pop(0)
        if not self._due and self._watermark_held:
            self._watermark_held = False
            self.ctx.output.emit_watermark(self._watermark)

    def next_timer_ms(self) -> int | None:
        """When the first window of processing time ends."""
        if self._windows.is_event_time or self._due or not self._open:
            return None
        return min(self._open) + self._windows.size_ms

    def on_processing_time(self, now_ms: int) -> None:
        """End the windows of processing time that are over."""
        if not self._windows.is_event_time and not self._due:
            self._end_windows(now_ms - 1)

    def prepare_snapshot(self, checkpoint_id: Any) -> None:
        """Write down which windows are open, and how far event time has come."""
        self._saved_watermark.save(self._watermark)
        if self._schema is None or not self._open:
            self._saved.update([])
            return
        schema = base64.b64encode(self._schema.serialize().to_pybytes()).decode("ascii")
        self._saved.update([{"schema": schema, "starts": sorted(self._open)}])

    def finish(self) -> None:
        """Processing time ends with the input: fire what is open."""
        if not self._windows.is_event_time:
            self._end_windows(max(self._open, default=0) + self._windows.size_ms)
        while self._due:
            self.advance(1 << 16)

    def _check_fits(self, stored: pa.Schema) -> None:
        """Refuse open windows that lack what the aggregates are made of now.

        What they have seen already is gone, so a new aggregate would be that of a part of them.
        """
        parts = self._reader.missing(stored)
        keys = [name for name in self._selector.column_names if name not in stored.names]
        if parts or keys:
            raise RestoreError(
                f"operator {self.ctx.subtask.operator!r}: the windows that were open have no "
                f"{', '.join([*keys, *parts])}, so they cannot go on with these keys and "
                "aggregates. Restore with those of the checkpoint, or from a savepoint of a job "
                "that was stopped with drain, which leaves no window open"
            )

    def _read(self, batch: Batch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """The slice as parts, and the window of every row."""
        if self._combined:
            columns = batch.columns
            return columns, columns.column(WINDOW_START).to_numpy()
        if self._windows.is_event_time:
            starts = self._windows.starts_of(event_times(batch, self.ctx.name))
        else:
            start = self._windows.start_of(self.ctx.clock.now_ms())
            starts = np.full(len(batch), start, np.int64)
        parts = raw_parts(batch.columns, self._parts, self.ctx.name)
        keys = self._selector.columns_of(batch)
        return part_batch(keys, self._selector.column_names, parts), starts

    def _last_moment(self, start: int) -> int:
        return start + self._windows.size_ms - 1

    def _is_over(self, start: int) -> bool:
        """Whether the window takes nothing more."""
        last = self._last_moment(start)
        return self._windows.is_event_time and last + self._lateness_ms <= self._watermark

    def _late(self, batch: Batch, parts: Sequence[PartColumn], rows: npt.NDArray[np.int64]) -> None:
        counts = next(p.values for p in parts if p.part == _ROWS)
        self.ctx.late_records += int(counts[rows].sum())
        if self._late_tag is not None:
            self.ctx.output.emit_side(self._late_tag.tag_id, batch.take(rows))

    def _merge(self, start: int, keys: Sequence[pa.Array], parts: Sequence[PartColumn]) -> None:
        window = self._window(start)
        slots, _ = window.merge(keys, parts)
        window.table.column(_DUE).scatter(slots, np.uint8(1))
        if self._windows.is_event_time and self._last_moment(start) <= self._watermark:
            self._emit(start, window, slots)  # Late but allowed: the window fires again.

    def _window(self, start: int) -> PartTable:
        window = self._open.get(start)
        if window is None:
            assert self._schema is not None
            keys = [self._schema.field(name).type for name in self._selector.column_names]
            empty = pa.RecordBatch.from_pylist([], schema=self._schema)
            window = self._open[start] = PartTable(
                self.ctx, _table_name(start), keys, self._reader.read(empty), {_DUE: np.uint8}
            )
        return window

    def _end_windows(self, until_ms: int) -> None:
        """Let the windows fire whose last moment is at or before ``until_ms``, in their order."""
        waiting = {firing.start for firing in self._due}
        for start in sorted(self._open):
            if self._last_moment(start) > until_ms or start in waiting:
                continue
            if start not in self._fired:
                self._due.append(_Firing(start))
            elif self._is_over(start):
                self._drop(start)

    def _fire(self, firing: "_Firing", records_max: int) -> bool:
        """Emit the next due rows of a window; whether it is done."""
        start = firing.start
        window = self._open[start]
        last_row = min(firing.next_row + records_max, window.table.rows)
        slots = np.arange(firing.next_row, last_row)
        due = window.table.column(_DUE).gather(slots) != 0
        self._emit(start, window, slots[due])
        firing.next_row = last_row
        if last_row < window.table.rows:
            return False
        self._fired.add(start)
        if not self._windows.is_event_time or self._is_over(start):
            self._drop(start)
        return True

    def _drop(self, start: int) -> None:
        del self._open[start]
        self._fired.discard(start)
        self.ctx.state.drop_table(_table_name(start))

    def _emit(self, start: int, window: PartTable, slots: npt.NDArray[np.int64]) -> None:
        if not len(slots):
            return
        window.table.column(_DUE).scatter(slots, np.uint8(0))
        assert self._schema is not None
        names = self._selector.column_names
        found = window.table.keys_of(slots)
        keys = (
            [found]
            if len(names) == 1
            else [
                pa.array(values, self._schema.field(name).type)
                for name, values in zip(names, zip(*found, strict=True), strict=True)
            ]
        )
        starts = np.full(len(slots), start, np.int64)
        columns = [
            *keys,
            pa.array(starts),
            pa.array(starts + self._windows.size_ms),
            *window.results(slots, self._specs),
        ]
        shown = [*names, WINDOW_START, WINDOW_END, *(spec.name for spec in self._specs)]
        self.ctx.output.emit(
            Batch.of_columns(
                pa.RecordBatch.from_arrays(columns, names=shown),
                timestamps=starts + (self._windows.size_ms - 1),
            )
        )


@dataclass(slots=True)
class _Firing:
    """How far the firing of a window has come. What fired is not due any more, so a restored
    operator may begin at the first row again."""

    start: int
    next_row: int = 0


def event_times(batch: Batch, name: str) -> npt.NDArray[np.int64]:
    """The event times of a batch.

    Raises:
        SchemaError: The records have none.
    """
    if batch.timestamps is None:
        raise SchemaError(
            f"{name!r} groups records by event time, but they have none; call "
            "assign_timestamps_and_watermarks before key_by, with a timestamp assigner or column"
        )
    return batch.timestamps


def _window_parts(specs: Sequence[AggregateSpec]) -> tuple[Part, ...]:
    parts = parts_of(specs)
    return parts if _ROWS in parts else (*parts, _ROWS)


def _table_name(start: int) -> str:
    return f"window-{start}"
