"""Queries for the tree of a job's checkpoints: nine of them for a job of any size.

One counts checkpoints in spans that its caller keeps small; none fetches more than a few hundred
rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import OuterRef, Subquery

from checkpoints.models import COMPLETED_ONCE, Checkpoint, Savepoint
from frontend.savepoints.tree import Restored, Taken
from jobs.models import Attempt, Job
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus

ATTEMPTS_MAX = 2_000  # Older attempts are drawn as one line.
SAVEPOINTS_MAX = 60
FORKS_MAX = 12


def restored(job: Job) -> list[Restored]:
    """The newest attempts with the checkpoints that they restored."""
    rows = Attempt.objects.filter(job=job).order_by("-number")
    return [
        Restored(*row) for row in rows.values_list("number", "restored_checkpoint")[:ATTEMPTS_MAX]
    ]


def taken(job: Job) -> list[Taken]:
    """The first, last and newest checkpoint of each attempt.

    An index leads from one attempt to the next and to the ends of each: a handful of rows is read
    per attempt, however many checkpoints there are. The condition on the attempt is a range, so
    that the planner uses that index even without up-to-date statistics.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH RECURSIVE taking (attempt) AS (
                (SELECT attempt FROM checkpoints_checkpoint WHERE job_id = %(job)s
                 ORDER BY attempt LIMIT 1)
                UNION ALL
                SELECT (SELECT attempt FROM checkpoints_checkpoint
                        WHERE job_id = %(job)s AND attempt > taking.attempt
                        ORDER BY attempt LIMIT 1)
                FROM taking WHERE attempt IS NOT NULL
            )
            SELECT attempt,
                (SELECT number FROM checkpoints_checkpoint c
                 WHERE job_id = %(job)s
                   AND c.attempt >= taking.attempt AND c.attempt < taking.attempt + 1
                 ORDER BY c.attempt, number LIMIT 1),
                (SELECT number FROM checkpoints_checkpoint c
                 WHERE job_id = %(job)s
                   AND c.attempt >= taking.attempt AND c.attempt < taking.attempt + 1
                 ORDER BY c.attempt DESC, number DESC LIMIT 1),
                (SELECT number FROM checkpoints_checkpoint c
                 WHERE job_id = %(job)s
                   AND c.attempt >= taking.attempt AND c.attempt < taking.attempt + 1
                   AND status = ANY(%(completed)s) AND kind <> %(plain)s
                 ORDER BY c.attempt DESC, number DESC LIMIT 1)
            FROM taking WHERE attempt IS NOT NULL
            """,
            {
                "job": job.pk,
                "completed": list(COMPLETED_ONCE),
                "plain": CheckpointKind.SAVEPOINT.value,
            },
        )
        return [Taken(*row) for row in cursor.fetchall()]


def savepoints(job: Job) -> list[Savepoint]:
    """The newest completed savepoints with their checkpoints, those being deleted included."""
    kept = Savepoint.objects.filter(job=job, checkpoint__status=CheckpointStatus.COMPLETED)
    return list(kept.select_related("checkpoint").order_by("-checkpoint__number")[:SAVEPOINTS_MAX])


@dataclass(frozen=True, slots=True)
class Fork:
    """A job that began with a checkpoint of this one."""

    id: str
    name: str
    status: str
    uri: str
    created_at: datetime
    checkpoint: (
        int | None
    )  # The checkpoint that it began with, by its first attempt or its submission.


def forks(job: Job) -> list[Fork]:
    """The newest forks."""
    first = Attempt.objects.filter(job=OuterRef("pk")).order_by("number")
    rows = (
        Job.objects.filter(origin=job)
        .annotate(began_with=Subquery(first.values("restored_checkpoint")[:1]))
        .order_by("-created_at", "id")
        .values_list(
            "id", "name", "status", "origin_uri", "created_at", "began_with", "restore_number"
        )
    )
    return [
        Fork(*row[:5], checkpoint=row[5] if row[5] is not None else row[6])
        for row in rows[:FORKS_MAX]
    ]


def fork_count(job: Job) -> int:
    """The number of the job's forks."""
    return Job.objects.filter(origin=job).count()


def checkpoints(job: Job, numbers: Iterable[int]) -> dict[int, Checkpoint]:
    """The job's checkpoints of these numbers."""
    rows = Checkpoint.objects.filter(job=job, number__in=list(numbers))
    return {row.number: row for row in rows}


def attempts(job: Job, numbers: Iterable[int]) -> dict[int, Attempt]:
    """The job's attempts of these numbers."""
    rows = Attempt.objects.filter(job=job, number__in=list(numbers))
    return {row.number: row for row in rows}


def count_in(job: Job, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The number of completed checkpoints in each span of numbers, both ends included.

    Reads as many rows as the spans have numbers.
    """
    if not spans:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT (SELECT count(*) FROM checkpoints_checkpoint
                    WHERE job_id = %s AND number BETWEEN span.first AND span.last
                      AND status = ANY(%s))
            FROM unnest(%s::bigint[], %s::bigint[])
                WITH ORDINALITY AS span (first, last, place)
            ORDER BY span.place
            """,
            [job.pk, list(COMPLETED_ONCE), *map(list, zip(*spans, strict=True))],
        )
        return [count for (count,) in cursor.fetchall()]
