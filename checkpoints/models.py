"""Rows of checkpoints: the coordinator's state, and the read model beside it.

The coordinator's state is one JSON value, written whole under the job's lock. Acknowledgements are
rows of their own, one per operator subtask; so are alignments, one per receiving subtask and input
gate, with arrays in channel order: 200 senders to 200 receivers are 200 rows, not 40,000.
"""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.lookups import Exact

from jobs.models import Job
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason


def _choices(enum: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


class CoordinatorRow(models.Model):
    """``weir.protocol.coordinator.CoordinatorState`` of one job, and when it needs a tick."""

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.CASCADE, related_name="coordinator"
    )
    state = models.JSONField()
    due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    next_trigger_at = models.DateTimeField(null=True, blank=True)  # For readers, as is the next.
    expires_at = models.DateTimeField(null=True, blank=True)
    has_ended = models.BooleanField(default=False)  # It heard of the job's end.
    swept_at = models.DateTimeField(null=True, blank=True)  # When its storage was last cleaned up.

    class Meta:
        indexes = [
            models.Index(
                fields=["job"], condition=Q(has_ended=False), name="coordinator_not_ended"
            ),
            models.Index(fields=["swept_at"], name="coordinator_sweeps"),
        ]

    def __str__(self) -> str:
        return f"coordinator of {self.job_id}"


class Checkpoint(models.Model):
    """One triggered checkpoint or savepoint and what became of it.

    Units: ``*_ms`` milliseconds, the largest among the subtasks; ``*_bytes`` of all subtasks.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    number = models.BigIntegerField()  # The checkpoint id, of the job.
    attempt = models.IntegerField()
    kind = models.CharField(max_length=16, choices=_choices(CheckpointKind))
    status = models.CharField(max_length=16, choices=_choices(CheckpointStatus))
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="children"
    )
    request_id = models.CharField(max_length=100, blank=True)  # Empty: the clock asked.
    triggered_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)  # Completed or aborted.
    sinks_acknowledged_at = models.DateTimeField(null=True, blank=True)
    duration_ms = models.IntegerField(null=True, blank=True)
    reason = models.CharField(max_length=64, choices=_choices(FailureReason), blank=True)
    cause = models.TextField(blank=True)
    subtask_count = models.IntegerField()  # Operator subtasks that have to acknowledge.
    acknowledged_count = models.IntegerField(default=0)
    start_delay_ms = models.FloatField(default=0)
    alignment_ms = models.FloatField(default=0)
    sync_ms = models.FloatField(default=0)
    async_ms = models.FloatField(default=0)
    state_bytes = models.BigIntegerField(default=0)
    written_bytes = models.BigIntegerField(default=0)
    in_flight_bytes = models.BigIntegerField(default=0)
    discard_due_at = models.DateTimeField(null=True, blank=True)  # Its files are to be deleted.
    discard_tries = models.IntegerField(default=0)
    discard_error = models.TextField(blank=True)  # Why that did not work the last time.
    discarded_at = models.DateTimeField(null=True, blank=True)
    has_details = models.BooleanField(default=True)  # Acknowledgement and alignment rows are kept.

    class Meta:
        ordering = ["job", "-number"]
        indexes = [
            models.Index(fields=["job", "status", "-number"]),
            models.Index(fields=["triggered_at", "id"]),
            models.Index(
                fields=["discard_due_at"],
                condition=Q(discard_due_at__isnull=False),
                name="checkpoint_discards",
            ),
            models.Index(
                fields=["job"], condition=Q(status="finalizing"), name="checkpoint_finalizing"
            ),
            models.Index(  # Whose acknowledgements are deleted once there are many newer ones.
                fields=["job", "number"],
                condition=Q(
                    has_details=True,
                    kind="checkpoint",
                    status__in=["completed", "subsumed", "discarded"],
                ),
                name="checkpoint_details",
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="checkpoint_number"),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in CheckpointStatus]),
                name="checkpoint_status",
            ),
            models.CheckConstraint(
                condition=Q(acknowledged_count__gte=0)
                & Q(acknowledged_count__lte=F("subtask_count")),
                name="checkpoint_acknowledged_count",
            ),
            models.CheckConstraint(
                condition=(Q(status__in=["pending", "finalizing"]) & Q(settled_at__isnull=True))
                | (~Q(status__in=["pending", "finalizing"]) & Q(settled_at__isnull=False)),
                name="checkpoint_settled",
            ),
        ]

    def __str__(self) -> str:
        return f"checkpoint {self.number} of {self.job_id}"


class SubtaskAck(models.Model):
    """One operator subtask's acknowledgement of one checkpoint."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="acks")
    operator = models.CharField(max_length=300)
    index = models.IntegerField()
    chain = models.CharField(max_length=300)
    acknowledged_at = models.DateTimeField()
    start_delay_ms = models.FloatField()
    alignment_ms = models.FloatField()
    sync_ms = models.FloatField()
    async_ms = models.FloatField()
    bytes_during_alignment = models.BigIntegerField()
    in_flight_bytes = models.BigIntegerField()
    state_bytes = models.BigIntegerField()
    written_bytes = models.BigIntegerField()
    unaligned = models.BooleanField()
    records = models.BigIntegerField()
    handles = models.JSONField()  # Files, as weir.ids.StateHandle; small state is in the manifest.

    class Meta:
        ordering = ["checkpoint", "operator", "index"]
        constraints = [
            models.UniqueConstraint(fields=["checkpoint", "operator", "index"], name="ack_subtask"),
        ]


class _Cardinality(Func):
    function = "CARDINALITY"
    output_field = models.IntegerField()


class GateAlignment(models.Model):
    """How the channels of one input gate of one receiving subtask delivered a barrier.

    Shape: all arrays have one entry per channel, in channel order.
    """

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="alignments")
    operator = models.CharField(max_length=300)  # The receiving chain's head.
    index = models.IntegerField()
    gate = models.IntegerField()
    upstream = ArrayField(models.CharField(max_length=310))  # The sending subtasks.
    arrived_ms = ArrayField(models.FloatField(null=True))  # After the subtask's first; null: ended.
    blocked_ms = ArrayField(models.FloatField())
    bytes_during = ArrayField(models.BigIntegerField())

    class Meta:
        ordering = ["checkpoint", "operator", "index", "gate"]
        constraints = [
            models.UniqueConstraint(
                fields=["checkpoint", "operator", "index", "gate"], name="alignment_gate"
            ),
            models.CheckConstraint(
                condition=Exact(_Cardinality("upstream"), _Cardinality("arrived_ms"))
                & Exact(_Cardinality("upstream"), _Cardinality("blocked_ms"))
                & Exact(_Cardinality("upstream"), _Cardinality("bytes_during")),
                name="alignment_lengths",
            ),
        ]
