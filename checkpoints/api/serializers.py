"""Serializers of checkpoints, savepoints and verdicts, and of jobs with their checkpoints."""

from typing import TYPE_CHECKING

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.reverse import reverse

from checkpoints.api.summaries import Summary
from checkpoints.models import AlignmentOutcome, Checkpoint, Savepoint, SubtaskAck
from checkpoints.verdict.result import Cause
from jobs.api.serializers import JobDetailSerializer, JobSerializer
from jobs.models import Job
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.messages import Switch

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

_SAVEPOINT_KINDS = [
    (kind.value, kind.value) for kind in CheckpointKind if kind is not CheckpointKind.CHECKPOINT
]


class CheckpointSerializer(serializers.ModelSerializer):
    """One checkpoint or savepoint, its status and its totals."""

    url = serializers.SerializerMethodField()
    job = serializers.CharField(source="job_id")
    parent = serializers.IntegerField(  # type: ignore[assignment]  # DRF takes fields off the class.
        source="parent.number",
        allow_null=True,
        default=None,
        help_text="The number of the checkpoint that it builds on.",
    )
    reason = serializers.SerializerMethodField()
    alignment = serializers.ChoiceField(
        AlignmentOutcome.choices,
        read_only=True,
        help_text="`aligned`: no barrier overtook records; `unaligned`: barriers did from the "
        "start; `timed_out`: they did somewhere, once the aligned checkpoint timeout was over.",
    )

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
            "shared_bytes",
            "in_flight_bytes",
            "alignment",
            "unaligned_count",
            "switched_count",
            "switched_ms",
            "discard_due_at",
            "discard_error",
            "discarded_at",
            "has_details",
            "location",
            "abandoned_at",
            "watermark_ms",
        ]
        extra_kwargs = {
            "request_id": {
                "help_text": "The operation that requested it; empty: the checkpoint interval."
            },
            "settled_at": {"help_text": "When it completed, failed or was aborted."},
            "subtask_count": {"help_text": "Operator subtasks that have to acknowledge."},
            "start_delay_ms": {"help_text": "The largest among the subtasks, as the next three."},
            "state_bytes": {
                "help_text": "All that a restore reads, of all subtasks, as the next three."
            },
            "in_flight_bytes": {
                "help_text": "Persisted in-flight data: records that barriers overtook."
            },
            "unaligned_count": {"help_text": "Operator subtasks whose snapshot is unaligned."},
            "switched_count": {"help_text": "Those of them that began aligned."},
            "switched_ms": {
                "help_text": "From the trigger until the first of these became unaligned; null: "
                "none did."
            },
            "discard_due_at": {"help_text": "When its files are due to be deleted."},
            "discard_error": {"help_text": "Why the last deletion failed."},
            "has_details": {"help_text": "Whether acknowledgements and channels are still kept."},
            "location": {"help_text": "A savepoint's own directory; else empty."},
            "abandoned_at": {"help_text": "When a rollback went behind it."},
            "watermark_ms": {
                "help_text": "Event time of the slowest input at this checkpoint; null: none."
            },
        }
        read_only_fields = fields

    def get_url(self, checkpoint: Checkpoint) -> str:
        """The URL that shows this checkpoint."""
        where = {"job_id": checkpoint.job_id, "number": checkpoint.number}
        return str(reverse("api:checkpoint", kwargs=where, request=self.context.get("request")))

    @extend_schema_field(
        serializers.ChoiceField(
            [(reason.value, reason.value) for reason in FailureReason],
            allow_null=True,
            help_text="Why it failed or was aborted.",
        )
    )
    def get_reason(self, checkpoint: Checkpoint) -> str | None:
        """The reason of a failed or aborted checkpoint; null for others."""
        return checkpoint.reason or None


class SavepointSerializer(serializers.ModelSerializer):
    """A savepoint: its description, and its status, times and sizes."""

    url = serializers.HyperlinkedIdentityField("api:savepoint", lookup_url_kwarg="id")
    job = serializers.CharField(source="job_id")
    job_url: serializers.RelatedField = serializers.HyperlinkedRelatedField(
        "api:job", source="job", lookup_url_kwarg="job_id", read_only=True
    )
    operation = serializers.CharField(
        source="operation_id", allow_null=True, help_text="The operation that took it."
    )
    labels = serializers.DictField(child=serializers.CharField())
    number = serializers.IntegerField(
        source="checkpoint.number",
        allow_null=True,
        default=None,
        help_text="Its number among the job's checkpoints; null: not triggered yet, or refused.",
    )
    kind = serializers.ChoiceField(
        _SAVEPOINT_KINDS, source="checkpoint.kind", allow_null=True, default=None
    )
    status = serializers.ChoiceField(
        [(status.value, status.value) for status in CheckpointStatus],
        source="checkpoint.status",
        allow_null=True,
        default=None,
        help_text="It can be restored while it is `completed`.",
    )
    cause = serializers.CharField(
        source="checkpoint.cause", default="", help_text="Why it failed or was aborted."
    )
    completed_at = serializers.DateTimeField(
        source="checkpoint.settled_at", allow_null=True, default=None
    )
    duration_ms = serializers.IntegerField(
        source="checkpoint.duration_ms", allow_null=True, default=None
    )
    state_bytes = serializers.IntegerField(
        source="checkpoint.state_bytes", allow_null=True, default=None
    )
    watermark_ms = serializers.IntegerField(
        source="checkpoint.watermark_ms",
        allow_null=True,
        default=None,
        help_text="Event time of the slowest input at this savepoint.",
    )
    created_by: serializers.RelatedField = serializers.SlugRelatedField("username", read_only=True)
    claimed_by = serializers.CharField(
        source="claimed_by_id", allow_null=True, help_text="The job that may delete it."
    )

    class Meta:
        model = Savepoint
        fields = [
            "id",
            "url",
            "job",
            "job_url",
            "operation",
            "name",
            "note",
            "labels",
            "location",
            "number",
            "kind",
            "status",
            "cause",
            "completed_at",
            "duration_ms",
            "state_bytes",
            "watermark_ms",
            "created_by",
            "created_at",
            "claimed_by",
            "deleted_at",
        ]
        extra_kwargs = {
            "location": {"help_text": "Its directory; it may be moved, and restored from there."},
            "deleted_at": {"help_text": "When its deletion was requested."},
        }
        read_only_fields = fields


