"""The page of a job's attempts: why each ended, and what its replacement cost."""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.accounts.models import Role
from frontend import pages
from frontend.access import role_required


@never_cache
@require_GET
@role_required(Role.VIEWER)
def recovery(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's attempts."""
    job = pages.job_or_404(job_id)
    return pages.job_page(request, "frontend/recovery.html", job, "job-recovery", {})


urlpatterns = [path(f"{pages.OF_JOB}/recovery/", recovery, name="job-recovery")]
