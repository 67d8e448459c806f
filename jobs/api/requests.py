"""The shapes of requests about jobs and uploads."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.base.rest.serializers import RequestSerializer
from jobs.api.parameters import ParametersField
from jobs.api.serializers import RECOVERY_TARGET
from jobs.models import RECOVERY_TARGET_S_MAX, RECOVERY_TARGET_S_MIN, PipelineKind
from jobs.options import FACTOR_MAX, SECRETS_MAX
from jobs.submissions import check_recovery_target
from weir.bounds import NUMBER_MAX
from weir.config import (
    SECRET_NAME_LENGTH_MAX,
    SETTINGS_OF_STRATEGY,
    CheckpointingMode,
    RestartStrategyKind,
)


class UploadChangeRequest(RequestSerializer):
    """The name under which an upload is listed."""

    file_name = serializers.CharField(max_length=200, help_text="It ends in `.py`.")


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
        """Check that the only field beside ``kind`` is the one that it names."""
        kind = attrs["kind"]
        if kind not in attrs:
            raise serializers.ValidationError(
                {kind: [f"A pipeline of kind {kind} needs this field."]}
            )
        if others := sorted(set(attrs) - {"kind", kind}):
            raise serializers.ValidationError(
                {name: [f"A pipeline of kind {kind} has no such field."] for name in others}
            )
        return attrs


@extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
class TextsField(serializers.DictField):
    """An object whose values are texts, unconverted: 1 is not "1"."""

    def to_internal_value(self, data: Any) -> Any:
        """The object, unchanged."""
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type=type(data).__name__)
        wrong = [name for name, value in data.items() if not isinstance(value, str)]
        if wrong:
            raise serializers.ValidationError({name: ["Give a text."] for name in wrong})
        return data


class SecretsField(serializers.ListField):
    """The names of secrets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            child=serializers.CharField(max_length=SECRET_NAME_LENGTH_MAX),
            max_length=SECRETS_MAX,
            **options,
        )


class RecoveryTargetField(serializers.FloatField):
    """A recovery target in seconds, as a number: neither a text nor true."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            min_value=RECOVERY_TARGET_S_MIN,
            max_value=RECOVERY_TARGET_S_MAX,
            **{"required": False, **options},
        )

    def to_internal_value(self, data: Any) -> float:
        """The seconds.

        Raises:
            ValidationError: It is no number, or out of its bounds.
        """
        try:
            return check_recovery_target(data)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error


class JobChangeRequest(RequestSerializer):
    """Changes of a job; a field that is left out stays as it is."""

    name = serializers.CharField(
        required=False, max_length=100, help_text="The job's name; its id stays."
    )
    labels = TextsField(required=False, help_text="Texts by name, to find the job by.")
    archived = serializers.BooleanField(
        required=False,
        help_text="`true`: it is left out of lists, which needs a job that is over.",
    )
    recovery_target_s = RecoveryTargetField(
        allow_null=True, help_text=f"{RECOVERY_TARGET} Null: by their limit."
    )


def _number(said: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        required=False, min_value=0, max_value=NUMBER_MAX, help_text=said
    )


class RestartRequest(RequestSerializer):
    """The restart strategy of a failed job: `kind`, and settings of that kind."""

    kind = serializers.ChoiceField([kind.value for kind in RestartStrategyKind])
    attempts_max = _number("`fixed_delay`: the number of restarts; the next failure ends the job.")
    delay_ms = _number("`fixed_delay`, `failure_rate`: from a failure to the restart.")
    failures_max = _number("`failure_rate`: with more failures within the interval the job fails.")
    failure_interval_ms = _number("`failure_rate`: the interval within which failures count.")
    initial_backoff_ms = _number(
        "`exponential_delay`: before the second restart; the first one is immediate."
    )
    max_backoff_ms = _number("`exponential_delay`: the delay does not grow beyond this.")
    backoff_multiplier = serializers.FloatField(
        required=False,
        min_value=1,
        max_value=FACTOR_MAX,
        help_text="`exponential_delay`: each delay is the one before times this factor.",
    )
    reset_after_ms = _number(
        "`exponential_delay`: after this time without failure the delay starts over."
    )
    jitter = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=1,
        help_text="`exponential_delay`: a delay is made longer or shorter by up to this share.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that the strategy uses each setting."""
        kind = attrs["kind"]
        used = SETTINGS_OF_STRATEGY[RestartStrategyKind(kind)]
        if others := sorted(set(attrs) - {"kind", *used}):
            raise serializers.ValidationError(
                {name: [f"The strategy {kind} has no such setting."] for name in others}
            )
        return attrs


class SubmissionRequest(RequestSerializer):
    """A job to run. The pipeline or the server decides the fields that are left out."""

    name = serializers.CharField(max_length=100)
    pipeline = PipelineRequest()
    parallelism = serializers.IntegerField(required=False, min_value=1, max_value=32_768)
    checkpoint_interval_ms = serializers.IntegerField(
        required=False, min_value=10, max_value=2**31 - 1
    )
    checkpoint_timeout_ms = serializers.IntegerField(
        required=False,
        min_value=10,
        max_value=NUMBER_MAX,
        help_text="A checkpoint that is not complete after this time is aborted.",
    )
    checkpoint_min_pause_ms = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=NUMBER_MAX,
        help_text="The least time between the end of a checkpoint and the next trigger.",
    )
    retained_checkpoints = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=NUMBER_MAX,
        help_text="The number of completed checkpoints that are retained.",
    )
    restart = RestartRequest(
        required=False, help_text="The restart strategy, in place of the pipeline's."
    )
    mode = serializers.ChoiceField([mode.value for mode in CheckpointingMode], required=False)
    parameters = ParametersField(
        required=False, help_text="Parameters for the pipeline; viewers can see them."
    )
    secrets = SecretsField(
        required=False,
        help_text="Names of secrets, whose values the pipeline gets; store them first.",
    )
    recovery_target_s = RecoveryTargetField(help_text=RECOVERY_TARGET)
    labels = TextsField(required=False, help_text="Texts by name, to find the job by.")
    restore = serializers.CharField(
        required=False,
        max_length=1_000,
        help_text=(
            "The state to start from: a checkpoint of a job, `<storage>/<job>/chk-7`, or a "
            "savepoint's directory, also after it was moved."
        ),
    )
    claims = serializers.BooleanField(
        required=False, help_text="Whether the job owns the savepoint from then on."
    )
    allow_non_restored_state = serializers.BooleanField(required=False)
    allow_pickled_state = serializers.BooleanField(
        required=False, help_text="Restoring pickled state runs the code inside it."
    )
    spark_master = serializers.CharField(
        required=False, max_length=200, help_text="Admins only; default: the server's."
    )
    spark_conf = TextsField(
        required=False,
        help_text=(
            "Spark settings. Operators may set the size of driver and executors; admins all others "
            "that the server does not set itself."
        ),
    )
    storage = serializers.CharField(
        required=False, max_length=500, help_text="Admins only; default: the server's."
    )
