"""The shapes of jobs in the API's responses and requests."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.reverse import reverse

from jobs import redaction
from jobs.models import (
    Artifact,
    Attempt,
    Driver,
    Edge,
    Job,
    JobEvent,
    JobException,
    Operation,
    Operator,
    PipelineKind,
    Subtask,
    Worker,
)
from weir.protocol.operations import Phase
from weir.protocol.slot_memory import MemorySource

RECOVERY_TARGET = (
    "The longest time that a recovery may take, in seconds: from a failure until all subtasks run "
    "again. Rules of the kind `recovery_time` judge the job by it instead of by their own limit."
)


class PipelineSerializer(serializers.ModelSerializer):
    """The source of a job's pipeline: a script, a module or an upload."""

    kind = serializers.ChoiceField(PipelineKind.choices, source="pipeline_kind")
    target = serializers.CharField(
        source="pipeline_target",
        help_text="The script's path, the module, or the uploaded file's name.",
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
    created_by: serializers.RelatedField = serializers.SlugRelatedField("username", read_only=True)
    labels = serializers.DictField(
        child=serializers.CharField(), help_text="Texts by name, to find the job by."
    )

    class Meta:
        model = Job
        fields = [
            "id",
            "url",
            "name",
            "labels",
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
            "archived_at",
        ]
        extra_kwargs = {
            "archived_at": {
                "help_text": "The time since when it is left out of lists; null: it is not."
            },
            "desired": {"help_text": "The state that the job is meant to be in."},
            "cause": {
                "help_text": "The reason why the job fails or failed; empty once it runs again."
            },
            "planned_name": {
                "help_text": "The pipeline's own name for the job; empty until its graph is built."
            },
            "slot_count": {"help_text": "Null until the pipeline has built its graph."},
            "started_at": {"help_text": "The time when the job first ran."},
        }
        read_only_fields = fields


class DriverSerializer(serializers.ModelSerializer):
    """One launched Spark application of a job."""

    host = serializers.CharField(source="launched_by", help_text="The launcher's host.")
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
            "cause": {"help_text": "The reason why the driver was lost or ended."},
            "pid": {"help_text": "The pid of spark-submit."},
            "stopped_at": {
                "help_text": "The time when the launcher saw that the driver process had ended."
            },
        }
        read_only_fields = fields

    def get_log_url(self, driver: Driver) -> str:
        """The URL of the driver's log."""
        where = {"job_id": driver.job_id, "number": driver.number}
        return str(reverse("api:driver-log", kwargs=where, request=self.context.get("request")))


class WorkerSerializer(serializers.ModelSerializer):
    """A worker process of an attempt."""

    memory_limit_source = serializers.ChoiceField(
        choices=[source.value for source in MemorySource],
        allow_blank=True,
        read_only=True,
        help_text="The origin of the limit: the job's `setting`, or a share of its `cgroup`'s; "
        "empty: there is none.",
    )

    class Meta:
        model = Worker
        fields = [
            *("slot_index", "host", "pid", "started_at"),
            *("memory_bytes", "memory_limit_bytes", "memory_limit_source"),
        ]
        read_only_fields = fields
        extra_kwargs = {
            "memory_bytes": {
                "help_text": "Resident memory as last reported, within a hundredth; null: none."
            },
            "memory_limit_bytes": {
                "help_text": "The resident memory above which it ends; null: there is no limit."
            },
        }


class AttemptSerializer(serializers.ModelSerializer):
    """One deployment of a job's graph, and the recovery that led to it."""

    driver = serializers.IntegerField(source="driver.number", help_text="The driver's number.")
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
            "gave_up",
            "cause",
            "recovery_cause",
            "backoff_ms",
            "redeploy_ms",
            "restore_ms",
            "catch_up_ms",
            "restored_bytes",
            "restored_local_bytes",
            "replayed_records",
            "workers",
        ]
        extra_kwargs = {
            "restored_checkpoint": {
                "help_text": "The restored checkpoint's number; null: started from the beginning."
            },
            "end": {
                "help_text": "`failed`, `finished`, `canceled` or `suspended`; empty while the "
                "attempt runs."
            },
            "gave_up": {
                "help_text": "Whether the job failed for good with it: no restart followed but one "
                "that a user asked for."
            },
            "recovery_cause": {"help_text": "The failure from which the job recovered."},
        }
        read_only_fields = fields


