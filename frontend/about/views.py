"""The page of a job's configuration, and the addresses of logs, audit log and server."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from controlplane.accounts.models import Role
from controlplane.base.errors import existing
from frontend.about import audit_views, configuration, logs, server
from frontend.base import pages
from frontend.base.access import page_for
from frontend.job import queries
from jobs.models import Job


@page_for(Role.VIEWER)
def job_configuration(request: HttpRequest, job_id: str) -> HttpResponse:
    """The settings and operators of the job. Three queries."""
    rows = Job.objects.select_related("created_by").defer("restart_state")
    job = existing(rows.filter(pk=job_id), f"There is no job {job_id!r}.")
    context = {
        "groups": configuration.setting_groups(
            job,
            queries.newest_driver(job.pk),
            server_storage=str(settings.WEIR_CHECKPOINT_ROOT),
            server_master=settings.WEIR_SPARK_MASTER,
        ),
        "operators": configuration.operators(queries.operators(job.pk), job.settings),
    }
    return pages.job_page(request, "frontend/configuration.html", job, "job-configuration", context)


urlpatterns = [
    path(f"{pages.OF_JOB}/configuration/", job_configuration, name="job-configuration"),
    *logs.urlpatterns,
    *audit_views.urlpatterns,
    *server.urlpatterns,
]
