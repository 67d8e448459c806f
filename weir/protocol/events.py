"""The events of a job, as one versioned stream.

The job master emits them in order; the terminal, the event log, the result of ``execute`` and,
under a control plane, its database are readers of the same stream. Reports of subtasks
(``messages.Report``) are part of it as they came.

Units: ``at_ms`` wall clock of the driver, milliseconds; durations in milliseconds.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.bounds import Count, DelayMs, Index, MeasuredMs, Number, PointMs, Prose, Word
from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import ENDS_AS, CheckpointStatus, FailureReason, JobStatus
from weir.protocol.messages import Acknowledged, Declined, Measurement, SubtaskChanged
from weir.protocol.slot_memory import MemoryLimit


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The job reached a status."""

    at_ms: PointMs
    status: JobStatus
    cause: Prose = ""


@dataclass(frozen=True, slots=True)
class SlotChanged:
    """A slot registered, or was lost."""

    at_ms: PointMs
    slot_index: Index
    host: Word
    pid: Number
    registered: bool


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process of the current attempt runs; ``slot_index`` is the slot of the plan."""

    at_ms: PointMs
    attempt: AttemptNumber
    slot_index: Index
    pid: Number
    memory_limit: MemoryLimit | None = None  # None: nothing limits its memory.


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The graph is being deployed; ``restored_checkpoint`` None means from the beginning."""

    at_ms: PointMs
    attempt: AttemptNumber
    restored_checkpoint: CheckpointId | None
    note: Prose = ""  # Why this checkpoint was chosen, e.g. that a newer one is damaged.


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """A barrier is on its way; ``expected`` operator subtasks must acknowledge."""

    at_ms: PointMs
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    expected: tuple[SubtaskId, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckpointSettled:
    """A checkpoint completed, or it never will, with the reason in ``failure``."""

    at_ms: PointMs
    checkpoint_id: CheckpointId
    duration_ms: DelayMs
    failure: FailureReason | None = None
    cause: Prose = ""
    state_size: Count = 0  # Bytes of the whole state.
    written_size: Count = 0  # Bytes this checkpoint wrote.

    @property
    def status(self) -> CheckpointStatus:
        """The status that it reached."""
        return CheckpointStatus.COMPLETED if self.failure is None else ENDS_AS[self.failure]


@dataclass(frozen=True, slots=True)
class CheckpointsDiscarded:
    """The files of these checkpoints were deleted."""

    at_ms: PointMs
    checkpoint_ids: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A failed attempt was replaced and its successor runs.

    ``replayed_records`` counts the records that sources had emitted since the restored checkpoint,
    as far as they had reported them; the successor emits them again.
    """

    at_ms: PointMs
    attempt: AttemptNumber
    cause: Prose
    restored_checkpoint: CheckpointId | None
    backoff_ms: MeasuredMs  # The restart strategy's delay.
    redeploy_ms: MeasuredMs  # Until all fresh workers listened.
    restore_ms: MeasuredMs  # Until all subtasks ran with their state.
    restored_bytes: Count
    replayed_records: Count
    restored_local_bytes: Count | None = None  # Of these, from copies of slots; None: none kept.


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The successor's sources have reached the positions of the failed attempt's."""

    at_ms: PointMs
    attempt: AttemptNumber
    catch_up_ms: MeasuredMs


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark for the user, shown once."""

    at_ms: PointMs
    text: Prose


JobEvent: TypeAlias = (
    JobChanged
    | SlotChanged
    | WorkerStarted
    | AttemptStarted
    | CheckpointTriggered
    | CheckpointSettled
    | CheckpointsDiscarded
    | Recovered
    | CaughtUp
    | Notice
    | Acknowledged
    | Declined
    | SubtaskChanged
    | Measurement
)
