"""The elements of a channel, which it delivers strictly in order.

A channel carries record batches and, between them, control elements. A *barrier* cuts the stream
into the records that belong to its checkpoint and those that belong to the next; it is copied to
every channel of every outgoing edge and never overtakes records unless its kind says so.

Source: arXiv:1506.08603 (asynchronous barrier snapshotting), section 4; FLIP-76 for unaligned.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from weir.bounds import DelayMs, PointMs, Word
from weir.ids import CheckpointId


class CheckpointKind(StrEnum):
    """The purpose of a checkpoint, which decides its options and its retention."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"  # On demand, always aligned, never subsumed.
    STOP_SUSPEND = "stop_suspend"  # A savepoint after which the job ends, resumable.
    STOP_DRAIN = "stop_drain"  # The same after the sources ended and all timers fired.


class Alignment(StrEnum):
    """The treatment of a barrier by the inputs of a subtask."""

    ALIGNED = "aligned"  # Block a channel from its barrier until the last barrier.
    AT_LEAST_ONCE = "at_least_once"  # Block nothing, snapshot at the last barrier.
    UNALIGNED = "unaligned"  # Snapshot at the first barrier, record what it overtook.
    # Align, and pause behind the barrier until the checkpoint is completed or aborted.
    STOP_THE_WORLD = "stop_the_world"


@dataclass(frozen=True, slots=True)
class BarrierOptions:
    """Options of one checkpoint, which travel with its barrier."""

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    alignment: Alignment = Alignment.ALIGNED
    # Aligned first, unaligned when not aligned this long after the trigger. None: stay aligned.
    alignment_timeout_ms: DelayMs | None = None
    target: Word | None = None  # Savepoints: the directory that state is written to.
    # The completed checkpoint since which changed state alone may be written; 0: none, so that all
    # is, for later ones to build on. None: nothing may be shared between checkpoints.
    base_id: CheckpointId | None = None

    @property
    def pauses(self) -> bool:
        """Whether a running subtask pauses behind its barrier until the checkpoint is settled."""
        is_stop = self.kind is CheckpointKind.STOP_SUSPEND
        return is_stop or self.alignment is Alignment.STOP_THE_WORLD


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Cuts a channel: records before it belong to the checkpoint, records after it do not."""

    checkpoint_id: CheckpointId
    triggered_at_ms: PointMs  # Wall clock of the coordinator.
    options: BarrierOptions = BarrierOptions()


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """Tells every subtask downstream that the barrier of this checkpoint will not come."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with an event time at or below this one follows (but for late ones)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WatermarkIdle:
    """The channel carries nothing for a while and does not hold event time back."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The channel is complete; nothing follows."""


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of records; opaque to the protocol.

    Units: ``size`` in bytes, the estimate by which credit is counted.
    """

    payload: Any
    count: int
    size: int


Element: TypeAlias = (
    Records | CheckpointBarrier | CancelCheckpoint | Watermark | WatermarkIdle | EndOfInput
)

MAX_WATERMARK_MS = 2**63 - 1  # The watermark of a source that ended: every timer fires.
MIN_WATERMARK_MS = -(2**63)
