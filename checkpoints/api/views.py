"""The API of checkpoints, and of jobs with what their checkpoints say."""

from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from checkpoints.api import channels, filters
from checkpoints.api import serializers as shapes
from checkpoints.api.summaries import attach, with_checkpoints
from checkpoints.models import Checkpoint, SubtaskAck
from checkpoints.operations import savepoints
from checkpoints.verdict import queries
from controlplane.base.errors import NotFound
from controlplane.base.pagination import CursorPagination, Ordering, Page
from jobs.api import views as job_views
from jobs.api.common import JOB_ID, OfJob, OperationActionView, ShowView, action_schema, list_schema
from jobs.models import Job, Operation

# Jobs ---------------------------------------------------------------------------------------------


class JobPagination(CursorPagination):
    """Pages of jobs with their last checkpoints."""

    def paginate_queryset(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The page's jobs."""
        jobs = super().paginate_queryset(*args, **kwargs)
        attach(jobs)
        return jobs


class JobsView(job_views.JobsView):
    """All jobs, with what their checkpoints come to."""

    serializer_class = shapes.JobWithCheckpointsSerializer
    pagination_class = JobPagination

    def get_queryset(self) -> QuerySet[Job]:
        """All of them."""
        return with_checkpoints(super().get_queryset())

    @extend_schema(operation_id="list_jobs", tags=["jobs"], summary="List jobs")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """All jobs, newest first, with what their checkpoints come to."""
        return super().get(request, *args, **kwargs)


class JobView(job_views.JobView):
    """One job, with what its checkpoints come to."""

    serializer_class = shapes.JobDetailWithCheckpointsSerializer

    def jobs(self) -> QuerySet[Job]:
        """With their checkpoints."""
        return with_checkpoints(super().jobs())

    @extend_schema(operation_id="get_job", tags=["jobs"], summary="Show a job", parameters=[JOB_ID])
    def get(self, request: Request, job_id: str) -> Response:
        """One job with all its settings, its newest driver and what its checkpoints come to."""
        attach([self.job])
        return super().get(request, job_id)


@action_schema("trigger_checkpoint", "Trigger a checkpoint")
class TriggerView(OperationActionView):
    """Takes a checkpoint now. The operation succeeds once it completed."""

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Call the service."""
        return savepoints.request_checkpoint(request.user, self.job.pk, key=key)


# Checkpoints --------------------------------------------------------------------------------------


@list_schema("list_checkpoints", "List checkpoints of all jobs", tag="checkpoints", of_job=False)
class CheckpointsView(ListAPIView):
    """Checkpoints of all jobs, newest first."""

    queryset = Checkpoint.objects.select_related("parent")
    serializer_class = shapes.CheckpointSerializer
    filterset_class = filters.AnyCheckpointFilter
    orderings = {"triggered_at": ("triggered_at", "id")}
    default_ordering = "-triggered_at"


@list_schema("list_job_checkpoints", "List a job's checkpoints", tag="checkpoints")
class JobCheckpointsView(OfJob, ListAPIView):
    """A job's checkpoints, newest first."""

    queryset = Checkpoint.objects.select_related("parent")
    serializer_class = shapes.CheckpointSerializer
    filterset_class = filters.CheckpointFilter
    orderings = {"number": ("number",)}
    default_ordering = "-number"

    def get_queryset(self) -> QuerySet[Checkpoint]:
        """The job's."""
        return super().get_queryset().filter(job_id=self.kwargs["job_id"])


class OfCheckpoint(OfJob):
    """A view below ``jobs/{job_id}/checkpoints/{number}``."""

    checkpoint: Checkpoint

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After authentication, role and throttles, find the checkpoint too."""
        super().initial(request, *args, **kwargs)
        number = kwargs["number"]
        found = Checkpoint.objects.select_related("parent").filter(job=self.job, number=number)
        checkpoint = found.first()
        if checkpoint is None:
            raise NotFound(f"Job {self.job.pk} has no checkpoint {number}.")
        self.checkpoint = checkpoint


class CheckpointView(OfCheckpoint, ShowView):
    """One checkpoint."""

    serializer_class = shapes.CheckpointSerializer

    @extend_schema(
        operation_id="get_checkpoint",
        tags=["checkpoints"],
        summary="Show a checkpoint",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str, number: int) -> Response:
        """One checkpoint and what became of it."""
        return Response(self.get_serializer(self.checkpoint).data)


@list_schema("list_acknowledgements", "Who acknowledged, and how long it took", tag="checkpoints")
class AcksView(OfCheckpoint, ListAPIView):
    """The acknowledgements of a checkpoint, one per operator subtask, as far as they came.

    They are kept for the newest checkpoints, for failed ones and for savepoints.
    """

    queryset = SubtaskAck.objects.all()
    serializer_class = shapes.AckSerializer
    filterset_class = filters.AckFilter
    orderings = {"place": ("operator", "index")}
    default_ordering = "place"

    def get_queryset(self) -> QuerySet[SubtaskAck]:
        """The checkpoint's, without what is not shown."""
        return SubtaskAck.objects.filter(checkpoint=self.checkpoint).defer("handles")


class VerdictView(OfCheckpoint, ShowView):
    """Why a checkpoint took as long as it did."""

    serializer_class = shapes.VerdictSerializer

    @extend_schema(
        operation_id="get_verdict",
        tags=["checkpoints"],
        summary="Why it took as long as it did",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str, number: int) -> Response:
        """Why a checkpoint took as long as it did, why it failed, or what it waits for now.

        From acknowledgements, alignments, the operator graph and what the subtasks were doing. The
        same text stands on the job's and the checkpoint's page. What was not reported is not
        claimed.
        """
        return Response(self.get_serializer(queries.of_checkpoint(self.checkpoint)).data)


class ChannelQuery(serializers.Serializer):
    """Which channels."""

    operator = serializers.CharField(
        required=False, max_length=300, help_text="The uid of the receiving chain's head."
    )


class ChannelsView(OfCheckpoint, ListAPIView):
    """The alignment of a checkpoint, channel by channel."""

    serializer_class = shapes.ChannelSerializer
    filter_backends = [Ordering]
    orderings = channels.ORDERINGS
    default_ordering = "place"

    @extend_schema(
        operation_id="list_channels",
        tags=["checkpoints"],
        summary="How each channel delivered the barrier",
        parameters=[JOB_ID, ChannelQuery],
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The alignment of a checkpoint, channel by channel.

        `?ordering=-arrived_ms` begins with the channels that the others waited for,
        `?ordering=-blocked_ms` with those that waited longest.
        """
        query = ChannelQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        page = Page()
        page.begin(request, self)
        rows = channels.channels(self.checkpoint, page, query.validated_data.get("operator", ""))
        shown = page.end(rows, partial(channels.position, page))
        return page.get_paginated_response(self.get_serializer(shown, many=True).data)
