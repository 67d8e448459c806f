"""The page of activity: events of all jobs, filtered by job, kind and whether they were planned."""

import django_filters
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path

from controlplane.accounts.models import Role
from frontend.activity.rows import activity_row
from frontend.base.access import page_for
from frontend.base.paging import paged
from jobs.api.filters import EventFilter
from jobs.models import JobEvent, JobEventKind

KINDS = {
    JobEventKind.CHECKPOINT_COMPLETED: "checkpoints that completed",
    JobEventKind.CHECKPOINT_FAILED: "checkpoints that failed",
    JobEventKind.CHECKPOINT_EXPIRED: "checkpoints that timed out",
    JobEventKind.CHECKPOINT_ABORTED: "checkpoints that were aborted",
    JobEventKind.ATTEMPT_BEGAN: "attempts that began",
    JobEventKind.ATTEMPT_ENDED: "attempts that ended",
    JobEventKind.JOB_CHANGED: "changed statuses",
    JobEventKind.OPERATION_ENDED: "operations that ended",
    JobEventKind.DRIVER_LOST: "lost drivers",
}


class ActivityFilter(EventFilter):
    """The filters of the page."""

    job = django_filters.CharFilter(field_name="job_id")


@page_for(Role.VIEWER)
def show_activity(request: HttpRequest) -> HttpResponse:
    """The newest events; checkpoints that completed only if they are asked for. One query."""
    events = JobEvent.objects.select_related("job").only(
        *("at", "kind", "planned", "reason", "facts", "job__name")
    )
    if not request.GET.get("kind"):
        events = events.exclude(kind=JobEventKind.CHECKPOINT_COMPLETED)
    page = paged(request, events, ActivityFilter, "at")
    given = {name: request.GET.get(name, "")[:200] for name in ("job", "kind", "planned")}
    context = {
        "page": page,
        "rows": [activity_row(event, event.job.name) for event in page.rows],
        "given": given,
        "kinds": [(kind.value, text) for kind, text in KINDS.items()],
        "is_narrow": any(given.values()),
    }
    return render(request, "frontend/activity.html", context)


urlpatterns = [path("activity/", show_activity, name="activity")]
