"""Tests of endpoints, and deliveries that a person has sent again."""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.conf import settings
from django.db import transaction

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock, wakeups
from controlplane.base.errors import existing
from controlplane.deliveries import endpoints
from controlplane.deliveries.errors import EndpointDisabled
from controlplane.deliveries.machine import DeliveryStatus
from controlplane.deliveries.models import PENDING, Delivery, Endpoint
from controlplane.deliveries.notice import Notice
from controlplane.deliveries.outbox import post
from controlplane.deliveries.receivers import KINDS

RANGE_MAX = 1_000
TEST_RULE = "Test of the endpoint"


@transaction.atomic
def test(actor: User | None, endpoint_id: UUID) -> list[Delivery]:
    """Send a test notice; where the receiver keeps alerts open, its resolution as well.

    Raises:
        NotFound: There is no such endpoint.
        EndpointDisabled: It is disabled.
    """
    endpoint = _ready(endpoint_id)
    began_at = clock.now()
    by = "the control plane" if actor is None else actor.get_username()
    notice = Notice(
        alert=f"test-{uuid4()}",
        sequence=1,
        status="test",
        severity="info",
        rule=TEST_RULE,
        summary=f"This is a test, asked for by {by}; nothing is wrong.",
        evidence=(("endpoint", endpoint.name),),
        labels={},
        links=(("Weir", settings.WEIR_URL),),
        job=None,
        job_name=None,
        began_at=began_at,
        ended_at=None,
    )
    posted = post(notice, [endpoint])
    if KINDS[endpoint.kind].keeps_open:
        ended_at = began_at + timedelta(milliseconds=1)
        posted += post(
            replace(notice, sequence=2, status="resolved", ended_at=ended_at), [endpoint]
        )
    record(actor, "endpoint.test", f"endpoint/{endpoint.name}")
    return posted


@transaction.atomic
def redeliver(actor: User | None, delivery_id: UUID) -> Delivery:
    """Send a delivery again, or at once if it waits for its next attempt. Its id stays the same.

    Raises:
        NotFound: There is no such delivery.
        EndpointDisabled: Its endpoint is disabled or deleted.
    """
    delivery = existing(
        Delivery.objects.filter(pk=delivery_id), f"There is no delivery {delivery_id}."
    )
    endpoint = _ready(delivery.endpoint_id)
    _queue_again([delivery.pk])
    record(
        actor,
        "delivery.redeliver",
        f"endpoint/{endpoint.name}",
        after={"delivery": str(delivery.pk)},
    )
    delivery.refresh_from_db()
    return delivery


@transaction.atomic
def redeliver_range(
    actor: User | None,
    endpoint_id: UUID,
    *,
    after: datetime,
    before: datetime,
    status: str = DeliveryStatus.GIVEN_UP,
) -> tuple[int, bool]:
    """Send an endpoint's deliveries of a time again, the oldest first, at most ``RANGE_MAX``.

    Returns:
        Their number, and whether there are more.

    Raises:
        NotFound: There is no such endpoint.
        EndpointDisabled: It is disabled.
    """
    endpoint = _ready(endpoint_id)
    rows = Delivery.objects.filter(
        endpoint=endpoint_id, status=status, created_at__gt=after, created_at__lt=before
    )
    chosen = list(rows.order_by("created_at", "id").values_list("pk", flat=True)[: RANGE_MAX + 1])
    more, chosen = len(chosen) > RANGE_MAX, chosen[:RANGE_MAX]
    _queue_again(chosen)
    if chosen:
        record(
            actor,
            "delivery.redeliver",
            f"endpoint/{endpoint.name}",
            after={
                "count": len(chosen),
                "status": str(status),
                "after": after.isoformat(),
                "before": before.isoformat(),
            },
        )
    return len(chosen), more


def _queue_again(ids: list[UUID]) -> None:
    now = clock.now()
    rows = Delivery.objects.filter(pk__in=ids)
    settled = rows.exclude(status=PENDING)
    settled.update(
        status=DeliveryStatus.PENDING, queued_at=now, next_at=now, tries=0, settled_at=None
    )
    rows.filter(status=PENDING, leased_until=None).update(next_at=now)
    wakeups.keep_awake_on_commit()


def _ready(endpoint_id: UUID) -> Endpoint:
    """An enabled endpoint, locked: its lock comes before those of deliveries. It rests no more."""
    endpoint = endpoints.locked(endpoint_id)
    if not endpoint.is_enabled:
        raise EndpointDisabled(
            f"The endpoint {endpoint.name} is disabled; an admin can enable it again."
        )
    if endpoint.held_until is not None:
        endpoint.held_until = None
        endpoint.save(update_fields=["held_until"])
    return endpoint
