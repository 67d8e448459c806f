"""The page of a job's savepoints and of their lineage.

The list is rendered from the value that ``savepoints/data`` returns; the tree is a piece of the
page, ``savepoints/lineage``. Both have an ETag of their contents, so that polling is cheap.
"""

import hashlib
import json

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.cache import get_conditional_response
from django.utils.http import urlencode

from controlplane.accounts.models import Role
from frontend.base import pages
from frontend.base.access import data_for, page_for
from frontend.base.query_parameters import PAGE_MAX, whole_number
from frontend.job import queries, snapshot
from frontend.savepoints import listing, rows, tree_rows
from frontend.savepoints.listing import Shown
from jobs.models import Job

# Operations with pages of their own: page, button, explanation.
GOING_BACK = (
    ("savepoint", "Take a savepoint", "The job keeps running meanwhile"),
    ("rollback", "Roll back", "To a savepoint or an earlier checkpoint"),
    ("fork", "Fork", "Start another job from this one's state"),
    ("rescale", "Rescale", "Continue with another parallelism"),
    ("upgrade", "Upgrade", "Continue with another pipeline"),
    ("preview", "Preview a change", "Check what a changed pipeline would restore"),
    ("compare", "Compare", "This job's output with that of its origin or of a fork"),
)


@page_for(Role.VIEWER)
def savepoint_list(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's savepoints, newest first; ``?wanted=nightly`` only matching ones."""
    job = queries.job_or_404(job_id)
    page = _page(request, job)
    context = {
        "live": listing.savepoint_list(job, page, job.now) | {"lineage": rows.lineage(job)},
        "page": page,
        "tree": tree_rows.build_tree(job),
        "going_back": GOING_BACK,
        "data_url": f"{reverse('savepoints-data', args=[job_id])}?{_query(page, page.page)}",
        "lineage_url": reverse("savepoints-lineage", args=[job_id]),
        "older": _query(page, page.page + 1),
        "newer": _query(page, page.page - 1),
    }
    return pages.job_page(request, "frontend/savepoint_list.html", job, "job-savepoints", context)


def _page(request: HttpRequest, job: Job) -> Shown:
    number = whole_number(request.GET.get("page"), PAGE_MAX) or 1
    return listing.shown(job, request.GET.get("wanted", ""), number)


def _query(shown: Shown, page: int) -> str:
    return urlencode({"wanted": shown.wanted, "page": str(page)})


@data_for(Role.VIEWER)
def savepoints_data(request: HttpRequest, job_id: str) -> HttpResponse:
    """A page of the savepoints as JSON."""
    job = queries.job_or_404(job_id)
    value = listing.savepoint_list(job, _page(request, job), job.now)
    said = json.dumps(snapshot.changes(value), sort_keys=True).encode()
    return _unless_known(request, said, JsonResponse(value))


@data_for(Role.VIEWER)
def savepoints_lineage(request: HttpRequest, job_id: str) -> HttpResponse:
    """The tree as a piece of the page."""
    job = pages.job_or_404(job_id)
    context = {
        "tree": tree_rows.build_tree(job),
        "may_operate": pages.may_operate(request),
        "job": job,
    }
    response = render(request, "frontend/_lineage.html", context)
    return _unless_known(request, response.content, response)


def _unless_known(request: HttpRequest, said: bytes, response: HttpResponse) -> HttpResponse:
    """The response, or 304 where the client has this content."""
    etag = f'"{hashlib.sha256(said).hexdigest()[:32]}"'
    response["ETag"] = etag
    return get_conditional_response(request, etag=etag, response=response) or response


_OF = f"{pages.OF_JOB}/savepoints"
urlpatterns = [
    path(f"{_OF}/", savepoint_list, name="job-savepoints"),
    path(f"{_OF}/data", savepoints_data, name="savepoints-data"),
    path(f"{_OF}/lineage", savepoints_lineage, name="savepoints-lineage"),
]
