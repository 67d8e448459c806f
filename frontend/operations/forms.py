"""Forms of the operations on a job: stop, rollback, rescale, fork and others.

A form returns the arguments of its service; the service validates them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.conf import settings

from checkpoints.operations.upgrades import RUN_WITHIN_S_MAX, RUN_WITHIN_S_MIN
from controlplane.base.errors import Refusal
from controlplane.base.formatting import interval
from frontend.base.forms import ServiceForm, choice_field
from frontend.operations import restore_targets
from jobs import redaction
from jobs.models import RECOVERY_TARGET_S_MAX, RECOVERY_TARGET_S_MIN, Job, PipelineKind
from jobs.submissions import Pipeline
from weir.protocol.lifecycle import JobStatus

GroupedChoices = Sequence[tuple[str, Sequence[restore_targets.Choice]]]

NEW = ""  # The target that stands for a savepoint taken first.


class TextsField(forms.CharField):
    """Texts by name, one ``name: text`` or ``name = text`` per line."""

    def __init__(self, separator: str, **options: Any) -> None:
        self._separator = separator
        widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
        super().__init__(widget=widget, required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        """The pairs as lines of text."""
        if not isinstance(value, dict):
            return value
        lines = (f"{name}{self._separator}{text}" for name, text in value.items())
        return "\n".join(lines)

    def clean(self, value: Any) -> dict[str, str]:
        """The texts by name.

        Raises:
            ValidationError: A line is not a pair.
        """
        text = super().clean(value)
        texts = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            name, separator, content = line.partition(self._separator.strip())
            if not separator or not name.strip():
                raise forms.ValidationError(
                    f"Write one “name{self._separator}text” per line, not “{line[:80]}”."
                )
            texts[name.strip()] = content.strip()
        return texts


class NamesField(forms.CharField):
    """Names separated by commas."""

    def clean(self, value: Any) -> list[str]:
        """The names."""
        return [name for name in map(str.strip, super().clean(value).split(",")) if name]


class RecoveryTargetField(forms.FloatField):
    """A recovery target in seconds; it may be left empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            label="Recovery target (s)",
            required=False,
            min_value=RECOVERY_TARGET_S_MIN,
            max_value=RECOVERY_TARGET_S_MAX,
            widget=forms.NumberInput(attrs={"step": "any"}),
            **options,
        )


class Form(ServiceForm):
    """A form about a job."""

    def __init__(
        self,
        job: Job,
        restorable: GroupedChoices,
        data: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, **options)
        self.job = job
        self.refused: dict[str, list[str]] = {}  # Errors of a refusal that are about no field.
        self.prepare(restorable)

    def prepare(self, restorable: GroupedChoices) -> None:
        """Fill in the parts that depend on the job."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of the service, once the form is valid."""
        return dict(self.cleaned_data)

    def refuse(self, refused: Refusal) -> Refusal:
        """Put the errors of a refusal beside their fields; the refusal heads the page."""
        errors: Mapping[str, Iterable[str]] = refused.extra.get("errors") or {}
        for name, said in errors.items():
            name = name.removeprefix("options.")
            field = _FIELD_OF.get(name, name)
            if field in self.fields:
                self.add_error(field, list(said))
            else:
                self.refused[name] = list(said)
        return refused

    def focus_first_error(self) -> None:
        """Focus the first field with an error."""
        for name, field in self.fields.items():
            if name in self.errors:
                field.widget.attrs["autofocus"] = True
                return


# Fields by the names that services have for them, where these differ.
_FIELD_OF = {
    "artifact_digest": "pipeline_target",
    "checkpoint": "target",
    "savepoint": "target",
    "restore": "target",
    "uri": "target",
    "other": "other_job_id",
}


class EmptyForm(Form):
    """A form without fields."""


class DescriptionForm(Form):
    """Name, note and labels of a savepoint."""

    name = forms.CharField(max_length=80, help_text="Unique among the savepoints of this job.")
    note = forms.CharField(
        required=False, max_length=10_000, widget=forms.Textarea(attrs={"rows": 3})
    )
    labels = TextsField(": ", help_text="One “name: text” per line.")


class SavepointForm(DescriptionForm):
    """A savepoint to be taken."""

    name = forms.CharField(
        required=False, max_length=80, help_text="Left empty: a generated name.", strip=True
    )


