"""The delivery log: each notice for each endpoint, its attempts, and sending it again."""

from datetime import UTC
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.dateparse import parse_datetime

from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.errors import existing
from controlplane.base.formatting import plural
from controlplane.deliveries import endpoints, redelivery
from controlplane.deliveries.api.filters import DeliveryFilter
from controlplane.deliveries.machine import DeliveryStatus
from controlplane.deliveries.models import Delivery
from frontend.base import alert_tabs
from frontend.base.access import account, action_for, form_for, page_for
from frontend.base.forms import form_page, sent
from frontend.base.pages import refusals_as_messages
from frontend.base.paging import paged
from frontend.base.status import DELIVERY
from frontend.deliveries import delivery_rows
from frontend.deliveries.forms import RangeForm, first_times

FILTERS = ("endpoint", "status", "alert", "job", "created_after", "created_before")


@page_for(Role.VIEWER)
def list_deliveries(request: HttpRequest) -> HttpResponse:
    """The deliveries that the query selects, newest first. Two queries."""
    given = {name: request.GET.get(name, "") for name in FILTERS}
    page = paged(request, Delivery.objects.select_related("endpoint"), DeliveryFilter, "created_at")
    now = clock.now()
    narrow = {name: value for name, value in given.items() if value}
    context = {
        "page": page,
        "rows": [delivery_rows.row(delivery, now) for delivery in page.rows],
        "given": given,
        "is_narrow": bool(narrow),
        "endpoints": _choices(),
        "statuses": [(value.value, label.text) for value, label in DELIVERY.items()],
        "range_query": urlencode(narrow),
    }
    head = alert_tabs.head(request, "delivery-list")
    return render(request, "frontend/delivery_list.html", head | context)


@page_for(Role.VIEWER)
def show_delivery(request: HttpRequest, delivery_id: UUID) -> HttpResponse:
    """One delivery: its notice, its request, and the answers. Two queries."""
    delivery = existing(
        Delivery.objects.select_related("endpoint").filter(pk=delivery_id),
        f"There is no delivery {delivery_id}.",
    )
    context = {
        "delivery": delivery_rows.row(delivery, clock.now()),
        "is_endpoint_enabled": delivery.endpoint.is_enabled,
        "notice": delivery_rows.readable_notice(delivery),
        "sent": delivery_rows.readable_request(delivery),
        "attempts": delivery_rows.attempts(delivery),
    }
    head = alert_tabs.head(request, "delivery-list")
    return render(request, "frontend/delivery_page.html", head | context)


@action_for(Role.OPERATOR)
def redeliver(request: HttpRequest, delivery_id: UUID) -> HttpResponse:
    """Send one delivery again, or at once if it waits."""
    with refusals_as_messages(request):
        redelivery.redeliver(account(request), delivery_id)
        messages.success(request, "The delivery is sent again.")
    return HttpResponseRedirect(reverse("delivery-page", args=[delivery_id]))


@form_for(Role.OPERATOR)
def redeliver_range(request: HttpRequest) -> HttpResponse:
    """Send an endpoint's deliveries of a time again; the query of the log fills the form in."""
    form = RangeForm(sent(request), _choices(), initial=_from_query(request))
    if form.is_valid():
        given = form.cleaned_data
        with form.refusals():
            count, has_more = redelivery.redeliver_range(
                account(request),
                UUID(given["endpoint"]),
                after=given["after"],
                before=given["before"],
                status=given["status"],
            )
            _say(request, count, has_more)
            query = urlencode({"endpoint": given["endpoint"]})
            return HttpResponseRedirect(f"{reverse('delivery-list')}?{query}")
    context = {"most": redelivery.RANGE_MAX}
    return form_page(request, "frontend/delivery_range.html", form, context)


def _say(request: HttpRequest, count: int, has_more: bool) -> None:
    if not count:
        messages.error(request, "No delivery of the endpoint matches; none was sent again.")
        return
    more = " There are more: send the range again." if has_more else ""
    said = f"{plural(count, 'delivery is', 'deliveries are')} sent again.{more}"
    messages.success(request, said)


def _choices() -> list[tuple[str, str]]:
    rows = endpoints.listed().order_by("name").values_list("pk", "name")
    return [(str(pk), name) for pk, name in rows]


def _from_query(request: HttpRequest) -> dict[str, Any]:
    """The first values of the form, by the filters of the log; odd ones count as absent."""
    initial: dict[str, Any] = dict(first_times(clock.now()))
    for name, filter_name in (("after", "created_after"), ("before", "created_before")):
        try:
            at = parse_datetime(request.GET.get(filter_name, "")[:40])
            at = at and (at if at.tzinfo is None else at.astimezone(UTC))
        except (ValueError, OverflowError):
            at = None
        if at is not None:
            initial[name] = at
    if request.GET.get("status") == DeliveryStatus.DELIVERED:
        initial["status"] = DeliveryStatus.DELIVERED.value
    return initial | {"endpoint": request.GET.get("endpoint", "")}


urlpatterns = [
    path("alerts/deliveries/", list_deliveries, name="delivery-list"),
    path("alerts/deliveries/redeliver", redeliver_range, name="delivery-range"),
    path("alerts/deliveries/<uuid:delivery_id>", show_delivery, name="delivery-page"),
    path("alerts/deliveries/<uuid:delivery_id>/redeliver", redeliver, name="delivery-redeliver"),
]
