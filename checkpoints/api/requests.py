"""The bodies with which savepoints are taken and jobs are sent back."""

from typing import Any

from rest_framework import serializers

from controlplane.base.serializers import RequestSerializer
from jobs.api.serializers import PipelineRequest, TextsField

NAME_LENGTH_MAX = 80
NOTE_LENGTH_MAX = 10_000
PREVIEW_KINDS = ("restore", "rollback")
NUMBER_MAX = 2**63 - 1
_ALLOWS = "State that no operator takes up may be left behind; else as the job is configured."


def _name() -> serializers.CharField:
    return serializers.CharField(
        required=False,
        max_length=NAME_LENGTH_MAX,
        help_text="Unique among the job's savepoints; else one is made up.",
    )


def _note() -> serializers.CharField:
    return serializers.CharField(required=False, max_length=NOTE_LENGTH_MAX, allow_blank=True)


def _labels() -> TextsField:
    return TextsField(required=False, help_text="Texts by name, to find it by.")


def _location() -> serializers.CharField:
    return serializers.CharField(
        required=False,
        max_length=1_000,
        help_text=(
            "Admins only: a directory of its own, as absolute path or URI; else one in the job's "
            "storage."
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
    """What a savepoint is called from now on; what is left out stays."""

    name = _name()
    note = _note()
    labels = _labels()


class StopRequest(RequestSerializer):
    """How a job is to be stopped."""

    drain = serializers.BooleanField(
        default=False,
        help_text=(
            "Sources end, timers fire and windows close first. Without it the job can be taken up "
            "again exactly where it was."
        ),
    )
    name = _name()
    note = _note()
    labels = _labels()
    location = _location()


class _TargetRequest(RequestSerializer):
    """Where to go: by one field of ``targets``, not several."""

    checkpoint = serializers.IntegerField(
        required=False, min_value=1, max_value=NUMBER_MAX, help_text="By its number, of this job."
    )
    savepoint = serializers.UUIDField(required=False, help_text="By its id.")

    targets = ("checkpoint", "savepoint")
    needs_target = True

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """One of them."""
        given = [name for name in self.targets if name in attrs]
        if len(given) > 1 or (self.needs_target and not given):
            said = f"Give one of {', '.join(self.targets)}."
            raise serializers.ValidationError({name: [said] for name in given or self.targets})
        return attrs


class RollbackRequest(_TargetRequest):
    """Where a job is to go back to."""

    rewind_output = serializers.BooleanField(
        default=True, help_text="File sinks take back what they committed since."
    )
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)


class RescaleRequest(RequestSerializer):
    """How wide a job is to run."""

    parallelism = _parallelism()


class ForkRequest(_TargetRequest):
    """The second job; without a checkpoint or savepoint one is taken first."""

    name = serializers.CharField(max_length=100, help_text="Of the new job.")
    parameters = TextsField(
        required=False, help_text="For the pipeline, over those of the origin: its output, say."
    )
    parallelism = _parallelism(required=False)
    pipeline = PipelineRequest(required=False, help_text="Another one than the origin's.")
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)

    needs_target = False


_OF_RESTORE = {
    "uri",
    "pipeline",
    "parameters",
    "parallelism",
    "allow_non_restored_state",
}
_OF_ROLLBACK = {"rewind_output"}


class PreviewRequest(_TargetRequest):
    """What to look at: a restore into a changed pipeline, or a rollback."""

    kind = serializers.ChoiceField(PREVIEW_KINDS)
    uri = serializers.CharField(
        required=False, max_length=1_000, help_text="Restore: a savepoint's or checkpoint's place."
    )
    pipeline = PipelineRequest(required=False, help_text="Restore: else the job's own.")
    parameters = TextsField(required=False, help_text="Restore: over those of the job.")
    parallelism = _parallelism(required=False, help_text="Restore: else the job's own.")
    allow_non_restored_state = serializers.BooleanField(required=False, help_text=_ALLOWS)
    rewind_output = serializers.BooleanField(required=False, help_text="Rollback: else true.")

    targets = ("checkpoint", "savepoint", "uri")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Only what belongs to the kind."""
        attrs = super().validate(attrs)
        foreign = _OF_RESTORE if attrs["kind"] == "rollback" else _OF_ROLLBACK
        if wrong := sorted(foreign & set(attrs)):
            raise serializers.ValidationError(
                {name: [f"A preview of a {attrs['kind']} does not have it."] for name in wrong}
            )
        return attrs


class ComparisonRequest(RequestSerializer):
    """What to lay side by side."""

    other = serializers.CharField(max_length=120, help_text="The other job's id.")
    keys = serializers.ListField(
        child=serializers.CharField(max_length=300),
        min_length=1,
        max_length=20,
        help_text="The columns that name a row of the output.",
    )
    windows = serializers.ListField(
        child=serializers.CharField(max_length=300),
        required=False,
        max_length=5,
        help_text="The columns that hold a window's times, where the output has them.",
    )
