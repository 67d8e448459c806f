"""Common to all pages of a job: the job, its head with the tabs, and access."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import register_converter, reverse

from controlplane.accounts.models import Role
from controlplane.base.converters import JobId, Uid
from controlplane.base.errors import NotFound, Refusal, existing
from frontend.base import status
from frontend.base.access import may
from jobs.models import Job

register_converter(JobId, "page_job")
register_converter(Uid, "page_uid")

OF_JOB = "jobs/<page_job:job_id>"  # Where a job's pages begin.


class Tab(NamedTuple):
    """One page of a job."""

    name: str  # Also the name of its URL.
    text: str
    role: Role = Role.VIEWER  # The least role that sees it.


TABS = (
    Tab("job-page", "Overview"),
    Tab("job-checkpoints", "Checkpoints"),
    Tab("job-savepoints", "Savepoints"),
    Tab("job-recovery", "Recovery"),
    Tab("job-slots", "Slots"),
    Tab("job-alerts", "Alerts"),
    Tab("job-configuration", "Configuration"),
    Tab("job-logs", "Logs", Role.OPERATOR),
    Tab("job-audit", "Audit", Role.ADMIN),
)


def crumb(job: Job, tab: str) -> dict[str, str]:
    """The way back to one of a job's pages, by the URL name of its tab."""
    text = next(known.text for known in TABS if known.name == tab)
    return {"text": text, "url": reverse(tab, args=[job.pk])}


def job_or_404(job_id: str) -> Job:
    """The job without its large columns.

    Raises:
        Http404: There is no such job.
    """
    rows: QuerySet[Job] = Job.objects.select_related("created_by")
    return existing(
        rows.defer("options", "spark_conf", "restart_state").filter(pk=job_id),
        f"There is no job {job_id!r}.",
    )


def head(request: HttpRequest, job: Job, tab: str) -> dict[str, Any]:
    """The context of ``frontend/job_base.html``, the head of each page of a job.

    Args:
        tab: The URL name of the current page.
    """
    return {
        "job": job,
        "job_status": status.of_job(job.status, is_planned=job.is_planned),
        "tabs": [
            {"text": t.text, "url": reverse(t.name, args=[job.pk]), "is_current": t.name == tab}
            for t in TABS
            if may(request.user, t.role)
        ],
        "may_operate": may_operate(request),
    }


def job_page(
    request: HttpRequest, template: str, job: Job, tab: str, context: dict[str, Any]
) -> HttpResponse:
    """Render one of a job's pages below the job's head."""
    return render(request, template, head(request, job, tab) | context)


def may_operate(request: HttpRequest) -> bool:
    """Whether the request's user may act on jobs."""
    return may(request.user, Role.OPERATOR)


@contextmanager
def refusals_as_messages(request: HttpRequest) -> Iterator[None]:
    """Call a service, whose refusal is a message on the next page; ``NotFound`` is the page's."""
    try:
        yield
    except NotFound:
        raise
    except Refusal as refusal:
        messages.error(request, refusal.detail)


def sent_key(request: HttpRequest) -> str:
    """The idempotency key that came with a form: sending the same form twice acts once."""
    return request.POST.get("key", "")[:200] or new_key()


def new_key() -> str:
    """An idempotency key for a form."""
    return f"page-{uuid.uuid4()}"
