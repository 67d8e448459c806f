"""Event time of a source made of splits: a watermark per split, and the least of them goes out.

Every split has its own watermark, which follows its highest timestamp as the strategy says and is
kept beside its position in checkpoints. So a split goes on from its own watermark whichever subtask
gets it, and what it reads is not late because another split is further ahead.

What the subtask has let out is not kept here: the operator behind the source does that
(``SourceWatermarkOperator``). For a lower watermark than before a failure would make late records
on time, and after rescaling it is the least of all former subtasks' that counts.
"""

from dataclasses import dataclass

from weir.common.batch import Batch
from weir.common.watermark import WatermarkStrategy
from weir.ids import CheckpointId
from weir.operators.base import Operator, OperatorContext
from weir.operators.event_time import WatermarkState
from weir.operators.sources.split_order import SplitOrder, TrackedSplit
from weir.operators.watermark_output import WatermarkOutput
from weir.operators.watermarks import TimestampReader, with_timestamps
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS


class SplitEventTime:
    """Gives the records of splits event time, and tells how far all of them have come."""

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
        """The watermark that was let out last; None: none yet."""
        return None if self._out.emitted_ms == MIN_WATERMARK_MS else self._out.emitted_ms

    def emit(self, split: TrackedSplit, batch: Batch) -> None:
        """Send records of a split, then the watermark that follows from them."""
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
        """A split has ended and holds event time back no longer."""
        self._advance()

    def end(self) -> None:
        """The end of event time."""
        self._out.advance(MAX_WATERMARK_MS)

    # Idleness.

    def on_silence(self, split: TrackedSplit) -> None:
        """The split was asked for records and has none yet."""
        timeout_ms = self._strategy.idle_timeout_ms
        if timeout_ms is None or split.is_idle:
            return
        now_ms = self._ctx.clock.now_ms()
        if split.silent_since_ms is None:
            split.silent_since_ms = now_ms
        split.is_idle = now_ms - split.silent_since_ms >= timeout_ms

    @property
    def idle_due_ms(self) -> int | None:
        """When the subtask will count as idle if no split gives records; None: never, or it is."""
        timeout_ms = self._strategy.idle_timeout_ms
        if timeout_ms is None or self._out.is_idle:
            return None
        return self._last_record_ms + timeout_ms

    def check_idle(self) -> None:
        """No split gave records: become idle after as long as the strategy says.

        Before that, event time goes on without the splits that have become idle.
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
    """Makes the operators behind a source that tells event time itself."""

    def __call__(self) -> "SourceWatermarkOperator":
        """A new operator."""
        return SourceWatermarkOperator()


class SourceWatermarkOperator(Operator):
    """Passes records and watermarks of a source made of splits on, and keeps the last watermark.

    After a restore it says so first, and lets no lower watermark pass.
    """

    def open(self, ctx: OperatorContext) -> None:
        """Take over what was kept."""
        super().open(ctx)
        self._saved = WatermarkState(ctx)
        self._reached_ms = self._saved.restored_ms
        self._silent = self._reached_ms > MIN_WATERMARK_MS  # Those behind wait to hear of it again.

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Keep how far event time has come."""
        self._saved.save(self._reached_ms)

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Pass the records on."""
        if self._silent:
            self._silent = False
            self.ctx.output.emit_watermark(self._reached_ms)
        self.ctx.output.emit(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Pass the watermark on; a lower one still says that the stream is not idle."""
        self._silent = False
        self._reached_ms = max(self._reached_ms, timestamp_ms)
        self.ctx.output.emit_watermark(self._reached_ms)

    @property
    def own_watermark_ms(self) -> int | None:
        """The watermark that was passed on last."""
        return None if self._reached_ms == MIN_WATERMARK_MS else self._reached_ms
