"""What job master, slots and worker processes tell one another about an attempt.

A *slot* (the supervisor in a Spark task) registers and is told to start or stop worker processes. A
*worker process* belongs to one attempt: it says where it listens, is handed its subtasks with their
state, and from then on exchanges the reports and commands of ``messages``. Losing the connection
means losing the peer; there is no reconnecting within an attempt.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.ids import (
    AttemptNumber,
    CheckpointId,
    JobId,
    KeyGroupRange,
    OperatorId,
    StateHandle,
    SubtaskId,
)
from weir.protocol.lineage import UNKNOWN, Lineage


@dataclass(frozen=True, slots=True)
class Versions:
    """What must be equal on the driver and in every slot."""

    weir: str
    python: str  # major.minor
    pyarrow: str


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker process listens for data connections."""

    host: str
    port: int


# Slot to job master.


@dataclass(frozen=True, slots=True)
class SlotRegistered:
    """A supervisor runs in a Spark task and is free."""

    slot_index: int
    spark_attempt: int  # Spark's task attempt id: a later one replaces an earlier one.
    host: str
    pid: int
    versions: Versions


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The worker process of an attempt is gone.

    ``exit_code`` is negative for a signal, as in ``subprocess``; ``stderr_tail`` helps the reader.
    """

    slot_index: int
    attempt: AttemptNumber
    pid: int
    exit_code: int
    stderr_tail: str = ""


@dataclass(frozen=True, slots=True)
class SlotHeartbeat:
    """The supervisor is alive."""

    slot_index: int


@dataclass(frozen=True, slots=True)
class SlotFailed:
    """The supervisor cannot serve: the pipeline cannot be loaded there, say."""

    slot_index: int
    cause: str


# Job master to slot.


@dataclass(frozen=True, slots=True)
class SlotAccepted:
    """The slot is part of the job; load its program so that workers start warm.

    ``program`` is the cloudpickled ``(JobGraph, JobConfig)``.
    """

    job_id: JobId
    program: bytes


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Run a fresh worker process for this attempt; kill any older one first.

    ``plan_slot`` is the slot of the plan that it becomes: a spare takes a lost one's place.
    """

    attempt: AttemptNumber
    plan_slot: int
    secret: bytes = field(repr=False)  # Authenticates all connections of the attempt.


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Ask the attempt's worker process to stop; kill it after the grace."""

    attempt: AttemptNumber
    grace_ms: int = 2_000


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """The job is over for this slot: end the Spark task."""

    reason: str = ""


# Worker process to job master (besides messages.Report).


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker process runs and listens."""

    attempt: AttemptNumber
    slot_index: int  # Of the plan.
    pid: int
    address: Address


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """The worker's loop came round: ``rounds`` grows while it does."""

    attempt: AttemptNumber
    slot_index: int
    rounds: int
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """Committed output for the driver; ``payload`` is a pickle made by the worker."""

    attempt: AttemptNumber
    subtask: SubtaskId
    checkpoint_id: CheckpointId  # 0 without checkpointing.
    payload: bytes = field(repr=False)


# Job master to worker process (besides messages.SubtaskCommand).


@dataclass(frozen=True, slots=True)
class RestoredHandle:
    """A piece of state for one subtask, and which part of it the subtask must read."""

    handle: StateHandle
    key_groups: KeyGroupRange | None = None  # Keyed state: keep these groups.
    share: tuple[int, int] | None = None  # Split list state: keep items i with i % [1] == [0].


@dataclass(frozen=True, slots=True)
class OperatorRestore:
    """All restored pieces of one operator subtask."""

    subtask: SubtaskId
    handles: tuple[RestoredHandle, ...]


@dataclass(frozen=True, slots=True)
class Deploy:
    """Build the subtasks of this slot, restore them, connect them and run them."""

    attempt: AttemptNumber
    job_id: JobId
    slot_addresses: tuple[Address, ...]  # By slot of the plan.
    storage: str | None  # None: only inline state.
    restored_checkpoint: CheckpointId | None
    restored_storage: str | None  # Where its files are, and
    restored_directory: str  # in which directory of that: a job's, or "" for a savepoint's own.
    restores: tuple[OperatorRestore, ...]  # Of the subtasks of this slot.
    max_parallelism: tuple[tuple[OperatorId, int], ...]  # Of every operator.
    lineage: Lineage = UNKNOWN  # Of the restored checkpoint; empty: from the beginning.
    # Whether sinks take back what they committed beside that line, and put back what is on it.
    # False: somebody went back and wants the output to stay.
    rewinds_output: bool = True
    # The job whose output this one's sinks commit where it waits since the restored checkpoint:
    # another job's, which no longer does that itself.
    adopts: JobId | None = None
    # The restored savepoint was taken to stop the job, and the job is meant to end: commit and
    # finish.
    completes_stop: bool = False
    # The driver's clock, by which the worker process goes from then on. None: by its own.
    sent_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StopProcess:
    """Close everything and exit: the attempt is over."""

    attempt: AttemptNumber


SlotReport: TypeAlias = SlotRegistered | WorkerExited | SlotHeartbeat | SlotFailed
SlotCommand: TypeAlias = SlotAccepted | StartWorker | StopWorker | ReleaseSlot
WorkerReport: TypeAlias = WorkerReady | WorkerHeartbeat | Delivered
WorkerCommand: TypeAlias = Deploy | StopProcess
