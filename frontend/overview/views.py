"""The overview: all jobs, those that need attention first, filtered and searched by address."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from frontend.base import pages
from frontend.base.access import page_for
from frontend.overview import filters, listing, sparkline


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
        "may_operate": pages.may_operate(request),
    }
    return render(request, "frontend/job_list.html", context)


@page_for(Role.VIEWER)
def job_list_data(request: HttpRequest) -> HttpResponse:
    """The same page of jobs for the same query, as JSON."""
    wanted = filters.Wanted.read(request.GET)
    return JsonResponse(listing.job_list(listing.page(wanted), wanted))


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
]
