"""The overview: all jobs, those that need attention first, filtered and searched by address."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.base.errors import Invalid
from frontend.base import pages
from frontend.base.access import account, action_for, page_for
from frontend.base.query_parameters import BIGINT_MAX, whole_number
from frontend.models import NAME_LENGTH_MAX
from frontend.overview import filters, listing, saved, sparkline


@page_for(Role.VIEWER)
def job_list(request: HttpRequest) -> HttpResponse:
    """All jobs that match the query, those that need attention first."""
    wanted = filters.Wanted.read(request.GET)
    page = listing.page(wanted)
    context = {
        "page": page,
        "wanted": wanted,
        "live": listing.job_list(page, wanted),
        "data_url": reverse("job-list-data") + wanted.at(page.number).query(),
        "spark_scale": sparkline.SCALE,
        "beside": _beside(page, wanted),
        "labels": [
            {"text": label, "without": reverse("job-list") + wanted.without_label(label).query()}
            for label in wanted.labels
        ],
        "saved": saved.saved_filters(account(request), wanted),
        "name_length_max": NAME_LENGTH_MAX,
        "may_operate": pages.may_operate(request),
    }
    return render(request, "frontend/job_list.html", context)


@page_for(Role.VIEWER)
def job_list_data(request: HttpRequest) -> HttpResponse:
    """The same page of jobs for the same query, as JSON."""
    wanted = filters.Wanted.read(request.GET)
    return JsonResponse(listing.job_list(listing.page(wanted), wanted))


@action_for(Role.VIEWER)
def save_filter(request: HttpRequest) -> HttpResponse:
    """Give the filters of the form a name, for the account alone; back to the list."""
    wanted = filters.Wanted.read(request.POST)
    try:
        saved.save(account(request), request.POST.get("name", ""), wanted)
    except Invalid as refusal:
        messages.error(request, refusal.detail)
    return HttpResponseRedirect(reverse("job-list") + wanted.query())


@action_for(Role.VIEWER)
def delete_filter(request: HttpRequest) -> HttpResponse:
    """Delete one of the account's saved filters; back to the list."""
    if (id := whole_number(request.POST.get("id"), BIGINT_MAX)) is not None:
        saved.delete(account(request), id)
    return HttpResponseRedirect(reverse("job-list") + filters.Wanted.read(request.POST).query())


def _beside(page: Any, wanted: filters.Wanted) -> dict[str, str]:
    """The queries of the previous and next pages."""
    addresses = {}
    if page.has_previous():
        addresses["previous"] = wanted.at(page.previous_page_number()).query()
    if page.has_next():
        addresses["next"] = wanted.at(page.next_page_number()).query()
    return addresses


urlpatterns = [
    path("jobs/", job_list, name="job-list"),
    path("jobs/data", job_list_data, name="job-list-data"),
    path("jobs/filters", save_filter, name="job-filter-save"),
    path("jobs/filters/delete", delete_filter, name="job-filter-delete"),
]