class RedactedField(serializers.DictField):
    """Settings whose secrets are hidden from all roles."""

    def to_representation(self, value: dict[str, Any]) -> dict[str, Any]:
        """The values by name, secrets hidden."""
        visible: dict[str, Any] = redaction.shown("", super().to_representation(value))
        return visible


class JobDetailSerializer(JobSerializer):
    """A job with all its settings."""

    driver = DriverSerializer(source="newest_driver", allow_null=True)
    options = RedactedField(
        help_text="The submission's overrides of the pipeline's own settings; secrets are hidden."
    )
    spark_conf = RedactedField(
        child=serializers.CharField(),
        help_text="Spark settings; values with the name of a secret are hidden.",
    )
    checkpoint_config = serializers.DictField(
        allow_null=True, help_text="Null until the pipeline has built its graph."
    )
    restart_config = serializers.DictField(
        allow_null=True, help_text="Null until the pipeline has built its graph."
    )
    settings = serializers.DictField(help_text="The rest of the pipeline's settings.")
    origin = serializers.CharField(
        source="origin_id",
        allow_null=True,
        help_text="The id of the job that this one was forked from.",
    )
    forks = serializers.SerializerMethodField()

    class Meta(JobSerializer.Meta):
        fields = [
            *JobSerializer.Meta.fields,
            "options",
            "spark_master",
            "spark_conf",
            "storage",
            "recovery_target_s",
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
            "storage": {"help_text": "The root directory or URI of the job's checkpoints."},
            "recovery_target_s": {"help_text": f"{RECOVERY_TARGET} Null: by their limit."},
            "restore_uri": {
                "help_text": (
                    "The checkpoint or savepoint that the next driver restores, until the job has "
                    "completed a checkpoint after it; empty: the job's newest checkpoint."
                )
            },
            "origin_uri": {"help_text": "The savepoint or checkpoint that the job started from."},
            "restart_at": {
                "help_text": "The time when the next driver is launched, if one is due."
            },
            "cancel_due_at": {
                "help_text": "The time when a driver that does not obey its cancellation is killed."
            },
        }
        read_only_fields = fields

    @extend_schema_field(
        serializers.ListField(
            child=serializers.CharField(), help_text="The ids of the jobs forked from this one."
        )
    )
    def get_forks(self, job: Job) -> list[str]:
        """The ids of the job's forks, the oldest first."""
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
        extra_kwargs = {"chain": {"help_text": "The uid of the head of the operator's chain."}}
        read_only_fields = fields


class EdgeSerializer(serializers.ModelSerializer):
    """One edge of a job's graph, between the uids of two operators."""

    class Meta:
        model = Edge
        fields = ["source", "target", "partitioning", "input_index", "side_tag"]
        read_only_fields = fields


class GraphSerializer(serializers.Serializer):
    """The graph that a job's pipeline built; empty until then."""

    operators = OperatorSerializer(many=True, help_text="In topological order.")
    edges = EdgeSerializer(many=True)


class SampledCallSerializer(serializers.Serializer[Any]):
    """A place in the code at which samples met a subtask at work."""

    operator = serializers.CharField(help_text="Uid of the innermost operator on the stack.")
    function = serializers.CharField(
        help_text="Of the innermost frame of the pipeline's own code; empty: there was none."
    )
    file = serializers.CharField(help_text="The name of the file of that frame.")
    line = serializers.IntegerField(help_text="The line of that frame.")
    share = serializers.FloatField(help_text="Share of these samples, 0 to 1.")


class ThreadsBesideSerializer(serializers.Serializer[Any]):
    """Threads that user code started in a slot, over about two seconds."""

    lock_wait_ms = serializers.FloatField(
        help_text="Mean wait for Python's interpreter lock, of a thread of the slot that wakes."
    )
    cpu_share = serializers.FloatField(
        help_text="Share of one processor, 0 to 1, that these threads used together; 1: or more."
    )
    loop_share = serializers.FloatField(help_text="The same of the slot's loop.")
    function = serializers.CharField(
        help_text="Where they were met most; empty: in no code of the pipeline's own."
    )
    file = serializers.CharField(help_text="The name of the file of that function.")
    line = serializers.IntegerField(help_text="The line in that function.")


