"""Removal of samples of chains: those between two minutes after an hour, all after their days."""

from datetime import datetime, timedelta

from django.db.models import Q

from controlplane.base import clock
from controlplane.base.ticks import Budget
from jobs.models import ChainSample

FINE_KEPT = timedelta(hours=1)
BATCH = 5_000


def remove(older: datetime | None, most: int | None, budget: Budget) -> int:
    """Remove the samples before ``older``, and those that only the last hour has."""
    count = _remove(Q(is_first_of_minute=False, at__lt=clock.now() - FINE_KEPT), budget)
    if older is not None:
        count += _remove(Q(at__lt=older), budget)
    return count


def _remove(which: Q, budget: Budget) -> int:
    """Remove samples in batches, the oldest first; nothing refers to one."""
    count = 0
    while not budget.is_spent:
        oldest = ChainSample.objects.filter(which).order_by("at").values("pk")[:BATCH]
        removed, _ = ChainSample.objects.filter(pk__in=oldest).delete()
        count += removed
        if removed < BATCH:
            break
    return count
