"""What a job was given and what it says: its configuration, its drivers' logs, its audit log."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.accounts.models import Role
from frontend import pages
from frontend.access import role_required


@never_cache
@require_GET
@role_required(Role.VIEWER)
def configuration(request: HttpRequest, job_id: str) -> HttpResponse:
    """What the job runs with."""
    job = pages.job_or_404(job_id)
    return pages.job_page(request, "frontend/configuration.html", job, "job-configuration", {})


@never_cache
@require_GET
@role_required(Role.OPERATOR)
def logs(request: HttpRequest, job_id: str) -> HttpResponse:
    """What the job's drivers wrote."""
    job = pages.job_or_404(job_id)
    return pages.job_page(request, "frontend/logs.html", job, "job-logs", {})


@never_cache
@require_GET
@role_required(Role.ADMIN)
def job_audit(request: HttpRequest, job_id: str) -> HttpResponse:
    """Who did what to the job."""
    job = pages.job_or_404(job_id)
    return pages.job_page(request, "frontend/job_audit.html", job, "job-audit", {})


@never_cache
@require_GET
@role_required(Role.ADMIN)
def audit(request: HttpRequest) -> HttpResponse:
    """Who did what."""
    return render(request, "frontend/audit.html", {})


urlpatterns = [
    path("audit/", audit, name="audit"),
    path(f"{pages.OF_JOB}/configuration/", configuration, name="job-configuration"),
    path(f"{pages.OF_JOB}/logs/", logs, name="job-logs"),
    path(f"{pages.OF_JOB}/audit/", job_audit, name="job-audit"),
]
