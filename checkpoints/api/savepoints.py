"""The API of savepoints: list, take, describe and delete."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from checkpoints.api import filters, requests
from checkpoints.api import serializers as shapes
from checkpoints.models import Savepoint
from checkpoints.operations import savepoints
from controlplane.accounts.permissions import account
from controlplane.base.errors import existing
from controlplane.base.rest.preconditions import ETAG, IF_MATCH, Versioned
from controlplane.base.rest.views import OneView, list_schema
from jobs import services
from jobs.api import serializers as job_shapes
from jobs.api.common import (
    IDEMPOTENCY_KEY,
    JOB_ID,
    LOCATION,
    OPERATION_EXAMPLE,
    OfJob,
    accepted,
    idempotency_key,
    job_list_schema,
)
from jobs.api.submission import check_place

EXAMPLE = {
    "name": "before-the-new-tariff",
    "note": "The last state with the old prices.",
    "labels": {"release": "2026-03"},
}


@list_schema("list_savepoints", "List savepoints of all jobs", tag="savepoints")
class SavepointsView(ListAPIView):
    """Savepoints of all jobs, newest first."""

    queryset = Savepoint.objects.select_related("checkpoint", "created_by")
    serializer_class = shapes.SavepointSerializer
    filterset_class: type[filters.SavepointFilter] = filters.AnySavepointFilter
    orderings = {"created_at": ("created_at", "id")}
    default_ordering = "-created_at"


@job_list_schema("list_job_savepoints", "List a job's savepoints", tag="savepoints")
class JobSavepointsView(OfJob, SavepointsView):
    """A job's savepoints, newest first."""

    filterset_class = filters.SavepointFilter

    def get_queryset(self) -> QuerySet[Savepoint]:
        """The savepoints of this job."""
        return super().get_queryset().filter(job_id=self.kwargs["job_id"])

    @extend_schema(
        operation_id="take_savepoint",
        tags=["savepoints"],
        summary="Take a savepoint",
        request=requests.SavepointRequest,
        responses={202: job_shapes.OperationSerializer},
        parameters=[JOB_ID, IDEMPOTENCY_KEY, LOCATION],
        examples=[
            OpenApiExample("A savepoint", EXAMPLE, request_only=True),
            OpenApiExample(
                "Accepted",
                OPERATION_EXAMPLE | {"kind": "savepoint", "phase": "saving", "parameters": EXAMPLE},
                response_only=True,
            ),
        ],
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Takes a savepoint while the job goes on; the savepoint is kept until it is deleted.

        The operation succeeds once the savepoint is durable. If it fails, the job goes on.
        """
        given = requests.SavepointRequest.read(request)
        check_place(request, given)
        operation = savepoints.take(
            account(request),
            self.job.pk,
            name=given.get("name", ""),
            note=given.get("note", ""),
            labels=given.get("labels"),
            location=given.get("location", ""),
            key=idempotency_key(request),
        )
        return accepted(request, operation)


class SavepointView(Versioned, OneView):
    """One savepoint."""

    version_of = ("name", "note", "labels", "deleted_at")

    serializer_class = shapes.SavepointSerializer
    queryset = Savepoint.objects.select_related("checkpoint", "created_by")
    savepoint: Savepoint

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After authentication, role and throttles, find the savepoint."""
        super().initial(request, *args, **kwargs)
        savepoint = existing(
            self.get_queryset().filter(pk=kwargs["id"]),
            f"There is no savepoint {kwargs['id']}.",
        )
        self.savepoint = savepoint

    def lock(self) -> Savepoint:
        """The savepoint, locked with its job."""
        services.locked(self.savepoint.job_id)
        savepoint: Savepoint = self.get_queryset().get(pk=self.savepoint.pk)
        return savepoint

    @extend_schema(
        operation_id="get_savepoint",
        tags=["savepoints"],
        summary="Show a savepoint",
        parameters=[ETAG],
    )
    def get(self, request: Request, id: Any) -> Response:
        """One savepoint, with its directory, times and sizes."""
        response = Response(self.get_serializer(self.savepoint).data)
        return self.tagged(self.savepoint, response)

    @extend_schema(
        operation_id="describe_savepoint",
        tags=["savepoints"],
        summary="Describe a savepoint",
        parameters=[IF_MATCH, ETAG],
        request=requests.DescriptionRequest,
        responses=shapes.SavepointSerializer,
        examples=[OpenApiExample("Labels", {"labels": {"keep": "yes"}}, request_only=True)],
    )
    def patch(self, request: Request, id: Any) -> Response:
        """Changes the savepoint's name, note or labels; its files stay where they are."""
        given = requests.DescriptionRequest.read(request)
        with self.changing(request, self.lock):
            savepoints.describe(account(request), self.savepoint.pk, **given)
        described = self.get_queryset().get(pk=self.savepoint.pk)
        return self.tagged(described, Response(self.get_serializer(described).data))

    @extend_schema(
        operation_id="delete_savepoint",
        tags=["savepoints"],
        summary="Delete a savepoint",
        responses={202: job_shapes.OperationSerializer},
        parameters=[IDEMPOTENCY_KEY, IF_MATCH, LOCATION],
    )
    def delete(self, request: Request, id: Any) -> Response:
        """Deletes the savepoint and its files, which cannot be undone.

        Refused while a job needs the savepoint. The operation succeeds once the files are deleted.
        """
        with self.changing(request, self.lock):
            operation = savepoints.delete(
                account(request), self.savepoint.pk, key=idempotency_key(request)
            )
        return accepted(request, operation)
