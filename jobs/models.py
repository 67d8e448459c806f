"""Rows of jobs. The lock on a job's row is the one lock of everything that belongs to the job.

::

    Artifact <── Job ──< Driver ──< Attempt ──< Worker
                  ├──< Operator, Edge         the submitted graph, once its pipeline built it
                  ├──< Subtask                where each one stands now
                  ├──< JobException
                  ├──< Operation
                  └──< OutboxCommand          to the newest driver
    ControlPlanePulse                         one row

Only the services (``jobs.services``, ``jobs.operations``, ``jobs.drivers``, ``jobs.events``) write.
"""

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus, SubtaskStatus


def _choices(enum: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


FINAL_JOB_STATUSES = tuple(status.value for status in JobStatus if status not in JOB_TRANSITIONS)


class DesiredState(models.TextChoices):
    """What a job is meant to be."""

    RUNNING = "running"  # Until its input ends, or it cannot go on.
    CANCELED = "canceled"


class PipelineKind(models.TextChoices):
    """Where a job's pipeline comes from."""

    SCRIPT = "script"  # A file below one of the configured script roots.
    MODULE = "module"  # A module that the drivers' Python can import.
    UPLOAD = "upload"  # An artifact.


class DriverStatus(models.TextChoices):
    """Where a launched Spark application stands."""

    REQUESTED = "requested"  # To be started by a launcher.
    STARTING = "starting"  # A launcher has it; its first word is awaited.
    RUNNING = "running"  # It has spoken.
    LOST = "lost"  # Gone, silent for too long, or never came up.
    ENDED = "ended"  # Its job ended, or it was told to go.


LIVE_DRIVERS = (DriverStatus.REQUESTED, DriverStatus.STARTING, DriverStatus.RUNNING)


class OperationKind(models.TextChoices):
    """What can be asked of a job that takes time."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    CHECKPOINT = "checkpoint"
    RESTART = "restart"
    SAVEPOINT = "savepoint"
    STOP = "stop"  # With a savepoint.
    ROLLBACK = "rollback"
    RESCALE = "rescale"
    FORK = "fork"
    DISCARD = "discard"  # A savepoint is deleted.
    PREVIEW = "preview"  # Of a restore or a rollback.
    COMPARE = "compare"  # The outputs of two jobs.


class OperationStatus(models.TextChoices):
    """Where an operation stands; the last four are its end."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # Overtaken by another one, such as a submit by a cancel.
    EXPIRED = "expired"  # Its deadline passed first.


OPEN_OPERATIONS = (OperationStatus.PENDING, OperationStatus.RUNNING)


class Artifact(models.Model):
    """An uploaded pipeline, kept once by what it contains."""

    digest = models.CharField(max_length=64, primary_key=True)  # SHA-256, hex.
    file_name = models.CharField(max_length=200)  # As it was called; never part of a path.
    size = models.BigIntegerField()
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    uploaded_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.file_name} ({self.digest[:12]})"


