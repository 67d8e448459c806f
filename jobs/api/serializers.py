"""The shapes in which the API shows jobs, and takes them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.reverse import reverse

from controlplane.base.serializers import RequestSerializer
from jobs import redaction
from jobs.models import (
    Artifact,
    Attempt,
    Driver,
    Edge,
    Job,
    JobException,
    Operation,
    Operator,
    PipelineKind,
    Subtask,
    Worker,
)
from weir.config import CheckpointingMode
from weir.protocol.operations import Phase


class PipelineSerializer(serializers.ModelSerializer):
    """Where a job's pipeline comes from."""

    kind = serializers.ChoiceField(PipelineKind.choices, source="pipeline_kind")
    target = serializers.CharField(
        source="pipeline_target", help_text="The script's path, the module, or the file's name."
    )
    upload = serializers.CharField(source="artifact_id", allow_null=True)

    class Meta:
        model = Job
        fields = ["kind", "target", "upload"]
        read_only_fields = fields


class JobSerializer(serializers.ModelSerializer):
    """A job in a list."""

    url = serializers.HyperlinkedIdentityField("api:job", lookup_url_kwarg="job_id")
    pipeline = PipelineSerializer(source="*")
    created_by = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Job
        fields = [
            "id",
            "url",
            "name",
            "status",
            "desired",
            "cause",
            "pipeline",
            "planned_name",
            "slot_count",
            "created_by",
            "created_at",
            "status_changed_at",
            "started_at",
            "ended_at",
        ]
        extra_kwargs = {
            "desired": {"help_text": "What it is meant to be."},
            "cause": {"help_text": "Why it fails or failed; empty once it runs again."},
            "planned_name": {"help_text": "What the pipeline calls itself; empty until it says."},
            "slot_count": {"help_text": "Null until the pipeline built its graph."},
            "started_at": {"help_text": "When it ran for the first time."},
        }
        read_only_fields = fields


class DriverSerializer(serializers.ModelSerializer):
    """One launched Spark application of a job."""

    host = serializers.CharField(source="launched_by", help_text="Of the launcher.")
    log_url = serializers.SerializerMethodField()

    class Meta:
        model = Driver
        fields = [
            "number",
            "status",
            "cause",
            "host",
            "pid",
            "spark_application",
            "created_at",
            "heard_at",
            "ended_at",
            "stopped_at",
            "log_url",
        ]
        extra_kwargs = {
            "cause": {"help_text": "Why it was lost or ended."},
            "pid": {"help_text": "Of spark-submit."},
            "stopped_at": {"help_text": "When its process was seen to be gone."},
        }
        read_only_fields = fields

    def get_log_url(self, driver: Driver) -> str:
        """Where its log is."""
        where = {"job_id": driver.job_id, "number": driver.number}
        return str(reverse("api:driver-log", kwargs=where, request=self.context.get("request")))


class WorkerSerializer(serializers.ModelSerializer):
    """A worker process of an attempt."""

    class Meta:
        model = Worker
        fields = ["slot_index", "host", "pid", "started_at"]
        read_only_fields = fields


class AttemptSerializer(serializers.ModelSerializer):
    """One deployment of a job's graph, and how it replaced the one before."""

    driver = serializers.IntegerField(source="driver.number", help_text="Its number.")
    workers = WorkerSerializer(many=True, source="worker_list")

    class Meta:
        model = Attempt
        fields = [
            "number",
            "driver",
            "restored_checkpoint",
            "started_at",
            "running_at",
            "ended_at",
            "end",
            "cause",
            "recovery_cause",
            "backoff_ms",
            "redeploy_ms",
            "restore_ms",
            "catch_up_ms",
            "restored_bytes",
            "replayed_records",
            "workers",
        ]
        extra_kwargs = {
            "restored_checkpoint": {"help_text": "Its number; null: from the beginning."},
            "end": {"help_text": "`failed`, `finished` or `canceled`; empty while it goes on."},
            "recovery_cause": {"help_text": "What it recovered from."},
        }
        read_only_fields = fields


