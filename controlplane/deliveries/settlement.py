"""Settlement: the outcomes of attempts become rows, several in one transaction."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import F, Model, QuerySet

from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.deliveries import machine
from controlplane.deliveries.machine import DeliveryStatus, Ended, Meaning, Policy
from controlplane.deliveries.models import (
    ERROR_LENGTH_MAX,
    PENDING,
    Delivery,
    DeliveryAttempt,
    Endpoint,
)
from controlplane.deliveries.notice import cut
from controlplane.deliveries.policy import policy
from controlplane.deliveries.sending.outcome import Outcome

Row = TypeVar("Row", bound=Model)

_MOVED = ["status", "next_at", "leased_until", "settled_at", "error"]


@dataclass(frozen=True, slots=True)
class Landed:
    """An attempt that has ended."""

    delivery: UUID
    number: int
    endpoint: UUID
    began_at: datetime
    took_s: float
    outcome: Outcome

    def ended(self, now: datetime) -> Ended:
        """The end as the machine judges it."""
        asked = machine.parsed_retry_after(self.outcome.retry_after, now)
        return Ended(self.outcome.meaning, self.began_at, asked)


def settle(landed: Sequence[Landed]) -> None:
    """Write the outcomes of attempts, and their consequences for deliveries and endpoints.

    An outcome whose delivery was taken again meanwhile, after its lease had ended, is noted as an
    attempt and decides nothing.
    """
    with transaction.atomic():
        now, bounds = clock.now(), policy()
        endpoints = _locked(Endpoint.objects.filter(pk__in={one.endpoint for one in landed}))
        rows = _locked(Delivery.objects.filter(pk__in={one.delivery for one in landed}))
        known = [one for one in landed if one.delivery in rows]  # Rows are deleted after a while.
        _note_attempts(known)
        valid = [
            one
            for one in known
            if rows[one.delivery].status == PENDING and rows[one.delivery].attempts == one.number
        ]
        _move(valid, rows, now, bounds)
        by_endpoint = defaultdict(list)
        for one in valid:
            by_endpoint[one.endpoint].append(one)
        for pk, ends in by_endpoint.items():
            _note_health(endpoints[pk], ends, now, bounds)
            _count(endpoints[pk], ends, rows)


def _locked(rows: QuerySet[Row]) -> dict[UUID, Row]:
    # In one order, so that two workers that settle do not wait for each other.
    return {row.pk: row for row in rows.order_by("pk").select_for_update()}


def _note_attempts(landed: Iterable[Landed]) -> None:
    attempts = [
        DeliveryAttempt(
            delivery_id=one.delivery,
            number=one.number,
            began_at=one.began_at,
            ended_at=one.began_at + clock.milliseconds(one.took_s * 1_000),
            outcome="delivered" if one.outcome.meaning is Meaning.DELIVERED else "failed",
            address=one.outcome.address,
            status_code=one.outcome.status_code,
            headers=dict(one.outcome.headers),
            body=one.outcome.body,
            error=one.outcome.error,
        )
        for one in landed
    ]
    DeliveryAttempt.objects.bulk_create(
        attempts,
        # One that was noted as interrupted did end after all.
        update_conflicts=True,
        unique_fields=["delivery", "number"],
        update_fields=[
            *("began_at", "ended_at", "outcome", "address", "status_code", "headers", "body"),
            "error",
        ],
    )


def _move(
    landed: Iterable[Landed], rows: dict[UUID, Delivery], now: datetime, bounds: Policy
) -> None:
    delivered = []
    for one in landed:
        row = rows[one.delivery]
        step = machine.after_attempt(
            queued_at=row.queued_at,
            tries=row.tries,
            ended=one.ended(now),
            now=now,
            draw=random.random(),
            policy=bounds,
        )
        row.status, row.next_at, row.leased_until = step.status, step.next_at, None
        row.settled_at = None if step.status is DeliveryStatus.PENDING else now
        row.error = cut("; ".join(filter(None, (step.reason, one.outcome.error))), ERROR_LENGTH_MAX)
        if step.status is DeliveryStatus.DELIVERED:
            delivered.append(row.pk)
        else:
            row.save(update_fields=_MOVED)
    if delivered:
        Delivery.objects.filter(pk__in=delivered).update(
            status=DeliveryStatus.DELIVERED,
            next_at=None,
            leased_until=None,
            settled_at=now,
            error="",
        )


def _note_health(endpoint: Endpoint, ends: Sequence[Landed], now: datetime, bounds: Policy) -> None:
    health, reason = endpoint.health, None
    for one in sorted(ends, key=lambda end: end.began_at):
        health, said = machine.after_end(health, one.ended(now), now, bounds)
        reason = reason or said
    if health != endpoint.health:
        endpoint.health = health
        endpoint.save(update_fields=["failures", "failed_at", "failing_since", "held_until"])
    if reason is not None and endpoint.is_enabled:
        _disable(endpoint, reason, now)


def _disable(endpoint: Endpoint, reason: str, now: datetime) -> None:
    """Disable an endpoint on Weir's own account; the sweep tells the admins."""
    endpoint.is_enabled, endpoint.disabled_at, endpoint.disabled_reason = False, now, reason
    endpoint.admins_told_at = None
    endpoint.save(update_fields=["is_enabled", "disabled_at", "disabled_reason", "admins_told_at"])
    record(None, "endpoint.disable", f"endpoint/{endpoint.name}", after={"reason": reason})


def _count(endpoint: Endpoint, ends: Sequence[Landed], rows: dict[UUID, Delivery]) -> None:
    became = Counter(rows[one.delivery].status for one in ends)
    delivered = became[DeliveryStatus.DELIVERED]
    changes: dict[str, object] = {
        "delivered_count": F("delivered_count") + delivered,
        "given_up_count": F("given_up_count") + became[DeliveryStatus.GIVEN_UP],
        "failed_attempts": F("failed_attempts") + len(ends) - delivered,
    }
    if delivered:
        changes["delivered_at"] = max(
            one.began_at for one in ends if one.outcome.meaning is Meaning.DELIVERED
        )
    Endpoint.objects.filter(pk=endpoint.pk).update(**changes)
