"""The driver's record of each checkpoint: its acknowledgements, sizes and stage.

A record begins with the trigger and outlives the checkpoint's end, since late state of a savepoint
is deleted in its own directory, and since a restore counts from the records of its sources.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.protocol.elements import CheckpointKind
from weir.protocol.messages import OperatorAck, TriggerCheckpoint
from weir.protocol.pending import STOP_KINDS

# Records that are kept, where the coordinator does not say which checkpoints are discarded.
REMEMBERED_MAX = 1_000


class Stage(Enum):
    """The stage of a checkpoint, as its driver knows it."""

    OPEN = auto()  # Acknowledgements are filed.
    COMMANDED = auto()  # Its manifest was commanded; its end was not emitted.
    OVER = auto()  # It completed, or was dropped.


@dataclass(slots=True)
class TriggeredCheckpoint:
    """One checkpoint that was triggered through this driver."""

    checkpoint_id: CheckpointId
    attempt: AttemptNumber
    kind: CheckpointKind
    target: str | None  # Of a savepoint: its own directory.
    since_ms: int  # By this driver's clock.
    stage: Stage = Stage.OPEN
    is_settled: bool = False  # ``CheckpointSettled`` was emitted.
    acks: dict[SubtaskId, OperatorAck] = field(default_factory=dict)  # While it is open.
    state_size: int = 0
    written_size: int = 0
    source_records: dict[str, int] = field(default_factory=dict)  # Emitted up to it, by source.

    def file(self, parts: Iterable[OperatorAck]) -> None:
        """File the parts of an acknowledgement, while acknowledgements are filed."""
        if self.stage is Stage.OPEN:
            self.acks.update((part.subtask, part) for part in parts)

    def take_acks(self) -> dict[SubtaskId, OperatorAck]:
        """Take the acknowledgements for the manifest, and keep their sizes."""
        acks, self.acks = self.acks, {}
        self.stage = Stage.COMMANDED
        self.state_size = sum(ack.metrics.state_size for ack in acks.values())
        self.written_size = sum(ack.metrics.written_size for ack in acks.values())
        return acks

    def drop(self) -> None:
        """It came to nothing: drop its acknowledgements and sizes."""
        self.stage = Stage.OVER
        self.acks, self.source_records = {}, {}
        self.state_size = self.written_size = 0


class TriggeredCheckpoints:
    """The records of one driver, by checkpoint id."""

    def __init__(self) -> None:
        self._records: dict[CheckpointId, TriggeredCheckpoint] = {}

    def trigger(self, command: TriggerCheckpoint, now_ms: int) -> TriggeredCheckpoint:
        """The record of a checkpoint that is triggered now; a repeated trigger changes nothing."""
        barrier = command.barrier
        known = self._records.get(barrier.checkpoint_id)
        if known is not None and known.attempt == command.attempt:
            return known
        record = self._records[barrier.checkpoint_id] = TriggeredCheckpoint(
            barrier.checkpoint_id,
            command.attempt,
            barrier.options.kind,
            barrier.options.target,
            now_ms,
        )
        self._drop_oldest()
        return record

    def get(self, checkpoint_id: CheckpointId) -> TriggeredCheckpoint | None:
        """The record of a checkpoint; None: it is not known here (any more)."""
        return self._records.get(checkpoint_id)

    def __getitem__(self, checkpoint_id: CheckpointId) -> TriggeredCheckpoint:
        return self._records[checkpoint_id]

    def __len__(self) -> int:
        return len(self._records)

    def drop(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint came to nothing."""
        if (record := self._records.get(checkpoint_id)) is not None:
            record.drop()

    def remove(self, checkpoint_id: CheckpointId) -> None:
        """A completed checkpoint is being discarded: its record goes with it."""
        self._records.pop(checkpoint_id, None)

    def has_stop(self, attempt: AttemptNumber | None) -> bool:
        """Whether a savepoint that stops this attempt is under way."""
        return any(
            record.kind in STOP_KINDS and record.stage is not Stage.OVER
            for record in self._records.values()
            if record.attempt == attempt
        )

    def _drop_oldest(self) -> None:
        while len(self._records) > REMEMBERED_MAX:
            over = (n for n, record in self._records.items() if record.stage is not Stage.OPEN)
            oldest = next(over, None)
            if oldest is None:
                return
            del self._records[oldest]
