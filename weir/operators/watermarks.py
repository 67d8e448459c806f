"""The operator that assigns event time to records and emits watermarks.

After each slice, or with a resolution also within it, the operator emits a watermark if the highest
timestamp rose: that timestamp minus the allowed disorder, minus one millisecond. Watermarks from
upstream are ignored, except the last one, the end of event time. Without records for the idle
timeout it emits idleness, which the next record ends.

It stands in mid-stream, and behind sources that are not made of splits; sources made of splits
assign event time themselves, split by split (``weir.operators.sources.split_time``).

Source: Flink, TimestampsAndWatermarksOperator.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from weir.common.batch import Batch, Timestamps
from weir.common.watermark import WatermarkStrategy
from weir.errors import GraphError, SchemaError
from weir.ids import CheckpointId
from weir.operators.base import ColumnReader, Operator, OperatorContext
from weir.operators.event_time import WatermarkState
from weir.operators.user_code import failure_at, short_repr
from weir.operators.watermark_output import WatermarkOutput
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

logger = logging.getLogger(__name__)

_OTHER_UNITS = {
    range(10**9, 10**10): "early in 1970; if these are seconds, multiply them by 1,000",
    range(10**14, MAX_WATERMARK_MS): (
        "after the year 5000; if these are microseconds or nanoseconds, divide them"
    ),
}


@dataclass(frozen=True, slots=True)
class WatermarkFactory:
    """Makes operators that assign timestamps and watermarks."""

    strategy: WatermarkStrategy

    def __post_init__(self) -> None:
        if self.strategy.alignment is not None:
            raise GraphError(
                "watermark alignment pauses the splits of a source, so it works only with "
                "from_source and a source that is made of splits; leave with_watermark_alignment "
                "out here"
            )

    def __call__(self) -> "WatermarkOperator":
        """A new operator."""
        return WatermarkOperator(self.strategy)


class WatermarkOperator(Operator):
    """Assigns event time by a strategy, and emits watermarks."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._last_record_ms = 0

    def open(self, ctx: OperatorContext) -> None:
        """Restore the watermark, and start to wait for records."""
        super().open(ctx)
        self._last_record_ms = ctx.clock.now_ms()
        self._saved = WatermarkState(ctx)
        self._times = TimestampReader(self._strategy, ctx)
        self._out = WatermarkOutput(
            ctx.output, self._strategy.resolution_ms, self._saved.restored_ms
        )
        # Operators behind wait for the restored watermark.
        self._silent = self._out.emitted_ms > MIN_WATERMARK_MS

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Keep the watermark in the snapshot."""
        self._saved.save(self._out.emitted_ms)

    @property
    def carries_watermarks(self) -> bool:
        """Always: the watermarks of others end here."""
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Pass the records on with their time, then the watermark that follows from them."""
        if not len(batch):
            return
        batch = batch.marked(None)
        if self._strategy.idle_timeout_ms is not None:
            self._last_record_ms = self.ctx.clock.now_ms()
        if self._silent:
            self._silent = False
            self.ctx.output.emit_watermark(self._out.emitted_ms)
        timestamps = self._times.timestamps(batch)
        timed = with_timestamps(batch, timestamps)
        bound_ms = self._strategy.bound_ms
        if bound_ms is None or timestamps is None:
            self.ctx.output.emit(timed)
            return
        self._out.emit_timed(
            timed, timestamps, bound_ms, least_ms=MIN_WATERMARK_MS, most_ms=MAX_WATERMARK_MS
        )

    def on_watermark(self, timestamp_ms: int) -> None:
        """Pass on only the end of event time."""
        if timestamp_ms == MAX_WATERMARK_MS:
            self._out.advance(timestamp_ms)

    @property
    def own_watermark_ms(self) -> int | None:
        """The last emitted watermark; None: none yet."""
        return None if self._out.emitted_ms == MIN_WATERMARK_MS else self._out.emitted_ms

    def on_idle(self) -> None:
        """All inputs are idle, so this operator is too."""
        self._out.become_idle()

    def next_timer_ms(self) -> int | None:
        """The time at which the stream becomes idle without records; None: never, or it is."""
        timeout_ms = self._strategy.idle_timeout_ms
        if timeout_ms is None or self._out.is_idle or self._out.emitted_ms == MAX_WATERMARK_MS:
            return None
        return self._last_record_ms + timeout_ms

    def on_processing_time(self, now_ms: int) -> None:
        """Become idle if the idle timeout has passed."""
        due_ms = self.next_timer_ms()
        if due_ms is not None and due_ms <= now_ms:
            self._out.become_idle()


