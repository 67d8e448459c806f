"""Aggregates over columns per key and window.

Every open window has a table of its own, by key: few windows are open at a time, a fired window
is dropped with its table, and the key group of a row is its key's, in every window. A row of a
table is *due* (a flag column) when it has something to emit: from its first record until it fires,
and again after a late but allowed record. Firing goes through a window a slice of rows at a time
and clears the flags, so a snapshot in between holds exactly the rows still to be emitted.

A window is identified by its start and end, and fires and is dropped by its own end: a window
restored into a program whose windows have another size stays beside those. Windows wait in the
order of their ends, so a watermark costs nothing for windows that it does not end.

A slice with watermarks between its records fires all windows that these end as one batch, which has
the watermarks between its rows in turn. Windows that the slice begins and ends never have a table
(``slice_windows``). Where windows that end hold many rows, they fire in portions instead, and the
watermarks shrink to the last one, behind them; so a slice takes no longer for their sake.

Only this operator decides whether a record is late, per window, by its own watermark: a window
whose last moment plus the allowed lateness has passed takes no more records. The combiner before
the exchange merges rows of one key and window of one slice, and holds none back, so merging never
makes a row late. It is left out where late rows go to a side output, one by one.

Source: Flink, WindowOperator (isWindowLate, cleanupTime) and EventTimeTrigger.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.batch import Batch
from weir.common.watermarks import Ints, Watermarks
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
from weir.operators.windows.slice_windows import (
    Mask,
    SliceWindows,
    are_equal_as_columns,
    passing_windows,
    rows_by_window,
)
from weir.operators.windows.window_assigners import Bounds, TumblingWindows, old_layout
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

WINDOW_START = "window_start"
WINDOW_END = "window_end"
# In the metadata of combined batches: the size of their windows. It travels with the records, as
# the bounds of windows do in state.
SIZE_MS = b"weir.window.size_ms"
FIRED_AT_ONCE = 10_000  # Rows of tables; above, windows fire in portions.
WINDOW_ROWS = 1_000  # A table costs as much as so many rows: about 0.2 ms to fire and drop.
_DUE = "due"
_ROWS = Part("count", EVERY_ROW)  # Late records are counted as records, not as rows of parts.


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
    """Makes the final operator of a window aggregate; ``combined``: its input is combined rows."""

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
        self._metadata = {SIZE_MS: str(windows.size_ms).encode()}

    def combined(self, batch: Batch) -> Batch:
        """The slice's parts, and the size of its windows."""
        made = super().combined(batch)
        columns = made.columns.replace_schema_metadata(self._metadata)
        return Batch.of_columns(columns, watermarks=made.watermarks)

    def group_columns(self, batch: Batch) -> tuple[list[pa.Array], list[str]]:
        """The key columns and the start of the window."""
        columns, names = super().group_columns(batch)
        starts = self._windows.starts_of(event_times(batch, self.ctx.label))
        return [*columns, pa.array(starts)], [*names, WINDOW_START]

    def kept_apart(self, batch: Batch, columns: list[pa.Array]) -> list[pa.Array]:
        """The watermarks before rows that came behind the end of their window: these may be late.

        The others are in time, or late for an older watermark, wherever in the slice they stand.
        """
        if batch.watermarks is None:
            return []
        starts, watermarks = columns[-1].to_numpy(), batch.watermarks
        windows = SliceWindows.around(starts, self._windows.size_ms, MIN_WATERMARK_MS, watermarks)
        in_time = windows.in_time()
        if in_time.all():
            return []
        before = np.searchsorted(watermarks.behind, np.arange(len(starts)), "right")
        return [pa.array(np.where(in_time, 0, before))]


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
        self._open: dict[Bounds, PartTable] = {}
        self._schema: pa.Schema | None = None  # Of the keys and parts; known with the first record.
        self._empty: tuple[list[pa.DataType], list[PartColumn]] = [], []  # Key types and parts.
        # Every open window is in one of these; the heaps hold end and start.
        self._unfired: list[tuple[int, int]] = []
        self._firing: _Firing | None = None
        self._fired: list[tuple[int, int]] = []  # Kept for late records; no row of them is due.
        self._until_ms = MIN_WATERMARK_MS  # The time, event or processing, that ends windows.
        self._watermark_held = False  # To be passed on after the last firing.

    def open(self, ctx: OperatorContext) -> None:
        """Restore the windows that were open at the checkpoint.

        Raises:
            RestoreError: They lack columns of the aggregates, or were stored without their ends.
        """
        super().open(ctx)
        self._saved_watermark = WatermarkState(ctx)
        self._watermark = self._saved_watermark.restored_ms
        if self._windows.is_event_time:
            self._until_ms = self._watermark
        # Union: after rescaling any subtask may own keys of any window.
        self._saved = ctx.state.list_state("windows", "union")
        for item in self._saved.get():
            if "windows" not in item:
                raise old_layout(ctx.subtask.operator)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(item["schema"])))
            self._check_fits(schema)
            self._know(schema)
            for start, end in item["windows"]:
                if (start, end) not in self._open:  # Subtasks have windows in common.
                    self._add((start, end))
                    heappush(self._unfired, (end, start))  # Perhaps fired: then no row is due.

    @property
    def carries_watermarks(self) -> bool:
        """Only with windows that end once: those that wait for late records fire by themselves."""
        return self._windows.is_event_time and not self._lateness_ms

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Merge a slice into its windows, and fire those that end within it."""
        if not len(batch):
            return
        columns, starts, size_ms = self._read(batch)
        keys = self._selector.columns_of(Batch.of_columns(columns))
        if self._schema is None:
            self._know(columns.schema)
        parts = self._reader.read(columns)
        windows = SliceWindows.around(starts, size_ms, self._closed_ms, batch.watermarks)
        in_time = windows.in_time()
        if not in_time.all():
            self._late(batch, parts, np.flatnonzero(~in_time))
        if batch.watermarks is None:
            self._merge_windows(keys, parts, windows, in_time)
        elif not self._fire_within(batch.watermarks, keys, parts, windows, in_time):
            self._merge_windows(keys, parts, windows, in_time)
            self.on_watermark(batch.watermarks.last_ms)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Note the watermark; the windows that it ends fire in ``advance``."""
        self._watermark = max(self._watermark, timestamp_ms)
        if self._windows.is_event_time:
            self._until_ms = self._watermark
        if self.has_pending:
            self._watermark_held = True
        else:
            self.ctx.output.emit_watermark(self._watermark)

    @property
    def has_pending(self) -> bool:
        """Whether windows are to fire, or to be dropped."""
        unfired, fired = self._unfired, self._fired
        return (
            self._firing is not None
            or bool(unfired and unfired[0][0] - 1 <= self._until_ms)
            or bool(fired and fired[0][0] - 1 + self._lateness_ms <= self._until_ms)
        )

    def advance(self, records_max: int) -> int:
        """Emit some rows of the windows that ended; after the last one the watermark is passed on.

        A window counts as ``WINDOW_ROWS`` besides its rows.
        """
        done = 0
        while done < records_max and self.has_pending:
            done += self._advance_window(records_max - done)
        if not self.has_pending:
            if self._watermark_held:
                self._watermark_held = False
                self.ctx.output.emit_watermark(self._watermark)
            if not self._windows.is_event_time:
                self._until_ms = MIN_WATERMARK_MS  # A clock set back opens windows anew.
        return done

    def next_timer_ms(self) -> int | None:
        """The end of the first window of processing time; None: none is open."""
        if self._windows.is_event_time or self.has_pending or not self._unfired:
            return None
        return self._unfired[0][0]

    def on_processing_time(self, now_ms: int) -> None:
        """End the windows of processing time that are over."""
        if not self._windows.is_event_time:
            self._until_ms = now_ms - 1

    def prepare_snapshot(self, checkpoint_id: Any) -> None:
        """Keep the open windows and the watermark in the snapshot."""
        self._saved_watermark.save(self._watermark)
        if self._schema is None or not self._open:
            self._saved.update([])
            return
        schema = base64.b64encode(self._schema.serialize().to_pybytes()).decode("ascii")
        self._saved.update([{"schema": schema, "windows": sorted(self._open)}])

    def finish(self) -> None:
        """Processing time ends with the input: open windows fire in ``advance``."""
        if not self._windows.is_event_time:
            self._until_ms = MAX_WATERMARK_MS

    def _check_fits(self, stored: pa.Schema) -> None:
        """Check that the restored windows have the columns of the present aggregates.

        A new aggregate would miss the records that those windows have seen already.
        """
        parts = self._reader.missing(stored)
        keys = [name for name in self._selector.column_names if name not in stored.names]
        if parts or keys:
            raise RestoreError(
                f"operator {self.ctx.subtask.operator!r}: the windows that were open have no "
                f"{', '.join([*keys, *parts])}, so they cannot be restored with these keys and "
                "aggregates. Restore with those of the checkpoint, or from a savepoint of a job "
                "that was stopped with drain, which leaves no window open"
            )

    def _know(self, schema: pa.Schema) -> None:
        """Note the types of the keys and parts in the tables."""
        self._schema = schema
        keys = [schema.field(name).type for name in self._selector.column_names]
        self._empty = keys, self._reader.read(pa.RecordBatch.from_pylist([], schema=schema))

    def _read(self, batch: Batch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], int]:
        """The slice as parts, the start of every row's window, and the size of the windows."""
        if self._combined:
            columns = batch.columns
            starts = columns.column(WINDOW_START).to_numpy()
            return columns, starts, int(columns.schema.metadata[SIZE_MS])
        if self._windows.is_event_time:
            starts = self._windows.starts_of(event_times(batch, self.ctx.label))
        else:
            start = self._windows.start_of(self.ctx.clock.now_ms())
            starts = np.full(len(batch), start, np.int64)
        parts = raw_parts(self.columns_of(batch), self._parts, self.ctx.name)
        keys = self._selector.columns_of(batch)
        columns = part_batch(keys, self._selector.column_names, parts)
        return columns, starts, self._windows.size_ms

    @property
    def _closed_ms(self) -> int:
        """Windows whose last moment is not behind this take no more records."""
        if not self._windows.is_event_time:
            return MIN_WATERMARK_MS
        return max(MIN_WATERMARK_MS, self._watermark - self._lateness_ms)

    def _has_ended(self, bounds: Bounds) -> bool:
        """Whether the window's last moment has passed in event time."""
        return self._windows.is_event_time and bounds[1] - 1 <= self._watermark

    def _is_over(self, bounds: Bounds) -> bool:
        """Whether the window takes no more records."""
        last = bounds[1] - 1
        return self._windows.is_event_time and last + self._lateness_ms <= self._watermark

    def _late(self, batch: Batch, parts: Sequence[PartColumn], rows: npt.NDArray[np.int64]) -> None:
        counts = next(p.values for p in parts if p.part == _ROWS)
        self.ctx.late_records += int(counts[rows].sum())
        if self._late_tag is not None:
            self.ctx.output.emit_side(self._late_tag.tag_id, batch.share(rows))

    def _merge_windows(
        self,
        keys: Sequence[pa.Array],
        parts: Sequence[PartColumn],
        windows: SliceWindows,
        chosen: Mask,
    ) -> None:
        """Merge the chosen rows of a slice into the tables of their windows."""
        if len(windows) == 1 and chosen.all():
            self._merge(windows.bounds(0), keys, parts)
            return
        rows = np.flatnonzero(chosen)
        for index, places in rows_by_window(windows.codes[rows]).items():
            of_window = rows[places]
            taken = pa.array(of_window)
            self._merge(
                windows.bounds(index),
                [key.take(taken) for key in keys],
                [PartColumn(p.part, p.values[of_window], p.own_type) for p in parts],
            )

    def _fire_within(
        self,
        watermarks: Watermarks,
        keys: Sequence[pa.Array],
        parts: Sequence[PartColumn],
        windows: SliceWindows,
        in_time: Mask,
    ) -> bool:
        """Merge a slice and fire all windows that its watermarks end, as one batch.

        Returns whether that was done; if not, nothing was.
        """
        if self.has_pending or not are_equal_as_columns(keys) or not self._are_known(keys, parts):
            return False
        last_ms = max(self._watermark, watermarks.last_ms)
        ending = [(start, end) for end, start in self._unfired if end - 1 <= last_ms]
        if sum(self._open[bounds].table.rows for bounds in ending) > FIRED_AT_ONCE:
            return False
        passes = windows.has_closed.copy()
        for index in np.flatnonzero(passes).tolist():
            passes[index] = windows.bounds(index) not in self._open
        passing = in_time & passes[windows.codes]
        fired: list[pa.RecordBatch] = []
        if passing.any():
            passed = passing_windows(keys, parts, windows, np.flatnonzero(passing), self._specs)
            if passed is None:
                return False
            fired.append(self._fired_rows(*passed))
        if not passing.all():
            self._merge_windows(keys, parts, windows, in_time & ~passing)
        while self._unfired and self._unfired[0][0] - 1 <= last_ms:
            end, start = heappop(self._unfired)
            fired += self._fired_table((start, end))
            self._drop((start, end))
        times_ms = np.maximum(watermarks.times_ms, self._watermark)
        self._watermark = self._until_ms = last_ms
        self._emit_fired(fired, Watermarks(watermarks.behind, times_ms))
        return True

    def _are_known(self, keys: Sequence[pa.Array], parts: Sequence[PartColumn]) -> bool:
        """Whether keys and parts have the types of those in the tables."""
        key_types, known = self._empty
        return [key.type for key in keys] == key_types and all(
            one.own_type == other.own_type for one, other in zip(parts, known, strict=True)
        )

    def _emit_fired(self, fired: list[pa.RecordBatch], watermarks: Watermarks) -> None:
        """Emit rows of windows in the order of these, each before the watermark that ended it."""
        if not fired:
            self.ctx.output.emit_watermark(watermarks.last_ms)
            return
        columns = pa.concat_batches(fired)
        ends = columns.column(WINDOW_END).to_numpy()
        order = np.lexsort((columns.column(WINDOW_START).to_numpy(), ends))
        last_ms = ends[order] - 1
        behind = np.searchsorted(last_ms, watermarks.times_ms, "right")
        self.ctx.output.emit(
            Batch.of_columns(
                columns.take(pa.array(order)),
                timestamps=last_ms,
                watermarks=watermarks.moved(behind),
            )
        )

    def _merge(self, bounds: Bounds, keys: Sequence[pa.Array], parts: Sequence[PartColumn]) -> None:
        has_ended = self._has_ended(bounds)
        window = self._open.get(bounds)
        if window is None:
            window = self._add(bounds)
            # Late records of a window are emitted below, so none of its rows is left to fire.
            heappush(self._fired if has_ended else self._unfired, (bounds[1], bounds[0]))
        slots, _ = window.merge(keys, parts)
        window.table.column(_DUE).scatter(slots, np.uint8(1))
        if has_ended:
            self._emit(bounds, window, slots)  # Late but allowed: the window fires again.

    def _add(self, bounds: Bounds) -> PartTable:
        """Open the table of a window, which may hold restored rows."""
        keys, parts = self._empty
        window = PartTable(self.ctx, _table_name(bounds), keys, parts, {_DUE: np.uint8})
        self._open[bounds] = window
        return window

    def _advance_window(self, rows_max: int) -> int:
        """Fire some rows of the window that ended first, or drop a window; returns the work."""
        if self._firing is None:
            fired = self._fired
            if fired and fired[0][0] - 1 + self._lateness_ms <= self._until_ms:
                end, start = heappop(fired)
                self._drop((start, end))
                return WINDOW_ROWS
            end, start = heappop(self._unfired)
            self._firing = _Firing((start, end))
        firing = self._firing
        bounds = firing.bounds
        window = self._open[bounds]
        last_row = min(firing.next_row + rows_max, window.table.rows)
        slots = np.arange(firing.next_row, last_row)
        due = window.table.column(_DUE).gather(slots) != 0
        self._emit(bounds, window, slots[due])
        firing.next_row = last_row
        if last_row < window.table.rows:
            return len(slots)
        self._firing = None
        if not self._windows.is_event_time or self._is_over(bounds):
            self._drop(bounds)
        else:
            heappush(self._fired, (bounds[1], bounds[0]))
        return len(slots) + WINDOW_ROWS

    def _drop(self, bounds: Bounds) -> None:
        del self._open[bounds]
        self.ctx.state.drop_table(_table_name(bounds))

    def _emit(self, bounds: Bounds, window: PartTable, slots: npt.NDArray[np.int64]) -> None:
        if not len(slots):
            return
        window.table.column(_DUE).scatter(slots, np.uint8(0))
        timestamps = np.full(len(slots), bounds[1] - 1, np.int64)
        rows = self._fired_slots(bounds, window, slots)
        self.ctx.output.emit(Batch.of_columns(rows, timestamps=timestamps))

    def _fired_table(self, bounds: Bounds) -> list[pa.RecordBatch]:
        """All rows of a window that are due; a restored one may have none."""
        window = self._open[bounds]
        slots = np.flatnonzero(window.table.column(_DUE).gather(np.arange(window.table.rows)))
        return [self._fired_slots(bounds, window, slots)] if len(slots) else []

    def _fired_slots(
        self, bounds: Bounds, window: PartTable, slots: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        assert self._schema is not None
        names = self._selector.column_names
        stored = window.table.keys_of(slots)
        keys = (
            [stored]
            if len(names) == 1
            else [
                pa.array(values, self._schema.field(name).type)
                for name, values in zip(names, zip(*stored, strict=True), strict=True)
            ]
        )
        start, end = bounds
        windows = np.full(len(slots), start, np.int64), np.full(len(slots), end, np.int64)
        return self._fired_rows(keys, windows, window.results(slots, self._specs))

    def _fired_rows(
        self, keys: Sequence[pa.Array], windows: tuple[Ints, Ints], aggregates: Sequence[pa.Array]
    ) -> pa.RecordBatch:
        """Rows of windows as they are emitted; ``windows`` has the start and the end for each."""
        starts, ends = windows
        names = [*self._selector.column_names, WINDOW_START, WINDOW_END]
        return pa.RecordBatch.from_arrays(
            [*keys, pa.array(starts), pa.array(ends), *aggregates],
            names=[*names, *(spec.name for spec in self._specs)],
        )


@dataclass(slots=True)
class _Firing:
    """The progress of a window's firing.

    Rows that fired are not due any more, so a restored operator may begin at the first row again.
    """

    bounds: Bounds
    next_row: int = 0


def event_times(batch: Batch, label: str) -> npt.NDArray[np.int64]:
    """The event times of a batch.

    Raises:
        SchemaError: The records have no event time.
    """
    if batch.timestamps is None:
        raise SchemaError(
            f"{label} groups records by event time, but they have none; call "
            "assign_timestamps_and_watermarks before key_by, with a timestamp assigner or column"
        )
    return batch.timestamps


def _window_parts(specs: Sequence[AggregateSpec]) -> tuple[Part, ...]:
    parts = parts_of(specs)
    return parts if _ROWS in parts else (*parts, _ROWS)


def _table_name(bounds: Bounds) -> str:
    return f"window-{bounds[0]}-{bounds[1]}"
