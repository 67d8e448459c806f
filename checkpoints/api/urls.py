"""Paths of checkpoints, and of jobs, which are shown with theirs."""

from django.urls import path

from checkpoints.api import views

_OF_JOB = "jobs/<job:job_id>"
_OF_CHECKPOINT = f"{_OF_JOB}/checkpoints/<int:number>"

urlpatterns = [
    path("jobs", views.JobsView.as_view(), name="jobs"),
    path(_OF_JOB, views.JobView.as_view(), name="job"),
    path(f"{_OF_JOB}/checkpoint", views.TriggerView.as_view(), name="job-checkpoint"),
    path(f"{_OF_JOB}/checkpoints", views.JobCheckpointsView.as_view(), name="job-checkpoints"),
    path(_OF_CHECKPOINT, views.CheckpointView.as_view(), name="checkpoint"),
    path(f"{_OF_CHECKPOINT}/acks", views.AcksView.as_view(), name="checkpoint-acks"),
    path(f"{_OF_CHECKPOINT}/channels", views.ChannelsView.as_view(), name="checkpoint-channels"),
    path("checkpoints", views.CheckpointsView.as_view(), name="checkpoints"),
]
