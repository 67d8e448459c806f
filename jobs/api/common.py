"""Base classes and schema decorators for views of jobs, their checkpoints and savepoints."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    extend_schema,
    extend_schema_view,
)
from rest_framework import status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.views import APIView

from controlplane.base.errors import existing
from controlplane.base.rest.serializers import EmptyRequest, RequestSerializer
from controlplane.base.rest.views import OneView, list_schema
from jobs import operations
from jobs.api import serializers as shapes
from jobs.api import with_file
from jobs.models import Job, Operation

JOB_ID = OpenApiParameter("job_id", OpenApiTypes.STR, "path", description="The job's id.")
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": operations.KEY_LENGTH_MAX},
    "header",
    description=(
        "Makes the request safe to repeat: the same key with the same request returns the "
        "operation that exists already; with another request it is refused (422). Each account has "
        "its own keys."
    ),
)
LOCATION = OpenApiParameter(
    "Location",
    OpenApiTypes.URI,
    "header",
    description="The URL of the operation; poll it until the operation has ended.",
    response=[202],
)
OPERATION_EXAMPLE = {
    "id": "0b8d3a1e-6d5c-4c53-9f0e-6f6c8f0f9a11",
    "url": "https://weir.example/api/v1/operations/0b8d3a1e-6d5c-4c53-9f0e-6f6c8f0f9a11",
    "job": "flights-1a2b3c4d",
    "job_url": "https://weir.example/api/v1/jobs/flights-1a2b3c4d",
    "kind": "submit",
    "status": "pending",
    "phase": None,
    "saved": None,
    "parameters": {"name": "flights"},
    "result": None,
    "error": "",
    "requested_by": "mara",
    "created_at": "2026-03-01T12:00:00Z",
    "started_at": None,
    "deadline_at": "2026-03-01T12:05:00Z",
    "ended_at": None,
}


job_list_schema = partial(list_schema, parameters=[JOB_ID])  # Of a list below ``jobs/{job_id}``.


def idempotency_key(request: Request) -> str | None:
    """The request's idempotency key, if it has one."""
    return request.headers.get("Idempotency-Key")


def accepted(request: Request, operation: Operation) -> Response:
    """202 with the operation, and its URL in ``Location``."""
    shown = shapes.OperationSerializer(operation, context={"request": request})
    where = reverse("api:operation", kwargs={"id": operation.pk}, request=request)
    return Response(shown.data, status=status.HTTP_202_ACCEPTED, headers={"Location": where})


class OfJob(APIView):
    """A view below ``jobs/{job_id}``: an unknown job is 404 before any other check."""

    job: Job

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Load the job, after authentication, role and throttles."""
        super().initial(request, *args, **kwargs)
        self.load_job(kwargs["job_id"])

    def jobs(self) -> QuerySet[Job]:
        """The jobs among which the job is looked up."""
        return Job.objects.all()

    def load_job(self, job_id: str) -> None:
        """Load the job with this id.

        Raises:
            NotFound: There is no such job.
        """
        self.job = existing(self.jobs().filter(pk=job_id), f"There is no job {job_id}.")


class JobListView(OfJob, ListAPIView):
    """A list of what belongs to a job."""

    def get_queryset(self) -> QuerySet[Any]:
        """The rows of the job."""
        return super().get_queryset().filter(job_id=self.kwargs["job_id"])


class OperationActionView(OfJob, OneView):
    """A view whose POST begins an operation and responds with it."""

    serializer_class: type[RequestSerializer] = EmptyRequest  # The request's body.

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Begin the operation with the validated body."""
        raise NotImplementedError

    def post(self, request: Request, job_id: str) -> Response:
        """Begin the operation."""
        operation = self.ask(request, self.read(request), idempotency_key(request))
        return accepted(request, operation)

    def read(self, request: Request) -> dict[str, Any]:
        """The validated body."""
        return self.serializer_class.read(request)


class PipelineActionView(OperationActionView):
    """An action that may bring a script of its own, in a form instead of JSON."""

    parser_classes = with_file.PARSERS

    def read(self, request: Request) -> dict[str, Any]:
        """The validated body; a form's script is stored."""
        return with_file.read(request, self.serializer_class)


def _body_of(view: type[OperationActionView]) -> Any:
    if issubclass(view, PipelineActionView):
        return {
            "application/json": view.serializer_class,
            "multipart/form-data": with_file.FORM,
        }
    return view.serializer_class


def action_schema(
    operation_id: str, summary: str, *, tag: str = "jobs", examples: Mapping[str, Any] | None = None
) -> Any:
    """The OpenAPI schema of an action; its description is the view's docstring.

    Args:
        examples: Request bodies by name.
    """

    def decorate(view: type[OperationActionView]) -> type[OperationActionView]:
        post = extend_schema(
            operation_id=operation_id,
            tags=[tag],
            summary=summary,
            description=view.__doc__,
            request=_body_of(view),
            responses={202: shapes.OperationSerializer},
            parameters=[JOB_ID, IDEMPOTENCY_KEY, LOCATION],
            examples=[
                OpenApiExample(name, body, request_only=True, media_type="application/json")
                for name, body in (examples or {}).items()
            ],
        )
        return extend_schema_view(post=post)(view)

    return decorate
