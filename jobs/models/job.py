"""Jobs, and the uploaded pipelines that they run."""

from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.models.choices import (
    FINAL_JOB_STATUSES,
    RECOVERY_TARGET_S_MAX,
    RECOVERY_TARGET_S_MIN,
    DesiredState,
    PipelineKind,
    enum_choices,
)
from weir.protocol.lifecycle import JobStatus

if TYPE_CHECKING:
    from jobs.models.driver import Driver


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
        max_length=16, choices=enum_choices(JobStatus), default=JobStatus.CREATED.value
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
