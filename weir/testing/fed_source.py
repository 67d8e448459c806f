"""The source that a test feeds, in place of one of the pipeline's.

What was fed is kept, so that a restored job reads it again from its position, as from any source
that replays. A feed is a single split: the first subtask reads it in order, and the others end.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from weir.common.batch import Batch
from weir.common.typeinfo import TypeInformation
from weir.common.watermark import WatermarkStrategy
from weir.ids import CheckpointId
from weir.operators.base import OperatorContext, Poll, SourceOperator
from weir.operators.event_time import WatermarkState
from weir.operators.sources.split_source import Source, SplitSourceOperator
from weir.operators.watermark_output import WatermarkOutput
from weir.operators.watermarks import TimestampReader
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.testing.elements import Timed, Watermark


class Feed:
    """All that a test has fed to one source, in order."""

    def __init__(self, factory: Any) -> None:
        """An empty feed in place of the source operators that ``factory`` makes."""
        self.has_ended = False
        self.strategy: WatermarkStrategy | None = None
        self._type: TypeInformation | None = None
        self._elements: list[tuple[Any, int | None] | Watermark] = []
        if (source := split_source(factory)) is not None:
            self._type = source.type_info
            self.strategy = factory.args[2] if len(factory.args) > 2 else None

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, elements: Iterable[Any]) -> None:
        """Add records, timed ones and watermarks.

        Raises:
            SchemaError: A record is not of the source's type.
        """
        normalise = None if self._type is None else self._type.normaliser()
        added: list[tuple[Any, int | None] | Watermark] = []
        for element in elements:
            if isinstance(element, Watermark):
                added.append(element)
                continue
            is_timed = isinstance(element, Timed)
            record, at_ms = (element.record, element.at_ms) if is_timed else (element, None)
            added.append((record if normalise is None else normalise(record), at_ms))
        self._elements += added

    def __getitem__(self, index: int) -> "tuple[Any, int | None] | Watermark":
        return self._elements[index]

    def batch(self, records: list[tuple[Any, int | None]]) -> Batch:
        """Records as a slice of the source's type, with their event times if all have one."""
        rows, times = [row for row, _ in records], [at for _, at in records]
        timestamps = None if None in times else np.array(times, np.int64)
        return Batch.of_rows(rows, self._type, timestamps).copied()


def split_source(factory: Any) -> Source | None:
    """The source that the operators of a factory read; None: it is not made of splits."""
    if isinstance(factory, partial) and factory.func is SplitSourceOperator:
        source: Source = factory.args[0]
        return source
    return None


class FedSourceOperator(SourceOperator):
    """Reads a feed from a position on; a snapshot is the position and the watermark."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._state = ctx.state.list_state("position", "split")
        self._position = next(iter(self._state.get()), 0)
        self._saved = WatermarkState(ctx)
        self._strategy = self._feed.strategy or WatermarkStrategy.no_watermarks()
        self._times = TimestampReader(self._strategy, ctx)
        self._out = WatermarkOutput(
            ctx.output, self._strategy.resolution_ms, self._saved.restored_ms
        )

    def poll(self, records_max: int) -> Poll:
        if self.ctx.subtask.index:
            return Poll.END
        if self._position == len(self._feed):
            return Poll.END if self._feed.has_ended else Poll.WAIT
        first = self._feed[self._position]
        if isinstance(first, Watermark):
            self._position += 1
            self._out.advance(first.at_ms)
            return Poll.MORE
        records = [first]
        for index in range(self._position + 1, len(self._feed)):
            following = self._feed[index]
            if isinstance(following, Watermark) or len(records) == records_max:
                break
            if (following[1] is None) is not (first[1] is None):
                break  # A slice has event times for all of its records, or for none.
            records.append(following)
        self._position += len(records)
        self._emit(self._feed.batch(records))
        return Poll.MORE

    def _emit(self, batch: Batch) -> None:
        bound_ms = self._strategy.bound_ms
        timestamps = batch.timestamps
        if timestamps is None:
            timestamps = self._times.timestamps(batch)
            batch = Batch.of_rows(batch.rows, batch.type, timestamps)
        if bound_ms is None or timestamps is None:
            self.ctx.output.emit(batch)
        else:
            self._out.emit_timed(
                batch, timestamps, bound_ms, least_ms=self._out.emitted_ms, most_ms=MAX_WATERMARK_MS
            )

    @property
    def own_watermark_ms(self) -> int | None:
        return None if self._out.emitted_ms == MIN_WATERMARK_MS else self._out.emitted_ms

    def on_watermark(self, timestamp_ms: int) -> None:
        self._out.advance(timestamp_ms)

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        self._state.update([] if self.ctx.subtask.index else [self._position])
        self._saved.save(self._out.emitted_ms)