class StopForm(SavepointForm):
    """A stop with a savepoint, with or without draining."""

    name = forms.CharField(
        label="Name of the savepoint",
        required=False,
        max_length=80,
        help_text="Left empty: a generated name.",
    )

    drain = forms.TypedChoiceField(
        label="Mode",
        choices=[
            ("no", "Suspend: the job can be resumed exactly where it stopped."),
            (
                "yes",
                "Drain: sources end, timers fire and windows close first, so that all results "
                "are emitted. For a job that will not be resumed.",
            ),
        ],
        initial="no",
        coerce=lambda value: value == "yes",
        widget=forms.RadioSelect,
    )
    field_order = ("drain", "name", "note", "labels")


class TargetForm(Form):
    """A form with a checkpoint or savepoint to restore."""

    target = forms.ChoiceField(label="From", widget=forms.Select)

    def prepare(self, restorable: GroupedChoices) -> None:
        """Offer the checkpoints and savepoints that can be restored."""
        self.restorable = list(restorable)
        choice_field(self, "target").choices = self.restorable

    def arguments(self) -> dict[str, Any]:
        """``checkpoint`` or ``savepoint`` instead of the target."""
        given = super().arguments()
        return restore_targets.read(given.pop("target")) | given


class RollbackForm(TargetForm):
    """The target of a rollback."""

    rewind_output = forms.BooleanField(
        label="Take back output",
        required=False,
        initial=True,
        help_text=(
            "File sinks move output committed since then aside; it comes back if the job is sent "
            "forward again. Otherwise records that are processed again appear in the output twice."
        ),
    )

    def prepare(self, restorable: GroupedChoices) -> None:
        """Offer the checkpoints and savepoints that can be restored."""
        super().prepare(restorable)
        self.fields["target"].label = "Go on from"


class RescaleForm(Form):
    """The new parallelism of a job."""

    parallelism = forms.IntegerField(min_value=1, max_value=32_768)
    wait_for_slots = forms.BooleanField(
        required=False,
        label="Wait for slots that the cluster does not have yet",
        help_text="Otherwise more than it has is refused. If they do not come, the job is taken "
        "back to its parallelism of before.",
    )

    def prepare(self, restorable: GroupedChoices) -> None:
        """Start from the current parallelism."""
        self.fields["parallelism"].initial = self.job.slot_count
        if self.job.slot_count:
            self.fields[
                "parallelism"
            ].help_text = f"The job’s parallelism is {self.job.slot_count:,} now."


