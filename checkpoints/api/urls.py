"""URLs of checkpoints and savepoints, and of jobs, which are shown with their checkpoints."""

from django.urls import path

from checkpoints.api import going_back, savepoints, views

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
    path(f"{_OF_CHECKPOINT}/verdict", views.VerdictView.as_view(), name="checkpoint-verdict"),
    path(f"{_OF_JOB}/savepoints", savepoints.JobSavepointsView.as_view(), name="job-savepoints"),
    path(f"{_OF_JOB}/stop", going_back.StopView.as_view(), name="job-stop"),
    path(f"{_OF_JOB}/rollback", going_back.RollbackView.as_view(), name="job-rollback"),
    path(f"{_OF_JOB}/rescale", going_back.RescaleView.as_view(), name="job-rescale"),
    path(f"{_OF_JOB}/upgrade", going_back.UpgradeView.as_view(), name="job-upgrade"),
    path(f"{_OF_JOB}/fork", going_back.ForkView.as_view(), name="job-fork"),
    path(f"{_OF_JOB}/previews", going_back.PreviewsView.as_view(), name="job-previews"),
    path(f"{_OF_JOB}/comparisons", going_back.ComparisonsView.as_view(), name="job-comparisons"),
    path("savepoints", savepoints.SavepointsView.as_view(), name="savepoints"),
    path("savepoints/<uuid:id>", savepoints.SavepointView.as_view(), name="savepoint"),
    path("checkpoints", views.CheckpointsView.as_view(), name="checkpoints"),
]
