"""The pages of a job's checkpoints: all of them, and one in detail."""

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
def checkpoint_list(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's checkpoints, newest first."""
    job = pages.job_or_404(job_id)
    return pages.job_page(request, "frontend/checkpoint_list.html", job, "job-checkpoints", {})


@never_cache
@require_GET
@role_required(Role.VIEWER)
def checkpoint_page(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """One checkpoint."""
    job = pages.job_or_404(job_id)
    return pages.job_page(
        request, "frontend/checkpoint_page.html", job, "job-checkpoints", {"number": number}
    )


urlpatterns = [
    path(f"{pages.OF_JOB}/checkpoints/", checkpoint_list, name="job-checkpoints"),
    path(f"{pages.OF_JOB}/checkpoints/<int:number>/", checkpoint_page, name="checkpoint-page"),
]
