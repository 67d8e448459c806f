"""What a job was given and what it says: its configuration, its drivers' logs, its audit log."""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.accounts.models import Role
from frontend import audit_pages, pages
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


urlpatterns = [
    path(f"{pages.OF_JOB}/configuration/", configuration, name="job-configuration"),
    path(f"{pages.OF_JOB}/logs/", logs, name="job-logs"),
    *audit_pages.urlpatterns,
]
