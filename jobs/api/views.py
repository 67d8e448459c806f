"""The API of jobs: thin views that call a service or show rows.

Jobs themselves are shown with facts from their checkpoints, so their list and their page extend
these views in ``checkpoints.api``.
"""

from datetime import timedelta
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import renderers, serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.models import Role
from controlplane.accounts.permissions import account
from controlplane.base.errors import NotFound, existing
from controlplane.base.rest.views import OneView
from controlplane.base.threads import Unavailable
from jobs import chain_series, services
from jobs.api import filters, requests
from jobs.api import serializers as shapes
from jobs.api.common import (
    IDEMPOTENCY_KEY,
    JOB_ID,
    LOCATION,
    OPERATION_EXAMPLE,
    JobListView,
    OfJob,
    OperationActionView,
    accepted,
    action_schema,
    idempotency_key,
    job_list_schema,
)
from jobs.api.submission import submission_of
from jobs.drivers import driver_files
from jobs.models import (
    Attempt,
    Driver,
    Edge,
    Job,
    JobEvent,
    JobException,
    Operation,
    Operator,
    Subtask,
    Worker,
)
from weir.untrusted_files import UntrustedFileError

LOG_BYTES = 64 << 10  # Default length of a part.


# Jobs ---------------------------------------------------------------------------------------------