class Job(models.Model):
    """A pipeline that was submitted, and what has become of it."""

    id = models.CharField(primary_key=True, max_length=120)  # Also its directory in the storage.
    name = models.CharField(max_length=100)
    pipeline_kind = models.CharField(max_length=16, choices=PipelineKind)
    pipeline_target = models.CharField(max_length=500)  # Path, module, or the artifact's file name.
    artifact = models.ForeignKey(Artifact, null=True, blank=True, on_delete=models.PROTECT)
    options = models.JSONField(default=dict)  # weir's ExecutionOptions, as submitted.
    spark_master = models.CharField(max_length=200)
    spark_conf = models.JSONField(default=dict)
    storage = models.CharField(max_length=500)  # Root of its checkpoints.

    # Where the next driver begins, until the job has completed a checkpoint of its own from there;
    # empty: the newest checkpoint of the job.
    restore_uri = models.CharField(max_length=1_000, blank=True)
    # Whose checkpoint that is, by number. While it is set here nothing deletes it.
    restore_job = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="restored_by"
    )
    restore_number = models.BigIntegerField(null=True, blank=True)
    # The first driver that begins there: what an earlier one may still complete is behind it.
    restore_driver = models.IntegerField(null=True, blank=True)
    restore_rewinds = models.BooleanField(default=True)  # File sinks take back what came after.
    restore_claims = models.BooleanField(default=False)  # The savepoint is this job's to delete.
    # What the job came from, for good.
    origin = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="forks"
    )
    origin_uri = models.CharField(max_length=1_000, blank=True)

    desired = models.CharField(max_length=16, choices=DesiredState, default=DesiredState.RUNNING)
    status = models.CharField(
        max_length=16, choices=_choices(JobStatus), default=JobStatus.CREATED.value
    )
    cause = models.TextField(blank=True)  # Why it fails or failed; empty again once it runs again.
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="jobs"
    )
    created_at = models.DateTimeField()
    status_changed_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)  # First RUNNING.
    ended_at = models.DateTimeField(null=True, blank=True)

    # Known once the pipeline built its graph.
    planned_name = models.CharField(max_length=200, blank=True)
    slot_count = models.IntegerField(null=True, blank=True)
    checkpoint_config = models.JSONField(null=True, blank=True)  # weir.config.CheckpointConfig.
    restart_config = models.JSONField(null=True, blank=True)  # weir.config.RestartConfig.
    settings = models.JSONField(default=dict, blank=True)  # The rest of the pipeline's settings.

    # Lost drivers: in-driver restarts are the driver's own.
    restart_state = models.JSONField(null=True, blank=True)  # weir.protocol.restarts.RestartState.
    restart_at = models.DateTimeField(null=True, blank=True, db_index=True)
    cancel_due_at = models.DateTimeField(null=True, blank=True, db_index=True)  # Then it is killed.

    class Meta:
        ordering = ["-created_at", "id"]
        indexes = [
            models.Index(fields=["status", "created_at"]),
            models.Index(fields=["created_at", "id"]),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in JobStatus]), name="job_status"
            ),
            models.CheckConstraint(
                condition=Q(desired__in=DesiredState.values), name="job_desired"
            ),
            models.CheckConstraint(
                condition=Q(pipeline_kind__in=PipelineKind.values), name="job_pipeline_kind"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=False, status__in=FINAL_JOB_STATUSES)
                | (Q(ended_at__isnull=True) & ~Q(status__in=FINAL_JOB_STATUSES)),
                name="job_ended_when_final",
            ),
            models.CheckConstraint(
                condition=(Q(pipeline_kind="upload") & Q(artifact__isnull=False))
                | (~Q(pipeline_kind="upload") & Q(artifact__isnull=True)),
                name="job_artifact_of_upload",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def is_over(self) -> bool:
        """Whether it reached a final status."""
        return self.status in FINAL_JOB_STATUSES


class Driver(models.Model):
    """One launched Spark application of a job. Only the newest may speak for it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="drivers")
    number = models.IntegerField()  # 1 for the job's first.
    status = models.CharField(max_length=16, choices=DriverStatus, default=DriverStatus.REQUESTED)
    cause = models.TextField(blank=True)  # Why it was lost or ended.
    token_digest = models.CharField(max_length=64, unique=True, null=True)  # From its launch on.
    created_at = models.DateTimeField()
    launch_expires_at = models.DateTimeField(null=True, blank=True)  # Claimed by a launcher until.
    launched_by = models.CharField(max_length=200, blank=True)  # The launcher's host name.
    boot_id = models.CharField(max_length=64, blank=True)
    pid = models.IntegerField(null=True, blank=True)  # Of spark-submit; its own session's leader.
    process_started_at = models.FloatField(null=True, blank=True)  # With pid and boot id: which.
    directory = models.CharField(max_length=500, blank=True)  # Job file and logs.
    spark_application = models.CharField(max_length=200, blank=True)
    slots = models.JSONField(default=dict)  # Slot index -> host and pid of its Spark task.
    heard_at = models.DateTimeField(null=True, blank=True)
    heartbeat_due_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)  # A launcher ends the process.
    stopped_at = models.DateTimeField(null=True, blank=True)  # A launcher saw that it is gone.
    ended_at = models.DateTimeField(null=True, blank=True)
    applied_up_to = models.BigIntegerField(default=0)  # Number of its last event that counts.
    commands_taken = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["job", "-number"]
        indexes = [
            models.Index(
                fields=["heartbeat_due_at"],
                condition=Q(status__in=["starting", "running"]),
                name="driver_heartbeats",
            ),
            models.Index(fields=["status", "created_at"]),
            models.Index(
                fields=["stop_requested_at"],
                condition=Q(stopped_at__isnull=True),
                name="driver_stops",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="driver_number"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(status__in=LIVE_DRIVERS), name="driver_one_live"
            ),
            models.CheckConstraint(
                condition=Q(status__in=DriverStatus.values), name="driver_status"
            ),
        ]

    def __str__(self) -> str:
        return f"driver {self.number} of {self.job_id}"


class Attempt(models.Model):
    """One deployment of the graph onto slots, as the driver reported it."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    driver = models.ForeignKey(Driver, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    restored_checkpoint = models.BigIntegerField(null=True, blank=True)  # None: the beginning.
    started_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    end = models.CharField(max_length=16, blank=True)  # failed, finished, canceled; empty: goes on.
    cause = models.TextField(blank=True)
    # How it replaced its predecessor; empty for the first one.
    recovery_cause = models.TextField(blank=True)
    backoff_ms = models.FloatField(null=True, blank=True)
    redeploy_ms = models.FloatField(null=True, blank=True)
    restore_ms = models.FloatField(null=True, blank=True)
    catch_up_ms = models.FloatField(null=True, blank=True)
    restored_bytes = models.BigIntegerField(null=True, blank=True)
    replayed_records = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["job", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class Worker(models.Model):
    """A worker process of an attempt."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="workers")
    slot_index = models.IntegerField()
    host = models.CharField(max_length=200, blank=True)
    pid = models.IntegerField()
    started_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "slot_index"], name="worker_slot"),
        ]


class Operator(models.Model):
    """One operator of the submitted graph."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="operators")
    uid = models.CharField(max_length=300)
    name = models.CharField(max_length=300)
    position = models.IntegerField()  # In topological order.
    parallelism = models.IntegerField()
    max_parallelism = models.IntegerField(null=True, blank=True)
    chain = models.CharField(max_length=300)  # Uid of its chain's head.
    is_source = models.BooleanField()
    is_sink = models.BooleanField()
    is_keyed = models.BooleanField()
    files = models.CharField(max_length=1_000, null=True, blank=True)  # A file sink's directory.

    class Meta:
        ordering = ["job", "position"]
        constraints = [
            models.UniqueConstraint(fields=["job", "uid"], name="operator_uid"),
            models.CheckConstraint(condition=Q(parallelism__gte=1), name="operator_parallelism"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.job_id}"


class Edge(models.Model):
    """One edge of the submitted graph."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="edges")
    position = models.IntegerField()  # As in the graph: gates are numbered by it.
    source = models.CharField(max_length=300)
    target = models.CharField(max_length=300)
    partitioning = models.CharField(max_length=16)
    input_index = models.IntegerField()
    side_tag = models.CharField(max_length=300, null=True, blank=True)

    class Meta:
        ordering = ["job", "position"]
        constraints = [
            models.UniqueConstraint(fields=["job", "position"], name="edge_position"),
        ]


class Subtask(models.Model):
    """Where one chain subtask of the newest attempt stands, and what it does.

    Counters and rates are of its latest measurement. ``aligning`` is its latest report of an
    alignment in progress, and tells of the past once the subtask acknowledged that checkpoint, or
    the checkpoint settled. What an attempt left behind when it failed stays until the next begins.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="subtasks")
    chain = models.CharField(max_length=300)
    index = models.IntegerField()
    attempt = models.IntegerField()
    status = models.CharField(
        max_length=16, choices=_choices(SubtaskStatus), default=SubtaskStatus.DEPLOYING.value
    )
    metrics = models.JSONField(default=dict)  # weir.protocol.messages.SubtaskMetrics' counters.
    samples = models.JSONField(default=list)  # Of the counters, for the rates (jobs.events.rates).
    # Of jobs.events.rates.over; empty: not known yet, or it ended.
    rates = models.JSONField(default=dict)
    # messages.AlignmentProgress: checkpoint, since_ms, waited_ms and, by gate, what came when.
    aligning = models.JSONField(null=True, blank=True)
    # messages.SubtaskStalled: since_ms, stalled_ms, stack. Null: the loop comes round.
    stall = models.JSONField(null=True, blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["job", "chain", "index"]
        constraints = [
            models.UniqueConstraint(fields=["job", "chain", "index"], name="subtask_place"),
        ]


class JobException(models.Model):
    """Something went wrong: an attempt, a driver, a subtask, or a notice worth reading."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="exceptions")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)  # attempt, driver, subtask, pipeline, notice, internal.
    driver_number = models.IntegerField(null=True, blank=True)
    attempt_number = models.IntegerField(null=True, blank=True)
    subtask = models.CharField(max_length=310, blank=True)
    text = models.TextField()  # First line: what; the rest: the traceback.

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["job", "-at"])]


class Operation(models.Model):
    """Something that was asked of a job and takes time; it always reaches an end."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="operations")
    kind = models.CharField(max_length=16, choices=OperationKind)
    status = models.CharField(
        max_length=16, choices=OperationStatus, default=OperationStatus.PENDING
    )
    parameters = models.JSONField(default=dict)
    # weir.protocol.operations.OperationState of those that take several steps; who works on it, of
    # those that somebody has to work out.
    progress = models.JSONField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)  # Succeeded: what came of it.
    error = models.TextField(blank=True)  # Else: why not.
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="operations"
    )
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)
    fingerprint = models.CharField(max_length=64, blank=True)  # Of the request the key came with.
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]
        indexes = [
            models.Index(
                fields=["deadline_at"],
                condition=Q(status__in=["pending", "running"]),
                name="operation_deadlines",
            ),
            models.Index(fields=["job", "-created_at"]),
            # Those under way, which have not ended, come first.
            models.Index(fields=["job", "-ended_at", "-created_at", "id"], name="operation_recent"),
            models.Index(fields=["created_at", "id"]),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["requested_by", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="operation_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, status__in=OPEN_OPERATIONS)
                | (Q(ended_at__isnull=False) & ~Q(status__in=OPEN_OPERATIONS)),
                name="operation_ended_when_final",
            ),
            models.CheckConstraint(
                condition=Q(status__in=OperationStatus.values), name="operation_status"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=OperationKind.values), name="operation_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class OutboxCommand(models.Model):
    """A command on its way to a job's driver. Its id is its number: the lock makes it grow."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="outbox")
    message = models.JSONField()  # weir.protocol.wire.encode of a DriverCommand.
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"])]


class ControlPlanePulse(models.Model):
    """When the control plane last looked at its drivers; there is one row.

    A driver that was silent while nobody listened is not lost: overdue heartbeats count only once
    drivers had a whole timeout since ``resumed_at`` to be heard.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    ticked_at = models.DateTimeField()
    resumed_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="pulse_single")]

    def __str__(self) -> str:
        return f"pulse at {self.ticked_at}"
