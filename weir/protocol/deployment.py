"""Messages between job master, slots and worker processes about an attempt.

A *slot* (the supervisor in a Spark task) registers and is told to start or stop worker processes. A
*worker process* belongs to one attempt: it reports the address where it listens, is deployed its
subtasks with their state, and from then on exchanges the reports and commands of ``messages``.
Losing the connection means losing the peer; there is no reconnecting within an attempt.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from weir.bounds import Word
from weir.ids import (
    AttemptNumber,
    CheckpointId,
    JobId,
    KeyGroupRange,
    OperatorId,
    StateHandle,
    SubtaskId,
)
from weir.protocol.inspection import Inspected, InspectSubtask
from weir.protocol.lineage import UNKNOWN, Lineage
from weir.protocol.slot_memory import CgroupMemory, MemoryLimit


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that must be equal on the driver and in every slot."""

    weir: Word
    python: Word  # major.minor
    pyarrow: Word


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a worker process listens for data connections."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """The means by which one end of a connection proves its identity to its job's other ends.

    On an encrypted network a certificate and its key, and the certificate of the job's authority,
    from which those of all peers must come; all three PEM. On a plain network a secret alone.
    """

    job_id: JobId
    identity: str  # ``weir.channels.identity``.
    secret: bytes = field(default=b"", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    authority: bytes = b""

    @property
    def is_encrypted(self) -> bool:
        """Whether they are those of an encrypted network."""
        return bool(self.certificate)


Secrets: TypeAlias = tuple[tuple[str, str], ...]  # Names and values of the job's secrets.


# Slot to job master.


@dataclass(frozen=True, slots=True)
class SlotRegistered:
    """A supervisor runs in a Spark task and is free."""

    slot_index: int
    spark_attempt: int  # Spark's task attempt id: a later one replaces an earlier one.
    host: str
    pid: int
    versions: Versions
    memory: CgroupMemory | None = None  # None: no cgroup of it has a limit.


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The worker process of an attempt has exited, or could not be started.

    ``pid`` is 0 where none was started. ``exit_code`` is negative for a signal, as in
    ``subprocess``; ``stderr_tail`` is for messages.
    """

    slot_index: int
    attempt: AttemptNumber
    pid: int
    exit_code: int
    stderr_tail: str = ""
    is_out_of_memory: bool = False  # The kernel killed a process of the slot's cgroup meanwhile.


@dataclass(frozen=True, slots=True)
class SlotHeartbeat:
    """The supervisor is alive."""

    slot_index: int


@dataclass(frozen=True, slots=True)
class SlotFailed:
    """The supervisor cannot serve, for example because the pipeline cannot be loaded there."""

    slot_index: int
    cause: str


# Job master to slot.


@dataclass(frozen=True, slots=True)
class SlotAccepted:
    """The slot is part of the job and loads its program, so that workers start warm.

    ``program`` is the cloudpickled ``(JobGraph, JobConfig)``, which the slot itself does not load.
    """

    job_id: JobId
    program: bytes
    secrets: Secrets = field(default=(), repr=False)  # To mask them in what workers print.
    keeps_copies: bool = False  # Of state files, on its machine.
    copies_directory: Word | None = None  # Its parent there; None: for temporary files.


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Run a fresh worker process for this attempt; kill any older one first.

    ``plan_slot`` is the slot of the plan that it serves: a spare slot replaces a lost one.
    """

    attempt: AttemptNumber
    plan_slot: int
    # Those of the worker process. None: the slot derives the attempt's secret from the job's.
    credentials: Credentials | None = None
    memory: MemoryLimit | None = None  # None: nothing limits it.


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Ask the attempt's worker process to stop; kill it after the grace."""

    attempt: AttemptNumber
    grace_ms: int = 2_000


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """The job is over for this slot: end the Spark task."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class DismissSlot:
    """Another Spark task has this slot's place: end at once, and do not be started anew."""


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
    """The worker's loop is alive: ``rounds`` grows with each round."""

    attempt: AttemptNumber
    slot_index: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Committed output for the driver; ``payload`` is rows as data (``weir.common.row_codec``)."""

    attempt: AttemptNumber
    subtask: SubtaskId
    checkpoint_id: CheckpointId  # 0 without checkpointing.
    payload: bytes = field(repr=False)


# Job master to worker process (besides messages.SubtaskCommand).


@dataclass(frozen=True, slots=True)
class RestoredHandle:
    """A state handle for one subtask, and the part of it that the subtask must read."""

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
    restored_storage: str | None  # The storage that holds its files, and
    restored_directory: str  # the directory there: a job's, or "" for a savepoint's own.
    restores: tuple[OperatorRestore, ...]  # Of the subtasks of this slot.
    max_parallelism: tuple[tuple[OperatorId, int], ...]  # Of every operator.
    lineage: Lineage = UNKNOWN  # Of the restored checkpoint; empty: from the beginning.
    # Whether sinks withdraw output that was committed beside that lineage, and put back what is on
    # it. False: a rollback that keeps the output as it is.
    rewinds_output: bool = True
    # The job that took the restored checkpoint, where this one's sinks commit its waiting output,
    # since that job no longer does.
    adopts: JobId | None = None
    # The restored savepoint was taken to stop the job, which is to end: commit and finish.
    completes_stop: bool = False
    # The directories of sinks in which the driver claimed the attempt: every machine has to see it.
    claimed_output: tuple[str, ...] = ()
    # The driver's clock, which the worker process uses from then on. None: its own clock.
    sent_at_ms: int | None = None
    secrets: Secrets = field(default=(), repr=False)  # Held in memory only.

    @property
    def reads_files(self) -> bool:
        """Whether some of the restored state lies in files."""
        pieces = (piece for restore in self.restores for piece in restore.handles)
        return any(piece.handle.path is not None for piece in pieces)


@dataclass(frozen=True, slots=True)
class StopProcess:
    """Close everything and exit: the attempt is over."""

    attempt: AttemptNumber


SlotReport: TypeAlias = SlotRegistered | WorkerExited | SlotHeartbeat | SlotFailed
SlotCommand: TypeAlias = SlotAccepted | StartWorker | StopWorker | ReleaseSlot | DismissSlot
WorkerReport: TypeAlias = WorkerReady | WorkerHeartbeat | Delivered | Inspected
WorkerCommand: TypeAlias = Deploy | InspectSubtask | StopProcess