class RedactedField(serializers.DictField):
    """Settings whose secrets are hidden, whoever asks."""

    def to_representation(self, value: dict[str, Any]) -> dict[str, Any]:
        """Values by name, as anybody may see them."""
        found: dict[str, Any] = redaction.shown("", super().to_representation(value))
        return found


class JobDetailSerializer(JobSerializer):
    """A job with all its settings."""

    driver = DriverSerializer(source="newest_driver", allow_null=True)
    options = RedactedField(
        help_text="What the submission laid over the pipeline's own settings; secrets are hidden."
    )
    spark_conf = RedactedField(
        child=serializers.CharField(), help_text="Secrets are hidden, by their names."
    )
    checkpoint_config = serializers.DictField(
        allow_null=True, help_text="Null until the pipeline built its graph."
    )
    restart_config = serializers.DictField(
        allow_null=True, help_text="Null until the pipeline built its graph."
    )
    settings = serializers.DictField(help_text="The rest of the pipeline's settings.")
    origin = serializers.CharField(
        source="origin_id", allow_null=True, help_text="The job it was forked from."
    )
    forks = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = [
            *JobSerializer.Meta.fields,
            "options",
            "spark_master",
            "spark_conf",
            "storage",
            "checkpoint_config",
            "restart_config",
            "settings",
            "restart_at",
            "cancel_due_at",
            "restore_uri",
            "origin",
            "origin_uri",
            "forks",
            "driver",
        ]
        extra_kwargs = JobSerializer.Meta.extra_kwargs | {
            "storage": {"help_text": "Where its checkpoints are."},
            "restore_uri": {
                "help_text": (
                    "Where its next driver begins, until a checkpoint completed from there; empty: "
                    "its newest checkpoint."
                )
            },
            "origin_uri": {"help_text": "The savepoint or checkpoint that it began with."},
            "restart_at": {"help_text": "When its next driver is launched, if one is due."},
            "cancel_due_at": {"help_text": "When a cancelled driver is killed."},
        }
        read_only_fields = fields

    @extend_schema_field(
        serializers.ListField(child=serializers.CharField(), help_text="Jobs forked from it.")
    )
    def get_forks(self, job: Job) -> list[str]:
        """Their ids, the oldest first."""
        return list(job.forks.order_by("created_at", "id").values_list("pk", flat=True))


class OperatorSerializer(serializers.ModelSerializer):
    """One operator of a job's graph."""

    class Meta:
        model = Operator
        fields = [
            "uid",
            "name",
            "parallelism",
            "max_parallelism",
            "chain",
            "is_source",
            "is_sink",
            "is_keyed",
        ]
        extra_kwargs = {"chain": {"help_text": "The uid of the head of the chain that runs it."}}
        read_only_fields = fields


class EdgeSerializer(serializers.ModelSerializer):
    """One edge of a job's graph, between the uids of two operators."""

    class Meta:
        model = Edge
        fields = ["source", "target", "partitioning", "input_index", "side_tag"]
        read_only_fields = fields


class GraphSerializer(serializers.Serializer):
    """The graph that a job's pipeline built; empty until it did."""

    operators = OperatorSerializer(many=True, help_text="In topological order.")
    edges = EdgeSerializer(many=True)


class RatesSerializer(serializers.Serializer[Any]):
    """What a subtask does, over about the last two seconds."""

    window_ms = serializers.FloatField(help_text="The time that they are measured over.")
    records_in_per_s = serializers.FloatField(help_text="Of a source: emitted.")
    records_out_per_s = serializers.FloatField()
    bytes_in_per_s = serializers.FloatField()
    bytes_out_per_s = serializers.FloatField()
    busy = serializers.FloatField(help_text="Share of the time, 0 to 1, in its own calls.")
    idle = serializers.FloatField(help_text="Share: nothing to do, or waiting for its turn.")
    back_pressured = serializers.FloatField(help_text="Share: its output waits for credit.")


