"""The API of jobs: thin views, each a service to call or rows to show.

Jobs themselves are shown with what their checkpoints say, so their list and their page are built
upon these views in ``checkpoints.api``.
"""

from typing import Any, ClassVar

from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import renderers, serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Role
from controlplane.base.errors import NotFound
from jobs import services
from jobs.api import filters
from jobs.api import serializers as shapes
from jobs.api.common import (
    IDEMPOTENCY_KEY,
    JOB_ID,
    LOCATION,
    OPERATION_EXAMPLE,
    OfJob,
    OperationActionView,
    ShowView,
    accepted,
    action_schema,
    idempotency_key,
    list_schema,
)
from jobs.api.submission import submission_of
from jobs.drivers import driver_files
from jobs.models import (
    Attempt,
    Driver,
    Edge,
    Job,
    JobException,
    Operation,
    Operator,
    Subtask,
    Worker,
)

LOG_BYTES = 64 << 10  # Unless asked for another length.


# Jobs ---------------------------------------------------------------------------------------------


class JobsView(ListAPIView):
    """All jobs, and the submission of another one."""

    queryset = Job.objects.select_related("created_by")
    serializer_class: ClassVar[type[serializers.BaseSerializer]] = shapes.JobSerializer
    filterset_class = filters.JobFilter
    orderings = {"created_at": ("created_at", "id"), "id": ("id",)}
    default_ordering = "-created_at"

    @extend_schema(
        operation_id="submit_job",
        tags=["jobs"],
        summary="Submit a job",
        request=shapes.SubmissionRequest,
        responses={202: shapes.OperationSerializer},
        parameters=[IDEMPOTENCY_KEY, LOCATION],
        examples=[
            OpenApiExample(
                "A module",
                {
                    "name": "flights",
                    "pipeline": {"kind": "module", "module": "weir.examples.flights"},
                    "parallelism": 2,
                    "checkpoint_interval_ms": 1000,
                    "parameters": {"repeat": "true"},
                },
                request_only=True,
            ),
            OpenApiExample(
                "An upload",
                {
                    "name": "orders",
                    "pipeline": {"kind": "upload", "upload": "9f86d081884c7d65" * 4},
                    "mode": "exactly_once",
                },
                request_only=True,
            ),
            OpenApiExample("Accepted", OPERATION_EXAMPLE, response_only=True),
        ],
    )
    def post(self, request: Request) -> Response:
        """A job is made at once; the operation ends when it runs, or could not.

        An uploaded pipeline runs as code on the cluster: that is what the role operator means.
        """
        asked = shapes.SubmissionRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with submission_of(request, asked.validated_data) as submission:
            operation = services.submit(request.user, submission, key=idempotency_key(request))
        return accepted(request, operation)


class JobView(OfJob, ShowView):
    """One job."""

    serializer_class: ClassVar[type[serializers.BaseSerializer]] = shapes.JobDetailSerializer

    def jobs(self) -> QuerySet[Job]:
        """With who made it."""
        return Job.objects.select_related("created_by")

    def get(self, request: Request, job_id: str) -> Response:
        """Show it."""
        self.job.newest_driver = self.job.drivers.order_by("-number").first()
        return Response(self.get_serializer(self.job).data)


@action_schema("cancel_job", "Cancel a job")
class CancelView(OperationActionView):
    """Ends a job without a savepoint. The operation succeeds once it is CANCELED."""

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Call the service."""
        return services.cancel(request.user, self.job.pk, key=key)


@action_schema("restart_job", "Restart a job")
class RestartView(OperationActionView):
    """Runs a job with a new driver, from its newest completed checkpoint.

    One that failed or was cancelled is wanted again. The operation succeeds once the job runs.
    """

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Call the service."""
        return services.restart(request.user, self.job.pk, key=key)


# What belongs to a job ----------------------------------------------------------------------------


class GraphView(OfJob, ShowView):
    """A job's graph."""

    serializer_class = shapes.GraphSerializer

    @extend_schema(
        operation_id="get_job_graph",
        tags=["jobs"],
        summary="The job's operators and edges",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str) -> Response:
        """The graph that the job's pipeline built; empty until it did."""
        graph = {
            "operators": Operator.objects.filter(job=self.job).order_by("position"),
            "edges": Edge.objects.filter(job=self.job).order_by("position"),
        }
        return Response(self.get_serializer(graph).data)


