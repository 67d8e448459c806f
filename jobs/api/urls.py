"""URLs below a job, of operations and of uploads. ``checkpoints.api.urls`` has those of jobs."""

from django.urls import path

from jobs.api import inspections, operations, uploads, views

urlpatterns = [
    path("jobs/<job:job_id>/cancel", views.CancelView.as_view(), name="job-cancel"),
    path("jobs/<job:job_id>/restart", views.RestartView.as_view(), name="job-restart"),
    path("jobs/<job:job_id>/graph", views.GraphView.as_view(), name="job-graph"),
    path("jobs/<job:job_id>/subtasks", views.SubtasksView.as_view(), name="job-subtasks"),
    path(
        "jobs/<job:job_id>/operators/<uid:uid>/series",
        views.SeriesView.as_view(),
        name="operator-series",
    ),
    path(
        "jobs/<job:job_id>/operators/<uid:uid>/stacks",
        inspections.StacksView.as_view(),
        name="operator-stacks",
    ),
    path(
        "jobs/<job:job_id>/operators/<uid:uid>/records",
        inspections.RecordsView.as_view(),
        name="operator-records",
    ),
    path(
        "jobs/<job:job_id>/inspections/<uuid:id>",
        inspections.InspectionView.as_view(),
        name="inspection",
    ),
    path("jobs/<job:job_id>/attempts", views.AttemptsView.as_view(), name="job-attempts"),
    path("jobs/<job:job_id>/drivers", views.DriversView.as_view(), name="job-drivers"),
    path(
        "jobs/<job:job_id>/drivers/<int:number>/log",
        views.DriverLogView.as_view(),
        name="driver-log",
    ),
    path("jobs/<job:job_id>/events", views.EventsView.as_view(), name="job-events"),
    path("jobs/<job:job_id>/exceptions", views.ExceptionsView.as_view(), name="job-exceptions"),
    path(
        "jobs/<job:job_id>/operations",
        operations.JobOperationsView.as_view(),
        name="job-operations",
    ),
    path("operations", operations.OperationsView.as_view(), name="operations"),
    path("operations/<uuid:id>", operations.OperationView.as_view(), name="operation"),
    path("uploads", uploads.UploadsView.as_view(), name="uploads"),
    path("uploads/<digest:digest>", uploads.UploadView.as_view(), name="upload"),
    path("uploads/<digest:digest>/file", uploads.UploadFileView.as_view(), name="upload-file"),
]
