"""The API of jobs: thin views, each a service to call or rows to show.

Jobs themselves are shown with what their checkpoints say, so their list and their page are built
upon these views in ``checkpoints.api``.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.core.files.uploadedfile import UploadedFile
from django.db.models import Prefetch, QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)
from rest_framework import renderers, serializers, status
from rest_framework.generics import GenericAPIView, ListAPIView
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from controlplane.accounts.models import Role
from controlplane.errors import Invalid, NotFound
from controlplane.serializers import EmptyRequest
from jobs import driver_files, operations, services, uploads
from jobs.api import filters
from jobs.api import serializers as shapes
from jobs.api.submission import submission_of
from jobs.models import (
    Artifact,
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

JOB_ID = OpenApiParameter("job_id", OpenApiTypes.STR, "path", description="The job's id.")
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": operations.KEY_LENGTH_MAX},
    "header",
    description=(
        "Makes the request safe to repeat: the same key with the same request answers with the "
        "operation that is there; with another request it is refused (422). Keys are the account's."
    ),
)
LOCATION = OpenApiParameter(
    "Location",
    OpenApiTypes.URI,
    "header",
    description="The operation, to be asked until it ended.",
    response=[202],
)
OPERATION_EXAMPLE = {
    "id": "0b8d3a1e-6d5c-4c53-9f0e-6f6c8f0f9a11",
    "url": "https://weir.example/api/v1/operations/0b8d3a1e-6d5c-4c53-9f0e-6f6c8f0f9a11",
    "job": "flights-1a2b3c4d",
    "job_url": "https://weir.example/api/v1/jobs/flights-1a2b3c4d",
    "kind": "submit",
    "status": "pending",
    "parameters": {"name": "flights"},
    "result": None,
    "error": "",
    "requested_by": "mara",
    "created_at": "2026-03-01T12:00:00Z",
    "started_at": None,
    "deadline_at": "2026-03-01T12:05:00Z",
    "ended_at": None,
}


def idempotency_key(request: Request) -> str | None:
    """The request's idempotency key, if it has one."""
    return request.headers.get("Idempotency-Key")


def accepted(request: Request, operation: Operation) -> Response:
    """202 with the operation and where to ask for it."""
    shown = shapes.OperationSerializer(operation, context={"request": request})
    where = reverse("api:operation", kwargs={"id": operation.pk}, request=request)
    return Response(shown.data, status=status.HTTP_202_ACCEPTED, headers={"Location": where})


class OfJob:
    """A view below ``jobs/{job_id}``: an unknown job is 404 before anything else is looked at."""

    job: Job

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After authentication, role and throttles."""
        super().initial(request, *args, **kwargs)
        self.job = self.find_job(kwargs["job_id"])

    def jobs(self) -> QuerySet[Job]:
        """The rows to look among."""
        return Job.objects.all()

    def find_job(self, job_id: str) -> Job:
        """The job.

        Raises:
            NotFound: There is none.
        """
        job = self.jobs().filter(pk=job_id).first()
        if job is None:
            raise NotFound(f"There is no job {job_id}.")
        return job


class ShowView(GenericAPIView):
    """One thing, without pages."""

    pagination_class = None
    filter_backends: ClassVar[Sequence[type]] = []


class OperationActionView(OfJob, ShowView):
    """POST asks for something that takes time; the answer is its operation."""

    serializer_class = EmptyRequest

    def ask(self, request: Request, key: str | None) -> Operation:
        """Call the service."""
        raise NotImplementedError

    def post(self, request: Request, job_id: str) -> Response:
        """Ask for it."""
        EmptyRequest(data=request.data).is_valid(raise_exception=True)
        return accepted(request, self.ask(request, idempotency_key(request)))


def action_schema(operation_id: str, summary: str) -> Any:
    """How an action stands in the OpenAPI document; its description is the view's docstring."""

    def decorate(view: type[OperationActionView]) -> type[OperationActionView]:
        post = extend_schema(
            operation_id=operation_id,
            tags=["jobs"],
            summary=summary,
            description=view.__doc__,
            request=EmptyRequest,
            responses={202: shapes.OperationSerializer},
            parameters=[JOB_ID, IDEMPOTENCY_KEY, LOCATION],
        )
        return extend_schema_view(post=post)(view)

    return decorate


