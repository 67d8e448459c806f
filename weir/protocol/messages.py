"""Messages between subtasks, job master and coordinator, in one versioned schema.

*Reports* go up from a subtask, *commands* go down to subtasks. *Events* are the inputs of the
coordinator: two of the reports, and the events of the shell that runs it. The coordinator answers
with commands to subtasks and commands to that shell. All are frozen values; their wire form is JSON
with a ``type`` and, on the envelope, ``SCHEMA_VERSION`` (see ``wire``). Every report carries the
attempt that sent it, so that a report of an older attempt is recognised and refused.

Units: ``*_ms`` wall clock milliseconds where a point in time is named, durations in milliseconds as
floats where they are measured, sizes in bytes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from weir.bounds import (
    Between,
    Count,
    DelayMs,
    EventTimeMs,
    Index,
    MeasuredMs,
    PointMs,
    Prose,
    Word,
)
from weir.ids import AttemptNumber, CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.protocol.elements import CheckpointBarrier, CheckpointKind
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.lineage import UNKNOWN, Lineage
from weir.protocol.pending import (
    CheckpointPlan,
    CompletedCheckpoint,
    PendingCheckpoint,
    TriggerRequest,
)

SCHEMA_VERSION = 1
# The last line of a stalled call's stack whose thread uses no processor: it waits in a call into C.
IT_WAITS = "(it waits in a call into C, and uses no processor)"
# Of a call that is over: it stayed in C, and no other thread of the process could run Python.
IT_KEPT_THE_LOCK = "(it stayed in a call into C and kept Python's interpreter lock)"
# Instead of a stack: no thread of the process ran at all.
IT_WAS_FROZEN = "(no thread of the process ran: it was stopped, swapped out or suspended)"


class Switch(StrEnum):
    """The place at which a snapshot that began aligned became unaligned."""

    INPUT = "input"  # The time-out was over before all of its barriers had arrived.
    OUTPUT = "output"  # The time-out was over while its own barrier waited for credit.
    UPSTREAM = "upstream"  # Its barrier had overtaken records before it came.


@dataclass(frozen=True, slots=True)
class GateAlignment:
    """The delivery of one barrier by the channels of one input gate, in channel order.

    Shape: all arrays have one entry per channel of the gate; ``in_flight`` may be empty instead.
    """

    gate_index: Index
    upstream: tuple[Word, ...]  # The sending subtask of each channel, as text.
    # After the first barrier of the subtask; None: ended.
    arrived_ms: tuple[MeasuredMs | None, ...]
    blocked_ms: tuple[MeasuredMs, ...]
    bytes_during: tuple[Count, ...]  # Bytes that came in between first and last barrier.
    # Bytes of records that were persisted since they came before a barrier that was missing at the
    # snapshot, as they came on the channel. Empty: none.
    in_flight: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """Durations and sizes of one operator subtask's snapshot."""

    start_delay_ms: MeasuredMs = 0.0  # Trigger to first barrier.
    alignment_ms: MeasuredMs = 0.0  # First to last barrier; 0 with a single channel.
    sync_ms: MeasuredMs = 0.0
    async_ms: MeasuredMs = 0.0
    bytes_processed_during_alignment: Count = 0
    bytes_persisted_in_flight: Count = 0
    state_size: Count = 0  # Full size of the operator's state.
    written_size: Count = 0  # The bytes of it that this checkpoint wrote.
    unaligned: bool = False
    records: Count = 0  # Taken in (by a source: emitted) since the attempt began; head only.
    # Event time at the barrier; head only. None: none yet.
    watermark_ms: EventTimeMs | None = None
    gates: tuple[GateAlignment, ...] = ()  # Head of a chain only.
    # Of those in flight: records that waited at the outputs, which belong to the sender's snapshot.
    bytes_persisted_at_outputs: Count = 0
    switched: Switch | None = None  # None: aligned, or unaligned from the start.
    switched_ms: MeasuredMs | None = None  # From the trigger until it became unaligned.


@dataclass(frozen=True, slots=True)
class OperatorAck:
    """One operator subtask's part of a chain's acknowledgement."""

    subtask: SubtaskId
    handles: tuple[StateHandle, ...] = ()
    metrics: SnapshotMetrics = SnapshotMetrics()


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A chain snapshotted its state for a checkpoint: one acknowledgement per operator in it."""

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    chain: SubtaskId
    operators: tuple[OperatorAck, ...]
    # For how long each operator's own part was written, in their order. Empty: not known.
    writing_ms: tuple[MeasuredMs, ...] = ()


@dataclass(frozen=True, slots=True)
class Declined:
    """A chain cannot snapshot its state for a checkpoint, for the given reason."""

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    chain: SubtaskId
    reason: FailureReason
    cause: Prose = ""


@dataclass(frozen=True, slots=True)
class SubtaskChanged:
    """A subtask (by the head of its chain) reached a status."""

    attempt: AttemptNumber
    chain: SubtaskId
    status: SubtaskStatus
    cause: Prose = ""  # FAILED only: the traceback.
    details: dict[str, Any] = field(default_factory=dict)  # E.g. restored bytes and time.


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A place in the code at which samples met a subtask at work."""

    operator: OperatorId  # The innermost operator of the chain on the stack.
    function: Word  # Of the innermost frame of the user's code; empty: there is none.
    file: Word
    line: Count
    share: Annotated[float, Between(0, 1)]  # Of the recent samples that met the subtask at work.


