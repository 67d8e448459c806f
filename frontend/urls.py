"""Addresses of the pages: stable, so that they can be sent to somebody."""

from django.contrib.auth import views as auth_views
from django.urls import path, register_converter
from django.views.generic import RedirectView

from controlplane.converters import JobId
from frontend import views

register_converter(JobId, "page_job")

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="job-list"), name="home"),
    path(
        "login/",
        auth_views.LoginView.as_view(redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("jobs/", views.job_list, name="job-list"),
    path("jobs/data", views.job_list_data, name="job-list-data"),
    path("jobs/<page_job:job_id>/", views.job_page, name="job-page"),
    path("jobs/<page_job:job_id>/details", views.job_details, name="job-details"),
    path("jobs/<page_job:job_id>/figures/<str:name>", views.job_figure, name="job-figure"),
    path("jobs/<page_job:job_id>/checkpoint", views.take_checkpoint, name="job-checkpoint"),
    path("jobs/<page_job:job_id>/cancel", views.cancel_job, name="job-cancel"),
    path("jobs/<page_job:job_id>/restart", views.restart_job, name="job-restart"),
]
