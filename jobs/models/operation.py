"""Requests about a job that take time, and the due steps of a job that failed."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.models.choices import OPEN_OPERATIONS, OperationKind, OperationStatus
from jobs.models.job import Job


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
