"""Event time of a source made of splits: a watermark per split, of which the least is emitted.

Every split has its own watermark, which follows its highest timestamp as the strategy says and is
kept beside its position in checkpoints. So a split resumes from its own watermark in any subtask,
and its records are not late because another split is further ahead.

The emitted watermark is kept by the operator behind the source, not here
(``SourceWatermarkOperator``). It must be kept, since a lower watermark than before a failure would
make late records on time; after rescaling the least of all former subtasks' counts.
"""

from dataclasses import dataclass

import numpy as np

from weir.common.batch import Batch
from weir.common.watermark import WatermarkStrategy
from weir.common.watermarks import Watermarks
from weir.ids import CheckpointId
from weir.operators.base import Operator, OperatorContext
from weir.operators.event_time import WatermarkState
from weir.operators.sources.split_order import SplitOrder, TrackedSplit
from weir.operators.watermark_output import WatermarkOutput
from weir.operators.watermarks import TimestampReader, with_timestamps
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS


class SplitEventTime:
    """Gives the records of splits event time, and emits the watermark of all splits."""

    def __init__(
        self, strategy: WatermarkStrategy, splits: SplitOrder, ctx: OperatorContext
    ) -> None:
        self._strategy = strategy
        self._splits = splits
        self._ctx = ctx
        self._times = TimestampReader(strategy, ctx)
        self._out = WatermarkOutput(ctx.output, strategy.resolution_ms)
        self._last_record_ms = ctx.clock.now_ms()

    @property
    def watermark_ms(self) -> int | None:
        """The last emitted watermark; None: none yet."""
        return None if self._out.emitted_ms == MIN_WATERMARK_MS else self._out.emitted_ms

    def emit(self, split: TrackedSplit, batch: Batch) -> None:
        """Emit records of a split, then the watermark that follows from them."""
        if self._strategy.idle_timeout_ms is not None:
            self._last_record_ms = self._ctx.clock.now_ms()
            split.silent_since_ms = None
            split.is_idle = False
        timestamps = self._times.timestamps(batch)
        timed = with_timestamps(batch, timestamps)
        bound_ms = self._strategy.bound_ms
        if bound_ms is None or timestamps is None:
            self._ctx.output.emit(timed)
            return
        split.watermark_ms = self._out.emit_timed(
            timed,
            timestamps,
            bound_ms,
            least_ms=split.watermark_ms,
            most_ms=self._splits.watermark_of_others(split),
        )

    def finish_split(self) -> None:
        """Advance the watermark: a split has ended and no longer holds event time back."""
        self._advance()

    def end(self) -> None:
        """Emit the end of event time."""
        self._out.advance(MAX_WATERMARK_MS)

    # Idleness.

    def on_silence(self, split: TrackedSplit) -> None:
        """Note that the split was read and had no records; it may become idle."""
        timeout_ms = self._strategy.idle_timeout_ms
        if timeout_ms is None or split.is_idle:
            return
        now_ms = self._ctx.clock.now_ms()
        if split.silent_since_ms is None:
            split.silent_since_ms = now_ms
        split.is_idle = now_ms - split.silent_since_ms >= timeout_ms

    @property
    def idle_due_ms(self) -> int | None:
        """The time at which the subtask becomes idle without records; None: never, or is idle."""
        timeout_ms = self._strategy.idle_timeout_ms
        if timeout_ms is None or self._out.is_idle:
            return None
        return self._last_record_ms + timeout_ms

    def check_idle(self) -> None:
        """Become idle if no split has had records for the strategy's idle timeout.

        Before that, advance event time without the splits that have become idle.
        """
        due_ms = self.idle_due_ms
        if due_ms is None:
            return
        if due_ms <= self._ctx.clock.now_ms():
            self._out.become_idle()
        else:
            self._advance()

    def _advance(self) -> None:
        watermark_ms = self._splits.watermark_ms
        if watermark_ms is not None:
            self._out.advance(watermark_ms)


@dataclass(frozen=True, slots=True)
class SourceWatermarkFactory:
    """Makes the operators behind a source that assigns event time itself."""

    def __call__(self) -> "SourceWatermarkOperator":
        """A new operator."""
        return SourceWatermarkOperator()


class SourceWatermarkOperator(Operator):
    """Passes on records and watermarks of a source made of splits, and keeps the last watermark.

    After a restore it emits that watermark first, and lets no lower one pass.
    """

    def open(self, ctx: OperatorContext) -> None:
        """Restore the last watermark."""
        super().open(ctx)
        self._saved = WatermarkState(ctx)
        self._reached_ms = self._saved.restored_ms
        self._silent = self._reached_ms > MIN_WATERMARK_MS  # Operators behind wait for it.

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Keep the watermark in the snapshot."""
        self._saved.save(self._reached_ms)

    @property
    def carries_watermarks(self) -> bool:
        """Always."""
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Pass the records on; of the watermarks between them none is lower than the last."""
        if self._silent:
            self._silent = False
            self.ctx.output.emit_watermark(self._reached_ms)
        if batch.watermarks is not None:
            times_ms = np.maximum(batch.watermarks.times_ms, self._reached_ms)
            batch = batch.marked(Watermarks(batch.watermarks.behind, times_ms))
            self._reached_ms = int(times_ms[-1])
        self.ctx.output.emit(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Pass the watermark on; a lower one still shows that the stream is not idle."""
        self._silent = False
        self._reached_ms = max(self._reached_ms, timestamp_ms)
        self.ctx.output.emit_watermark(self._reached_ms)

    @property
    def own_watermark_ms(self) -> int | None:
        """The watermark that was passed on last; None: none yet."""
        return None if self._reached_ms == MIN_WATERMARK_MS else self._reached_ms
