"""The base of forms whose fields a service checks as well."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import Http404

from controlplane.base.errors import NotFound, Refusal

MOMENT_FORMATS = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"]  # As browsers send them.


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of a form's page."""

    title: str
    button: str
    says: str
    is_danger: bool = False


class ServiceForm(forms.Form):
    """A form whose fields a service checks as well."""

    def __init__(self, data: Mapping[str, Any] | None, **options: Any) -> None:
        super().__init__(data, label_suffix="", auto_id="id_%s", **options)

    def refuse(self, refused: Refusal) -> Refusal | None:
        """Put a refusal about fields beside them; return any other.

        Raises:
            Http404: The thing itself does not exist.
        """
        if isinstance(refused, NotFound):
            raise Http404(refused.detail) from refused
        errors: Mapping[str, Iterable[str]] = refused.extra.get("errors") or {}
        if refused.code == "name_taken":
            errors = {"name": [refused.detail]}
        for name, said in errors.items():
            self.add_error(name if name in self.fields else None, list(said))
        return None if errors else refused


def moment_field(label: str, **options: Any) -> forms.DateTimeField:
    """A field for a date and a time in UTC."""
    return forms.DateTimeField(
        label=f"{label} (UTC)",
        input_formats=MOMENT_FORMATS,
        widget=forms.DateTimeInput(
            format=MOMENT_FORMATS[0], attrs={"type": "datetime-local", "step": "1"}
        ),
        error_messages={"required": "Give a time.", "invalid": "Give a date and a time."},
        **options,
    )
