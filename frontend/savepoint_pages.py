"""The page of a job's savepoints and of what was restored from what."""

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
def savepoint_list(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's savepoints."""
    job = pages.job_or_404(job_id)
    return pages.job_page(request, "frontend/savepoint_list.html", job, "job-savepoints", {})


urlpatterns = [path(f"{pages.OF_JOB}/savepoints/", savepoint_list, name="job-savepoints")]
