"""Names and tones of states on the pages; the only place that defines them.

A tone is a colour and a sign in the style sheet: ``good``, ``busy`` (something is under way),
``warn`` (needs a look soon), ``bad`` (needs a look now), ``idle`` and ``done``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from checkpoints.conditions.judge import Condition
from controlplane.deliveries.machine import DeliveryStatus
from jobs.models import DriverStatus, OperationKind, OperationStatus
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus
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
    JobStatus.CANCELED: Label("Cancelled", "idle", "Cancelled on request, without a savepoint."),
}

PLANNED_RESTART = Label(
    "Restarting", "busy", "As requested: the attempt ended, and the next one is about to start."
)

CHECKPOINT: Mapping[CheckpointStatus, Label] = {
    CheckpointStatus.PENDING: Label(
        "In progress", "busy", "Barriers are under way; not all subtasks have acknowledged."
    ),
    CheckpointStatus.FINALIZING: Label(
        "Finalizing", "busy", "All subtasks acknowledged; the manifest is being written."
    ),
    CheckpointStatus.COMPLETED: Label("Completed", "good", "Jobs can be restored from it."),
    CheckpointStatus.FAILED: Label("Failed", "bad", "It cannot be restored."),
    CheckpointStatus.ABORTED: Label(
        "Aborted",
        "idle",
        "It ended before it completed, and nothing failed. It cannot be restored.",
    ),
    CheckpointStatus.SUBSUMED: Label(
        "Completed, subsumed", "done", "It completed; a newer checkpoint subsumed it."
    ),
    CheckpointStatus.DISCARDED: Label(
        "Completed, discarded", "done", "It completed; its files have been deleted."
    ),
}

SUBTASK: Mapping[SubtaskStatus, Label] = {
    SubtaskStatus.DEPLOYING: Label("Deploying", "busy"),
    SubtaskStatus.INITIALIZING: Label("Restoring", "busy", "Its state is being restored."),
    SubtaskStatus.RUNNING: Label("Running", "good"),
    SubtaskStatus.ENDED: Label(
        "Ended", "done", "All its input is processed; it still takes part in checkpoints."
    ),
    SubtaskStatus.FINISHED: Label("Finished", "done", "All that it committed is durable."),
    SubtaskStatus.FAILED: Label("Failed", "bad"),
    SubtaskStatus.CANCELED: Label("Stopped", "idle", "Its attempt ended before it did."),
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
    OperationKind.UPGRADE: "Upgrade",
    OperationKind.FORK: "Fork",
    OperationKind.DISCARD: "Delete savepoint",
    OperationKind.PREVIEW: "Preview",
    OperationKind.COMPARE: "Comparison",
}

PHASE: Mapping[Phase, str] = {
    Phase.ACCEPTED: "about to begin",
    Phase.CHECKING: "checking the new pipeline",
    Phase.SAVING: "taking a savepoint",
    Phase.ENDING: "savepoint taken, the job is ending",
    Phase.LAUNCH_DUE: "the job has ended, and is about to be launched",
    Phase.RELAUNCHING: "a new driver is taking over",
    Phase.FORKING: "the new job is coming up",
    Phase.RETURN_DUE: "it did not come to run; the job is about to be taken back",
    Phase.RETURNING: "it did not come to run; the job is being taken back",
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

# Endpoints and deliveries of alerts.
ENDPOINT: Mapping[str, Label] = {
    "ok": Label("Ready", "good", "Its last attempt succeeded, or it has had none yet."),
    "failing": Label("Failing", "warn", "Its last attempt failed; the next one rests for a while."),
    "disabled": Label("Disabled", "idle", "It gets no new notices."),
}
ENDPOINT_GIVEN_UP = Label("Disabled", "bad", "Weir disabled it; an admin can enable it again.")

DELIVERY: Mapping[DeliveryStatus, Label] = {
    DeliveryStatus.PENDING: Label("Waiting", "busy", "It waits for its turn."),
    DeliveryStatus.DELIVERED: Label("Delivered", "good", "The endpoint took it."),
    DeliveryStatus.GIVEN_UP: Label("Given up", "bad", "It is not tried again by itself."),
}
DELIVERY_FLYING = Label("Under way", "busy", "An attempt is under way.")
DELIVERY_RETRIED = Label("Retrying", "warn", "The last attempt failed; another one follows.")

NOTICE: Mapping[str, str] = {"firing": "Firing", "resolved": "Resolved", "test": "Test"}
SEVERITY: Mapping[str, str] = {"critical": "bad", "warning": "warn", "info": "busy"}  # Tones.

RULE: Mapping[str, Label] = {
    "active": Label("Active", "good", "It is evaluated every few seconds."),
    "disabled": Label("Disabled", "idle", "It fires no alerts."),
    "set_aside": Label("Set aside", "bad", "It could not be evaluated; a change tries it again."),
}
SILENCE: Mapping[str, Label] = {
    "planned": Label("Planned", "idle", "It has not begun."),
    "active": Label("Active", "busy", "It holds notices back now."),
    "over": Label("Over", "done"),
}


def of_job(status: str, *, is_planned: bool = False) -> dict[str, str]:
    """The label of a job's status; a restart that was asked for is no trouble."""
    label = JOB[JobStatus(status)]
    if is_planned and status == JobStatus.RESTARTING:
        label = PLANNED_RESTART
    return label.as_json(status)


def of_checkpoint(status: str) -> dict[str, str]:
    """The label of a checkpoint's status."""
    return CHECKPOINT[CheckpointStatus(status)].as_json(status)


def of_subtask(status: str) -> dict[str, str]:
    """The label of a subtask's status."""
    return SUBTASK[SubtaskStatus(status)].as_json(status)


def of_driver(status: str, *, is_silent: bool) -> dict[str, str]:
    """The label of a driver's status; a live driver that does not report is silent."""
    label = SILENT_DRIVER if is_silent else DRIVER[DriverStatus(status)]
    return label.as_json(status)


def of_operation(status: str) -> dict[str, str]:
    """The label of an operation's status."""
    return OPERATION[OperationStatus(status)].as_json(status)


def of_conditions(conditions: Iterable[Condition]) -> list[dict[str, str]]:
    """Conditions that need attention, with the tones of their severities."""
    return [{"tone": one.severity.value, "text": one.text} for one in conditions]


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


def of_endpoint(state: str, *, is_by_weir: bool) -> dict[str, str]:
    """The label of an endpoint's state.

    Args:
        is_by_weir: Weir disabled it, because it failed.
    """
    label = ENDPOINT_GIVEN_UP if state == "disabled" and is_by_weir else ENDPOINT[state]
    return label.as_json(state)


def of_delivery(status: str, *, is_flying: bool, is_retried: bool) -> dict[str, str]:
    """The label of a delivery's status; one that is pending may have failed before."""
    label = DELIVERY[DeliveryStatus(status)]
    if status == DeliveryStatus.PENDING and (is_flying or is_retried):
        label = DELIVERY_FLYING if is_flying else DELIVERY_RETRIED
    return label.as_json(status)


def of_notice(status: str, severity: str) -> dict[str, str]:
    """The label of a notice: in the tone of its severity while the alert is firing."""
    tone = {"resolved": "done", "test": "idle"}.get(status) or SEVERITY[severity]
    return Label(NOTICE[status], tone).as_json(status)


def of_rule(state: str) -> dict[str, str]:
    """The label of a rule's state."""
    return RULE[state].as_json(state)


def of_silence(state: str) -> dict[str, str]:
    """The label of a silence's state."""
    return SILENCE[state].as_json(state)
