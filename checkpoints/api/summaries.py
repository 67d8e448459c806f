"""Summaries of jobs' checkpoints: two queries for any number of jobs."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from django.db.models import Count, F, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from checkpoints.models import Checkpoint
from controlplane.base import clock
from jobs.models import Job
from weir.protocol.lifecycle import CheckpointStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations


class SummaryColumns(TypedDict):
    """The columns of ``with_checkpoints``."""

    last_checkpoint_id: int | None
    last_checkpoint_number: int | None
    failures_since_last: int
    next_checkpoint_at: datetime | None
    read_at: datetime


class Summary(SummaryColumns):
    """A job's columns and its last checkpoint, which ``attach`` sets."""

    last_checkpoint: Checkpoint | None


def with_checkpoints(jobs: QuerySet[Job]) -> "QuerySet[WithAnnotations[Job, SummaryColumns]]":
    """Each job with ``last_checkpoint_id``, ``failures_since_last``, ``next_checkpoint_at``.

    Both subqueries begin in the index on job, status and number: the first one reads one entry of
    it, the second one those of the failures since.
    """
    own = Checkpoint.objects.filter(job=OuterRef("pk")).order_by("-number")
    newest = own.filter(status=CheckpointStatus.COMPLETED)
    failed = Checkpoint.objects.filter(
        job=OuterRef("pk"),
        status=CheckpointStatus.FAILED,
        number__gt=Coalesce(OuterRef("last_checkpoint_number"), 0),
    ).order_by()
    return jobs.annotate(
        last_checkpoint_id=Subquery(newest.values("pk")[:1]),
        last_checkpoint_number=Subquery(newest.values("number")[:1]),
        failures_since_last=Coalesce(
            Subquery(
                failed.values("job").annotate(count=Count("pk")).values("count"),
                output_field=IntegerField(),
            ),
            0,
        ),
        next_checkpoint_at=F("coordinator__next_trigger_at"),
        read_at=clock.DatabaseNow(),
    )


def attach(jobs: "Iterable[WithAnnotations[Job, Summary]]") -> None:
    """Set ``last_checkpoint`` on each of these jobs; None without one."""
    rows = list(jobs)
    wanted = [job.last_checkpoint_id for job in rows if job.last_checkpoint_id is not None]
    checkpoints = Checkpoint.objects.in_bulk(wanted)
    for job in rows:
        # Absent where retention let it go between the two queries; then a newer one is coming.
        job.last_checkpoint = checkpoints.get(job.last_checkpoint_id)
