"""The API of operations: requests about jobs that take time."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.base.errors import existing
from controlplane.base.rest.views import OneView, list_schema
from jobs.api import filters
from jobs.api import serializers as shapes
from jobs.api.common import OPERATION_EXAMPLE, OfJob, job_list_schema
from jobs.models import Operation
from jobs.operations import WAIT_S_MAX


@list_schema("list_operations", "List operations", tag="operations")
class OperationsView(ListAPIView):
    """The operations of all jobs: requests that take time, from begin to end."""

    queryset = Operation.objects.select_related("requested_by")
    serializer_class = shapes.OperationSerializer
    filterset_class = filters.AnyOperationFilter
    orderings = {"created_at": ("created_at", "id")}
    default_ordering = "-created_at"


@job_list_schema("list_job_operations", "List the job's operations", tag="operations")
class JobOperationsView(OfJob, OperationsView):
    """The operations of one job: requests that take time, from begin to end."""

    filterset_class = filters.OperationFilter

    def get_queryset(self) -> QuerySet[Operation]:
        """The job's operations."""
        return super().get_queryset().filter(job_id=self.kwargs["job_id"])


class WaitQuery(serializers.Serializer):
    """The time for which the request waits for a change."""

    wait = serializers.FloatField(
        required=False,
        min_value=0,
        max_value=WAIT_S_MAX,
        help_text=(
            "Seconds: the response comes once the operation has changed or ended, or the time is "
            "over."
        ),
    )


class OperationView(OneView):
    """A view of one operation. ``controlplane.operation_waits`` holds requests back that wait."""

    query_class = WaitQuery
    serializer_class = shapes.OperationSerializer
    queryset = Operation.objects.select_related("requested_by")

    @extend_schema(
        operation_id="get_operation",
        tags=["operations"],
        summary="Show an operation",
        parameters=[WaitQuery],
        examples=[OpenApiExample("A submission", OPERATION_EXAMPLE, response_only=True)],
    )
    def get(self, request: Request, id: Any) -> Response:
        """The status of an operation; ask again until `ended_at` is set, best with `wait`."""
        self.query_class(data=request.query_params).is_valid(raise_exception=True)
        operation = existing(self.get_queryset().filter(pk=id), f"There is no operation {id}.")
        return Response(self.get_serializer(operation).data)
