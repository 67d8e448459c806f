"""Endpoints as their page lists them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Min

from controlplane.base.formatting import listed, number, plural
from controlplane.deliveries.models import PENDING, Delivery, Endpoint
from controlplane.deliveries.receivers import KINDS
from frontend.base import status

RECIPIENTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One endpoint."""

    id: UUID
    name: str
    description: str
    kind: str  # Its title.
    place: str  # The URL's origin, or the recipients.
    status: dict[str, str]
    reason: str  # Of a disabled or failing one.
    is_enabled: bool
    delivered_at: datetime | None  # The last time.
    waiting: str  # Deliveries; empty: none.
    next_at: datetime | None  # The next attempt.
    counts: str  # Delivered and given up since it exists; empty: none yet.


def rows(endpoints: Iterable[Endpoint]) -> list[Row]:
    """The endpoints with their pending deliveries. One query more."""
    shown = list(endpoints)
    pending = Delivery.objects.filter(status=PENDING, endpoint__in=[one.pk for one in shown])
    counts = {
        pk: (count, next_at)
        for pk, count, next_at in pending.order_by()
        .values("endpoint_id")
        .annotate(count=Count("pk"), first=Min("next_at"))
        .values_list("endpoint_id", "count", "first")
    }
    return [_row(one, *counts.get(one.pk, (0, None))) for one in shown]


def _row(endpoint: Endpoint, waiting: int, next_at: datetime | None) -> Row:
    state = endpoint.state
    is_disabled = state == "disabled"
    if next_at is not None and endpoint.held_until is not None:
        next_at = max(next_at, endpoint.held_until)
    failures = "" if is_disabled else _failures(endpoint.failures)
    return Row(
        id=endpoint.pk,
        name=endpoint.name,
        description=endpoint.description,
        kind=KINDS[endpoint.kind].title,
        place=endpoint.origin
        or listed([str(one) for one in endpoint.recipients], RECIPIENTS_SHOWN),
        status=status.of_endpoint(state, is_by_weir=bool(endpoint.disabled_reason)),
        reason=endpoint.disabled_reason if is_disabled else failures,
        is_enabled=endpoint.is_enabled,
        delivered_at=endpoint.delivered_at,
        waiting=plural(waiting, "delivery", "deliveries") if waiting else "",
        next_at=None if is_disabled else next_at,
        counts=_counts(endpoint),
    )


def _failures(count: int) -> str:
    return f"{plural(count, 'failure')} in a row" if count else ""


def _counts(endpoint: Endpoint) -> str:
    counts = [(endpoint.delivered_count, "delivered"), (endpoint.given_up_count, "given up")]
    return ", ".join(f"{number(count)} {word}" for count, word in counts if count)
