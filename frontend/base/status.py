"""Names and tones of states on the pages; the only place that defines them.

A tone is a colour and a sign in the style sheet: ``good``, ``busy`` (something is under way),
``warn`` (needs a look soon), ``bad`` (needs a look now), ``idle`` and ``done``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from jobs.models import DriverStatus, OperationKind, OperationStatus
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus
from weir.protocol.operations import Phase


@dataclass(frozen=True, slots=True)
class Label:
    """A state in words, its tone, and a sentence of explanation."""

    text: str
    tone: str
    help: str = ""

    def as_json(self, value: str) -> dict[str, str]:
        """The label as JSON, with the state's own name as ``value``."""
        return {"value": value} | asdict(self)


TONES = ("good", "busy", "warn", "bad", "idle", "done")

JOB: Mapping[JobStatus, Label] = {
    JobStatus.CREATED: Label("Starting", "busy", "Submitted; its driver is being launched."),
    JobStatus.INITIALIZING: Label(
        "Deploying", "busy", "Waiting for slots, deploying subtasks and restoring their state."
    ),
    JobStatus.RUNNING: Label("Running", "good", "All subtasks are running."),
    JobStatus.FAILING: Label(
        "Failing", "bad", "An attempt failed; its subtasks are being stopped."
    ),
    JobStatus.RESTARTING: Label(
        "Restarting", "warn", "An attempt ended; the next one is about to start."
    ),
    JobStatus.CANCELLING: Label("Cancelling", "busy", "The subtasks are being stopped."),
    JobStatus.FINISHED: Label(
        "Finished", "done", "The sources ended or the job was stopped; all output is committed."
    ),
    JobStatus.FAILED: Label(
        "Failed", "bad", "The job ended with an error and is not restarted automatically."
    ),
    JobStatus.CANCELED: Label("Canceled", "idle", "Cancelled on request, without a savepoint."),
}

CHECKPOINT: Mapping[CheckpointStatus, Label] = {
    CheckpointStatus.PENDING: Label(
        "In progress", "busy", "Barriers are under way; not all subtasks have acknowledged."
    ),
    CheckpointStatus.FINALIZING: Label(
        "Finalizing", "busy", "All subtasks acknowledged; the manifest is being written."
    ),
    CheckpointStatus.COMPLETED: Label("Completed", "good", "Jobs can be restored from it."),
    CheckpointStatus.ABORTED: Label("Failed", "bad", "Aborted: it cannot be restored."),
    CheckpointStatus.SUBSUMED: Label(
        "Completed, subsumed", "done", "It completed; a newer checkpoint subsumed it."
    ),
    CheckpointStatus.DISCARDED: Label(
        "Completed, discarded", "done", "It completed; its files have been deleted."
    ),
}

DRIVER: Mapping[DriverStatus, Label] = {
    DriverStatus.REQUESTED: Label("Waiting for a launcher", "busy"),
    DriverStatus.STARTING: Label("Starting", "busy", "Launched; it has not reported yet."),
    DriverStatus.RUNNING: Label("Running", "good"),
    DriverStatus.LOST: Label(
        "Lost", "bad", "Its process ended, was silent for too long, or never reported."
    ),
    DriverStatus.ENDED: Label("Ended", "idle"),
}

SILENT_DRIVER = Label("Silent", "warn", "The driver has not reported for a while.")

OPERATION: Mapping[OperationStatus, Label] = {
    OperationStatus.PENDING: Label("Waiting", "busy"),
    OperationStatus.RUNNING: Label("Under way", "busy"),
    OperationStatus.SUCCEEDED: Label("Done", "good"),
    OperationStatus.FAILED: Label("Failed", "bad"),
    OperationStatus.CANCELLED: Label("Superseded", "idle", "Another operation replaced it."),
    OperationStatus.EXPIRED: Label("Timed out", "bad", "Its deadline passed before it was done."),
}

