"""Totals over a job's settled checkpoints: those that have rows, and those that had.

The counters of ``/metrics`` never go back, so the totals over rows that retention removes are added
to one row of their job, in the transaction that removes them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db.models import Count, Max, Q, QuerySet, Sum

from checkpoints.models import Checkpoint, RemovedCheckpoints
from weir.protocol.lifecycle import CheckpointStatus

IN_FLIGHT_BUCKETS = (0, 1 << 16, 1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 30)  # Bytes.
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
ALIGNMENT_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)

_FAILED, _ABORTED = CheckpointStatus.FAILED.value, CheckpointStatus.ABORTED.value


def sums(rows: QuerySet[Checkpoint]) -> Iterable[dict[str, Any]]:
    """The totals over some settled checkpoints, by ``job``: numbers by name."""
    completed = ~Q(status__in=[_FAILED, _ABORTED])
    durations = {
        f"duration_{i}": Count("pk", filter=completed & Q(duration_ms__lte=bound * 1_000))
        for i, bound in enumerate(DURATION_BUCKETS_S)
    }
    alignments = {
        f"alignment_{i}": Count("pk", filter=completed & Q(alignment_ms__lte=bound * 1_000))
        for i, bound in enumerate(ALIGNMENT_BUCKETS_S)
    }
    in_flight = {
        f"in_flight_{i}": Count("pk", filter=completed & Q(in_flight_bytes__lte=bound))
        for i, bound in enumerate(IN_FLIGHT_BUCKETS)
    }
    return (
        rows.order_by()
        .values("job")
        .annotate(
            completed=Count("pk", filter=completed),
            failed=Count("pk", filter=Q(status=_FAILED)),
            aborted=Count("pk", filter=Q(status=_ABORTED)),
            durations_ms=Sum("duration_ms", filter=completed),
            alignments_ms=Sum("alignment_ms", filter=completed),
            # Those whose data in flight was counted: totals of removed rows may be older.
            in_flight=Count("pk", filter=completed),
            in_flight_bytes_in_all=Sum("in_flight_bytes", filter=completed),
            aligned=Count("pk", filter=completed & Q(unaligned_count=0)),
            unaligned=Count("pk", filter=completed & Q(unaligned_count__gt=0, switched_count=0)),
            timed_out=Count(
                "pk", filter=completed & Q(unaligned_count__gt=0, switched_count__gt=0)
            ),
            **durations,
            **alignments,
            **in_flight,
        )
    )


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """The sum of two totals, name by name."""
    names = (one.keys() | other.keys()) - {"job"}
    return {name: (one.get(name) or 0) + (other.get(name) or 0) for name in names}


def add_removed(job_id: str, rows: QuerySet[Checkpoint]) -> None:
    """Add checkpoints that are about to be removed to their job's row; its lock is held."""
    newest = rows.aggregate(newest=Max("number"))["newest"]
    removed, _ = RemovedCheckpoints.objects.get_or_create(job_id=job_id)
    for row in sums(rows):
        removed.totals = added(removed.totals, row)
    removed.up_to = max(removed.up_to, newest or 0)
    removed.save()


def removed_of(job_ids: Collection[str]) -> dict[str, RemovedCheckpoints]:
    """The removed checkpoints of jobs that have any."""
    return {row.job_id: row for row in RemovedCheckpoints.objects.filter(job__in=job_ids)}
