"""What states are called on the pages, and which tone they have: the one place that knows.

A tone is a colour and a sign in the style sheet: ``good``, ``busy`` (something is under way),
``warn`` (look when you can), ``bad`` (look now), ``idle`` and ``done``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from jobs.models import DriverStatus, OperationKind, OperationStatus
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus
from weir.protocol.operations import Phase


@dataclass(frozen=True, slots=True)
class Label:
    """A state in words, its tone, and a sentence for who wants to know more."""

    text: str
    tone: str
    help: str = ""

    def as_json(self, value: str) -> dict[str, str]:
        """As a page gets it, with the state's own name beside it."""
        return {"value": value} | asdict(self)


TONES = ("good", "busy", "warn", "bad", "idle", "done")

JOB: Mapping[JobStatus, Label] = {
    JobStatus.CREATED: Label("Starting", "busy", "Submitted; its driver is being launched."),
    JobStatus.INITIALIZING: Label(
        "Deploying", "busy", "Slots are coming; subtasks are deployed and get their state back."
    ),
    JobStatus.RUNNING: Label("Running", "good", "All subtasks run."),
    JobStatus.FAILING: Label("Failing", "bad", "An attempt failed; its subtasks are stopped."),
    JobStatus.RESTARTING: Label("Restarting", "warn", "It failed and comes back after a delay."),
    JobStatus.CANCELLING: Label("Cancelling", "busy", "Its subtasks are being stopped."),
    JobStatus.FINISHED: Label("Finished", "done", "All input is processed and committed."),
    JobStatus.FAILED: Label("Failed", "bad", "It ended with an error and does not come back."),
    JobStatus.CANCELED: Label("Canceled", "idle", "Somebody ended it."),
}

CHECKPOINT: Mapping[CheckpointStatus, Label] = {
    CheckpointStatus.PENDING: Label(
        "In progress", "busy", "Its barriers travel; acknowledgements are outstanding."
    ),
    CheckpointStatus.FINALIZING: Label(
        "Finalizing", "busy", "All acknowledged; its manifest is being written."
    ),
    CheckpointStatus.COMPLETED: Label("Completed", "good", "It may be restored from."),
    CheckpointStatus.ABORTED: Label("Failed", "bad", "It was given up; nothing is restored of it."),
    CheckpointStatus.SUBSUMED: Label(
        "Completed, subsumed", "done", "It completed; a newer one took its place."
    ),
    CheckpointStatus.DISCARDED: Label(
        "Completed, discarded", "done", "It completed; its files are deleted."
    ),
}

DRIVER: Mapping[DriverStatus, Label] = {
    DriverStatus.REQUESTED: Label("Waiting for a launcher", "busy"),
    DriverStatus.STARTING: Label("Starting", "busy", "Launched; its first word is awaited."),
    DriverStatus.RUNNING: Label("Running", "good"),
    DriverStatus.LOST: Label("Lost", "bad", "Gone, silent for too long, or never came up."),
    DriverStatus.ENDED: Label("Ended", "idle"),
}

SILENT_DRIVER = Label("Silent", "warn", "It has not been heard of for a while.")

OPERATION: Mapping[OperationStatus, Label] = {
    OperationStatus.PENDING: Label("Waiting", "busy"),
    OperationStatus.RUNNING: Label("Under way", "busy"),
    OperationStatus.SUCCEEDED: Label("Done", "good"),
    OperationStatus.FAILED: Label("Failed", "bad"),
    OperationStatus.CANCELLED: Label("Overtaken", "idle", "Another operation took its place."),
    OperationStatus.EXPIRED: Label("Timed out", "bad", "Its deadline passed first."),
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

# What savepoints are tagged with.
SAVEPOINT_KIND: Mapping[str, str] = {
    CheckpointKind.SAVEPOINT: "",
    CheckpointKind.STOP_SUSPEND: "stopped here",
    CheckpointKind.STOP_DRAIN: "drained",
}
SAVEPOINT_WAITS = Label("Asked for", "busy", "Its barriers have not been sent yet.")
SAVEPOINT_DELETED = Label("Being deleted", "busy", "Its files are being deleted.")

REASON: Mapping[FailureReason, str] = {
    FailureReason.PERIODIC_SCHEDULER_SHUTDOWN: "periodic checkpoints were switched off",
    FailureReason.TOO_MANY_CHECKPOINT_REQUESTS: "too many requests were waiting",
    FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS: "the minimum pause was not over",
    FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING: "not all subtasks were running",
    FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN: "the job ended",
    FailureReason.IO_EXCEPTION: "reading or writing failed",
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION: "saving the state failed",
    FailureReason.CHECKPOINT_EXPIRED: "timed out before all subtasks acknowledged",
    FailureReason.CHECKPOINT_DECLINED: "a subtask declined it",
    FailureReason.FINALIZE_CHECKPOINT_FAILURE: "its manifest could not be written",
    FailureReason.CHECKPOINT_SUBSUMED: "a newer one completed first",
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
    """A job's status for a page."""
    return JOB[JobStatus(status)].as_json(status)


def of_checkpoint(status: str) -> dict[str, str]:
    """A checkpoint's status for a page."""
    return CHECKPOINT[CheckpointStatus(status)].as_json(status)


def of_driver(status: str, *, is_silent: bool) -> dict[str, str]:
    """A driver's status for a page; a live one that says nothing is silent."""
    label = SILENT_DRIVER if is_silent else DRIVER[DriverStatus(status)]
    return label.as_json(status)


def of_operation(status: str) -> dict[str, str]:
    """An operation's status for a page."""
    return OPERATION[OperationStatus(status)].as_json(status)


def of_savepoint(checkpoint_status: str | None, *, is_deleted: bool) -> dict[str, str]:
    """A savepoint's status for a page: that of its checkpoint, if it has one already."""
    if is_deleted:
        return SAVEPOINT_DELETED.as_json("deleted")
    if checkpoint_status is None:
        return SAVEPOINT_WAITS.as_json("waiting")
    return of_checkpoint(checkpoint_status)


def phase_text(kind: str, phase: str | None) -> str:
    """What an operation of several steps waits for; empty for nothing."""
    if phase is None:
        return ""
    if phase == Phase.SAVING and kind == OperationKind.RESCALE:
        return "taking a checkpoint"
    return PHASE[Phase(phase)]


def reason_text(reason: str) -> str:
    """Why a checkpoint failed, in words; empty for none."""
    return REASON[FailureReason(reason)] if reason else ""