def list_schema(operation_id: str, summary: str, *, tag: str = "jobs", of_job: bool = True) -> Any:
    """How a list stands in the OpenAPI document; its description is the view's docstring."""

    def decorate(view: type[ListAPIView]) -> type[ListAPIView]:
        get = extend_schema(
            operation_id=operation_id,
            tags=[tag],
            summary=summary,
            description=view.__doc__,
            parameters=[JOB_ID] if of_job else [],
        )
        return extend_schema_view(get=get)(view)

    return decorate


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

    def ask(self, request: Request, key: str | None) -> Operation:
        """Call the service."""
        return services.cancel(request.user, self.job.pk, key=key)


@action_schema("restart_job", "Restart a job")
class RestartView(OperationActionView):
    """Runs a job with a new driver, from its newest completed checkpoint.

    One that failed or was cancelled is wanted again. The operation succeeds once the job runs.
    """

    def ask(self, request: Request, key: str | None) -> Operation:
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


# Operations ---------------------------------------------------------------------------------------


@list_schema("list_operations", "List operations", tag="operations", of_job=False)
class OperationsView(ListAPIView):
    """Whatever was asked of any job."""

    queryset = Operation.objects.select_related("requested_by")
    serializer_class = shapes.OperationSerializer
    filterset_class = filters.AnyOperationFilter
    orderings = {"created_at": ("created_at", "id")}
    default_ordering = "-created_at"


@list_schema("list_job_operations", "What was asked of the job", tag="operations")
class JobOperationsView(OfJob, OperationsView):
    """Whatever was asked of one job."""

    filterset_class = filters.OperationFilter

    def get_queryset(self) -> QuerySet[Operation]:
        """The job's."""
        return super().get_queryset().filter(job_id=self.kwargs["job_id"])


class OperationView(ShowView):
    """One operation."""

    serializer_class = shapes.OperationSerializer
    queryset = Operation.objects.select_related("requested_by")

    @extend_schema(
        operation_id="get_operation",
        tags=["operations"],
        summary="Show an operation",
        examples=[OpenApiExample("A submission", OPERATION_EXAMPLE, response_only=True)],
    )
    def get(self, request: Request, id: Any) -> Response:
        """Where an operation stands; ask again until `ended_at` is set."""
        operation = self.get_queryset().filter(pk=id).first()
        if operation is None:
            raise NotFound(f"There is no operation {id}.")
        return Response(self.get_serializer(operation).data)


# Uploads ------------------------------------------------------------------------------------------


UPLOAD = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "A Python script; its name ends in `.py`.",
        }
    },
}


class UploadsView(ListAPIView):
    """Uploaded pipelines."""

    queryset = Artifact.objects.select_related("uploaded_by")
    serializer_class = shapes.UploadSerializer
    parser_classes = [MultiPartParser]
    orderings = {"digest": ("digest",), "uploaded_at": ("uploaded_at", "digest")}
    default_ordering = "-uploaded_at"

    @extend_schema(operation_id="list_uploads", tags=["uploads"], summary="List uploads")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Which pipelines were uploaded."""
        return super().get(request, *args, **kwargs)

    @extend_schema(
        operation_id="upload_pipeline",
        tags=["uploads"],
        summary="Upload a pipeline",
        request={"multipart/form-data": UPLOAD},
        responses={
            201: OpenApiResponse(shapes.UploadSerializer, description="To be submitted by digest.")
        },
    )
    def post(self, request: Request) -> Response:
        """Keeps a Python script, to be submitted by its digest. The same content is kept once."""
        file = request.data.get("file")
        if not isinstance(file, UploadedFile):
            said = "Give the script as a file in the form's field `file`."
            raise Invalid(said, errors={"file": [said]})
        artifact = uploads.store(request.user, file.name, file.chunks())
        return Response(self.get_serializer(artifact).data, status=status.HTTP_201_CREATED)
