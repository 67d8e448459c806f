"""A page of a job's savepoints as values, with the operations possible on each."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast

from checkpoints.models import UNSETTLED, Savepoint
from checkpoints.retention import references
from controlplane.base.formatting import iso, plural
from frontend.job import queries, snapshot
from frontend.savepoints import rows as savepoints
from jobs.models import OPEN_OPERATIONS, Job
from weir.protocol.lifecycle import CheckpointStatus

PER_PAGE = 25
WANTED_LENGTH_MAX = 200

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """One page of the matching savepoints, newest first."""

    savepoints: list[Savepoint]
    wanted: str
    page: int  # The first is 1.
    pages: int
    count: int  # Of the matching savepoints.
    has_any: bool  # Whether the job has any savepoint.


def shown(job: Job, wanted: str, page: int) -> Shown:
    """A page of the job's savepoints; the nearest one where there is no such page.

    Args:
        wanted: Part of a name, a note or a label; ``name: text`` matches exactly that label, and
            ``name:`` any label of that name. Empty: all savepoints.
    """
    wanted = wanted.replace("\0", "").strip()[:WANTED_LENGTH_MAX]
    every = _of(job)
    rows = _matching(every, wanted) if wanted else every
    count = rows.count()
    pages = max(1, -(-count // PER_PAGE))
    page = min(max(page, 1), pages)
    first = (page - 1) * PER_PAGE
    page_rows = list(
        rows.select_related("checkpoint", "created_by", "claimed_by", "operation").order_by(
            "-created_at", "id"
        )[first : first + PER_PAGE]
    )
    return Shown(
        page_rows,
        wanted,
        page,
        pages,
        count,
        bool(count) or (wanted != "" and every.exists()),
    )


def _of(job: Job) -> QuerySet[Savepoint]:
    """Completed and pending savepoints; failed ones are operations only."""
    waits = Q(checkpoint__isnull=True, operation__status__in=OPEN_OPERATIONS)
    stands = Q(checkpoint__status__in=[*UNSETTLED, CheckpointStatus.COMPLETED])
    return Savepoint.objects.filter(waits | stands, job=job)


def _matching(rows: QuerySet[Savepoint], wanted: str) -> QuerySet[Savepoint]:
    name, separator, text = wanted.partition(":")
    if separator and name.strip() and text.strip():
        return rows.filter(labels__contains={name.strip(): text.strip()})
    if separator and name.strip():
        return rows.filter(labels__has_key=name.strip())
    return rows.annotate(labels_text=Cast("labels", TextField())).filter(
        Q(name__icontains=wanted) | Q(note__icontains=wanted) | Q(labels_text__icontains=wanted)
    )


def savepoint_list(job: Job, page: Shown, now: datetime) -> Json:
    """The page's value. Six queries for any number of savepoints."""
    asked = snapshot.actions(job, queries.recent_operations(job.pk))
    needed = references.users_by_id(job, page.savepoints) if page.savepoints else {}
    return {
        "now": iso(now),
        "count": plural(page.count, "savepoint"),
        "savepoints": [
            savepoints.in_full(row, now)
            | {
                "needed_by": ""
                if row.checkpoint is None
                else "; ".join(needed[row.checkpoint.number])
            }
            for row in page.savepoints
        ],
        "actions": asked | {"why_not_go_back": _why_not(asked)},
    }


def _why_not(asked: Json) -> str:
    """Each reason once, as text: a disabled button has no tooltip for keyboard users."""
    reasons = (asked[name] for name in ("rollback", "rescale", "savepoint"))
    return " ".join(dict.fromkeys(filter(None, reasons)))