class AckSerializer(serializers.ModelSerializer):
    """One operator subtask's acknowledgement."""

    switched = serializers.SerializerMethodField()

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
            "in_flight_output_bytes",
            "state_bytes",
            "written_bytes",
            "shared_bytes",
            "unaligned",
            "switched",
            "switched_ms",
            "records",
        ]
        extra_kwargs = {
            "in_flight_bytes": {
                "help_text": "Persisted in-flight data: records that barriers overtook, as stored."
            },
            "in_flight_output_bytes": {
                "help_text": "Of these, what waited at its outputs; the rest waited at its inputs."
            },
            "switched_ms": {"help_text": "From the trigger until it became unaligned; or null."},
        }
        read_only_fields = fields

    @extend_schema_field(
        serializers.ChoiceField(
            [(switch.value, switch.value) for switch in Switch],
            allow_null=True,
            help_text="Where it became unaligned, if it began aligned: at its `input`, where "
            "barriers were missing; at its `output`, where its own barrier waited; or `upstream`, "
            "before the barrier came.",
        )
    )
    def get_switched(self, ack: SubtaskAck) -> str | None:
        """The place where a snapshot that began aligned became unaligned; null for others."""
        return ack.switched or None


class ChannelSerializer(serializers.Serializer):
    """One channel's delivery of the checkpoint's barrier to one receiving subtask."""

    operator = serializers.CharField(help_text="The uid of the receiving chain's head.")
    index = serializers.IntegerField(help_text="The index of the receiving subtask.")
    gate = serializers.IntegerField(help_text="The index among its input gates.")
    channel = serializers.IntegerField(help_text="The index among the gate's channels.")
    upstream = serializers.CharField(help_text="The sending subtask.")
    arrived_ms = serializers.FloatField(
        allow_null=True, help_text="After the subtask's first barrier; null: its input had ended."
    )
    blocked_ms = serializers.FloatField(help_text="How long the channel was blocked.")
    bytes_during = serializers.IntegerField(
        help_text="Bytes processed or kept in flight while aligning."
    )
    in_flight_bytes = serializers.IntegerField(
        help_text="Persisted in-flight data of this channel, at its receiver, as it came."
    )


class VerdictHopSerializer(serializers.Serializer):
    """One subtask on the way from a late barrier to the subtask that is slow."""

    uid = serializers.CharField(help_text="The uid of the operator that heads the chain.")
    name = serializers.CharField(help_text="The subtask.")
    text = serializers.CharField(help_text="The operator's name, and its share of time.")


class VerdictChannelSerializer(serializers.Serializer):
    """The channel whose barrier the others waited for."""

    sender = serializers.CharField(help_text="The sending subtask.")
    receiver = serializers.CharField(help_text="The receiving subtask.")
    text = serializers.CharField(help_text="How late its barrier was, behind how many bytes.")


class VerdictSerializer(serializers.Serializer):
    """The verdict: why a checkpoint took as long as it did, failed, or is late; as on the pages."""

    tone = serializers.CharField(
        help_text="`good`: nothing to do; `warn`: slow or late; `bad`: it failed; `idle`: a "
        "planned end aborted it; `busy`: it is under way and not late."
    )
    headline = serializers.CharField(help_text="One sentence, which names the culprit.")
    because = serializers.ListField(
        child=serializers.CharField(), help_text="The numbers that the verdict rests on."
    )
    advice = serializers.ListField(child=serializers.CharField(), help_text="What to do.")
    path = VerdictHopSerializer(
        many=True, help_text="From the late channel's receiver to the subtask that is slow."
    )
    channel = VerdictChannelSerializer(allow_null=True, help_text="Null: no barrier was late.")
    culprits = serializers.ListField(
        child=serializers.CharField(), help_text="Subtasks, the worst first."
    )
    cause = serializers.ChoiceField(
        choices=[cause.value for cause in Cause],
        allow_null=True,
        help_text="The kind of the first culprit. Null: nothing was wrong, or nothing is known.",
    )
    stack = serializers.CharField(
        help_text="The stack of a call that does not return, or of the error; empty: none."
    )


class LastCheckpointSerializer(serializers.ModelSerializer):
    """A job's newest completed checkpoint, from which it would be restored."""

    completed_at = serializers.DateTimeField(source="settled_at")

    class Meta:
        model = Checkpoint
        fields = ["number", "kind", "completed_at", "duration_ms", "state_bytes"]
        read_only_fields = fields


class CheckpointSummarySerializer(serializers.Serializer):
    """A job's last checkpoint, its age, the failures since and the next trigger."""

    last = LastCheckpointSerializer(source="last_checkpoint", allow_null=True)
    age_ms = serializers.SerializerMethodField()
    failures_since_last = serializers.IntegerField(
        help_text="Checkpoints that failed since the last completed one."
    )
    next_at = serializers.DateTimeField(source="next_checkpoint_at", allow_null=True)

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_age_ms(self, job: "WithAnnotations[Job, Summary]") -> int | None:
        """Milliseconds since the last checkpoint completed, by the database's clock."""
        last = job.last_checkpoint
        if last is None or last.settled_at is None:
            return None
        age = job.read_at - last.settled_at
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
