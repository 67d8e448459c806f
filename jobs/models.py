"""Rows of jobs. The lock on a job's row is the one lock of everything that belongs to the job.

::

    Artifact <── Job ──< Driver ──< Attempt ──< Worker
                  ├──< Operator, Edge         the submitted graph, once its pipeline built it
                  ├──< Subtask                the newest attempt's
                  ├──< ChainSample            a day of what the subtasks of each chain reported
                  ├──< JobException
                  ├──< JobEvent               facts, in their order
                  ├──< Operation
                  ├──< SetAsideStep           due steps that failed
                  └──< OutboxCommand          to the newest driver
    ControlPlanePulse                         one row

Only the services (``jobs.services``, ``jobs.operations``, ``jobs.drivers``, ``jobs.events``) write;
``jobs.job_events`` alone writes job events, and ``checkpoints.chain_samples`` chain samples.
"""

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from weir.bounds import PARALLELISM_MAX
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus, SubtaskStatus


def _choices(enum: Any) -> list[tuple[str, str]]:
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


class Artifact(models.Model):
    """An uploaded pipeline, stored once per content."""

    digest = models.CharField(max_length=64, primary_key=True)  # SHA-256, hex.
    file_name = models.CharField(max_length=200)  # As uploaded; never part of a path.
    size = models.BigIntegerField()
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    uploaded_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.file_name} ({self.digest[:12]})"