class ChangedForm(Form):
    """A changed version of a job."""

    parameters = TextsField("=")
    secrets = NamesField(
        required=False,
        help_text="Names of all its secrets, separated by commas. Left empty: unchanged.",
    )
    parallelism = forms.IntegerField(
        required=False, min_value=1, max_value=32_768, help_text="Left empty: unchanged."
    )
    pipeline_kind = forms.ChoiceField(
        label="Pipeline",
        required=False,
        choices=[("", "unchanged"), *PipelineKind.choices],
    )
    pipeline_target = forms.CharField(
        label="Script, module or upload",
        required=False,
        max_length=500,
        help_text=(
            "For another pipeline: a script’s path below a script root, a module’s name, or an "
            "upload’s digest."
        ),
    )
    allow_non_restored_state = forms.BooleanField(
        label="Allow non-restored state",
        required=False,
        help_text="Drops state that no operator in the pipeline has. Otherwise a restore that "
        "would lose state is refused.",
    )

    def prepare(self, restorable: GroupedChoices) -> None:
        """Show the current values in the help texts."""
        super().prepare(restorable)
        own = redaction.shown("", self.job.options.get("parameters") or {})
        has = ", ".join(f"{name}={text}" for name, text in own.items()) or "none"
        self.fields[
            "parameters"
        ].help_text = f"One “name=text” per line; the others stay unchanged. The job has {has}."
        if names := self.job.options.get("secrets"):
            self.fields["secrets"].help_text += f" The job has {', '.join(names)}."
        if self.job.slot_count:
            self.fields[
                "parallelism"
            ].help_text = f"Left empty: {self.job.slot_count:,}, unchanged."

    def clean(self) -> dict[str, Any]:
        """Refuse half a pipeline: it would silently mean the job's own."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        kind, target = given.get("pipeline_kind"), given.get("pipeline_target")
        if target and not kind:
            self.add_error("pipeline_kind", "Choose its kind, or leave the field below empty.")
        if kind and not target:
            self.add_error("pipeline_target", "Enter the script, module or upload.")
        return given

    def arguments(self) -> dict[str, Any]:
        """The arguments with kind and target joined into one pipeline."""
        given = super().arguments()
        kind, target = given.pop("pipeline_kind"), given.pop("pipeline_target")
        pipeline = None
        if kind == PipelineKind.UPLOAD:
            pipeline = Pipeline(kind, artifact_digest=target)
        elif kind:
            pipeline = Pipeline(kind, target)
        return given | {
            "pipeline": pipeline,
            "parameters": given["parameters"] or None,
            "secrets": given["secrets"] or None,
            "allow_non_restored_state": given["allow_non_restored_state"] or None,
        }


class UpgradeForm(ChangedForm):
    """The pipeline that a job goes on with."""

    run_within_s = forms.IntegerField(
        label="Time to come to run (s)",
        required=False,
        min_value=RUN_WITHIN_S_MIN,
        max_value=RUN_WITHIN_S_MAX,
        help_text="From the launch of the new pipeline until all its subtasks run. If it is later, "
        "the old one goes on.",
    )
    field_order = ("pipeline_kind", "pipeline_target", "parameters", "parallelism", "run_within_s")

    def prepare(self, restorable: GroupedChoices) -> None:
        """Show the job's own pipeline and the usual time in the help texts."""
        super().prepare(restorable)
        own = self.job.artifact_id or self.job.pipeline_target
        choice_field(self, "pipeline_kind").choices = [
            ("", f"{self.job.get_pipeline_kind_display()} {own}, read anew"),
            *PipelineKind.choices,
        ]
        usual = interval(settings.WEIR_OPERATION_TIMEOUT_MS)
        self.fields["run_within_s"].help_text += f" Left empty: {usual}."


class ForkForm(ChangedForm, TargetForm):
    """A second job beside this one."""

    name = forms.CharField(label="Name of the new job", max_length=100)
    recovery_target_s = RecoveryTargetField()
    field_order = ("name", "target", "parameters", "parallelism", "recovery_target_s")

    def prepare(self, restorable: GroupedChoices) -> None:
        """Offer a savepoint that is taken first, where the job is running."""
        if self.job.status == JobStatus.RUNNING:
            self.fields["target"].required = False
            restorable = [("Now", [(NEW, "a new savepoint")]), *restorable]
        super().prepare(restorable)
        self.fields["parameters"].help_text += " Give the fork an output of its own."
        own_s = self.job.recovery_target_s
        self.fields["recovery_target_s"].help_text = (
            "Left empty: none, as the job."
            if own_s is None
            else f"Left empty: {interval(own_s * 1_000)}, unchanged."
        )


class RecoveryTargetForm(Form):
    """The recovery target of a job."""

    recovery_target_s = RecoveryTargetField(
        help_text="The longest time from a failure until all subtasks run again. Left empty: none."
    )


class PreviewForm(ChangedForm, TargetForm):
    """A changed pipeline and the checkpoint or savepoint that it would restore."""

    def arguments(self) -> dict[str, Any]:
        """The arguments with checkpoint or savepoint as ``restore``."""
        given = super().arguments()
        restore = given.pop("checkpoint", None) or given.pop("savepoint", None)
        return given | {"restore": restore}


class CompareForm(Form):
    """The other job, and the columns that identify rows in both outputs."""

    other_job_id = forms.ChoiceField(label="With")
    keys = NamesField(
        label="Key columns",
        help_text="The columns that identify an output row, separated by commas: carrier, airport.",
    )
    windows = NamesField(
        label="Window columns",
        required=False,
        help_text="The columns with a window’s times, if the output has any. With them, windows "
        "that only one of the jobs has reached do not count as a difference.",
    )

    def offer(self, relatives: Sequence[Job]) -> None:
        """Offer the job's origin and its forks."""
        choice_field(self, "other_job_id").choices = list(_named(relatives))


def _named(jobs: Sequence[Job]) -> Iterator[restore_targets.Choice]:
    for job in jobs:
        yield job.pk, f"{job.name} ({job.pk})"
