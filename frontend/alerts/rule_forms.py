"""The form of a rule: its kind's parameters, and what all kinds have."""

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django import forms

from controlplane.alerts import rules
from controlplane.alerts.kinds.base import Kind
from controlplane.alerts.models import JOB_LENGTH_MAX, NAME_LENGTH_MAX, Rule
from controlplane.base.errors import Refusal
from controlplane.deliveries import endpoints
from controlplane.deliveries.models import NOTICE_SEVERITIES
from frontend.alerts.rule_rows import LABELS
from frontend.base.forms import ServiceForm, choice_field
from frontend.base.status import OPERATION_KIND

_PARAMETER = re.compile(r"\$\.(\w+)")  # As msgspec names the place of an error.
_PLAIN = {"spellcheck": "false", "autocomplete": "off"}
_PREFIX = "parameter_"


class RuleForm(ServiceForm):
    """A rule of a kind, new or changed."""

    name = forms.CharField(
        max_length=NAME_LENGTH_MAX,
        help_text="Alerts and notices are headed with it.",
        error_messages={"required": "Give the rule a name."},
    )
    description = forms.CharField(
        max_length=500, required=False, help_text="Such as what to do when it fires."
    )
    severity = forms.ChoiceField(
        choices=[(value, value.capitalize()) for value, _ in NOTICE_SEVERITIES]
    )
    job = forms.CharField(
        max_length=JOB_LENGTH_MAX,
        required=False,
        label="Only the job",
        widget=forms.TextInput(attrs=_PLAIN),
        help_text="Its id.",
    )
    job_pattern = forms.CharField(
        max_length=NAME_LENGTH_MAX,
        required=False,
        label="Only jobs named",
        widget=forms.TextInput(attrs=_PLAIN),
        help_text="A pattern such as flights-*. Neither this nor a job: all jobs.",
    )
    hold_s = forms.IntegerField(
        min_value=0,
        max_value=rules.HOLD_MAX_S,
        initial=0,
        label="Hold, in seconds",
        help_text="The condition has to hold for so long before an alert fires.",
    )
    cooldown_s = forms.IntegerField(
        min_value=0,
        max_value=rules.COOLDOWN_MAX_S,
        initial=0,
        label="Cooldown, in seconds",
        help_text="No new alert within so long after the last one.",
    )
    to_all_endpoints = forms.BooleanField(
        required=False, initial=True, label="Tell all endpoints, those made later too"
    )
    endpoints = forms.TypedMultipleChoiceField(
        coerce=UUID,
        required=False,
        label="Otherwise tell these",
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(
        self, data: Mapping[str, Any] | None, kind: Kind, rule: Rule | None = None
    ) -> None:
        self.kind = kind
        super().__init__(data, initial=_initial(kind, rule))
        choices = [
            (str(pk), name)
            for pk, name in endpoints.listed().order_by("name").values_list("pk", "name")
        ]
        if choices:
            choice_field(self, "endpoints").choices = choices
        else:
            del self.fields["endpoints"]
        parameters = {
            _PREFIX + name: _field(name, schema)
            for name, schema in kind.schema()["properties"].items()
        }
        self.fields.update(parameters)
        self.order_fields(["name", "description", *parameters, "severity"])

    def given(self) -> dict[str, Any]:
        """The fields for the service."""
        given = dict(self.cleaned_data)
        parameters = {
            name.removeprefix(_PREFIX): given.pop(name)
            for name in list(given)
            if name.startswith(_PREFIX)
        }
        return given | {"parameters": parameters, "endpoints": given.get("endpoints", [])}

    def refuse(self, refused: Refusal) -> Refusal | None:
        """Put a refusal beside its fields, those of parameters by the place that is named."""
        errors = dict(refused.extra.get("errors") or {})
        for said in errors.pop("parameters", ()):
            place = _PARAMETER.search(said)
            name = _PREFIX + place[1] if place else ""
            self.add_error(name if name in self.fields else None, said.partition(" - at")[0])
        if errors or not self.errors:
            rest = type(refused)(refused.detail, **(refused.extra | {"errors": errors}))
            return super().refuse(rest)
        return None


def _field(name: str, schema: Mapping[str, Any]) -> forms.Field:
    """The field of a parameter, with the bounds that its schema has."""
    options: dict[str, Any] = {
        "label": LABELS.get(name, name),
        "help_text": schema.get("description", ""),
    }
    if schema["type"] == "array":
        return forms.MultipleChoiceField(
            choices=[(kind.value, text) for kind, text in OPERATION_KIND.items()],
            required=False,
            widget=forms.CheckboxSelectMultiple,
            **options,
        )
    options |= {
        "min_value": schema.get("minimum", schema.get("exclusiveMinimum")),
        "max_value": schema.get("maximum"),
    }
    if schema["type"] == "integer":
        return forms.IntegerField(**options)
    return forms.FloatField(widget=forms.NumberInput(attrs={"step": "any"}), **options)


def _initial(kind: Kind, rule: Rule | None) -> dict[str, Any]:
    """The first values: the rule's, or the kind's defaults."""
    properties = kind.schema()["properties"]
    initial = {_PREFIX + name: schema.get("default") for name, schema in properties.items()}
    if rule is None:
        return initial | {"name": kind.title, "severity": "warning"}
    initial |= {
        _PREFIX + name: value for name, value in rule.parameters.items() if name in properties
    }
    shared = ("name", "description", "severity", "job", "job_pattern", "hold_s", "cooldown_s")
    return (
        initial
        | {name: getattr(rule, name) for name in shared}
        | {
            "to_all_endpoints": rule.to_all_endpoints,
            "endpoints": [str(one.pk) for one in rule.endpoints.all()],
        }
    )
