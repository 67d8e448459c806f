"""The pages of alerts: those that fire and those that are over, one alert, and those of a job."""

from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.alerts import alerting, matching, rules, silences
from controlplane.alerts.api.filters import AlertFilter
from controlplane.alerts.matching import Scope
from controlplane.alerts.models import ALERT_STATES, FIRING, Alert, Rule
from controlplane.base import clock
from controlplane.deliveries.models import NOTICE_SEVERITIES, Delivery, Endpoint
from frontend.alerts import alert_rows, rule_rows
from frontend.base import alert_tabs, pages, status
from frontend.base.access import account, action_for, page_for
from frontend.base.paging import paged
from jobs.models import Job

FILTERS = ("state", "severity", "rule", "job", "fired_after", "fired_before")
OF_JOB_SHOWN = 50
DELIVERIES_SHOWN = 20


@page_for(Role.VIEWER)
def list_alerts(request: HttpRequest) -> HttpResponse:
    """The alerts that the query selects, newest first; without a query those that fire."""
    given = {name: request.GET.get(name, "") for name in FILTERS}
    page = paged(request, Alert.objects.select_related("silence"), AlertFilter, "fired_at")
    context = {
        "page": page,
        "rows": alert_rows.rows(page.rows, clock.now()),
        "given": given,
        "is_narrow": any(given.values()),
        "states": [(value, value.capitalize()) for value, _ in ALERT_STATES],
        "severities": [(value, value.capitalize()) for value, _ in NOTICE_SEVERITIES],
        "rules": [
            (str(pk), name) for pk, name in Rule.objects.order_by("name").values_list("pk", "name")
        ],
        "firing": Alert.objects.filter(state=FIRING).count(),
        "has_endpoint": Endpoint.objects.filter(deleted_at=None, is_enabled=True).exists(),
    }
    head = alert_tabs.head(request, "alert-list")
    return render(request, "frontend/alert_list.html", head | context)


@page_for(Role.VIEWER)
def show_alert(request: HttpRequest, alert_id: UUID) -> HttpResponse:
    """One alert: its sentence, its evidence, and its notices."""
    alert = alerting.one(alert_id)
    (row,) = alert_rows.rows([alert], clock.now())
    deliveries = Delivery.objects.filter(alert=str(alert.pk)).select_related("endpoint")
    context = {
        "alert": row,
        "silence_query": urlencode(
            {"job": alert.job, **({"rule": alert.rule_id} if alert.rule_id else {})}
        ),
        "deliveries": [
            _delivery(one, clock.now())
            for one in deliveries.order_by("-created_at", "-id")[:DELIVERIES_SHOWN]
        ],
    }
    head = alert_tabs.head(request, "alert-list")
    return render(request, "frontend/alert_page.html", head | context)


@action_for(Role.OPERATOR)
def acknowledge(request: HttpRequest, alert_id: UUID) -> HttpResponse:
    """Note that the account looks after the alert."""
    with pages.refusals_as_messages(request):
        alerting.acknowledge(account(request), alert_id)
        messages.success(request, "The alert is acknowledged.")
    return HttpResponseRedirect(reverse("alert-page", args=[alert_id]))


@page_for(Role.VIEWER)
def job_alerts(request: HttpRequest, job_id: str) -> HttpResponse:
    """The alerts of a job, the enabled rules that watch it, and the silences about it."""
    job, now = pages.job_or_404(job_id), clock.now()
    alerts = Alert.objects.filter(job=job.pk).select_related("silence").order_by("-fired_at", "-id")
    shown = list(alerts[: OF_JOB_SHOWN + 1])
    context: dict[str, Any] = {
        "rows": alert_rows.rows(shown[:OF_JOB_SHOWN], now),
        "has_more": len(shown) > OF_JOB_SHOWN,
        "rules": [
            rule_rows.row(rule)
            for rule in rules.listed().filter(is_enabled=True)
            if _watches(rule, job)
        ],
        "silences": [
            alert_rows.silence_row(one, now)
            for one in silences.listed().filter(until_at__gt=now)
            if matching.fits(Scope(one.job, one.job_pattern), {job.pk: job.name})
        ],
    }
    return pages.job_page(request, "frontend/job_alerts.html", job, "job-alerts", context)


def _watches(rule: Rule, job: Job) -> bool:
    return bool(matching.fits(Scope(rule.job, rule.job_pattern), {job.pk: job.name}))


def _delivery(delivery: Delivery, now: datetime) -> dict[str, Any]:
    """A notice for an endpoint, and how far it has come."""
    label = status.of_delivery(
        delivery.status, is_flying=delivery.is_flying(now), is_retried=delivery.tries > 0
    )
    return {
        "id": delivery.pk,
        "status": label,
        "notice": status.NOTICE[delivery.notice_status],
        "endpoint": delivery.endpoint.name,
        "at": delivery.created_at,
    }


urlpatterns = [
    path("alerts/", list_alerts, name="alert-list"),
    path("alerts/<uuid:alert_id>", show_alert, name="alert-page"),
    path("alerts/<uuid:alert_id>/acknowledge", acknowledge, name="alert-acknowledge"),
    path(f"{pages.OF_JOB}/alerts/", job_alerts, name="job-alerts"),
]
