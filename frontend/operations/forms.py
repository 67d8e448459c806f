"""What somebody fills in before a job is stopped, sent back, forked and so on.

A form gives the arguments of the service that it is for; what they may be, the service knows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django import forms

from frontend.operations import restore_targets
from jobs import redaction
from jobs.models import Job, PipelineKind
from jobs.submissions import Pipeline
from weir.protocol.lifecycle import JobStatus

GroupedChoices = Sequence[tuple[str, Sequence[restore_targets.Choice]]]

NEW = ""  # A target: a savepoint that is taken first.


class TextsField(forms.CharField):
    """Texts by name, one ``name: text`` or ``name = text`` a line."""

    def __init__(self, separator: str, **options: Any) -> None:
        self._separator = separator
        widget = forms.Textarea(attrs={"rows": 3, "spellcheck": "false"})
        super().__init__(widget=widget, required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        """As somebody would have written it."""
        if not isinstance(value, dict):
            return value
        lines = (f"{name}{self._separator}{text}" for name, text in value.items())
        return "\n".join(lines)

    def clean(self, value: Any) -> dict[str, str]:
        """The texts.

        Raises:
            ValidationError: A line is no such pair.
        """
        text = super().clean(value)
        found = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            name, separator, content = line.partition(self._separator.strip())
            if not separator or not name.strip():
                raise forms.ValidationError(
                    f"Write one “name{self._separator}text” a line; not “{line[:80]}”."
                )
            found[name.strip()] = content.strip()
        return found


class NamesField(forms.CharField):
    """Names with commas between them."""

    def clean(self, value: Any) -> list[str]:
        """The names."""
        return [name for name in map(str.strip, super().clean(value).split(",")) if name]


class Form(forms.Form):
    """A form about a job."""

    def __init__(self, job: Job, restorable: GroupedChoices, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, label_suffix="", auto_id="id_%s", **kwargs)
        self.job = job
        self.prepare(restorable)

    def prepare(self, restorable: GroupedChoices) -> None:
        """Fill in what depends on the job."""

    def arguments(self) -> dict[str, Any]:
        """Of the service, once the form is valid."""
        return dict(self.cleaned_data)

    def refuse(self, errors: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
        """Say what a service refused beside the fields that it is about; gives the rest."""
        rest: dict[str, list[str]] = {}
        for name, said in errors.items():
            name = name.removeprefix("options.")
            field = _FIELD_OF.get(name, name)
            if field in self.fields:
                self.add_error(field, list(said))
            else:
                rest[name] = list(said)
        return rest

    def focus_first_error(self) -> None:
        """Have the page begin at the first field that has to be changed."""
        for name, field in self.fields.items():
            if name in self.errors:
                field.widget.attrs["autofocus"] = True
                return


# What services call what these forms ask for by another name.
_FIELD_OF = {
    "artifact_digest": "pipeline_target",
    "checkpoint": "target",
    "savepoint": "target",
    "restore": "target",
    "uri": "target",
    "other": "other_job_id",
}


class EmptyForm(Form):
    """Nothing to fill in."""


class DescriptionForm(Form):
    """What a savepoint is called, and what is to be known of it."""

    name = forms.CharField(max_length=80, help_text="Unique among the savepoints of this job.")
    note = forms.CharField(
        required=False, max_length=10_000, widget=forms.Textarea(attrs={"rows": 3})
    )
    labels = TextsField(": ", help_text="One “name: text” a line.")


class SavepointForm(DescriptionForm):
    """A savepoint to be taken."""

    name = forms.CharField(
        required=False, max_length=80, help_text="Left empty, one is made up.", strip=True
    )


class StopForm(SavepointForm):
    """How a job is to be stopped."""

    name = forms.CharField(
        label="Name of the savepoint",
        required=False,
        max_length=80,
        help_text="Left empty, one is made up.",
    )

    drain = forms.TypedChoiceField(
        label="How",
        choices=[
            ("no", "Suspend: the job can be taken up again exactly where it was."),
            (
                "yes",
                "Drain: sources end, timers fire and windows close first, so that all results "
                "are out. For a job that is not to go on.",
            ),
        ],
        initial="no",
        coerce=lambda value: value == "yes",
        widget=forms.RadioSelect,
    )
    field_order = ("drain", "name", "note", "labels")


class TargetForm(Form):
    """Where to go."""

    target = forms.ChoiceField(label="From", widget=forms.Select)

    def prepare(self, restorable: GroupedChoices) -> None:
        """Offer what there is."""
        self.fields["target"].choices = list(restorable)

    def arguments(self) -> dict[str, Any]:
        """``checkpoint`` or ``savepoint`` instead of the target."""
        given = super().arguments()
        return restore_targets.read(given.pop("target")) | given


class RollbackForm(TargetForm):
    """Where a job is to go back to."""

    rewind_output = forms.BooleanField(
        label="Take back output",
        required=False,
        initial=True,
        help_text=(
            "File sinks move what they committed since then aside; it comes back if the job is "
            "sent forward again. Otherwise records that are processed again are in the output "
            "twice."
        ),
    )

    def prepare(self, restorable: GroupedChoices) -> None:
        """Offer what there is."""
        super().prepare(restorable)
        self.fields["target"].label = "Go on from"


class RescaleForm(Form):
    """How wide a job is to run."""

    parallelism = forms.IntegerField(min_value=1, max_value=32_768)

    def prepare(self, restorable: GroupedChoices) -> None:
        """Begin with what it has."""
        self.fields["parallelism"].initial = self.job.slot_count
        if self.job.slot_count:
            self.fields["parallelism"].help_text = f"It runs with {self.job.slot_count:,} now."


class ChangedForm(TargetForm):
    """Another version of a job."""

    parameters = TextsField("=")
    parallelism = forms.IntegerField(
        required=False, min_value=1, max_value=32_768, help_text="Left empty: as it is."
    )
    pipeline_kind = forms.ChoiceField(
        label="Pipeline",
        required=False,
        choices=[("", "the same"), *PipelineKind.choices],
    )
    pipeline_target = forms.CharField(
        label="Script, module or upload",
        required=False,
        max_length=500,
        help_text=(
            "Of another pipeline: a script’s path below a script root, a module’s name, or an "
            "upload’s digest."
        ),
    )
    allow_non_restored_state = forms.BooleanField(
        label="Leave behind state that no operator takes up",
        required=False,
        help_text="Otherwise a restore that would lose state is refused.",
    )

    def prepare(self, restorable: GroupedChoices) -> None:
        """Say what would be changed."""
        super().prepare(restorable)
        own = redaction.shown("", self.job.options.get("parameters") or {})
        has = ", ".join(f"{name}={text}" for name, text in own.items()) or "none"
        self.fields[
            "parameters"
        ].help_text = f"One “name=text” a line; the others stay. The job has {has}."
        if self.job.slot_count:
            self.fields["parallelism"].help_text = f"Left empty: {self.job.slot_count:,}, as it is."

    def clean(self) -> dict[str, Any]:
        """Refuse half a pipeline: it would be the job's own, and nobody would notice."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        kind, target = given.get("pipeline_kind"), given.get("pipeline_target")
        if target and not kind:
            self.add_error("pipeline_kind", "Say what it is, or leave the field below empty.")
        if kind and not target:
            self.add_error("pipeline_target", "Say which one.")
        return given

    def arguments(self) -> dict[str, Any]:
        """With the pipeline as one."""
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
            "allow_non_restored_state": given["allow_non_restored_state"] or None,
        }


