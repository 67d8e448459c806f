"""The pages of the audit log: the whole log, and that of one job. For admins."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.accounts.models import Role
from frontend.about import audit_log
from frontend.base import pages
from frontend.base.access import role_required
from jobs.models import Job

FILTERS = ("actor", "action", "target", "after", "before")


@never_cache
@require_GET
@role_required(Role.ADMIN)
def audit(request: HttpRequest) -> HttpResponse:
    """Every change by an account or by the control plane itself, newest first."""
    return render(request, "frontend/audit.html", _context(request))


@never_cache
@require_GET
@role_required(Role.ADMIN)
def job_audit(request: HttpRequest, job_id: str) -> HttpResponse:
    """The entries about one job and its savepoints."""
    job = pages.job_or_404(job_id)
    return pages.job_page(
        request, "frontend/job_audit.html", job, "job-audit", _context(request, job)
    )


def _context(request: HttpRequest, job: Job | None = None) -> dict[str, Any]:
    given = {name: request.GET.get(name, "") for name in FILTERS}
    return {
        "log": audit_log.page(request, job),
        "given": given,
        "is_narrow": any(given.values()),
        "actions": sorted(audit_log.ACTIONS),
    }


urlpatterns = [
    path("audit/", audit, name="audit"),
    path(f"{pages.OF_JOB}/audit/", job_audit, name="job-audit"),
]