class Job(models.Model):
    """A submitted pipeline, its settings and its status."""

    id = models.CharField(primary_key=True, max_length=120)  # Also its directory in the storage.
    name = models.CharField(max_length=100)
    labels = models.JSONField(default=dict, blank=True)  # Texts by name.
    pipeline_kind = models.CharField(max_length=16, choices=PipelineKind)
    pipeline_target = models.CharField(max_length=500)  # Path, module, or the artifact's file name.
    artifact = models.ForeignKey(Artifact, null=True, blank=True, on_delete=models.PROTECT)
    options = models.JSONField(default=dict)  # weir's ExecutionOptions, as submitted.
    spark_master = models.CharField(max_length=200)
    spark_conf = models.JSONField(default=dict)
    storage = models.CharField(max_length=500)  # Root of its checkpoints.
    # The longest time from a failure until all subtasks run again; null: rules have their limits.
    recovery_target_s = models.FloatField(null=True, blank=True)

    # The checkpoint or savepoint that the next driver restores, until the job has completed one of
    # its own after it; empty: the newest checkpoint of the job.
    restore_uri = models.CharField(max_length=1_000, blank=True)
    # The job and the number of that checkpoint, which is not deleted while it is set here.
    restore_job = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="restored_by"
    )
    restore_number = models.BigIntegerField(null=True, blank=True)
    # The first driver that restores it: a checkpoint that an earlier driver completes is older.
    restore_driver = models.IntegerField(null=True, blank=True)
    restore_rewinds = models.BooleanField(default=True)  # File sinks withdraw the output after it.
    restore_claims = models.BooleanField(default=False)  # The savepoint is this job's to delete.
    # The job and the checkpoint or savepoint that this one started from, never changed.
    origin = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="forks"
    )
    origin_uri = models.CharField(max_length=1_000, blank=True)

    desired = models.CharField(max_length=16, choices=DesiredState, default=DesiredState.RUNNING)
    # Attempts that failed and whose rows retention has removed: counters never go back.
    failed_attempts_removed = models.PositiveIntegerField(default=0)
    status = models.CharField(
        max_length=16, choices=_choices(JobStatus), default=JobStatus.CREATED.value
    )
    # The status was asked for, or follows from a request; false: it follows from a failure.
    is_planned = models.BooleanField(default=True)
    cause = models.TextField(blank=True)  # Why it fails or failed; empty once it runs again.
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="jobs"
    )
    created_at = models.DateTimeField()
    status_changed_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)  # First RUNNING.
    ended_at = models.DateTimeField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)  # Left out of lists since.

    # Known once the pipeline has built its graph.
    planned_name = models.CharField(max_length=200, blank=True)
    slot_count = models.IntegerField(null=True, blank=True)
    checkpoint_config = models.JSONField(null=True, blank=True)  # weir.config.CheckpointConfig.
    restart_config = models.JSONField(null=True, blank=True)  # weir.config.RestartConfig.
    settings = models.JSONField(default=dict, blank=True)  # The rest of the pipeline's settings.

    # Restarts after lost drivers; a driver counts its own restarts itself.
    restart_state = models.JSONField(null=True, blank=True)  # weir.protocol.restarts.RestartState.
    restart_at = models.DateTimeField(null=True, blank=True, db_index=True)
    cancel_due_at = models.DateTimeField(null=True, blank=True, db_index=True)  # Then killed.

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
            models.CheckConstraint(
                condition=Q(
                    recovery_target_s__gte=RECOVERY_TARGET_S_MIN,
                    recovery_target_s__lte=RECOVERY_TARGET_S_MAX,
                ),
                name="job_recovery_target",
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def is_over(self) -> bool:
        """Whether the job reached a final status."""
        return self.status in FINAL_JOB_STATUSES

    @property
    def newest_driver(self) -> "Driver | None":
        """The newest driver, the only one whose events count."""
        return self.drivers.order_by("-number").first()


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
    pid = models.IntegerField(null=True, blank=True)  # Of spark-submit, which leads its session.
    process_started_at = models.FloatField(null=True, blank=True)  # Seconds since boot.
    directory = models.CharField(max_length=500, blank=True)  # Job file and logs.
    spark_application = models.CharField(max_length=200, blank=True)
    slots = models.JSONField(default=dict)  # Slot index -> host and pid of its Spark task.
    heard_at = models.DateTimeField(null=True, blank=True)
    heartbeat_due_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)  # A launcher ends the process.
    stopped_at = models.DateTimeField(null=True, blank=True)  # A launcher saw its end.
    ended_at = models.DateTimeField(null=True, blank=True)
    # Its threads' work and wait for a processor of late, as weir's DriverLoad; empty: not reported.
    load = models.JSONField(default=dict, db_default={}, blank=True)
    applied_up_to = models.BigIntegerField(default=0)  # Number of its last applied event.
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
            models.Index(fields=["ended_at", "id"], name="driver_age"),
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
    end = models.CharField(max_length=16, blank=True)  # An AttemptEnd; empty: it runs.
    # Whether the job failed for good with it: no restart followed but one that a user asked for.
    gave_up = models.BooleanField(default=False, db_default=False)
    cause = models.TextField(blank=True)
    # The recovery that led to it; empty for the first attempt.
    recovery_cause = models.TextField(blank=True)
    backoff_ms = models.FloatField(null=True, blank=True)
    redeploy_ms = models.FloatField(null=True, blank=True)
    restore_ms = models.FloatField(null=True, blank=True)
    catch_up_ms = models.FloatField(null=True, blank=True)
    restored_bytes = models.BigIntegerField(null=True, blank=True)
    replayed_records = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["job", "-number"]
        indexes = [models.Index(fields=["ended_at", "id"], name="attempt_age")]
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
    # Its resident memory, as last reported, within a hundredth; null: it reported none.
    memory_bytes = models.BigIntegerField(null=True, blank=True)

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
    chain = models.CharField(max_length=300)  # The uid of its chain's head.
    is_source = models.BooleanField()
    is_sink = models.BooleanField()
    is_keyed = models.BooleanField()
    files = models.CharField(max_length=1_000, null=True, blank=True)  # A file sink's directory.

    class Meta:
        ordering = ["job", "position"]
        constraints = [
            models.UniqueConstraint(fields=["job", "uid"], name="operator_uid"),
            models.CheckConstraint(
                condition=Q(parallelism__range=(1, PARALLELISM_MAX)), name="operator_parallelism"
            ),
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
    """One chain subtask of the newest attempt: status, counters, rates, alignment and stall.

    Counters and rates are those of its latest measurement. ``aligning`` is its latest report of an
    alignment in progress, and is history once the subtask has acknowledged that checkpoint, or the
    checkpoint has ended. The rows of a failed attempt stay until the next attempt begins.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="subtasks")
    chain = models.CharField(max_length=300)
    index = models.IntegerField()
    attempt = models.IntegerField()
    status = models.CharField(
        max_length=16, choices=_choices(SubtaskStatus), default=SubtaskStatus.DEPLOYING.value
    )
    metrics = models.JSONField(default=dict)  # weir.protocol.messages.SubtaskMetrics' counters.
    samples = models.JSONField(default=list)  # Samples of the counters for jobs.events.rates.
    # The result of jobs.events.rates.over; empty: not known yet, or the subtask has ended.
    rates = models.JSONField(default=dict)
    bad_marks = models.JSONField(default=list)  # Marks of jobs.events.bad_records.
    # messages.AlignmentProgress: checkpoint, since_ms, waited_ms and, by gate, the arrivals.
    aligning = models.JSONField(null=True, blank=True)
    # messages.SubtaskStalled: since_ms, stalled_ms, stack. Null: not stalled.
    stall = models.JSONField(null=True, blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["job", "chain", "index"]
        constraints = [
            models.UniqueConstraint(fields=["job", "chain", "index"], name="subtask_place"),
        ]


class ChainSample(models.Model):
    """The counters of a chain at one moment, summed over its subtasks; see ``jobs.chain_series``.

    Counters only grow within an attempt, so that the mean of any time between two samples is exact
    without the samples between them. They are floats, which no sum overflows.
    """

    id = models.BigAutoField(primary_key=True)
    # Without an index of its own: that of ``chain_sample_moment`` begins with it.
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="chain_samples", db_index=False
    )
    chain = models.CharField(max_length=300)  # The uid of its head.
    at = models.DateTimeField()  # Of the newest report in it.
    is_first_of_minute = models.BooleanField()  # The others go after an hour.
    attempt = models.IntegerField()
    running = models.IntegerField()  # Subtasks.
    records_in = models.FloatField()
    records_out = models.FloatField()
    busy_ms = models.FloatField()
    idle_ms = models.FloatField()
    back_pressured_ms = models.FloatField()
    # The busy share of the busiest subtask in its last seconds, 0 to 1; null: not known yet.
    busiest = models.FloatField(null=True, blank=True)
    watermark_ms = models.BigIntegerField(null=True, blank=True)  # The lowest of running subtasks.
    # Bytes of each operator's state in the job's newest completed checkpoint, by the uid.
    state_bytes = models.JSONField(default=dict)

    class Meta:
        ordering = ["job", "chain", "at"]
        indexes = [
            models.Index(fields=["at", "id"], name="chain_sample_age"),
            models.Index(
                fields=["at"], condition=Q(is_first_of_minute=False), name="chain_sample_fine"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "chain", "at"], name="chain_sample_moment"),
        ]

    def __str__(self) -> str:
        return f"{self.chain} of {self.job_id} at {self.at}"


class JobException(models.Model):
    """A failure of an attempt, a driver, a subtask or the pipeline, or a notice."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="exceptions")
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)  # attempt, driver, subtask, pipeline, notice, internal.
    driver_number = models.IntegerField(null=True, blank=True)
    attempt_number = models.IntegerField(null=True, blank=True)
    subtask = models.CharField(max_length=310, blank=True)
    text = models.TextField()  # First line: the failure; the rest: its traceback.

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["job", "-at"]),
            models.Index(fields=["at", "id"], name="exception_age"),
        ]


