"""Rows of checkpoints: the coordinator's state, and the read model beside it.

The coordinator's state is one JSON value, written whole under the job's lock. Acknowledgements are
rows of their own, one per operator subtask; so are alignments, one per receiving subtask and input
gate, with arrays in channel order: 200 senders to 200 receivers are 200 rows, not 40,000.
"""

import uuid
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.lookups import Exact

from jobs.models import Job, Operation
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.messages import Switch


def _choices(enum: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


UNSETTLED = (CheckpointStatus.PENDING.value, CheckpointStatus.FINALIZING.value)
# Statuses after completion, whether or not the files still exist.
COMPLETED_ONCE = (
    CheckpointStatus.COMPLETED.value,
    CheckpointStatus.SUBSUMED.value,
    CheckpointStatus.DISCARDED.value,
)


class AlignmentOutcome(models.TextChoices):
    """The way in which the barriers of a checkpoint went, over all of its subtasks."""

    ALIGNED = "aligned", "Aligned"  # No barrier overtook records.
    UNALIGNED = "unaligned", "Unaligned"  # From the start.
    TIMED_OUT = "timed_out", "Unaligned after the time-out"  # Somewhere; aligned elsewhere.


class CoordinatorRow(models.Model):
    """``weir.protocol.coordinator.CoordinatorState`` of one job, and when it is due for a tick."""

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.CASCADE, related_name="coordinator"
    )
    state = models.JSONField()
    due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    next_trigger_at = models.DateTimeField(null=True, blank=True)  # For readers, as is the next.
    expires_at = models.DateTimeField(null=True, blank=True)
    has_ended = models.BooleanField(default=False)  # It was told the job's end.
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


class SharesFiles:
    """State of which a part lies in files of earlier checkpoints. Units: bytes."""

    state_bytes: int
    written_bytes: int

    @property
    def shared_bytes(self) -> int:
        """The bytes of state that earlier checkpoints had written."""
        return max(0, self.state_bytes - self.written_bytes)


# The phases of ``Checkpoint.last_subtask``, in the order in which they happen.
LAST_PHASES = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")


class Checkpoints(models.Manager["Checkpoint"]):
    """Checkpoints without their evidence, which the verdict reads for one at a time."""

    def get_queryset(self) -> models.QuerySet["Checkpoint"]:
        """All rows, their evidence deferred."""
        return super().get_queryset().defer("evidence")