class RatesSerializer(serializers.Serializer[Any]):
    """Throughput and use of time of a subtask, over about the last two seconds."""

    window_ms = serializers.FloatField(help_text="The time over which the rates are measured.")
    records_in_per_s = serializers.FloatField(help_text="For a source: records emitted.")
    records_out_per_s = serializers.FloatField()
    bytes_in_per_s = serializers.FloatField()
    bytes_out_per_s = serializers.FloatField()
    busy = serializers.FloatField(
        help_text="Share of the time, 0 to 1, in the subtask's own calls."
    )
    idle = serializers.FloatField(
        help_text="Share of the time, 0 to 1: no input, or another subtask's turn."
    )
    back_pressured = serializers.FloatField(
        help_text="Share of the time, 0 to 1: the output waits for credit."
    )
    cpu_wait = serializers.FloatField(
        required=False,
        help_text=(
            "Share of the time, 0 to 1, in which the loop of the subtask's slot was ready to run "
            "and had no processor; part of the three above. Absent: not measured yet."
        ),
    )
    cpu_pressure = serializers.FloatField(
        required=False,
        help_text=(
            "Share of the time, 0 to 1, in which some thread of the slot's host was ready to run "
            "and had no processor. Absent: not measured yet."
        ),
    )
    calls = SampledCallSerializer(
        many=True,
        required=False,
        help_text=(
            "Where the subtask worked most over about the last five seconds, by samples of its "
            "stack. Absent: too few samples met it at work."
        ),
    )
    beside = ThreadsBesideSerializer(
        required=False,
        help_text=(
            "Threads beside the loop of the subtask's slot. Absent: they used next to no processor."
        ),
    )


class PointSerializer(serializers.Serializer[Any]):
    """The load of a chain from the point before until ``at``. Null: not known."""

    at = serializers.DateTimeField()
    attempt = serializers.IntegerField(
        help_text="The first point of each attempt has no rates and no shares."
    )
    running = serializers.IntegerField(help_text="Running subtasks, at the end.")
    records_in_per_s = serializers.FloatField(
        allow_null=True, help_text="Over all subtasks of the chain; for a source: records emitted."
    )
    records_out_per_s = serializers.FloatField(
        allow_null=True, help_text="Over all subtasks of the chain."
    )
    busy = serializers.FloatField(
        allow_null=True, help_text="Share of the time, 0 to 1, mean of the subtasks."
    )
    busiest = serializers.FloatField(
        allow_null=True,
        help_text="The same of the busiest subtask, in two seconds of that time.",
    )
    back_pressured = serializers.FloatField(
        allow_null=True, help_text="Share of the time, 0 to 1, mean of the subtasks."
    )
    lag_ms = serializers.FloatField(
        allow_null=True, help_text="The wall clock less the lowest watermark, the largest."
    )
    state_bytes = serializers.IntegerField(
        allow_null=True, help_text="The operator's, in the newest completed checkpoint then."
    )


class SeriesSerializer(serializers.Serializer[Any]):
    """The load of an operator's chain over time."""

    operator = serializers.CharField()
    chain = serializers.CharField(
        help_text="The head of the operator's chain, which the rates and shares are of."
    )
    points = PointSerializer(many=True, help_text="The oldest first.")


