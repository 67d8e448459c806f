"""The shapes in which the API shows checkpoints, and jobs with theirs."""

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.reverse import reverse

from checkpoints.models import Checkpoint, SubtaskAck
from jobs.api.serializers import JobDetailSerializer, JobSerializer
from jobs.models import Job
from weir.protocol.lifecycle import FailureReason


class CheckpointSerializer(serializers.ModelSerializer):
    """One checkpoint or savepoint, and what became of it."""

    url = serializers.SerializerMethodField()
    job = serializers.CharField(source="job_id")
    parent = serializers.IntegerField(
        source="parent.number", allow_null=True, default=None, help_text="Its number."
    )
    reason = serializers.SerializerMethodField()

    class Meta:
        model = Checkpoint
        fields = [
            "number",
            "url",
            "job",
            "attempt",
            "kind",
            "status",
            "parent",
            "request_id",
            "triggered_at",
            "settled_at",
            "sinks_acknowledged_at",
            "duration_ms",
            "reason",
            "cause",
            "subtask_count",
            "acknowledged_count",
            "start_delay_ms",
            "alignment_ms",
            "sync_ms",
            "async_ms",
            "state_bytes",
            "written_bytes",
            "in_flight_bytes",
            "discard_due_at",
            "discard_error",
            "discarded_at",
            "has_details",
        ]
        extra_kwargs = {
            "request_id": {"help_text": "The operation that asked for it; empty: the clock."},
            "settled_at": {"help_text": "When it completed or was aborted."},
            "subtask_count": {"help_text": "Operator subtasks that have to acknowledge."},
            "start_delay_ms": {"help_text": "The largest among the subtasks, as the next three."},
            "state_bytes": {"help_text": "Of all subtasks, as the next two."},
            "discard_due_at": {"help_text": "Its files are to be deleted."},
            "discard_error": {"help_text": "Why that did not work the last time."},
            "has_details": {"help_text": "Acknowledgements and channels are still kept."},
        }
        read_only_fields = fields

    def get_url(self, checkpoint: Checkpoint) -> str:
        """Where it is shown alone."""
        where = {"job_id": checkpoint.job_id, "number": checkpoint.number}
        return str(reverse("api:checkpoint", kwargs=where, request=self.context.get("request")))

    @extend_schema_field(
        serializers.ChoiceField(
            [(reason.value, reason.value) for reason in FailureReason],
            allow_null=True,
            help_text="Why it was aborted.",
        )
    )
    def get_reason(self, checkpoint: Checkpoint) -> str | None:
        """Null unless it was."""
        return checkpoint.reason or None


class AckSerializer(serializers.ModelSerializer):
    """One operator subtask's acknowledgement."""

    class Meta:
        model = SubtaskAck
        fields = [
            "operator",
            "index",
            "chain",
            "acknowledged_at",
            "start_delay_ms",
            "alignment_ms",
            "sync_ms",
            "async_ms",
            "bytes_during_alignment",
            "in_flight_bytes",
            "state_bytes",
            "written_bytes",
            "unaligned",
            "records",
        ]
        read_only_fields = fields


class ChannelSerializer(serializers.Serializer):
    """How one channel delivered the checkpoint's barrier to one receiving subtask."""

    operator = serializers.CharField(help_text="The uid of the receiving chain's head.")
    index = serializers.IntegerField(help_text="Of the receiving subtask.")
    gate = serializers.IntegerField(help_text="Of its input gates.")
    channel = serializers.IntegerField(help_text="Of the gate's channels.")
    upstream = serializers.CharField(help_text="The sending subtask.")
    arrived_ms = serializers.FloatField(
        allow_null=True, help_text="After the subtask's first barrier; null: its input had ended."
    )
    blocked_ms = serializers.FloatField(help_text="How long it was not read.")
    bytes_during = serializers.IntegerField(help_text="Taken or kept in flight while aligning.")


class LastCheckpointSerializer(serializers.ModelSerializer):
    """A job's newest completed checkpoint: what it would be restored from."""

    completed_at = serializers.DateTimeField(source="settled_at")

    class Meta:
        model = Checkpoint
        fields = ["number", "kind", "completed_at", "duration_ms", "state_bytes"]
        read_only_fields = fields


class CheckpointSummarySerializer(serializers.Serializer):
    """What a job's checkpoints come to."""

    last = LastCheckpointSerializer(source="last_checkpoint", allow_null=True)
    age_ms = serializers.SerializerMethodField()
    failures_since_last = serializers.IntegerField(help_text="Aborted ones since then.")
    next_at = serializers.DateTimeField(source="next_checkpoint_at", allow_null=True)

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_age_ms(self, job: Job) -> int | None:
        """How long ago the last one completed, by the database's clock."""
        if job.last_checkpoint is None:
            return None
        age = job.read_at - job.last_checkpoint.settled_at
        return max(0, round(age.total_seconds() * 1000))


@extend_schema_serializer(component_name="Job")
class JobWithCheckpointsSerializer(JobSerializer):
    """A job in a list."""

    checkpoints = CheckpointSummarySerializer(source="*")

    class Meta(JobSerializer.Meta):
        fields = [*JobSerializer.Meta.fields, "checkpoints"]
        read_only_fields = fields


@extend_schema_serializer(component_name="JobDetail")
class JobDetailWithCheckpointsSerializer(JobDetailSerializer):
    """A job with all its settings."""

    checkpoints = CheckpointSummarySerializer(source="*")

    class Meta(JobDetailSerializer.Meta):
        fields = [*JobDetailSerializer.Meta.fields, "checkpoints"]
        read_only_fields = fields