@dataclass(frozen=True, slots=True)
class ThreadsBeside:
    """Threads that user code started in a slot, over about two seconds."""

    lock_wait_ms: MeasuredMs  # Mean wait for the interpreter lock, of a thread that wakes.
    cpu_share: Annotated[float, Between(0, 1)]  # Of one processor, all of them; 1: or more.
    loop_share: Annotated[float, Between(0, 1)]  # The same of the slot's loop.
    function: Word  # Where they were met most; empty: in no code of the user's.
    file: Word
    line: Count


@dataclass(frozen=True, slots=True)
class SubtaskMetrics:
    """Counters of a subtask since the attempt began; they only grow within an attempt.

    Memory, calls and threads are no counters, but of now.

    *Busy* is the time in the subtask's own calls, known when a call is over; *back-pressured* the
    time in which output waited for credit; *idle* is the rest, in which the subtask had no input,
    or waited for its turn on the loop that it shares with the other subtasks of its slot. The wait
    for a processor lies within these three, wherever it came.
    """

    attempt: AttemptNumber
    chain: SubtaskId
    records_in: Count
    records_out: Count
    bytes_in: Count
    bytes_out: Count
    busy_ms: MeasuredMs
    idle_ms: MeasuredMs
    back_pressured_ms: MeasuredMs
    watermark_ms: EventTimeMs | None
    late_records: Count = 0
    bad_records: Count = 0  # Skipped or diverted, by what the operator's functions raised.
    cpu_wait_ms: MeasuredMs = 0  # Of its slot: ready to run while every processor was taken.
    memory_bytes: Count = 0  # Held by its slot's worker process now; 0: not known.
    # Of its slot's host: some thread there was ready to run while every processor was taken.
    cpu_pressure_ms: MeasuredMs = 0
    calls: tuple[SampledCall, ...] = ()  # Where it works most, of late; a few, the largest first.
    beside: ThreadsBeside | None = None  # In its slot; None: they used next to no processor.


@dataclass(frozen=True, slots=True)
class GateProgress:
    """Barriers that one input gate has received and awaits so far, in channel order.

    Shape: all arrays have one entry per channel of the gate. ``arrived_ms`` is None, on a channel
    that has not ended, while its barrier is awaited.
    """

    gate_index: Index
    upstream: tuple[Word, ...]  # The sending subtask of each channel, as text.
    arrived_ms: tuple[MeasuredMs | None, ...]  # After the first barrier of the subtask.
    blocked_ms: tuple[MeasuredMs, ...]  # So far.
    bytes_during: tuple[Count, ...]  # Bytes that came in since the first barrier.
    ended: tuple[bool, ...]  # The channel is complete and brings no barrier any more.


@dataclass(frozen=True, slots=True)
class AlignmentProgress:
    """A subtask still waits for barriers of a checkpoint; reported again while it lasts.

    Of several alignments in progress this is the oldest.
    """

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    chain: SubtaskId
    since_ms: PointMs  # Wall clock of the first barrier.
    waited_ms: MeasuredMs
    gates: tuple[GateProgress, ...]


@dataclass(frozen=True, slots=True)
class SubtaskStalled:
    """A loop has long been in one call of this subtask; reported again while the call lasts.

    The other subtasks of the slot wait as well. A call into C that keeps the interpreter lock, or a
    process that stands still, is reported once, when that is over.
    """

    attempt: AttemptNumber
    chain: SubtaskId
    since_ms: PointMs  # Wall clock.
    stalled_ms: MeasuredMs
    # The user's frames as in a traceback, innermost last; without any, all frames. A last line may
    # be ``IT_WAITS``, ``IT_KEPT_THE_LOCK`` or ``IT_WAS_FROZEN``.
    stack: Prose


# Reports that a subtask repeats: the newest of each class and chain supersedes those before it.
Measurement: TypeAlias = SubtaskMetrics | AlignmentProgress | SubtaskStalled
Report: TypeAlias = Acknowledged | Declined | SubtaskChanged | Measurement


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """To every slot: sources, and subtasks whose inputs ended, take this barrier.

    A subtask whose inputs all ended receives no barrier any more, so the trigger takes its place.
    """

    attempt: AttemptNumber
    barrier: CheckpointBarrier
    sources: tuple[SubtaskId, ...]


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """To every subtask: the checkpoint is durable; commit everything up to it."""

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    final: bool = False  # Taken after every subtask ended: commit, then finish.


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """To every subtask: the checkpoint is aborted; stop writing it and release its resources."""

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    latest_completed_id: CheckpointId | None = None


