"""The closed sets of values of the rows of jobs."""

from typing import Any

from django.db import models

from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus


def enum_choices(enum: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


RECOVERY_TARGET_S_MIN = 0.001
RECOVERY_TARGET_S_MAX = 2_592_000  # 30 days, as limits of rules.
FINAL_JOB_STATUSES = tuple(status.value for status in JobStatus if status not in JOB_TRANSITIONS)


class DesiredState(models.TextChoices):
    """The state that a job is meant to be in."""

    RUNNING = "running"  # Until its input ends, or its restart strategy gives up.
    CANCELED = "canceled"


class PipelineKind(models.TextChoices):
    """The source of a job's pipeline."""

    SCRIPT = "script"  # A file below one of the configured script roots.
    MODULE = "module"  # A module that the drivers' Python can import.
    UPLOAD = "upload"  # An artifact.


class DriverStatus(models.TextChoices):
    """The status of a driver, one launched Spark application."""

    REQUESTED = "requested"  # To be started by a launcher.
    STARTING = "starting"  # Claimed by a launcher; its first request is awaited.
    RUNNING = "running"  # It has sent a request.
    LOST = "lost"  # Its process ended, it was silent for too long, or it never came up.
    ENDED = "ended"  # Its job ended, or it was told to stop.


LIVE_DRIVERS = (DriverStatus.REQUESTED, DriverStatus.STARTING, DriverStatus.RUNNING)


class OperationKind(models.TextChoices):
    """The kinds of requests about a job that take time."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    CHECKPOINT = "checkpoint"
    RESTART = "restart"
    SAVEPOINT = "savepoint"
    STOP = "stop"  # With a savepoint.
    ROLLBACK = "rollback"
    RESCALE = "rescale"
    UPGRADE = "upgrade"
    FORK = "fork"
    DISCARD = "discard"  # A savepoint is deleted.
    PREVIEW = "preview"  # The effects of a restore or a rollback.
    COMPARE = "compare"  # The outputs of two jobs are compared.


class OperationStatus(models.TextChoices):
    """The status of an operation; the last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # Overtaken by another one, such as a submit by a cancel.
    EXPIRED = "expired"  # Its deadline passed first.


OPEN_OPERATIONS = (OperationStatus.PENDING, OperationStatus.RUNNING)


class AttemptEnd(models.TextChoices):
    """The ends of an attempt; all but the first are planned."""

    FAILED = "failed"
    FINISHED = "finished"
    CANCELED = "canceled"  # A user asked for it: as by a cancellation, a restart or a rollback.
    SUSPENDED = "suspended"  # The control plane stopped; the job goes on when it is back.


class JobEventKind(models.TextChoices):
    """The kinds of facts that are recorded about a job."""

    CHECKPOINT_COMPLETED = "checkpoint.completed"
    CHECKPOINT_FAILED = "checkpoint.failed"
    CHECKPOINT_EXPIRED = "checkpoint.expired"  # It failed by its timeout.
    CHECKPOINT_ABORTED = "checkpoint.aborted"  # By a planned end.
    ATTEMPT_BEGAN = "attempt.began"
    ATTEMPT_ENDED = "attempt.ended"
    JOB_CHANGED = "job.changed"  # Its status.
    OPERATION_ENDED = "operation.ended"
    DRIVER_LOST = "driver.lost"