@list_schema("list_job_subtasks", "The job's subtasks and their counters")
class SubtasksView(OfJob, ListAPIView):
    """Where each subtask of the newest attempt stands, and its latest counters."""

    queryset = Subtask.objects.all()
    serializer_class = shapes.SubtaskSerializer
    filterset_class = filters.SubtaskFilter
    orderings = {"place": ("chain", "index")}
    default_ordering = "place"

    def get_queryset(self) -> QuerySet[Subtask]:
        """The job's."""
        return Subtask.objects.filter(job_id=self.kwargs["job_id"])


@list_schema("list_job_attempts", "The job's attempts")
class AttemptsView(OfJob, ListAPIView):
    """Each deployment of the job's graph, its workers, and how it replaced the one before."""

    queryset = Attempt.objects.all()
    serializer_class = shapes.AttemptSerializer
    filterset_class = filters.AttemptFilter
    orderings = {"number": ("number",)}
    default_ordering = "-number"

    def get_queryset(self) -> QuerySet[Attempt]:
        """The job's, with their workers."""
        workers = Prefetch(
            "workers", queryset=Worker.objects.order_by("slot_index"), to_attr="worker_list"
        )
        attempts = Attempt.objects.filter(job_id=self.kwargs["job_id"])
        return attempts.select_related("driver").prefetch_related(workers)


@list_schema("list_job_drivers", "The job's drivers")
class DriversView(OfJob, ListAPIView):
    """Each Spark application that was launched for the job."""

    queryset = Driver.objects.all()
    serializer_class = shapes.DriverSerializer
    filterset_class = filters.DriverFilter
    orderings = {"number": ("number",)}
    default_ordering = "-number"

    def get_queryset(self) -> QuerySet[Driver]:
        """The job's."""
        return Driver.objects.filter(job_id=self.kwargs["job_id"])


@list_schema("list_job_exceptions", "What went wrong with the job")
class ExceptionsView(OfJob, ListAPIView):
    """What went wrong: with attempts, drivers, subtasks or the pipeline, newest first."""

    queryset = JobException.objects.all()
    serializer_class = shapes.JobExceptionSerializer
    filterset_class = filters.ExceptionFilter
    orderings = {"at": ("at", "id")}
    default_ordering = "-at"

    def get_queryset(self) -> QuerySet[JobException]:
        """The job's."""
        return JobException.objects.filter(job_id=self.kwargs["job_id"])


class PlainTextRenderer(renderers.BaseRenderer):
    """Lets a client ask for text/plain; the view makes the response."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> str:
        """The text."""
        return str(data)


class LogQuery(serializers.Serializer):
    """Which part of a log."""

    offset = serializers.IntegerField(
        required=False, min_value=0, max_value=2**63 - 1, help_text="Where to begin, in bytes."
    )
    limit = serializers.IntegerField(
        default=LOG_BYTES, min_value=1, max_value=driver_files.READ_BYTES_MAX, help_text="Bytes."
    )


class DriverLogView(OfJob, ShowView):
    """What a driver wrote to its terminal."""

    roles = {"GET": Role.OPERATOR}  # Whatever the pipeline prints, secrets too.
    renderer_classes = [PlainTextRenderer, renderers.JSONRenderer]

    @extend_schema(
        operation_id="get_driver_log",
        tags=["jobs"],
        summary="A driver's log",
        parameters=[
            JOB_ID,
            LogQuery,
            *(
                OpenApiParameter(name, int, "header", description=said, response=[200])
                for name, said in (
                    ("Weir-Log-Offset", "Where this part begins, in bytes."),
                    ("Weir-Log-Next", "Where the next one does: the offset to ask for."),
                    ("Weir-Log-Size", "How long the log is."),
                )
            ),
        ],
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request, job_id: str, number: int) -> HttpResponse:
        """A part of what the driver wrote: from `offset` on, or without it the end.

        Bytes that are no UTF-8 are replaced. For operators: a log may hold whatever the pipeline
        printed.
        """
        query = LogQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        driver = Driver.objects.filter(job=self.job, number=number).first()
        if driver is None:
            raise NotFound(f"Job {job_id} has no driver {number}.")
        limit = given["limit"]
        try:
            if "offset" in given:
                part = driver_files.read(driver, given["offset"], limit)
            else:
                end = driver_files.log_path(driver).stat().st_size
                part = driver_files.read(driver, max(0, end - limit), limit)
        except OSError as error:
            on = f"; its launcher ran on {driver.launched_by}" if driver.launched_by else ""
            raise NotFound(f"Driver {number} has no log here{on}.") from error
        response = HttpResponse(part.text, content_type="text/plain; charset=utf-8")
        response["Weir-Log-Offset"] = part.offset
        response["Weir-Log-Next"] = part.next_offset
        response["Weir-Log-Size"] = part.size
        return response
