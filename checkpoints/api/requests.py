"""Bodies of requests for savepoints, stops, rollbacks, rescales, upgrades, forks and previews."""

from typing import Any

from rest_framework import serializers

from checkpoints.catalog.savepoint_names import NOTE_LENGTH_MAX
from checkpoints.operations.upgrades import RUN_WITHIN_S_MAX, RUN_WITHIN_S_MIN
from controlplane.base.rest.serializers import RequestSerializer
from jobs.api.parameters import ParametersField
from jobs.api.requests import (
    PipelineRequest,
    RecoveryTargetField,
    SecretsField,
    TextsField,
)
from weir.storage.savepoint_names import LENGTH_MAX

PREVIEW_KINDS = ("restore", "rollback")
NUMBER_MAX = 2**63 - 1
_ALLOWS = (
    "Whether state that no operator restores may be left behind; else as the job is configured."
)


def _name() -> serializers.CharField:
    return serializers.CharField(
        required=False,
        max_length=LENGTH_MAX,
        help_text="Unique among the job's savepoints. Without it, a name is generated.",
    )


def _note() -> serializers.CharField:
    return serializers.CharField(required=False, max_length=NOTE_LENGTH_MAX, allow_blank=True)


def _labels() -> TextsField:
    return TextsField(required=False, help_text="Texts by name, to find the savepoint by.")


def _location() -> serializers.CharField:
    return serializers.CharField(
        required=False,
        max_length=1_000,
        help_text=(
            "Admins only: a directory of its own, as absolute path or URI. Without it, one in the "
            "job's storage."
        ),
    )


def _parallelism(**options: Any) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=1, max_value=32_768, **options)


class SavepointRequest(RequestSerializer):
    """A savepoint to be taken."""

    name = _name()
    note = _note()
    labels = _labels()
    location = _location()


class DescriptionRequest(RequestSerializer):
    """A savepoint's new name, note or labels; a field that is left out stays as it is."""

    name = _name()
    note = _note()
    labels = _labels()


class StopRequest(RequestSerializer):
    """A stop of a job, and the savepoint that it takes."""

    drain = serializers.BooleanField(
        default=False,
        help_text=(
            "Sources end, timers fire and windows close first. Without it the job can be resumed "
            "exactly where it was."
        ),
    )
    name = _name()
    note = _note()
    labels = _labels()
    location = _location()


class _TargetRequest(RequestSerializer):
    """A restore target, given by one field of ``targets``, not several."""

    checkpoint = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=NUMBER_MAX,
        help_text="The number of a checkpoint of this job.",
    )
    savepoint = serializers.UUIDField(required=False, help_text="The id of a savepoint.")

    targets: tuple[str, ...] = ("checkpoint", "savepoint")
    needs_target = True

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that exactly one target is given, or none where none is needed."""
        given = [name for name in self.targets if name in attrs]
        if len(given) > 1 or (self.needs_target and not given):
            said = f"Give one of {', '.join(self.targets)}."
            raise serializers.ValidationError({name: [said] for name in given or self.targets})
        return attrs


class RollbackRequest(_TargetRequest):
    """A rollback of a job to a checkpoint or savepoint."""

    rewind_output = serializers.BooleanField(
        default=True, help_text="File sinks withdraw the output that they committed since."
    )
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)


class RescaleRequest(RequestSerializer):
    """The parallelism that a job is to run with."""

    parallelism = _parallelism()
    wait_for_slots = serializers.BooleanField(
        default=False,
        help_text="Begin also where the cluster has too few slots now: the new driver waits for "
        "them, and the job is taken back to its parallelism of before if they do not come.",
    )


class UpgradeRequest(RequestSerializer):
    """The pipeline that a job goes on with; a field that is left out stays as it is."""

    pipeline = PipelineRequest(
        required=False, help_text="Without it, the job's own, read anew at the launch."
    )
    parameters = ParametersField(required=False, help_text="Laid over those of the job.")
    secrets = SecretsField(
        required=False, help_text="Names of all its secrets, instead of those that it has."
    )
    parallelism = _parallelism(required=False)
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)
    run_within_s = serializers.IntegerField(
        required=False,
        min_value=RUN_WITHIN_S_MIN,
        max_value=RUN_WITHIN_S_MAX,
        help_text=(
            "Seconds from the launch of the new pipeline until all its subtasks run; else the job "
            "goes on with the old one. Without it, the time of every operation."
        ),
    )


class ForkRequest(_TargetRequest):
    """A fork: the second job. Without a checkpoint or savepoint, a savepoint is taken first."""

    name = serializers.CharField(max_length=100, help_text="The name of the new job.")
    parameters = ParametersField(
        required=False,
        help_text="For the pipeline, laid over those of the origin: its output, say.",
    )
    secrets = SecretsField(
        required=False, help_text="Names of all its secrets, instead of those of the origin."
    )
    parallelism = _parallelism(required=False)
    recovery_target_s = RecoveryTargetField(
        help_text="Its recovery target in seconds; without it, that of the origin, if any."
    )
    pipeline = PipelineRequest(required=False, help_text="Instead of the origin's.")
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)

    needs_target = False


_OF_RESTORE = {
    "uri",
    "pipeline",
    "parameters",
    "secrets",
    "parallelism",
    "allow_non_restored_state",
}
_OF_ROLLBACK = {"rewind_output"}


class PreviewRequest(_TargetRequest):
    """A preview of a restore into a changed pipeline, or of a rollback."""

    kind = serializers.ChoiceField(PREVIEW_KINDS)
    uri = serializers.CharField(
        required=False, max_length=1_000, help_text="Restore: the URI of a savepoint or checkpoint."
    )
    pipeline = PipelineRequest(required=False, help_text="Restore: without it, the job's own.")
    parameters = ParametersField(required=False, help_text="Restore: laid over those of the job.")
    secrets = SecretsField(
        required=False, help_text="Restore: names of all secrets, instead of those of the job."
    )
    parallelism = _parallelism(required=False, help_text="Restore: without it, the job's own.")
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)
    rewind_output = serializers.BooleanField(
        required=False, help_text="Rollback: without it, true."
    )

    targets = ("checkpoint", "savepoint", "uri")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that each field belongs to the kind of preview."""
        attrs = super().validate(attrs)
        foreign = _OF_RESTORE if attrs["kind"] == "rollback" else _OF_ROLLBACK
        if wrong := sorted(foreign & set(attrs)):
            raise serializers.ValidationError(
                {name: [f"A preview of a {attrs['kind']} does not have {name}."] for name in wrong}
            )
        return attrs


class ComparisonRequest(RequestSerializer):
    """A comparison of two jobs' outputs."""

    other = serializers.CharField(max_length=120, help_text="The other job's id.")
    keys = serializers.ListField(
        child=serializers.CharField(max_length=300),
        min_length=1,
        max_length=20,
        help_text="The columns that identify a row of the output.",
    )
    windows = serializers.ListField(
        child=serializers.CharField(max_length=300),
        required=False,
        max_length=5,
        help_text="The columns that hold a window's times, where the output has them.",
    )