class JobsView(ListAPIView):
    """The list of jobs, and the submission of another one."""

    queryset = Job.objects.select_related("created_by")
    serializer_class: type[serializers.BaseSerializer] = shapes.JobSerializer
    filterset_class = filters.JobFilter
    orderings = {"created_at": ("created_at", "id"), "id": ("id",)}
    default_ordering = "-created_at"

    @extend_schema(
        operation_id="submit_job",
        tags=["jobs"],
        summary="Submit a job",
        request=requests.SubmissionRequest,
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
        """Create a job. The operation ends once the job runs, or has failed to start.

        An uploaded pipeline runs as code on the cluster: the role operator allows exactly that.
        """
        with submission_of(request, requests.SubmissionRequest.read(request)) as submission:
            operation = services.submit(account(request), submission, key=idempotency_key(request))
        return accepted(request, operation)


class JobView(OfJob, OneView):
    """A view of one job."""

    serializer_class: type[serializers.BaseSerializer] = shapes.JobDetailSerializer

    def jobs(self) -> QuerySet[Job]:
        """Jobs with the accounts that created them."""
        return Job.objects.select_related("created_by")

    def get(self, request: Request, job_id: str) -> Response:
        """Show the job and its newest driver."""
        return Response(self.get_serializer(self.job).data)


@action_schema("cancel_job", "Cancel a job")
class CancelView(OperationActionView):
    """Cancel a job without a savepoint. The operation succeeds once the job is CANCELED."""

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Call the service."""
        return services.cancel(account(request), self.job.pk, key=key)


@action_schema("restart_job", "Restart a job")
class RestartView(OperationActionView):
    """Restart a job with a new driver, from its newest completed checkpoint.

    A failed or cancelled job can be restarted too. The operation succeeds once the job runs.
    """

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Call the service."""
        return services.restart(account(request), self.job.pk, key=key)


# What belongs to a job ----------------------------------------------------------------------------


class GraphView(OfJob, OneView):
    """A view of a job's graph."""

    serializer_class = shapes.GraphSerializer

    @extend_schema(
        operation_id="get_job_graph",
        tags=["jobs"],
        summary="The job's operators and edges",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str) -> Response:
        """The graph that the job's pipeline built; empty until then."""
        graph = {
            "operators": Operator.objects.filter(job=self.job).order_by("position"),
            "edges": Edge.objects.filter(job=self.job).order_by("position"),
        }
        return Response(self.get_serializer(graph).data)


@job_list_schema("list_job_subtasks", "The job's subtasks and their counters", tag="jobs")
class SubtasksView(JobListView):
    """The status and the latest counters of each subtask of the newest attempt."""

    queryset = Subtask.objects.all()
    serializer_class = shapes.SubtaskSerializer
    filterset_class = filters.SubtaskFilter
    orderings = {"place": ("chain", "index")}
    default_ordering = "place"


class SeriesQuery(serializers.Serializer):
    """The time that a series covers."""

    last_s = serializers.IntegerField(
        default=3_600,
        min_value=60,
        max_value=86_400,
        help_text="The last so many seconds.",
    )


class SeriesView(OfJob, OneView):
    """A view of an operator's load over time."""

    serializer_class = shapes.SeriesSerializer
    query_class = SeriesQuery

    @extend_schema(
        operation_id="get_operator_series",
        tags=["jobs"],
        summary="An operator's load over time",
        parameters=[
            JOB_ID,
            OpenApiParameter("uid", str, "path", description="The operator's uid."),
            SeriesQuery,
        ],
    )
    def get(self, request: Request, job_id: str, uid: str) -> Response:
        """Points of the operator's chain, oldest first; each is the mean since the one before.

        They are 10 seconds apart for an hour, then a minute, and kept for a day. A longer time than
        480 points has points that are further apart.
        """
        query = self.query_class(data=request.query_params)
        query.is_valid(raise_exception=True)
        operator = existing(
            Operator.objects.filter(job=self.job, uid=uid), f"Job {job_id} has no operator {uid!r}."
        )
        span = timedelta(seconds=query.validated_data["last_s"])
        samples = chain_series.read(job_id, operator.chain, span)
        points = chain_series.points(samples, operator.uid)
        shown = {"operator": operator.uid, "chain": operator.chain, "points": points}
        return Response(self.get_serializer(shown).data)


@job_list_schema("list_job_attempts", "The job's attempts", tag="jobs")
class AttemptsView(OfJob, ListAPIView):
    """Each deployment of the job's graph, its workers, and the recovery that led to it."""

    queryset = Attempt.objects.all()
    serializer_class = shapes.AttemptSerializer
    filterset_class = filters.AttemptFilter
    orderings = {"number": ("number",)}
    default_ordering = "-number"

    def get_queryset(self) -> QuerySet[Attempt]:
        """The job's attempts, with their workers."""
        workers = Prefetch(
            "workers", queryset=Worker.objects.order_by("slot_index"), to_attr="worker_list"
        )
        attempts = Attempt.objects.filter(job_id=self.kwargs["job_id"])
        return attempts.select_related("driver").prefetch_related(workers)


@job_list_schema("list_job_drivers", "The job's drivers", tag="jobs")
class DriversView(JobListView):
    """The Spark applications launched for the job."""

    queryset = Driver.objects.all()
    serializer_class = shapes.DriverSerializer
    filterset_class = filters.DriverFilter
    orderings = {"number": ("number",)}
    default_ordering = "-number"


@job_list_schema("list_job_exceptions", "The job's failures and notices", tag="jobs")
class ExceptionsView(JobListView):
    """Failures and notices of attempts, drivers, subtasks and the pipeline, newest first."""

    queryset = JobException.objects.all()
    serializer_class = shapes.JobExceptionSerializer
    filterset_class = filters.ExceptionFilter
    orderings = {"at": ("at", "id")}
    default_ordering = "-at"


@job_list_schema("list_job_events", "The job's events", tag="jobs")
class EventsView(JobListView):
    """Facts about the job: ends of checkpoints, attempts and operations, statuses, lost drivers."""

    queryset = JobEvent.objects.all()
    serializer_class = shapes.JobEventSerializer
    filterset_class = filters.EventFilter
    orderings = {"id": ("id",)}
    default_ordering = "-id"


class PlainTextRenderer(renderers.BaseRenderer):
    """A renderer that allows ``Accept: text/plain``; the view makes the response."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> str:
        """The data as text."""
        return str(data)


class LogQuery(serializers.Serializer):
    """The part of a log to read."""

    offset = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=2**63 - 1,
        help_text="The first byte to read; default: so that the part ends with the log.",
    )
    limit = serializers.IntegerField(
        default=LOG_BYTES,
        min_value=1,
        max_value=driver_files.READ_BYTES_MAX,
        help_text="The most bytes to read.",
    )


class DriverLogView(OfJob, OneView):
    """A view of a driver's log: its standard output and error."""

    roles = {"GET": Role.OPERATOR}  # A pipeline may print anything, secrets too.
    renderer_classes = [PlainTextRenderer, renderers.JSONRenderer]
    query_class = LogQuery

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
                    ("Weir-Log-Offset", "The offset of this part, in bytes."),
                    ("Weir-Log-Next", "The offset of the next part, in bytes."),
                    ("Weir-Log-Size", "The size of the log, in bytes."),
                )
            ),
        ],
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request, job_id: str, number: int) -> HttpResponse:
        """A part of the driver's log: from `offset` on, or without it the end of the log.

        Bytes that are no UTF-8 are replaced. For operators only: a log holds all that the pipeline
        printed, secrets too.
        """
        query = self.query_class(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        driver = existing(
            Driver.objects.filter(job=self.job, number=number),
            f"Job {job_id} has no driver {number}.",
        )
        limit = given["limit"]
        try:
            part = driver_files.log_readers.run(
                lambda: driver_files.read(driver, given.get("offset"), limit)
            )
        except UntrustedFileError as error:
            raise NotFound(f"The log of driver {number} is not read: {error.problem}.") from error
        except TimeoutError as error:
            raise Unavailable(f"The log of driver {number} is not read: {error}") from error
        except OSError as error:
            on = f"; its launcher ran on {driver.launched_by}" if driver.launched_by else ""
            raise NotFound(f"Driver {number} has no log on this machine{on}.") from error
        response = HttpResponse(part.text, content_type="text/plain; charset=utf-8")
        response["Weir-Log-Offset"] = part.offset
        response["Weir-Log-Next"] = part.next_offset
        response["Weir-Log-Size"] = part.size
        return response
