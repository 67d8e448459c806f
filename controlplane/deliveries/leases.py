"""Leases: a delivery in flight belongs to one worker, as long as that worker says so.

Workers take deliveries one after another (an advisory lock), so that the bounds on flights hold for
all of them together. A lease that ended without an outcome is that of a worker that died: its
attempt is noted as interrupted, and the delivery is taken again.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from controlplane.base import advisory_locks, clock
from controlplane.deliveries.machine import FLIGHTS_PER_ENDPOINT, Waiting, admitted
from controlplane.deliveries.models import PENDING, Delivery, DeliveryAttempt, Endpoint

LEASE = timedelta(seconds=15)
RENEW_EVERY_S = 4.0
_LOCK = "deliveries: take"


def take(free: int) -> list[Delivery]:
    """Lease at most ``free`` deliveries that are due, each the head of its line."""
    with transaction.atomic():
        advisory_locks.lock([_LOCK])
        now = clock.now()
        waiting = _due_heads(now)
        if not waiting:
            return []
        flying = Delivery.objects.filter(status=PENDING, leased_until__gt=now)
        endpoints = Endpoint.objects.filter(is_enabled=True)
        ids = admitted(
            waiting,
            {endpoint.pk: endpoint.health for endpoint in endpoints},
            list(flying.order_by().values_list("endpoint_id", "alert")),
            now,
            free,
        )
        rows = {row.pk: row for row in _still_due(ids, now)}
        taken = [rows[id] for id in ids if id in rows]
        _note_interrupted([row for row in taken if row.leased_until is not None], now)
        Delivery.objects.filter(pk__in=rows).update(
            leased_until=now + LEASE, attempts=F("attempts") + 1, tries=F("tries") + 1
        )
    for row in taken:
        row.leased_until, row.attempts, row.tries = now + LEASE, row.attempts + 1, row.tries + 1
    return taken


def renew(ids: Iterable[tuple[UUID, int]]) -> None:
    """Extend the leases of deliveries that are still in flight, by id and number of attempt."""
    mine = Q()
    for pk, number in ids:
        mine |= Q(pk=pk, attempts=number)
    if mine:
        rows = Delivery.objects.filter(mine, status=PENDING, leased_until__isnull=False)
        rows.update(leased_until=clock.now() + LEASE)


def _due_heads(now: datetime) -> list[Waiting]:
    """Due deliveries that nothing in their lines is ahead of, those in flight among them.

    Of each endpoint as many as may be in flight, the longest due first: these come before others.
    """
    ahead = Delivery.objects.filter(
        status=PENDING,
        endpoint=OuterRef("endpoint"),
        alert=OuterRef("alert"),
        sequence__lt=OuterRef("sequence"),
    )
    rows = (
        Delivery.objects.filter(
            Q(endpoint__held_until=None) | Q(endpoint__held_until__lte=now),
            ~Exists(ahead),
            status=PENDING,
            next_at__lte=now,
            endpoint__is_enabled=True,
        )
        .annotate(
            place=Window(
                RowNumber(), partition_by="endpoint", order_by=["next_at", "created_at", "pk"]
            )
        )
        .filter(place__lte=FLIGHTS_PER_ENDPOINT)
        .order_by("next_at", "created_at", "pk")
        .values_list("pk", "endpoint_id", "alert", "sequence", "next_at", "created_at")
    )
    return [
        Waiting(pk, endpoint, alert, sequence, next_at, (created_at, sequence))
        for pk, endpoint, alert, sequence, next_at, created_at in rows
        if next_at is not None
    ]


def _still_due(ids: Iterable[UUID], now: datetime) -> QuerySet[Delivery]:
    """Those of the deliveries that no worker settles or has settled in the meantime; locked."""
    rows = Delivery.objects.select_related("endpoint").filter(
        Q(leased_until=None) | Q(leased_until__lte=now),
        pk__in=ids,
        status=PENDING,
        next_at__lte=now,
    )
    return rows.select_for_update(of=("self",), skip_locked=True)


def _note_interrupted(rows: list[Delivery], now: datetime) -> None:
    DeliveryAttempt.objects.bulk_create(
        [
            DeliveryAttempt(
                delivery=row,
                number=row.attempts,
                ended_at=now,
                outcome="interrupted",
                error="the worker ended before the outcome was known; the attempt is repeated",
            )
            for row in rows
        ],
        ignore_conflicts=True,
    )
