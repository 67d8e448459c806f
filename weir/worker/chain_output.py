"""An operator in its chain, and its outputs: the operators behind it and the gates of its edges.

Inside a chain, emitting is a call: the next operator runs at once on the same batch. Watermarks and
idleness go to all consumers of the operator, side outputs included. A batch with watermarks between
its records is cut there for an operator that does not carry them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.common.batch import Batch
from weir.ids import CheckpointId, SubtaskId
from weir.operators.base import Operator
from weir.protocol.elements import Watermark, WatermarkIdle
from weir.state.store import OperatorStateStore
from weir.worker.gates import OutputGate
from weir.worker.snapshotter import OperatorFreeze


@dataclass(slots=True)
class ChainedOperator:
    """An operator with its name in the job and its state."""

    subtask: SubtaskId
    operator: Operator
    state: OperatorStateStore

    def freeze(self, checkpoint_id: CheckpointId, base_id: CheckpointId | None) -> OperatorFreeze:
        """Its state as it is now, and what the operator keeps beside it."""
        state = self.state.freeze(checkpoint_id, base_id)
        return OperatorFreeze(self.subtask, [*state, *self.operator.snapshot(checkpoint_id)])


@dataclass(frozen=True, slots=True)
class Targets:
    """The consumers of one output: of the main one, or of one side output."""

    chained: Sequence[tuple[Operator, int]] = ()  # With the input index at the operator.
    gates: Sequence[OutputGate] = ()
    reuse: bool = False  # Whether all consumers share the same record objects.

    def emit(self, batch: Batch) -> None:
        """Pass the batch to all consumers, a copy of the records to each."""
        count = len(self.chained) + len(self.gates)
        batches = [batch] * count
        if count > 1 and not self.reuse:  # Before the first one may change its records.
            batches[1:] = [batch.copied() for _ in batches[1:]]
        for (operator, input_index), part in zip(self.chained, batches, strict=False):
            if part.watermarks is None or operator.carries_watermarks:
                operator.on_batch(part, input_index)
            else:
                _give_cut(operator, part, input_index)
        for gate, part in zip(self.gates, batches[len(self.chained) :], strict=True):
            gate.emit(part)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Send a watermark to all consumers."""
        for operator, _ in self.chained:
            operator.on_watermark(timestamp_ms)
        for gate in self.gates:
            gate.broadcast(Watermark(timestamp_ms))


def _give_cut(operator: Operator, batch: Batch, input_index: int) -> None:
    for records, watermark_ms in batch.cut():
        if len(records):
            operator.on_batch(records, input_index)
        if watermark_ms is not None:
            operator.on_watermark(watermark_ms)


@dataclass(slots=True)
class ChainOutput:
    """The output of one operator of a chain."""

    main: Targets
    side: Mapping[str, Targets] = field(default_factory=dict)
    records: int = 0  # Emitted to the main output.
    tap: Callable[[Batch], None] | None = None  # Looks at what is emitted to the main output.

    def emit(self, batch: Batch) -> None:
        """Emit records to the main output."""
        if count := len(batch):
            self.records += count
            if self.tap is not None:
                self.tap(batch)
            self.main.emit(batch)
            if batch.watermarks is not None:
                for targets in self.side.values():
                    targets.emit_watermark(batch.watermarks.last_ms)
        elif batch.watermarks is not None:
            self.emit_watermark(batch.watermarks.last_ms)

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Send records to a side output; without a consumer they are dropped, as in Flink."""
        if len(batch) and tag in self.side:
            self.side[tag].emit(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Send a watermark to all consumers."""
        for targets in (self.main, *self.side.values()):
            targets.emit_watermark(timestamp_ms)

    def emit_idle(self) -> None:
        """Tell all consumers that event time should not wait for this operator."""
        for targets in (self.main, *self.side.values()):
            for operator, _ in targets.chained:
                operator.on_idle()
            for gate in targets.gates:
                gate.broadcast(WatermarkIdle())