class GateProgressSerializer(serializers.Serializer[Any]):
    """One input gate of an alignment in progress; arrays have an entry per channel."""

    gate = serializers.IntegerField(help_text="Index of the input gate.")
    upstream = serializers.ListField(
        child=serializers.CharField(), help_text="The sending subtask of each channel."
    )
    arrived_ms = serializers.ListField(
        child=serializers.FloatField(allow_null=True),
        help_text=(
            "When the barrier came, after the first one of the subtask. Null: it has not come, or "
            "never will where the channel has ended."
        ),
    )
    blocked_ms = serializers.ListField(child=serializers.FloatField(), help_text="So far.")
    bytes_during = serializers.ListField(
        child=serializers.IntegerField(), help_text="Bytes that came since the first barrier."
    )
    ended = serializers.ListField(
        child=serializers.BooleanField(), help_text="The channel's input is complete."
    )


class AligningSerializer(serializers.Serializer[Any]):
    """An alignment in progress."""

    checkpoint = serializers.IntegerField()
    since_ms = serializers.IntegerField(
        help_text="Wall clock of the first barrier, milliseconds since the epoch."
    )
    waited_ms = serializers.FloatField()
    gates = GateProgressSerializer(many=True)


class StallSerializer(serializers.Serializer[Any]):
    """The loop of the subtask's slot has been in one call for more than a second."""

    since_ms = serializers.IntegerField(help_text="Wall clock, milliseconds since the epoch.")
    stalled_ms = serializers.FloatField()
    stack = serializers.CharField(help_text="The user's frames, innermost call last.")


class SubtaskSerializer(serializers.ModelSerializer):
    """Where one subtask of the newest attempt stands, and what it does."""

    metrics = serializers.DictField(help_text="Its latest counters.")
    rates = serializers.SerializerMethodField(help_text="Null: not known yet, or it has ended.")
    aligning = AligningSerializer(
        allow_null=True,
        help_text=(
            "The latest alignment that lasted; over once the subtask acknowledged that checkpoint, "
            "or the checkpoint ended."
        ),
    )
    stall = StallSerializer(allow_null=True, help_text="Null: the loop comes round.")

    class Meta:
        model = Subtask
        fields = [
            "chain",
            "index",
            "attempt",
            "status",
            "metrics",
            "rates",
            "aligning",
            "stall",
            "updated_at",
        ]
        read_only_fields = fields

    @extend_schema_field(RatesSerializer(allow_null=True))
    def get_rates(self, subtask: Subtask) -> dict[str, float] | None:
        """An object without rates would be none of its kind."""
        return subtask.rates or None


class JobExceptionSerializer(serializers.ModelSerializer):
    """Something that went wrong."""

    driver = serializers.IntegerField(source="driver_number", allow_null=True)
    attempt = serializers.IntegerField(source="attempt_number", allow_null=True)

    class Meta:
        model = JobException
        fields = ["id", "at", "kind", "driver", "attempt", "subtask", "text"]
        extra_kwargs = {"text": {"help_text": "First line: what; the rest: the traceback."}}
        read_only_fields = fields


class OperationSerializer(serializers.ModelSerializer):
    """Something that was asked of a job and takes time. It always reaches an end."""

    url = serializers.HyperlinkedIdentityField("api:operation", lookup_url_kwarg="id")
    job = serializers.CharField(source="job_id")
    job_url = serializers.HyperlinkedRelatedField(
        "api:job", source="job", lookup_url_kwarg="job_id", read_only=True
    )
    requested_by = serializers.SlugRelatedField("username", read_only=True)
    parameters = RedactedField(help_text="As asked for; secrets are hidden, by their names.")
    result = serializers.DictField(allow_null=True, help_text="What came of it, if it succeeded.")
    phase = serializers.SerializerMethodField()
    saved = serializers.SerializerMethodField()

    class Meta:
        model = Operation
        fields = [
            "id",
            "url",
            "job",
            "job_url",
            "kind",
            "status",
            "phase",
            "saved",
            "parameters",
            "result",
            "error",
            "requested_by",
            "created_at",
            "started_at",
            "deadline_at",
            "ended_at",
        ]
        extra_kwargs = {
            "error": {"help_text": "Why it did not succeed."},
            "requested_by": {"help_text": "Null: the control plane itself."},
            "deadline_at": {"help_text": "It expires then, unless it ended."},
        }
        read_only_fields = fields

    @extend_schema_field(
        serializers.ChoiceField(
            [(phase.value, phase.value) for phase in Phase],
            allow_null=True,
            help_text="What it waits for, where it takes several steps; `done`: nothing any more.",
        )
    )
    def get_phase(self, operation: Operation) -> str | None:
        """Null for one that takes a single step."""
        return (operation.progress or {}).get("phase")

    @extend_schema_field(
        serializers.CharField(
            allow_null=True,
            help_text="The savepoint or checkpoint that it took; kept whatever comes of the rest.",
        )
    )
    def get_saved(self, operation: Operation) -> str | None:
        """Null: none so far."""
        return (operation.progress or {}).get("saved")