class TimestampReader:
    """Reads the event time of records by a strategy."""

    def __init__(self, strategy: WatermarkStrategy, ctx: OperatorContext) -> None:
        self._strategy = strategy
        self._label = ctx.label
        self._columns_of = ColumnReader(ctx.label)
        self._looked = False  # At the first timestamp.

    def timestamps(self, batch: Batch) -> Timestamps | None:
        """The timestamps of a slice in milliseconds; None: its records have none."""
        strategy = self._strategy
        if strategy.column is not None:
            columns = self._columns_of(batch)
            timestamps = column_timestamps(columns, strategy.column)
            if not self._looked:
                self._look_at(timestamps, columns.schema.field(strategy.column).type)
            return timestamps
        if strategy.assign is None:
            return batch.timestamps
        timestamps = self._assigned(strategy.assign, batch)
        if not self._looked:
            self._look_at(timestamps, pa.int64())
        return timestamps

    def _look_at(self, timestamps: Timestamps, kind: pa.DataType) -> None:
        """Remark on a first timestamp that is a number and hardly one of milliseconds."""
        if not len(timestamps):
            return
        self._looked = True
        first = int(timestamps[0])
        remark = next((remark for some, remark in _OTHER_UNITS.items() if first in some), None)
        if remark is not None and pa.types.is_integer(kind):
            logger.warning(
                "%s takes the event time %s of its first record as milliseconds, which is %s",
                self._label,
                first,
                remark,
            )

    def _assigned(self, assign: Callable[[Any, int], int], batch: Batch) -> Timestamps:
        before = (
            [MIN_WATERMARK_MS] * len(batch)
            if batch.timestamps is None
            else batch.timestamps.tolist()
        )
        left = iter(batch.rows)
        try:
            assigned = [assign(row, at) for row, at in zip(left, before, strict=True)]
        except Exception as error:
            raise failure_at(
                f"the timestamp assigner of {self._label}", batch.rows, left, error
            ) from error
        if all(map(_is_timestamp_class, set(map(type, assigned)))):
            try:
                return np.array(assigned, np.int64)
            except OverflowError:
                pass  # The error below names the record.
        wrong = next(i for i, at in enumerate(assigned) if not is_timestamp(at))
        raise SchemaError(
            f"the timestamp assigner of {self._label} returned {short_repr(assigned[wrong])} for "
            f"the record {short_repr(batch.rows[wrong])}; it must return integer milliseconds that "
            "fit into 64 bits"
        )


def is_timestamp(value: object) -> bool:
    """Whether a value is an integer, Python's or NumPy's, of at most 64 bits."""
    return _is_timestamp_class(type(value)) and MIN_WATERMARK_MS <= value <= MAX_WATERMARK_MS  # type: ignore[operator]


def _is_timestamp_class(kind: type) -> bool:
    return issubclass(kind, (int, np.integer)) and kind is not bool


def column_timestamps(columns: pa.RecordBatch, name: str) -> Timestamps:
    """A column as milliseconds since the epoch.

    Raises:
        SchemaError: There is no such column, it holds nulls, or it is neither a timestamp nor an
            integer column.
    """
    if name not in columns.schema.names:
        raise SchemaError(
            f"the timestamp column {name!r} is missing; the records have "
            f"{', '.join(columns.schema.names)}"
        )
    column = columns.column(name)
    if column.null_count:
        nulls = f"{column.null_count} null{'s' if column.null_count > 1 else ''}"
        raise SchemaError(
            f"the timestamp column {name!r} holds {nulls}; filter such records out before"
        )
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.date64()).cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise SchemaError(
            f"the timestamp column {name!r} is {column.type}; it must be an Arrow timestamp, a "
            "date or integer milliseconds"
        )
    timestamps: Timestamps = column.cast(pa.int64()).to_numpy()
    return timestamps


def with_timestamps(batch: Batch, timestamps: Timestamps | None) -> Batch:
    """The same records with these timestamps."""
    if timestamps is batch.timestamps:
        return batch
    if batch.is_columnar:
        return Batch.of_columns(batch.columns, batch.type, timestamps)
    return Batch.of_rows(batch.rows, batch.type, timestamps)
