"""The page of a job's attempts: why each ended, and what its replacement cost.

The page is rendered from the value that ``recovery/data`` returns. Data and figure have as ETag a
revision that changes with the newest attempts and the job's status and recovery target, so that
repeated requests cost little while nothing changes.
"""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse
from django.views.decorators.http import condition

from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.formatting import iso, plural
from frontend.attempts import figures, rows
from frontend.base import pages
from frontend.base.access import data_for, page_for
from frontend.base.query_parameters import PAGE_MAX, whole_number
from frontend.job.outages import is_resumed
from frontend.job.views import VERSION
from jobs.models import Attempt, Job

REVISION_ATTEMPTS = 2  # The newest one changes, and the one before it ends.


@page_for(Role.VIEWER)
def recovery(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's attempts, newest first; ``?attempt=7`` opens the page that has it."""
    job = pages.job_or_404(job_id)
    page = rows.shown(job, _page(request, job))
    context = {
        "live": rows.attempt_list(job, page, clock.now()),
        "page": page,
        "count": plural(page.count, "attempt"),
        "wanted": f"attempt-{request.GET.get('attempt', '')}",
        "data_url": _at(reverse("recovery-data", args=[job_id]), page.page),
        "figure_url": _at(reverse("recovery-figure", args=[job_id]), page.page),
    }
    return pages.job_page(request, "frontend/recovery.html", job, "job-recovery", context)


def _at(address: str, page: int) -> str:
    return f"{address}?page={page}"


def _page(request: HttpRequest, job: Job) -> int:
    attempt = whole_number(request.GET.get("attempt"), PAGE_MAX)
    if attempt is not None:
        return rows.page_of(job, attempt)
    return whole_number(request.GET.get("page"), PAGE_MAX) or 1


def _revision(_: HttpRequest, job_id: str) -> str | None:
    job = Job.objects.filter(pk=job_id).values_list("status", "recovery_target_s").first()
    if job is None:
        return None
    newest = Attempt.objects.filter(job=job_id).order_by("-number")
    columns = ("number", "running_at", "ended_at", "catch_up_ms", "replayed_records")
    parts: list[Any] = [VERSION, *job]
    for number, running_at, ended_at, *rest in newest.values_list(*columns)[:REVISION_ATTEMPTS]:
        parts += [number, iso(running_at), iso(ended_at), *rest]
    return f'"recovery/{"/".join(str(part) for part in parts)}"'.replace(" ", "")


@data_for(Role.VIEWER)
@condition(etag_func=_revision)
def recovery_data(request: HttpRequest, job_id: str) -> HttpResponse:
    """A page of the attempts and the summary, as JSON."""
    job = pages.job_or_404(job_id)
    page = rows.shown(job, _page(request, job))
    return JsonResponse(rows.attempt_list(job, page, clock.now()))


@data_for(Role.VIEWER)
@condition(etag_func=_revision)
def recovery_figure(request: HttpRequest, job_id: str) -> HttpResponse:
    """The timeline of a page's attempts, for Plotly."""
    job = pages.job_or_404(job_id)
    page = rows.shown(job, _page(request, job))
    if not page.attempts:
        raise Http404("This job has had no attempt yet.")
    figure = figures.recovery(
        page.deployments,
        page.earlier,
        clock.now() if page.page == 1 else page.attempts[0].started_at,
        is_over=job.is_over or page.page > 1 or is_resumed(page.attempts[0], job),
    )
    return JsonResponse(figure)


_OF = f"{pages.OF_JOB}/recovery"
urlpatterns = [
    path(f"{_OF}/", recovery, name="job-recovery"),
    path(f"{_OF}/data", recovery_data, name="recovery-data"),
    path(f"{_OF}/figure", recovery_figure, name="recovery-figure"),
]