class UploadSerializer(serializers.ModelSerializer):
    """An uploaded pipeline, known by the SHA-256 of its content."""

    uploaded_by = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Artifact
        fields = ["digest", "file_name", "size", "uploaded_by", "uploaded_at"]
        read_only_fields = fields


# Requests -----------------------------------------------------------------------------------------


class PipelineRequest(RequestSerializer):
    """A pipeline: `kind`, and the one field of that name."""

    kind = serializers.ChoiceField(PipelineKind.choices)
    script = serializers.CharField(
        required=False,
        max_length=500,
        help_text="A path below one of the server's script roots, relative to it.",
    )
    module = serializers.CharField(
        required=False, max_length=500, help_text="A module that the drivers' Python can import."
    )
    upload = serializers.RegexField(
        r"^[0-9a-f]{64}\Z", required=False, help_text="An upload's digest."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Exactly the field that the kind names."""
        kind = attrs["kind"]
        if kind not in attrs:
            raise serializers.ValidationError({kind: ["A pipeline of this kind needs it."]})
        if others := sorted(set(attrs) - {"kind", kind}):
            raise serializers.ValidationError(
                {name: [f"A pipeline of kind {kind} does not have it."] for name in others}
            )
        return attrs


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class TextsField(serializers.DictField):
    """An object whose values are texts, taken as they are: 1 is not "1"."""

    def to_internal_value(self, data: Any) -> Any:
        """The same object."""
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type=type(data).__name__)
        wrong = [name for name, value in data.items() if not isinstance(value, str)]
        if wrong:
            raise serializers.ValidationError({name: ["Give a text."] for name in wrong})
        return data


class SubmissionRequest(RequestSerializer):
    """A job to be run. What is left out is up to the pipeline or the server."""

    name = serializers.CharField(max_length=100)
    pipeline = PipelineRequest()
    parallelism = serializers.IntegerField(required=False, min_value=1, max_value=32_768)
    checkpoint_interval_ms = serializers.IntegerField(
        required=False, min_value=10, max_value=2**31 - 1
    )
    mode = serializers.ChoiceField([mode.value for mode in CheckpointingMode], required=False)
    parameters = TextsField(required=False, help_text="For the pipeline; viewers can see them.")
    restore = serializers.CharField(
        required=False,
        max_length=1_000,
        help_text=(
            "What to begin with: a checkpoint of a job, `<storage>/<job>/chk-7`, or a savepoint's "
            "directory, wherever it was moved."
        ),
    )
    claims = serializers.BooleanField(
        required=False, help_text="The savepoint is the job's own from then on."
    )
    allow_non_restored_state = serializers.BooleanField(required=False)
    allow_pickled_state = serializers.BooleanField(
        required=False, help_text="Restoring pickled state runs code that is in it."
    )
    spark_master = serializers.CharField(
        required=False, max_length=200, help_text="Admins only; else the server's."
    )
    spark_conf = TextsField(
        required=False,
        help_text=(
            "Spark settings. Operators may set the size of driver and executors; admins anything "
            "that the server does not set itself."
        ),
    )
    storage = serializers.CharField(
        required=False, max_length=500, help_text="Admins only; else the server's."
    )
