"""The form that submits a job, as the body of the API's request.

The form describes the fields. The API's own validation and its service check the values;
``refuse`` puts their errors beside the fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict
from django.utils.datastructures import MultiValueDict

from controlplane.accounts.models import Role
from frontend.base.forms import choice_field
from frontend.operations.forms import NamesField, RecoveryTargetField, TextsField
from frontend.submit.choices import Choice
from jobs.models import PipelineKind
from jobs.options import FACTOR_MAX, SECRETS_MAX
from weir.bounds import NUMBER_MAX
from weir.config import (
    SECRET_NAME_LENGTH_MAX,
    SETTINGS_OF_STRATEGY,
    CheckpointingMode,
    RestartStrategyKind,
)

# Fields by their names in the API's body, where these differ.
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
_PLAIN = (
    *("parallelism", "checkpoint_interval_ms", "mode", "recovery_target_s", "restore"),
    *("checkpoint_timeout_ms", "checkpoint_min_pause_ms", "retained_checkpoints"),
    *("spark_master", "storage"),
)
_TEXTS = ("labels", "parameters", "secrets", "spark_conf")

KINDS = (
    (PipelineKind.MODULE.value, "A Python module that the drivers can import"),
    (PipelineKind.SCRIPT.value, "A script on the server, below one of its script roots"),
    (PipelineKind.UPLOAD.value, "An uploaded script"),
)
MODES = (
    ("", "as set in the pipeline"),
    (CheckpointingMode.EXACTLY_ONCE.value, "exactly once: barriers are aligned"),
    (
        CheckpointingMode.AT_LEAST_ONCE.value,
        "at least once: channels are not blocked; a restore may process records twice",
    ),
    (
        CheckpointingMode.STOP_THE_WORLD.value,
        "stop the world: exactly once, and the pipeline pauses until the checkpoint is written",
    ),
)
STRATEGIES = (
    ("", "as set in the pipeline"),
    (RestartStrategyKind.NONE.value, "none: a failed job is not restarted"),
    (RestartStrategyKind.FIXED_DELAY.value, "fixed delay: a number of restarts"),
    (
        RestartStrategyKind.FAILURE_RATE.value,
        "failure rate: until failures come too fast",
    ),
    (
        RestartStrategyKind.EXPONENTIAL_DELAY.value,
        "exponential delay: always, and after a longer delay each time",
    ),
)
_RESTART = "restart_"  # Begins the names of fields of the restart strategy.


def _milliseconds(label: str, said: str, least: int = 0) -> forms.IntegerField:
    return forms.IntegerField(
        label=f"{label} (ms)",
        required=False,
        min_value=least,
        max_value=NUMBER_MAX,
        help_text=said,
    )


def _number(label: str, said: str, least: int = 0) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, required=False, min_value=least, max_value=NUMBER_MAX, help_text=said
    )


def _factor(label: str, said: str, least: int, most: int) -> forms.FloatField:
    return forms.FloatField(
        label=label,
        required=False,
        min_value=least,
        max_value=most,
        help_text=said,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )


class SubmitForm(forms.Form):
    """A job to be submitted. The pipeline or the server sets values that are left empty."""

    name = forms.CharField(
        max_length=100,
        help_text="A name for people; the job’s id begins with it.",
        error_messages={"required": "Give the job a name."},
    )
    labels = TextsField(": ", help_text="One “name: text” per line, to find the job by.")
    kind = forms.ChoiceField(
        label="Pipeline", choices=KINDS, initial=PipelineKind.MODULE, widget=forms.RadioSelect
    )
    module = forms.CharField(
        required=False,
        max_length=500,
        help_text="The module’s dotted name, such as weir.examples.flights.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none"}),
    )
    script = forms.CharField(
        required=False,
        max_length=500,
        help_text="The script’s path, relative to the script root.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "list": "scripts"}),
    )
    file = forms.FileField(
        label="Python script",
        required=False,
        help_text="Stored by the digest of its content: the same script again is the same upload.",
        widget=forms.FileInput(attrs={"accept": ".py,text/x-python"}),
    )
    upload = forms.ChoiceField(label="Or an earlier upload", required=False)
    parameters = TextsField(
        "=",
        help_text="One name=value per line, passed to the pipeline. Viewers can see the values: no "
        "secrets here.",
    )
    secrets = NamesField(
        required=False,
        max_length=SECRETS_MAX * (SECRET_NAME_LENGTH_MAX + 2),
        help_text="Names of stored secrets, separated by commas; the pipeline gets their values.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none"}),
    )
    parallelism = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=32_768,
        help_text="Subtasks of each operator, and slots. Left empty: as set in the pipeline.",
    )
    checkpoint_interval_ms = forms.IntegerField(
        label="Checkpoint interval (ms)",
        required=False,
        min_value=10,
        max_value=2**31 - 1,
        help_text="From trigger to trigger: 10000 is 10 s. Left empty: as set in the pipeline.",
    )
    mode = forms.ChoiceField(label="Checkpointing mode", required=False, choices=MODES)
    checkpoint_timeout_ms = _milliseconds(
        "Checkpoint timeout", "A checkpoint that is not complete by then is aborted.", 10
    )
    checkpoint_min_pause_ms = _milliseconds(
        "Minimum pause", "From the end of a checkpoint to the next trigger."
    )
    retained_checkpoints = _number(
        "Retained checkpoints", "The newest completed ones; older ones are deleted.", 1
    )
    restart_kind = forms.ChoiceField(label="Restart strategy", required=False, choices=STRATEGIES)
    restart_attempts_max = _number("Restarts", "The next failure ends the job.")
    restart_failures_max = _number(
        "Failures", "With more failures within the failure interval the job fails."
    )
    restart_failure_interval_ms = _milliseconds("Failure interval", "Failures count within it.")
    restart_delay_ms = _milliseconds("Delay", "From a failure to the restart.")
    restart_initial_backoff_ms = _milliseconds(
        "First delay", "Before the second restart; the first one is immediate."
    )
    restart_max_backoff_ms = _milliseconds("Longest delay", "The delay does not grow beyond this.")
    restart_backoff_multiplier = _factor(
        "Growth", "Each delay is the one before times this factor.", 1, FACTOR_MAX
    )
    restart_reset_after_ms = _milliseconds(
        "Reset after", "After this time without failure the delay starts over."
    )
    restart_jitter = _factor(
        "Jitter", "A delay is made longer or shorter by up to this share, such as 0.1.", 0, 1
    )
    recovery_target_s = RecoveryTargetField(
        help_text="The longest time from a failure until all subtasks run again; rules on slow "
        "recoveries judge the job by it. Left empty: by their own limits."
    )
    restore = forms.CharField(
        label="Restore from",
        required=False,
        max_length=1_000,
        help_text="The directory of a savepoint or checkpoint, such as <storage>/<job>/chk-7, also "
        "after it was moved. Left empty: start from the beginning, without state.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "list": "savepoints"}),
    )
    claims = forms.BooleanField(
        label="Claim the savepoint",
        required=False,
        help_text="The new job then owns the savepoint and deletes it once it is no longer needed.",
    )
    allow_non_restored_state = forms.BooleanField(
        label="Allow non-restored state",
        required=False,
        help_text="Drops state that no operator in the pipeline has. Otherwise a restore that "
        "would lose state is refused.",
    )
    allow_pickled_state = forms.BooleanField(
        label="Restore pickled state",
        required=False,
        help_text="Unpickling runs code in the state: only for savepoints that you trust.",
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
        label="Checkpoint storage",
        required=False,
        max_length=500,
        help_text="An absolute directory or a URI. Left empty: the server’s.",
        widget=forms.TextInput(attrs={"spellcheck": "false"}),
    )

    def __init__(
        self,
        data: QueryDict | None,
        files: MultiValueDict[str, UploadedFile] | None,
        *,
        role: Role,
        uploads: Sequence[Choice],
        conf: Sequence[str],
        initial: dict[str, Any],
    ) -> None:
        """A form for a role.

        Args:
            uploads: Earlier uploads.
            conf: The Spark settings that an operator may set.
        """
        super().__init__(data, files, initial=initial, label_suffix="", auto_id="id_%s")
        # Only the chosen kind's field is required; an unsent form has no choice yet.
        chosen = self.data.get("kind") if self.is_bound else None
        for kind, name in _FIELD_OF_KIND.items():
            field = self.fields[name]
            field.required = chosen in (None, kind) and not self.data.get(kind.value)
            field.error_messages["required"] = "A pipeline of this kind needs this field."
        for given in ("script", "upload"):  # In a link, which need not name the kind as well.
            if self.initial.get(given):
                self.initial.setdefault("kind", given)
        self._offer([("", "none"), *uploads])
        self.fields["spark_conf"].help_text = (
            "One spark.name=value per line; any setting that the server does not set itself."
            if role is Role.ADMIN
            else f"One spark.name=value per line. Allowed: {', '.join(conf)}."
        )
        if role is not Role.ADMIN:  # Only an admin chooses the master and the storage.
            del self.fields["spark_master"], self.fields["storage"]

    def body(self) -> dict[str, Any]:
        """The API's body from the form; fields with errors are left out."""
        given = self.cleaned_data
        body: dict[str, Any] = {"name": given.get("name", ""), "pipeline": self._pipeline()}
        body |= {name: given[name] for name in _PLAIN if given.get(name) not in (None, "")}
        body |= {name: given[name] for name in _TEXTS if given.get(name)}
        body |= {name: True for name in _FLAGS if given.get(name)}
        if restart := self._restart():
            body["restart"] = restart
        return body

    def _restart(self) -> dict[str, Any]:
        """The chosen strategy with its own fields: a browser sends those of the others as well."""
        kind = self.cleaned_data.get("restart_kind")
        if not kind:
            return {}
        used = SETTINGS_OF_STRATEGY[RestartStrategyKind(kind)]
        values = {name: self.cleaned_data.get(_RESTART + name) for name in used}
        return {"kind": kind} | {name: v for name, v in values.items() if v is not None}

    @property
    def restart_fields(self) -> list[tuple[str, forms.BoundField]]:
        """Each setting of a restart strategy, behind the strategies that use it."""
        of: dict[str, list[str]] = {}
        for kind, names in SETTINGS_OF_STRATEGY.items():
            for name in names:
                of.setdefault(name, []).append(kind.value)
        fields = (name for name in self.fields if name.removeprefix(_RESTART) in of)
        return [(" ".join(of[name.removeprefix(_RESTART)]), self[name]) for name in fields]

    def _pipeline(self) -> dict[str, Any]:
        kind = self.cleaned_data.get("kind", "")
        target = self.cleaned_data.get(kind, "")
        return {"kind": kind} | ({kind: target} if target else {})

    def keep(self, uploaded: Choice) -> None:
        """Select the upload just stored, so that it stays chosen if other fields have errors."""
        if uploaded[0] not in dict(self._uploads):
            self._offer([*self._uploads, uploaded])
        self.cleaned_data["upload"] = uploaded[0]
        assert isinstance(self.data, QueryDict)
        data = self.data.copy()
        data[self.add_prefix("upload")] = uploaded[0]
        self.data = data

    def _offer(self, uploads: Sequence[Choice]) -> None:
        self._uploads = uploads
        choice_field(self, "upload").choices = uploads

    def refuse(self, errors: Mapping[str, Any]) -> None:
        """Put the API's errors about its body beside the fields."""
        for name, problem in flattened(errors):
            outer, _, inner = name.partition(".")
            if outer == "restart":
                outer = _RESTART + (inner or "kind")
            field = _FIELDS.get(name, outer)
            self.add_error(field if field in self.fields else None, problem)

    @property
    def has_error_below(self) -> bool:
        """Whether a folded field has an error or a value."""
        return any(name in self.errors or self[name].value() for name in ADVANCED)


ADVANCED = ("restore", *_FLAGS, "spark_conf")


def flattened(errors: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Each error with the dotted name of its field, out of nested objects and lists."""
    if isinstance(errors, Mapping):
        for key, inner in errors.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(errors, list | tuple):
        for inner in errors:
            yield from flattened(inner, name)
    else:
        yield name, str(errors)