OPERATION_KIND: Mapping[OperationKind, str] = {
    OperationKind.SUBMIT: "Submit",
    OperationKind.CANCEL: "Cancel",
    OperationKind.CHECKPOINT: "Checkpoint",
    OperationKind.RESTART: "Restart",
    OperationKind.SAVEPOINT: "Savepoint",
    OperationKind.STOP: "Stop",
    OperationKind.ROLLBACK: "Rollback",
    OperationKind.RESCALE: "Rescale",
    OperationKind.FORK: "Fork",
    OperationKind.DISCARD: "Delete savepoint",
    OperationKind.PREVIEW: "Preview",
    OperationKind.COMPARE: "Comparison",
}

PHASE: Mapping[Phase, str] = {
    Phase.ACCEPTED: "about to begin",
    Phase.SAVING: "taking a savepoint",
    Phase.ENDING: "savepoint taken, the job is ending",
    Phase.RELAUNCHING: "a new driver is taking over",
    Phase.DONE: "",
}

# The tags of savepoints.
SAVEPOINT_KIND: Mapping[str, str] = {
    CheckpointKind.SAVEPOINT: "",
    CheckpointKind.STOP_SUSPEND: "stopped here",
    CheckpointKind.STOP_DRAIN: "drained",
}
SAVEPOINT_WAITS = Label("Requested", "busy", "Its barriers have not been sent yet.")
SAVEPOINT_DELETED = Label("Being deleted", "busy", "Its files are being deleted.")

REASON: Mapping[FailureReason, str] = {
    FailureReason.PERIODIC_SCHEDULER_SHUTDOWN: "periodic checkpoints were switched off",
    FailureReason.TOO_MANY_CHECKPOINT_REQUESTS: "too many checkpoint requests were waiting",
    FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS: "the minimum pause was not over",
    FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING: "not all subtasks were running",
    FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN: "the job ended",
    FailureReason.IO_EXCEPTION: "reading or writing failed",
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION: "writing a snapshot failed",
    FailureReason.CHECKPOINT_EXPIRED: "timed out before all subtasks acknowledged",
    FailureReason.CHECKPOINT_DECLINED: "a subtask declined it",
    FailureReason.FINALIZE_CHECKPOINT_FAILURE: "its manifest could not be written",
    FailureReason.CHECKPOINT_SUBSUMED: "a newer checkpoint completed first",
    FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY: "a subtask was not ready",
    FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING: "a subtask was closing",
    FailureReason.CHECKPOINT_DECLINED_SUBSUMED: "a newer barrier arrived first",
    FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: "a subtask upstream cancelled it",
    FailureReason.CHECKPOINT_COORDINATOR_SUSPEND: "checkpoints were suspended",
    FailureReason.JOB_FAILOVER: "the job was recovering from a failure",
    FailureReason.TASK_FAILURE: "a subtask failed",
    FailureReason.CONTROL_PLANE_AWAY: "the control plane could not be reached",
}


def of_job(status: str) -> dict[str, str]:
    """The label of a job's status."""
    return JOB[JobStatus(status)].as_json(status)


def of_checkpoint(status: str) -> dict[str, str]:
    """The label of a checkpoint's status."""
    return CHECKPOINT[CheckpointStatus(status)].as_json(status)


def of_driver(status: str, *, is_silent: bool) -> dict[str, str]:
    """The label of a driver's status; a live driver that does not report is silent."""
    label = SILENT_DRIVER if is_silent else DRIVER[DriverStatus(status)]
    return label.as_json(status)


def of_operation(status: str) -> dict[str, str]:
    """The label of an operation's status."""
    return OPERATION[OperationStatus(status)].as_json(status)


def of_savepoint(checkpoint_status: str | None, *, is_deleted: bool) -> dict[str, str]:
    """The label of a savepoint's status: that of its checkpoint, once it has one."""
    if is_deleted:
        return SAVEPOINT_DELETED.as_json("deleted")
    if checkpoint_status is None:
        return SAVEPOINT_WAITS.as_json("waiting")
    return of_checkpoint(checkpoint_status)


def phase_text(kind: str, phase: str | None) -> str:
    """The phase of an operation of several steps, in words; empty without one."""
    if phase is None:
        return ""
    if phase == Phase.SAVING and kind == OperationKind.RESCALE:
        return "taking a checkpoint"
    return PHASE[Phase(phase)]


def reason_text(reason: str) -> str:
    """The reason of a checkpoint's failure, in words; empty for none."""
    return REASON[FailureReason(reason)] if reason else ""