class JobEvent(models.Model):
    """A fact about a job, written in the transaction that makes it one; see ``jobs.job_events``.

    ======================  =================================  =====================================
    kind                    ``reason``                         ``facts``
    ======================  =================================  =====================================
    ``checkpoint.*``        ``FailureReason``; empty:          ``checkpoint``, ``kind``,
                            completed                          ``attempt``, ``duration_ms``,
                                                               ``alignment_ms``, ``state_bytes``,
                                                               ``cause``
    ``attempt.began``                                          ``attempt``, ``driver``
    ``attempt.ended``       ``AttemptEnd``                     ``attempt``, ``driver``, ``cause``
    ``job.changed``         ``JobStatus``                      ``before``, ``cause``
    ``operation.ended``     ``OperationStatus``                ``operation``, ``kind``, ``error``
    ``driver.lost``                                            ``driver``, ``cause``
    ======================  =================================  =====================================

    Causes and errors are headlines. A fact that a request, or the end of the input, led to
    is planned: no alert is due.
    """

    id = models.BigAutoField(primary_key=True)  # Grows with the job's facts.
    # Without an index of its own: ``job_event_order`` begins with it.
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_index=False)
    kind = models.CharField(max_length=24, choices=JobEventKind)
    at = models.DateTimeField()
    planned = models.BooleanField()
    reason = models.CharField(max_length=64, blank=True)
    facts = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["job", "id"], name="job_event_order"),
            models.Index(fields=["at"], name="job_event_age"),  # For retention.
            # For the page of activity: most events are checkpoints that completed.
            models.Index(
                fields=["at", "id"],
                condition=~Q(kind="checkpoint.completed"),
                name="job_event_activity",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=JobEventKind.values), name="job_event_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.job_id}"


class Operation(models.Model):
    """A request about a job that takes time; it always reaches an end."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="operations")
    kind = models.CharField(max_length=16, choices=OperationKind)
    status = models.CharField(
        max_length=16, choices=OperationStatus, default=OperationStatus.PENDING
    )
    parameters = models.JSONField(default=dict)
    # weir.protocol.operations.OperationState of an operation with several steps; the processes of
    # one that processes of its own work out (jobs.preview_processes).
    progress = models.JSONField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)  # Of a succeeded operation.
    error = models.TextField(blank=True)  # Why it did not succeed.
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="operations"
    )
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)
    fingerprint = models.CharField(max_length=64, blank=True)  # Of the key's request.
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
            # Open operations, whose ``ended_at`` is null, come first.
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
    """A command on its way to a job's driver, numbered by its id, which grows by the job's lock."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="outbox")
    message = models.JSONField()  # weir.protocol.wire.encode of a DriverCommand.
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"])]


class SetAsideStep(models.Model):
    """A due step of a job that failed, and when it is tried again; see ``jobs.set_aside``."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="set_aside")
    step = models.CharField(max_length=16)  # jobs.set_aside.Step.
    cause = models.TextField(blank=True)
    failures = models.IntegerField(default=0)
    since = models.DateTimeField()
    retry_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["job", "step"]
        constraints = [
            models.UniqueConstraint(fields=["job", "step"], name="set_aside_step"),
        ]

    def __str__(self) -> str:
        return f"{self.step} of {self.job_id}"


class ControlPlanePulse(models.Model):
    """The time of the control plane's last tick over its drivers; there is one row.

    A driver that was silent while no tick ran is not lost: overdue heartbeats count only once
    drivers had a whole timeout since ``resumed_at`` to report.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    ticked_at = models.DateTimeField()
    resumed_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="pulse_single")]

    def __str__(self) -> str:
        return f"pulse at {self.ticked_at}"
