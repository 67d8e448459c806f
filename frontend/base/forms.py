"""The base of forms whose fields a service checks as well, and of their pages."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render

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

    refusal: Refusal | None = None  # One that is about no field.

    def __init__(self, data: Mapping[str, Any] | None, **options: Any) -> None:
        super().__init__(data, label_suffix="", auto_id="id_%s", **options)

    @contextmanager
    def refusals(self, *, even_missing: bool = False) -> Iterator[None]:
        """Call a service, whose refusal goes onto the form; ``NotFound`` only ``even_missing``."""
        try:
            yield
        except Refusal as refused:
            if isinstance(refused, NotFound) and not even_missing:
                raise
            self.refusal = self.refuse(refused)

    def refuse(self, refused: Refusal) -> Refusal | None:
        """Put a refusal about fields beside them; return any other."""
        errors: Mapping[str, Iterable[str]] = refused.extra.get("errors") or {}
        if refused.code == "name_taken":
            errors = {"name": [refused.detail]}
        for name, said in errors.items():
            self.add_error(name if name in self.fields else None, list(said))
        return None if errors else refused


def choice_field(form: forms.Form, name: str) -> forms.ChoiceField:
    """A field of a form whose choices depend on rows."""
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    return field


def sent(request: HttpRequest) -> QueryDict | None:
    """The fields of a form that was sent; None: it is shown for the first time."""
    return request.POST if request.method == "POST" else None


def form_page(
    request: HttpRequest, template: str, form: ServiceForm | None, context: Mapping[str, Any]
) -> HttpResponse:
    """Render a form, if there are fields, with its errors and the refusal."""
    refusal = None if form is None else form.refusal
    status = refusal.status if refusal else 400 if form is not None and form.errors else 200
    shown = {"form": form, "refusal": refusal, **context}
    return render(request, template, shown, status=status)


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
