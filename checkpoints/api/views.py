"""The API of checkpoints and their verdicts, and of jobs with their checkpoints."""

from functools import partial
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from checkpoints.api import channels, filters
from checkpoints.api import serializers as shapes
from checkpoints.api.summaries import Summary, attach, with_checkpoints
from checkpoints.models import Checkpoint, SubtaskAck
from checkpoints.operations import savepoints
from checkpoints.verdict import queries
from controlplane.accounts.permissions import account
from controlplane.base.errors import existing
from controlplane.base.rest.pagination import CursorPagination, Ordering, Page
from controlplane.base.rest.preconditions import ETAG, IF_MATCH, Versioned
from controlplane.base.rest.views import OneView, list_schema
from jobs import job_changes, services
from jobs.api import views as job_views
from jobs.api.common import (
    JOB_ID,
    JobListView,
    OfJob,
    OperationActionView,
    action_schema,
    job_list_schema,
)
from jobs.api.requests import JobChangeRequest
from jobs.models import Job, Operation

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

# Jobs ---------------------------------------------------------------------------------------------


class JobPagination(CursorPagination):
    """Pages of jobs with their last checkpoints."""

    def paginate_queryset(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The page's jobs."""
        jobs = super().paginate_queryset(*args, **kwargs)
        attach(jobs)
        return jobs


class JobsView(job_views.JobsView):
    """All jobs, with a summary of their checkpoints."""

    serializer_class = shapes.JobWithCheckpointsSerializer
    pagination_class = JobPagination

    def get_queryset(self) -> QuerySet[Job]:
        """All jobs, with their checkpoints."""
        return with_checkpoints(super().get_queryset())

    @extend_schema(operation_id="list_jobs", tags=["jobs"], summary="List jobs")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """All jobs, newest first, with a summary of their checkpoints."""
        return super().get(request, *args, **kwargs)


class JobView(Versioned, job_views.JobView):
    """One job, with a summary of its checkpoints."""

    version_of = ("name", "labels", "recovery_target_s", "archived_at")
    job: "WithAnnotations[Job, Summary]"
    serializer_class = shapes.JobDetailWithCheckpointsSerializer

    def jobs(self) -> QuerySet[Job]:
        """The jobs, with their checkpoints."""
        return with_checkpoints(super().jobs())

    @extend_schema(
        operation_id="get_job", tags=["jobs"], summary="Show a job", parameters=[JOB_ID, ETAG]
    )
    def get(self, request: Request, job_id: str) -> Response:
        """One job with all its settings, its newest driver and a summary of its checkpoints."""
        attach([self.job])
        return self.tagged(self.job, super().get(request, job_id))

    @extend_schema(
        operation_id="change_job",
        tags=["jobs"],
        summary="Change a job's settings",
        parameters=[JOB_ID, IF_MATCH, ETAG],
        request=JobChangeRequest,
        examples=[
            OpenApiExample("A recovery target", {"recovery_target_s": 30}, request_only=True),
            OpenApiExample("Labels", {"labels": {"team": "tariffs"}}, request_only=True),
        ],
    )
    def patch(self, request: Request, job_id: str) -> Response:
        """Changes the job's name, labels or recovery target; the job goes on as it is."""
        given, actor = JobChangeRequest.read(request), account(request)
        with self.changing(request, lambda: services.locked(job_id)):
            if "recovery_target_s" in given:
                services.set_recovery_target(actor, job_id, given["recovery_target_s"])
            if "name" in given or "labels" in given:
                words = {"name": given.get("name"), "labels": given.get("labels")}
                job_changes.describe(actor, job_id, **words)
            if "archived" in given:
                archived = job_changes.archive if given["archived"] else job_changes.unarchive
                archived(actor, job_id)
        self.load_job(job_id)
        return self.get(request, job_id)

    @extend_schema(
        operation_id="archive_job",
        tags=["jobs"],
        summary="Archive a job",
        parameters=[JOB_ID, IF_MATCH],
        responses={204: OpenApiResponse(description="The job is archived.")},
    )
    def delete(self, request: Request, job_id: str) -> Response:
        """Leaves a job that is over out of lists, unless they are asked for `archived` ones.

        Its checkpoints, savepoints and history stay, and retention goes on as before. A job that is
        started again is archived no longer. Refused (409) until the job is over.
        """
        with self.changing(request, lambda: services.locked(job_id)):
            job_changes.archive(account(request), job_id)
        return Response(status=status.HTTP_204_NO_CONTENT)


@action_schema("trigger_checkpoint", "Trigger a checkpoint")
class TriggerView(OperationActionView):
    """Takes a checkpoint now. The operation succeeds once the checkpoint has completed."""

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        return savepoints.request_checkpoint(account(request), self.job.pk, key=key)


# Checkpoints --------------------------------------------------------------------------------------


@list_schema("list_checkpoints", "List checkpoints of all jobs", tag="checkpoints")
class CheckpointsView(ListAPIView):
    """Checkpoints of all jobs, newest first."""

    queryset = Checkpoint.objects.select_related("parent")
    serializer_class = shapes.CheckpointSerializer
    filterset_class = filters.AnyCheckpointFilter
    orderings = {"triggered_at": ("triggered_at", "id")}
    default_ordering = "-triggered_at"


@job_list_schema("list_job_checkpoints", "List a job's checkpoints", tag="checkpoints")
class JobCheckpointsView(JobListView):
    """A job's checkpoints, newest first."""

    queryset = Checkpoint.objects.select_related("parent")
    serializer_class = shapes.CheckpointSerializer
    filterset_class = filters.CheckpointFilter
    orderings = {"number": ("number",)}
    default_ordering = "-number"


class OfCheckpoint(OfJob):
    """A view below ``jobs/{job_id}/checkpoints/{number}``."""

    checkpoint: Checkpoint

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After authentication, role and throttles, find the checkpoint too."""
        super().initial(request, *args, **kwargs)
        number = kwargs["number"]
        checkpoints = Checkpoint.objects.select_related("parent").filter(
            job=self.job, number=number
        )
        checkpoint = existing(checkpoints, f"Job {self.job.pk} has no checkpoint {number}.")
        self.checkpoint = checkpoint


class CheckpointView(OfCheckpoint, OneView):
    """One checkpoint."""

    serializer_class = shapes.CheckpointSerializer

    @extend_schema(
        operation_id="get_checkpoint",
        tags=["checkpoints"],
        summary="Show a checkpoint",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str, number: int) -> Response:
        """One checkpoint, its status and its totals."""
        return Response(self.get_serializer(self.checkpoint).data)


@job_list_schema("list_acknowledgements", "List a checkpoint's acknowledgements", tag="checkpoints")
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
        """The acknowledgements of this checkpoint, without columns that are not shown."""
        return SubtaskAck.objects.filter(checkpoint=self.checkpoint).defer("handles")


class VerdictView(OfCheckpoint, OneView):
    """The verdict on a checkpoint."""

    serializer_class = shapes.VerdictSerializer

    @extend_schema(
        operation_id="get_verdict",
        tags=["checkpoints"],
        summary="Show the verdict on a checkpoint",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str, number: int) -> Response:
        """The verdict: why a checkpoint took so long, why it failed, or what it waits for now.

        It is made from acknowledgements, alignments, the operator graph and the subtasks' work. The
        same text stands on the job's and the checkpoint's page. It claims nothing that was not
        reported.
        """
        return Response(self.get_serializer(queries.of_checkpoint(self.checkpoint)).data)


class ChannelQuery(serializers.Serializer):
    """The operator whose channels are listed."""

    operator = serializers.CharField(
        required=False, max_length=300, help_text="The uid of the receiving chain's head."
    )


class ChannelsView(OfCheckpoint, ListAPIView):
    """The alignment of a checkpoint, channel by channel."""

    serializer_class = shapes.ChannelSerializer
    filter_backends = [Ordering]
    query_class = ChannelQuery
    orderings = channels.ORDERINGS
    default_ordering = "place"

    @extend_schema(
        operation_id="list_channels",
        tags=["checkpoints"],
        summary="List the alignment of each channel",
        parameters=[JOB_ID, ChannelQuery],
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The alignment of a checkpoint, channel by channel.

        `?ordering=-arrived_ms` begins with the channels that the others waited for,
        `?ordering=-blocked_ms` with those that waited longest, `?ordering=-in_flight_bytes` with
        those that have most persisted in-flight data.
        """
        query = self.query_class(data=request.query_params)
        query.is_valid(raise_exception=True)
        page = Page()
        page.begin(request, self)
        rows = channels.channels(self.checkpoint, page, query.validated_data.get("operator", ""))
        shown = page.end(rows, partial(channels.position, page))
        return page.get_paginated_response(self.get_serializer(shown, many=True).data)
