"""The events of a job, as one versioned stream.

The job master emits them in order; the terminal, the event log, the result of ``execute`` and,
under a control plane, its database are readers of the same stream. Reports of subtasks
(``messages.Report``) are part of it as they came.

Units: ``at_ms`` wall clock of the driver, milliseconds; durations in milliseconds.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import Acknowledged, Declined, Measurement, SubtaskChanged


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The job reached a status."""

    at_ms: int
    status: JobStatus
    cause: str = ""


@dataclass(frozen=True, slots=True)
class SlotChanged:
    """A slot registered, or was lost."""

    at_ms: int
    slot_index: int
    host: str
    pid: int
    registered: bool


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process of the current attempt runs; ``slot_index`` is the slot of the plan."""

    at_ms: int
    attempt: AttemptNumber
    slot_index: int
    pid: int


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The graph is being deployed; ``restored_checkpoint`` None means from the beginning."""

    at_ms: int
    attempt: AttemptNumber
    restored_checkpoint: CheckpointId | None
    note: str = ""  # Why this checkpoint was chosen, e.g. that a newer one is damaged.


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """A barrier is on its way; ``expected`` operator subtasks must acknowledge."""

    at_ms: int
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    expected: tuple[SubtaskId, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckpointSettled:
    """A checkpoint completed, or was aborted with the reason in ``failure``."""

    at_ms: int
    checkpoint_id: CheckpointId
    duration_ms: int
    failure: FailureReason | None = None
    cause: str = ""
    state_size: int = 0  # Bytes of the whole state.
    written_size: int = 0  # Bytes this checkpoint wrote.


@dataclass(frozen=True, slots=True)
class CheckpointsDiscarded:
    """The files of these checkpoints were deleted."""

    at_ms: int
    checkpoint_ids: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A failed attempt was replaced and its successor runs.

    ``replayed_records`` counts the records that sources had emitted since the restored checkpoint,
    as far as they had reported them; the successor emits them again.
    """

    at_ms: int
    attempt: AttemptNumber
    cause: str
    restored_checkpoint: CheckpointId | None
    backoff_ms: float  # The restart strategy's delay.
    redeploy_ms: float  # Until all fresh workers listened.
    restore_ms: float  # Until all subtasks ran with their state.
    restored_bytes: int
    replayed_records: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The successor's sources have reached the positions of the failed attempt's."""

    at_ms: int
    attempt: AttemptNumber
    catch_up_ms: float


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark for the user, shown once."""

    at_ms: int
    text: str


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