class GateProgressSerializer(serializers.Serializer[Any]):
    """One input gate of an alignment in progress; arrays have an entry per channel."""

    gate = serializers.IntegerField(help_text="Index of the input gate.")
    upstream = serializers.ListField(
        child=serializers.CharField(), help_text="The sending subtask of each channel."
    )
    arrived_ms = serializers.ListField(
        child=serializers.FloatField(allow_null=True),
        help_text=(
            "Arrival of the barrier on each channel, after the subtask's first barrier. Null: not "
            "yet; never, where the channel has ended."
        ),
    )
    blocked_ms = serializers.ListField(
        child=serializers.FloatField(),
        help_text="The time that each channel has been blocked so far.",
    )
    bytes_during = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Bytes received on each channel since the first barrier.",
    )
    ended = serializers.ListField(
        child=serializers.BooleanField(), help_text="Whether each channel's input is complete."
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
    """A stall: the loop of the subtask's slot has been in one call for more than a second."""

    since_ms = serializers.IntegerField(help_text="Wall clock, milliseconds since the epoch.")
    stalled_ms = serializers.FloatField()
    stack = serializers.CharField(help_text="The stack frames of user code, innermost call last.")


class SubtaskSerializer(serializers.ModelSerializer):
    """One subtask of the newest attempt: status, counters, rates, alignment and stall."""

    metrics = serializers.DictField(help_text="The latest counters.")
    rates = serializers.SerializerMethodField(
        help_text="Null: not known yet, or the subtask has ended."
    )
    aligning = AligningSerializer(
        allow_null=True,
        help_text=(
            "The latest alignment that took long; over once the subtask has acknowledged that "
            "checkpoint, or the checkpoint has ended."
        ),
    )
    stall = StallSerializer(allow_null=True, help_text="Null: the subtask's loop is not stalled.")

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
        """The rates; null instead of an object without members."""
        return subtask.rates or None


class JobExceptionSerializer(serializers.ModelSerializer):
    """A failure or a notice, of the job, a driver, an attempt or a subtask."""

    driver = serializers.IntegerField(source="driver_number", allow_null=True)
    attempt = serializers.IntegerField(source="attempt_number", allow_null=True)

    class Meta:
        model = JobException
        fields = ["id", "at", "kind", "driver", "attempt", "subtask", "text"]
        extra_kwargs = {
            "text": {"help_text": "The first line is the failure, the rest its traceback."}
        }
        read_only_fields = fields


class JobEventSerializer(serializers.ModelSerializer):
    """A fact about the job, as it happened."""

    facts = serializers.DictField(
        help_text="Numbers and ids by name: of checkpoints `checkpoint`, `kind`, `attempt`, "
        "`duration_ms`, `alignment_ms`, `state_bytes`, `cause`; of attempts `attempt`, `driver`, "
        "`cause`; of the job's status `before`, `cause`; of operations `operation`, `kind`, "
        "`error`; of a lost driver `driver`, `cause`."
    )

    class Meta:
        model = JobEvent
        fields = ["id", "at", "kind", "planned", "reason", "facts"]
        extra_kwargs = {
            "planned": {
                "help_text": "Whether a request, or the end of the input, led to it: no failure."
            },
            "reason": {
                "help_text": "Why a checkpoint failed or was aborted, how an attempt or operation "
                "ended, or the job's status."
            },
        }
        read_only_fields = fields


class OperationSerializer(serializers.ModelSerializer):
    """A request about a job that takes time. An operation always reaches an end."""

    url = serializers.HyperlinkedIdentityField("api:operation", lookup_url_kwarg="id")
    job = serializers.CharField(source="job_id")
    job_url: serializers.RelatedField = serializers.HyperlinkedRelatedField(
        "api:job", source="job", lookup_url_kwarg="job_id", read_only=True
    )
    requested_by: serializers.RelatedField = serializers.SlugRelatedField(
        "username", read_only=True
    )
    parameters = RedactedField(
        help_text="The request's parameters; values with the name of a secret are hidden."
    )
    result = serializers.DictField(
        allow_null=True, help_text="The result, if the operation succeeded."
    )
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
            "error": {"help_text": "The reason why the operation did not succeed."},
            "requested_by": {"help_text": "The account's name; null: the control plane itself."},
            "deadline_at": {
                "help_text": "The time when the operation expires, unless it has ended."
            },
        }
        read_only_fields = fields

    @extend_schema_field(
        serializers.ChoiceField(
            [(phase.value, phase.value) for phase in Phase],
            allow_null=True,
            help_text="The step under way, of an operation with several steps; `done`: none left.",
        )
    )
    def get_phase(self, operation: Operation) -> str | None:
        """The step under way; null for an operation with a single step."""
        return (operation.progress or {}).get("phase")

    @extend_schema_field(
        serializers.CharField(
            allow_null=True,
            help_text="The savepoint or checkpoint that the operation took; kept even if it fails.",
        )
    )
    def get_saved(self, operation: Operation) -> str | None:
        """The savepoint or checkpoint taken; null: none so far."""
        return (operation.progress or {}).get("saved")


class UploadSerializer(serializers.ModelSerializer):
    """An uploaded pipeline, known by the SHA-256 of its content."""

    uploaded_by: serializers.RelatedField = serializers.SlugRelatedField("username", read_only=True)

    class Meta:
        model = Artifact
        fields = ["digest", "file_name", "size", "uploaded_by", "uploaded_at"]
        read_only_fields = fields
