"""What somebody fills in to submit a job, as the API's body of the same request.

The form says what each field is. Whether a value is right, the API's own validation and its service
say; ``refuse`` puts what they say beside the fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms

from controlplane.accounts.models import Role
from frontend.operations.forms import TextsField
from frontend.submit.choices import Choice
from jobs.models import PipelineKind
from weir.config import CheckpointingMode

# Where the API's names of a body's parts are not those of the fields.
_FIELDS = {
    "pipeline": "kind",
    "pipeline.kind": "kind",
    "pipeline.module": "module",
    "pipeline.script": "script",
    "pipeline.upload": "file",
}
_FIELD_OF_KIND = {
    PipelineKind.MODULE: "module",
    PipelineKind.SCRIPT: "script",
    PipelineKind.UPLOAD: "file",
}
_FLAGS = ("claims", "allow_non_restored_state", "allow_pickled_state")
_PLAIN = ("parallelism", "checkpoint_interval_ms", "mode", "restore", "spark_master", "storage")
_TEXTS = ("parameters", "spark_conf")

KINDS = (
    (PipelineKind.MODULE.value, "A module that the drivers’ Python can import"),
    (PipelineKind.SCRIPT.value, "A script on the server, below one of its script roots"),
    (PipelineKind.UPLOAD.value, "A script that I upload"),
)
MODES = (
    ("", "as the pipeline says"),
    (CheckpointingMode.EXACTLY_ONCE.value, "exactly once: barriers are aligned"),
    (
        CheckpointingMode.AT_LEAST_ONCE.value,
        "at least once: channels are not blocked; a restore may repeat records",
    ),
)


class SubmitForm(forms.Form):
    """A job to be run. What is left empty is up to the pipeline or the server."""

    name = forms.CharField(
        max_length=100,
        help_text="What people call the job; its id begins with it.",
        error_messages={"required": "Give the job a name."},
    )
    kind = forms.ChoiceField(
        label="Pipeline", choices=KINDS, initial=PipelineKind.MODULE, widget=forms.RadioSelect
    )
    module = forms.CharField(
        required=False,
        max_length=500,
        help_text="Its dotted name, such as weir.examples.flights.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none"}),
    )
    script = forms.CharField(
        required=False,
        max_length=500,
        help_text="Its path, relative to the script root.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "list": "scripts"}),
    )
    file = forms.FileField(
        label="Python script",
        required=False,
        help_text="Kept by its content: the same script again is the same upload.",
        widget=forms.FileInput(attrs={"accept": ".py,text/x-python"}),
    )
    upload = forms.ChoiceField(label="Or one that was uploaded before", required=False)
    parameters = TextsField(
        "=",
        help_text="One name=value a line, for the pipeline. Viewers can see them: no secrets here.",
    )
    parallelism = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=32_768,
        help_text="Subtasks of each operator, and slots. Left empty: as the pipeline says.",
    )
    checkpoint_interval_ms = forms.IntegerField(
        label="Checkpoint interval (ms)",
        required=False,
        min_value=10,
        max_value=2**31 - 1,
        help_text="From one trigger to the next: 10000 is 10 s. Left empty: as the pipeline says.",
    )
    mode = forms.ChoiceField(label="Checkpointing mode", required=False, choices=MODES)
    restore = forms.CharField(
        label="Restore from",
        required=False,
        max_length=1_000,
        help_text="The directory of a savepoint or checkpoint, such as <storage>/<job>/chk-7, "
        "wherever it was moved. Left empty: without state, from the beginning.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "list": "savepoints"}),
    )
    claims = forms.BooleanField(
        label="Claim it",
        required=False,
        help_text="The savepoint is this job’s own from then on, to be deleted with it.",
    )
    allow_non_restored_state = forms.BooleanField(
        label="Leave behind state that no operator takes up",
        required=False,
        help_text="Otherwise a restore that would lose state is refused.",
    )
    allow_pickled_state = forms.BooleanField(
        label="Restore pickled state",
        required=False,
        help_text="Doing so runs code that is in it: only from savepoints that you trust.",
    )
    spark_conf = TextsField("=", label="Spark settings")
    spark_master = forms.CharField(
        label="Spark master",
        required=False,
        max_length=200,
        help_text="local[N], spark://host:port, yarn or k8s://address. Left empty: the server’s.",
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )
    storage = forms.CharField(
        label="Storage of its checkpoints",
        required=False,
        max_length=500,
        help_text="An absolute directory or a URI. Left empty: the server’s.",
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )

    def __init__(
        self, *args: Any, role: Role, uploads: Sequence[Choice], conf: Sequence[str], **kwargs: Any
    ) -> None:
        """A form for a role.

        Args:
            uploads: What was uploaded before.
            conf: The Spark settings that an operator may choose.
        """
        super().__init__(*args, label_suffix="", auto_id="id_%s", **kwargs)
        # The field of the chosen kind is needed; which one that is, a new form does not know yet.
        chosen = self.data.get("kind") if self.is_bound else None
        for kind, name in _FIELD_OF_KIND.items():
            field = self.fields[name]
            field.required = chosen in (None, kind) and not self.data.get(kind.value)
            field.error_messages["required"] = "A pipeline of this kind needs it."
        for given in ("script", "upload"):  # By a link, which need not name the kind as well.
            if self.initial.get(given):
                self.initial.setdefault("kind", given)
        self.fields["upload"].choices = [("", "none"), *uploads]
        self.fields["spark_conf"].help_text = (
            "One spark.name=value a line; anything that the server does not set itself."
            if role is Role.ADMIN
            else f"One spark.name=value a line. There are {', '.join(conf)}."
        )
        if role is not Role.ADMIN:  # Where code runs and files are written is an admin's choice.
            del self.fields["spark_master"], self.fields["storage"]

    def body(self) -> dict[str, Any]:
        """What was filled in, as the API takes it; fields that are wrong are left out."""
        given = self.cleaned_data
        body: dict[str, Any] = {"name": given.get("name", ""), "pipeline": self._pipeline()}
        body |= {name: given[name] for name in _PLAIN if given.get(name) not in (None, "")}
        body |= {name: given[name] for name in _TEXTS if given.get(name)}
        body |= {name: True for name in _FLAGS if given.get(name)}
        return body

    def _pipeline(self) -> dict[str, Any]:
        kind = self.cleaned_data.get("kind", "")
        target = self.cleaned_data.get(kind, "")
        return {"kind": kind} | ({kind: target} if target else {})

    def keep(self, uploaded: Choice) -> None:
        """What was just uploaded stays chosen, whatever else is wrong."""
        field = self.fields["upload"]
        if uploaded[0] not in dict(field.choices):
            field.choices = [*field.choices, uploaded]
        self.cleaned_data["upload"] = uploaded[0]
        self.data = self.data.copy()
        self.data[self.add_prefix("upload")] = uploaded[0]

    def refuse(self, errors: Mapping[str, Any]) -> None:
        """Put what the API says of its body beside the fields."""
        for name, problem in flattened(errors):
            field = _FIELDS.get(name, name.partition(".")[0])
            self.add_error(field if field in self.fields else None, problem)

    @property
    def has_error_below(self) -> bool:
        """Whether a field that is folded away is wrong, or was filled in."""
        return any(name in self.errors or self[name].value() for name in ADVANCED)


ADVANCED = ("restore", *_FLAGS, "spark_conf")


def flattened(errors: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Each thing that is wrong with its field's dotted name, out of nested objects and lists."""
    if isinstance(errors, Mapping):
        for key, inner in errors.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(errors, list | tuple):
        for inner in errors:
            yield from flattened(inner, name)
    else:
        yield name, str(errors)