class ForkForm(ChangedForm):
    """A second job beside this one."""

    name = forms.CharField(label="Name of the new job", max_length=100)
    field_order = ("name", "target", "parameters", "parallelism")

    def prepare(self, restorable: GroupedChoices) -> None:
        """A job that runs can have a savepoint taken for it."""
        if self.job.status == JobStatus.RUNNING:
            self.fields["target"].required = False
            restorable = [("Now", [(NEW, "a savepoint that is taken now")]), *restorable]
        super().prepare(restorable)
        self.fields["parameters"].help_text += " Give the fork an output of its own."


class PreviewForm(ChangedForm):
    """A changed pipeline, against what it would be restored from."""

    def arguments(self) -> dict[str, Any]:
        """The service takes checkpoint and savepoint as one."""
        given = super().arguments()
        restore = given.pop("checkpoint", None) or given.pop("savepoint", None)
        return given | {"restore": restore}


class CompareForm(Form):
    """Another job, and the columns by which rows of the two are the same."""

    other_job_id = forms.ChoiceField(label="With")
    keys = NamesField(
        label="Key columns",
        help_text="Those that name a row of the output, with commas between: carrier, airport.",
    )
    windows = NamesField(
        label="Window columns",
        required=False,
        help_text="Those that hold a window’s times, where the output has them. With them, rows "
        "that one of the jobs has not come to yet are no difference.",
    )

    def offer(self, relatives: Sequence[Job]) -> None:
        """Offer the jobs that this one came from, or that came from it."""
        self.fields["other_job_id"].choices = list(_named(relatives))


def _named(jobs: Sequence[Job]) -> Iterator[restore_targets.Choice]:
    for job in jobs:
        yield job.pk, f"{job.name} ({job.pk})"