class Checkpoint(SharesFiles, models.Model):
    """One triggered checkpoint or savepoint, its status and its totals.

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
    request_id = models.CharField(max_length=100, blank=True)  # Empty: the interval triggered it.
    triggered_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)  # Completed, failed or aborted.
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
    # The subtask that was last, by the sum of its phases: ``subtask`` and the four ``*_ms``. Null:
    # none has acknowledged, or an older Weir took the checkpoint.
    last_subtask = models.JSONField(null=True, blank=True)
    state_bytes = models.BigIntegerField(default=0)
    written_bytes = models.BigIntegerField(default=0)
    in_flight_bytes = models.BigIntegerField(default=0)
    # Operator subtasks whose snapshot is unaligned, and those of them that began aligned.
    unaligned_count = models.IntegerField(default=0, db_default=0)
    switched_count = models.IntegerField(default=0, db_default=0)
    switched_ms = models.FloatField(null=True, blank=True)  # From the trigger to the first of them.
    discard_due_at = models.DateTimeField(null=True, blank=True)  # Its files are to be deleted.
    discard_tries = models.IntegerField(default=0)
    discard_error = models.TextField(blank=True)  # Why the last deletion failed.
    discarded_at = models.DateTimeField(null=True, blank=True)
    has_details = models.BooleanField(default=True)  # Acknowledgement and alignment rows are kept.
    location = models.CharField(max_length=1_000, blank=True)  # A savepoint's own directory.
    abandoned_at = models.DateTimeField(null=True, blank=True)  # A rollback went behind it.
    watermark_ms = models.BigIntegerField(null=True, blank=True)  # Event time, the least.
    # The subtasks' work when it settled (checkpoints.verdict.evidence); stalls also before that.
    evidence = models.JSONField(null=True, blank=True)

    objects = Checkpoints()

    class Meta:
        ordering = ["job", "-number"]
        indexes = [
            models.Index(fields=["job", "status", "-number"]),
            models.Index(fields=["job", "attempt", "number"], name="checkpoint_attempts"),
            models.Index(  # Counts of recent failures.
                fields=["job", "triggered_at"],
                condition=Q(status="failed"),
                name="checkpoint_failures",
            ),
            models.Index(fields=["triggered_at", "id"]),
            models.Index(
                fields=["discard_due_at"],
                condition=Q(discard_due_at__isnull=False),
                name="checkpoint_discards",
            ),
            models.Index(
                fields=["job"], condition=Q(status="finalizing"), name="checkpoint_finalizing"
            ),
            models.Index(
                fields=["location"], condition=~Q(location=""), name="checkpoint_locations"
            ),
            models.Index(  # Acknowledgements are deleted once there are many newer checkpoints.
                fields=["job", "number"],
                condition=Q(
                    has_details=True,
                    kind="checkpoint",
                    status__in=["completed", "subsumed", "discarded"],
                ),
                name="checkpoint_details",
            ),
            models.Index(  # The same, of those that failed.
                fields=["job", "number"],
                condition=Q(has_details=True, status__in=["aborted", "failed"]),
                name="checkpoint_failed_details",
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

    @property
    def alignment(self) -> AlignmentOutcome:
        """The way in which its barriers went, by the acknowledgements so far."""
        if not self.unaligned_count:
            return AlignmentOutcome.ALIGNED
        return AlignmentOutcome.TIMED_OUT if self.switched_count else AlignmentOutcome.UNALIGNED


class RemovedCheckpoints(models.Model):
    """Totals over the checkpoints of a job whose rows retention has removed.

    Without them the counters of ``/metrics`` would go back.
    """

    job = models.OneToOneField(
        Job, primary_key=True, on_delete=models.CASCADE, related_name="removed_checkpoints"
    )
    up_to = models.BigIntegerField(default=0)  # The highest number among them.
    totals = models.JSONField(default=dict)  # By the names of checkpoints.retention.totals.

    def __str__(self) -> str:
        return f"removed checkpoints of {self.job_id}"


class Savepoint(models.Model):
    """A savepoint as its owner named it, kept until it is deleted on request.

    Its status, times and sizes are in its checkpoint's row.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="savepoints")
    # None: it was requested and is not triggered yet, or it was refused.
    checkpoint = models.OneToOneField(
        Checkpoint, null=True, blank=True, on_delete=models.PROTECT, related_name="savepoint"
    )
    operation = models.OneToOneField(
        Operation, null=True, blank=True, on_delete=models.SET_NULL, related_name="savepoint"
    )
    name = models.CharField(max_length=80)
    location = models.CharField(max_length=1_000)  # Its directory, the URI for a restore.
    note = models.TextField(blank=True)
    labels = models.JSONField(default=dict, blank=True)  # Texts by name.
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField()
    claimed_by = models.ForeignKey(
        Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="claimed_savepoints"
    )
    deleted_at = models.DateTimeField(null=True, blank=True)  # When its deletion was requested.

    class Meta:
        ordering = ["-created_at", "id"]
        indexes = [models.Index(fields=["created_at", "id"])]
        constraints = [
            models.UniqueConstraint(
                fields=["job", "name"],
                condition=Q(deleted_at__isnull=True),
                name="savepoint_name",
            ),
        ]

    def __str__(self) -> str:
        return f"savepoint {self.name} of {self.job_id}"


class SubtaskAck(SharesFiles, models.Model):
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
    # Of these, what waited at its outputs; the rest waited at its inputs.
    in_flight_output_bytes = models.BigIntegerField(default=0, db_default=0)
    state_bytes = models.BigIntegerField()
    written_bytes = models.BigIntegerField()
    unaligned = models.BooleanField()
    # Where it became unaligned, if it began aligned, and how long after the trigger.
    switched = models.CharField(
        max_length=8, choices=_choices(Switch), blank=True, default="", db_default=""
    )
    switched_ms = models.FloatField(null=True, blank=True)
    records = models.BigIntegerField()
    # For how long this operator's own part was written; null: not reported.
    writing_ms = models.FloatField(null=True, blank=True)
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
    """The alignment of one input gate of one receiving subtask: a barrier, channel by channel.

    Shape: all arrays have one entry per channel, in channel order; ``in_flight`` may be null.
    """

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="alignments")
    operator = models.CharField(max_length=300)  # The receiving chain's head.
    index = models.IntegerField()
    gate = models.IntegerField()
    upstream = ArrayField(models.CharField(max_length=310))  # The sending subtasks.
    arrived_ms = ArrayField(models.FloatField(null=True))  # After the subtask's first; null: ended.
    blocked_ms = ArrayField(models.FloatField())
    bytes_during = ArrayField(models.BigIntegerField())
    # Bytes of persisted records, as they came on the channel; null: none.
    in_flight = ArrayField(models.BigIntegerField(), null=True, blank=True)

    class Meta:
        ordering = ["checkpoint", "operator", "index", "gate"]
        constraints = [
            models.UniqueConstraint(
                fields=["checkpoint", "operator", "index", "gate"], name="alignment_gate"
            ),
            models.CheckConstraint(
                condition=Q(Exact(_Cardinality("upstream"), _Cardinality("arrived_ms")))
                & Q(Exact(_Cardinality("upstream"), _Cardinality("blocked_ms")))
                & Q(Exact(_Cardinality("upstream"), _Cardinality("bytes_during"))),
                name="alignment_lengths",
            ),
        ]
