"""Addresses of the pages: stable, so that a link to one can be shared."""

from django.urls import path
from django.views.generic import RedirectView

from frontend.about import views as about_pages
from frontend.accounts import account_views, list_views
from frontend.activity import views as activity_pages
from frontend.alerts import alert_views, rule_views, silence_views
from frontend.attempts import views as recovery_pages
from frontend.base import pages
from frontend.checkpoint import views as checkpoint_pages
from frontend.confirm import views as asking
from frontend.deliveries import delivery_views, endpoint_views
from frontend.job import views
from frontend.login import views as login_pages
from frontend.operator import views as operator_pages
from frontend.overview import views as overview_pages
from frontend.retention import views as retention_pages
from frontend.savepoints import views as savepoint_pages
from frontend.secrets import views as secret_pages
from frontend.slots import views as slot_pages
from frontend.submit import views as submit_pages
from frontend.uploads import views as upload_pages

_JOB = pages.OF_JOB

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="job-list"), name="home"),
    *login_pages.urlpatterns,
    *overview_pages.urlpatterns,
    *submit_pages.urlpatterns,  # Before jobs by their ids.
    path(f"{_JOB}/", views.job_page, name="job-page"),
    path(f"{_JOB}/details", views.job_details, name="job-details"),
    path(f"{_JOB}/figures/<str:name>", views.job_figure, name="job-figure"),
    path(f"{_JOB}/checkpoint", views.take_checkpoint, name="job-checkpoint"),
    path(f"{_JOB}/cancel", views.cancel_job, name="job-cancel"),
    path(f"{_JOB}/restart", views.restart_job, name="job-restart"),
    *(
        path(f"{_JOB}/{name}", asking.ask, {"name": name}, name=f"job-{name}")
        for name in asking.QUESTIONS
    ),
    path(f"{_JOB}/archive", asking.archive, {"is_back": False}, name="job-archive"),
    path(f"{_JOB}/unarchive", asking.archive, {"is_back": True}, name="job-unarchive"),
    path(f"{_JOB}/recovery/target", asking.change_recovery_target, name="job-recovery-target"),
    path(f"{_JOB}/rollback/confirmed", asking.roll_back, name="job-rollback-confirmed"),
    path(f"{_JOB}/operations/<uuid:operation_id>", asking.show_operation, name="job-operation"),
    path(
        f"{_JOB}/operations/<uuid:operation_id>/data", asking.operation_data, name="operation-data"
    ),
    path(
        f"{_JOB}/savepoints/<uuid:savepoint_id>/describe",
        asking.describe_savepoint,
        name="savepoint-describe",
    ),
    path(
        f"{_JOB}/savepoints/<uuid:savepoint_id>/delete",
        asking.delete_savepoint,
        name="savepoint-delete",
    ),
    *checkpoint_pages.urlpatterns,
    *savepoint_pages.urlpatterns,
    *recovery_pages.urlpatterns,
    *operator_pages.urlpatterns,
    *slot_pages.urlpatterns,
    *about_pages.urlpatterns,
    *account_views.urlpatterns,
    *list_views.urlpatterns,
    *activity_pages.urlpatterns,
    *secret_pages.urlpatterns,
    *upload_pages.urlpatterns,
    *retention_pages.urlpatterns,
    *alert_views.urlpatterns,
    *rule_views.urlpatterns,
    *silence_views.urlpatterns,
    *endpoint_views.urlpatterns,
    *delivery_views.urlpatterns,
]
