"""Removal of the rows of old checkpoints: a batch at a time, each under its job's lock.

Only rows whose files are gone are removed: of checkpoints that were aborted or discarded, with no
deletion under way. So the checkpoints that a restore, a rollback or a fork can begin with are never
among them, nor are savepoints, nor those that the coordinator or an attempt still needs
(``references.retained_ids``), however old they are.

``/metrics`` goes on counting the removed ones (``totals``). Checkpoints are removed from the oldest
on, and none behind one that has not settled, so that these totals cover all that are missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, Min, OuterRef, Q, QuerySet, Subquery

from checkpoints.models import UNSETTLED, Checkpoint, GateAlignment, Savepoint, SubtaskAck
from checkpoints.retention import references, totals
from controlplane.base.ticks import Budget
from jobs.models import Job
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus

BATCH = 250  # Its transaction, with the job's lock, takes less than a tenth of a second.
# Acknowledgements that one transaction deletes, unless one checkpoint has more.
DETAILS_BATCH = 20_000
CANDIDATES_MAX = 5_000  # Rows that one look finds by their age.
JOBS_MAX = 100  # Jobs that one look finds by their number of rows.

# An aborted savepoint's own directory may hold files until they were deleted once.
FILES_GONE = Q(status=CheckpointStatus.DISCARDED.value) | (
    Q(status__in=UNCOMPLETED) & (Q(location="") | Q(discarded_at__isnull=False))
)
# An anti-join: of the rows that an outer join leaves empty PostgreSQL expects one, and sorts them.
_IS_SAVEPOINT = Exists(Savepoint.objects.filter(checkpoint=OuterRef("pk")))
REMOVABLE = FILES_GONE & Q(discard_due_at__isnull=True) & ~Q(_IS_SAVEPOINT)


def remove(older: datetime | None, most: int | None, budget: Budget) -> int:
    """Remove the rows of old checkpoints; return their number.

    Args:
        older: Those triggered before go; None: no limit by age.
        most: Those of a job behind its newest ``most`` go; None: no limit by number.
    """
    count = 0
    for job_id, up_to in _due(older, most).items():
        while not budget.is_spent:
            removed = remove_batch(job_id, up_to, older, most)
            count += removed.count
            if not removed.has_more:
                break
    return count


def _due(older: datetime | None, most: int | None) -> dict[str, int]:
    """The jobs with rows that may go, and the number up to which they are."""
    due: dict[str, int] = {}
    if older is not None:
        rows = Checkpoint.objects.filter(REMOVABLE, triggered_at__lt=older)
        oldest = rows.order_by("triggered_at", "pk").values_list("job_id", "number")
        for job_id, number in oldest[:CANDIDATES_MAX]:
            due[job_id] = max(number, due.get(job_id, 0))
    if most is not None:
        own = Checkpoint.objects.filter(job=OuterRef("pk"))
        newest = Subquery(own.order_by("-number").values("number")[:1])
        beyond = own.filter(REMOVABLE, number__lte=OuterRef("newest") - most)
        jobs = Job.objects.order_by().annotate(newest=newest).filter(Exists(beyond))
        for job_id, number in jobs.values_list("pk", "newest")[:JOBS_MAX]:
            due[job_id] = max(number - most, due.get(job_id, 0))
    return due


@dataclass(frozen=True, slots=True)
class Removed:
    """The outcome of one batch."""

    count: int
    has_more: bool = False


def remove_batch(
    job_id: str, up_to: int | None = None, older: datetime | None = None, most: int | None = None
) -> Removed:
    """Remove the oldest rows of a job that may go, ``BATCH`` at most; none where it is locked.

    Args:
        up_to: The highest number that is looked at.
        older: As for ``remove``; without it and ``most``, all rows that may go do.
    """
    with transaction.atomic():
        jobs = Job.objects.select_for_update(skip_locked=True, of=("self",))
        job = jobs.filter(pk=job_id).first()
        if job is None:
            return Removed(0)
        own = Checkpoint.objects.filter(job=job)
        rows = own.filter(REMOVABLE).exclude(number__in=references.retained_ids(job))
        if up_to is not None:
            rows = rows.filter(number__lte=up_to)
        if older is not None or most is not None:
            rows = rows.filter(_too_old(own, older, most))
        unsettled = own.filter(status__in=UNSETTLED).aggregate(first=Min("number"))["first"]
        if unsettled is not None:
            rows = rows.filter(number__lt=unsettled)
        details = _details_of(rows.order_by("number")[:BATCH])
        keys = next(by_volume(details), [])
        if not keys:
            return Removed(0)
        delete_details(keys)
        _delete(job_id, keys)
        return Removed(len(keys), has_more=len(keys) < len(details) or len(details) == BATCH)


def _too_old(own: QuerySet[Checkpoint], older: datetime | None, most: int | None) -> Q:
    beyond = Q(pk__in=())
    if older is not None:
        beyond |= Q(triggered_at__lt=older)
    if most is not None:
        newest = own.order_by("-number").values_list("number", flat=True).first() or 0
        beyond |= Q(number__lte=newest - most)
    return beyond


def _details_of(rows: QuerySet[Checkpoint]) -> list[tuple[int, int]]:
    """The keys of checkpoints, each with the number of its acknowledgements that have rows."""
    listed = rows.values_list("pk", "has_details", "acknowledged_count")
    return [(pk, count if has_details else 0) for pk, has_details, count in listed]


def by_volume(counted: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Keys of checkpoints in groups whose acknowledgements one transaction can delete."""
    group: list[int] = []
    volume = 0
    for key, count in counted:
        if group and volume + count > DETAILS_BATCH:
            yield group
            group, volume = [], 0
        group.append(key)
        volume += count
    if group:
        yield group


def delete_details(keys: Sequence[int]) -> None:
    """Delete the acknowledgements and alignments of checkpoints."""
    SubtaskAck.objects.filter(checkpoint__in=keys).delete()
    GateAlignment.objects.filter(checkpoint__in=keys).delete()


def _delete(job_id: str, keys: Sequence[int]) -> None:
    """Delete rows that have no details any more; their job's lock is held.

    Not by Django's collector, which would first empty the parent of every row of the batch.
    """
    rows = Checkpoint.objects.filter(pk__in=keys)
    totals.add_removed(job_id, rows)
    Checkpoint.objects.filter(parent__in=keys).exclude(pk__in=keys).update(parent=None)
    rows.order_by()._raw_delete(rows.db)