SubtaskCommand: TypeAlias = TriggerCheckpoint | CheckpointCompleted | CheckpointAborted


@dataclass(frozen=True, slots=True)
class CheckpointingStarted:
    """The job reached RUNNING: its subtasks have their state, and checkpoints may be taken.

    Units: ``first_delay_ms`` lies between the minimum pause and the interval, drawn at random so
    that many jobs started together do not checkpoint together.
    """

    attempt: AttemptNumber
    plan: CheckpointPlan
    first_delay_ms: DelayMs = 0  # Ignored where periodic checkpointing is off.
    restored_from: CheckpointId | None = None
    # The lineage of the restored checkpoint. Completed checkpoints beside it are abandoned from
    # here on, those on it are not (any more). Empty: none is abandoned.
    lineage: Lineage = UNKNOWN


@dataclass(frozen=True, slots=True)
class CheckpointingStopped:
    """The job left RUNNING and may come back; or checkpoints cannot be taken for now."""

    attempt: AttemptNumber
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job reached a final status; nothing is triggered any more."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A user or an operation requests a checkpoint or savepoint now."""

    request_id: Word  # Chosen by the requester; identifies a repeated request.
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    target: Word | None = None  # Savepoints: the directory to write to. None: the job's own.


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """A triggered checkpoint could not be prepared or sent to the sources."""

    checkpoint_id: CheckpointId
    cause: Prose


@dataclass(frozen=True, slots=True)
class CheckpointGivenUp:
    """The job master aborted a checkpoint, because the coordinator could not be reached.

    Its subtasks have been told already. A checkpoint that is finalizing cannot be given up.
    """

    attempt: AttemptNumber
    checkpoint_id: CheckpointId
    reason: FailureReason
    cause: Prose = ""


@dataclass(frozen=True, slots=True)
class TimeLost:
    """Coordinator and job could not reach each other; that time counts against no checkpoint."""

    away_ms: DelayMs


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """The manifest is durable: the checkpoint exists."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """The manifest was given up: a tombstone holds its key, or the outcome is unknown."""

    checkpoint_id: CheckpointId
    cause: Prose
    may_exist: bool = False  # Unknown whether it was written after all: no file may be deleted.


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """A chain subtask processed all its input and ended."""

    attempt: AttemptNumber
    chain: SubtaskId


@dataclass(frozen=True, slots=True)
class CheckpointsRestored:
    """The job's checkpoints in the storage, loaded before its first attempt under this driver."""

    completed: tuple[CompletedCheckpoint, ...]
    next_id: CheckpointId  # Beyond every id that was ever used, completed or not.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


CoordinatorEvent: TypeAlias = (
    Acknowledged
    | Declined
    | CheckpointingStarted
    | CheckpointingStopped
    | JobEnded
    | CheckpointRequested
    | TriggerFailed
    | CheckpointGivenUp
    | TimeLost
    | ManifestWritten
    | ManifestFailed
    | SubtaskFinished
    | CheckpointsRestored
    | Tick
)


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write the manifest from the stored acknowledgements, then report whether it is durable."""

    checkpoint: PendingCheckpoint


@dataclass(frozen=True, slots=True)
class RecordCompleted:
    """Record that the checkpoint completed, and answer its requester."""

    checkpoint: CompletedCheckpoint
    request: TriggerRequest


@dataclass(frozen=True, slots=True)
class RecordAborted:
    """Record why the checkpoint was aborted, and answer its requester."""

    checkpoint: PendingCheckpoint
    reason: FailureReason
    cause: Prose = ""


@dataclass(frozen=True, slots=True)
class CheckpointRefused:
    """Answer that a request was refused before it became a checkpoint."""

    request: TriggerRequest
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class DiscardHandles:
    """Delete the state that an acknowledgement of an aborted checkpoint names."""

    handles: tuple[StateHandle, ...]


@dataclass(frozen=True, slots=True)
class DiscardPending:
    """Drop the stored acknowledgements of an aborted checkpoint; delete the state they name."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Delete a completed checkpoint: its manifest first, then its files."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True)
class RecordAbandoned:
    """Record that the job went back behind these checkpoints; they are kept for a while."""

    checkpoint_ids: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class RecordReclaimed:
    """Record that these abandoned checkpoints are on the job's lineage again, and so retained."""

    checkpoint_ids: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints failed: end the attempt as if a subtask had failed."""

    attempt: AttemptNumber
    cause: Prose


CoordinatorCommand: TypeAlias = (
    SubtaskCommand
    | WriteManifest
    | RecordCompleted
    | RecordAborted
    | CheckpointRefused
    | DiscardHandles
    | DiscardPending
    | DiscardCheckpoint
    | RecordAbandoned
    | RecordReclaimed
    | FailJob
)

Message: TypeAlias = Report | CoordinatorEvent | CoordinatorCommand
