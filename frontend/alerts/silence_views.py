"""The pages of silences: their list, the form of a new one, and ending one early."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.alerts import silences
from controlplane.alerts.api.filters import SilenceFilter
from controlplane.alerts.models import (
    JOB_LENGTH_MAX,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
    Rule,
)
from controlplane.base import clock
from controlplane.deliveries.models import NOTICE_SEVERITIES
from frontend.alerts import alert_rows
from frontend.base import alert_tabs
from frontend.base.access import account, action_for, form_for, page_for
from frontend.base.forms import ServiceForm, choice_field, form_page, moment_field, sent
from frontend.base.pages import refusals_as_messages
from frontend.base.paging import paged

UNTIL = "until"
_PLAIN = {"spellcheck": "false", "autocomplete": "off"}


class SilenceForm(ServiceForm):
    """A new silence; without a scope it is about every alert."""

    rule = forms.TypedChoiceField(required=False, coerce=UUID, empty_value=None)
    job = forms.CharField(
        max_length=JOB_LENGTH_MAX,
        required=False,
        widget=forms.TextInput(attrs=_PLAIN),
        help_text="Its id.",
    )
    job_pattern = forms.CharField(
        max_length=NAME_LENGTH_MAX,
        required=False,
        label="Jobs named",
        widget=forms.TextInput(attrs=_PLAIN),
        help_text="A pattern such as flights-*. Neither this nor a job: all jobs.",
    )
    severity = forms.ChoiceField(
        required=False,
        choices=[
            ("", "any severity"),
            *((value, value.capitalize()) for value, _ in NOTICE_SEVERITIES),
        ],
    )
    lasts = forms.ChoiceField(
        label="For",
        choices=[
            ("1", "1 hour"),
            ("8", "8 hours"),
            ("24", "a day"),
            (UNTIL, "until the time below"),
        ],
        widget=forms.RadioSelect,
        initial="1",
    )
    until_at = moment_field("Until", required=False)
    reason = forms.CharField(
        max_length=REASON_LENGTH_MAX,
        help_text="For those who wonder later.",
        error_messages={"required": "Say why, for those who wonder later."},
    )

    def __init__(self, data: Mapping[str, Any] | None, **options: Any) -> None:
        super().__init__(data, **options)
        known = Rule.objects.order_by("name").values_list("pk", "name")
        choices = [("", "any rule"), *((str(pk), name) for pk, name in known)]
        choice_field(self, "rule").choices = choices

    def clean(self) -> dict[str, Any]:
        """Require the time where the silence lasts until one."""
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("lasts") == UNTIL and not cleaned.get("until_at"):
            self.add_error("until_at", "Give a time.")
        return cleaned

    def given(self, now: datetime) -> dict[str, Any]:
        """The fields for the service."""
        given = dict(self.cleaned_data)
        lasts = given.pop("lasts")
        if lasts != UNTIL:
            given["until_at"] = now + timedelta(hours=int(lasts))
        return given


@page_for(Role.VIEWER)
def list_silences(request: HttpRequest) -> HttpResponse:
    """All silences, newest first, those that are over too."""
    page = paged(request, silences.listed(), SilenceFilter, "created_at")
    now = clock.now()
    context = {"page": page, "rows": [alert_rows.silence_row(one, now) for one in page.rows]}
    head = alert_tabs.head(request, "silence-list")
    return render(request, "frontend/silence_list.html", head | context)


@form_for(Role.OPERATOR)
def new_silence(request: HttpRequest) -> HttpResponse:
    """Silence some alerts for a time; the query fills the scope in."""
    initial = {name: request.GET.get(name, "")[:200] for name in ("rule", "job", "severity")}
    form = SilenceForm(sent(request), initial=initial)
    if form.is_valid():
        with form.refusals():
            made = silences.create(account(request), form.given(clock.now()))
            messages.success(request, f"Silent until {made.until_at:%Y-%m-%d %H:%M} UTC.")
            return HttpResponseRedirect(reverse("silence-list"))
    return form_page(request, "frontend/silence_form.html", form, {})


@action_for(Role.OPERATOR)
def end_silence(request: HttpRequest, silence_id: UUID) -> HttpResponse:
    """End a silence now."""
    with refusals_as_messages(request):
        silences.end(account(request), silence_id)
        messages.success(request, "The silence is over; alerts that still fire are told now.")
    return HttpResponseRedirect(reverse("silence-list"))


urlpatterns = [
    path("alerts/silences/", list_silences, name="silence-list"),
    path("alerts/silences/new", new_silence, name="silence-new"),
    path("alerts/silences/<uuid:silence_id>/end", end_silence, name="silence-end"),
]
