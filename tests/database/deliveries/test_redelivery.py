"""Tests of endpoints, and deliveries that a person has sent again."""

from datetime import timedelta
from uuid import uuid4

import pytest

from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import NotFound
from controlplane.deliveries import leases, redelivery
from controlplane.deliveries.errors import EndpointDisabled
from controlplane.deliveries.models import Delivery, Endpoint
from tests import factories

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        ("webhook", ["test"]),
        ("slack", ["test"]),
        ("pagerduty", ["test", "resolved"]),
        ("alertmanager", ["test", "resolved"]),
    ],
)
def test_a_test_leaves_nothing_open(kind: str, statuses: list[str]) -> None:
    endpoint = factories.endpoint(kind=kind, held_until=clock.now() + HOUR)
    posted = redelivery.test(factories.user(name="mara"), endpoint.pk)
    assert [row.notice_status for row in posted] == statuses
    assert len({row.alert for row in posted}) == 1
    assert "asked for by mara" in posted[0].notice["summary"]
    assert [row.pk for row in leases.take(9)] == [posted[0].pk]  # Although it rested.
    assert AuditEntry.objects.filter(action="endpoint.test", actor_name="mara").count() == 1


@pytest.mark.parametrize("status", ["delivered", "given_up"])
def test_a_settled_delivery_is_sent_again_with_a_new_day(status: str) -> None:
    row = factories.delivery(
        factories.endpoint(), status=status, attempts=7, tries=7, queued_at=clock.now() - 50 * HOUR
    )
    again = redelivery.redeliver(None, row.pk)
    assert (again.status, again.attempts, again.tries) == ("pending", 7, 0)
    assert again.settled_at is None
    assert clock.now() - again.queued_at < HOUR
    (taken,) = leases.take(9)
    assert (taken.pk, taken.message_id, taken.attempts) == (row.pk, row.message_id, 8)


def test_a_waiting_delivery_is_tried_at_once_and_keeps_its_day() -> None:
    queued_at = clock.now() - 20 * HOUR
    row = factories.delivery(
        factories.endpoint(held_until=clock.now() + HOUR),
        tries=9,
        queued_at=queued_at,
        next_at=clock.now() + HOUR,
    )
    again = redelivery.redeliver(None, row.pk)
    assert (again.tries, again.queued_at) == (9, queued_at)
    assert [taken.pk for taken in leases.take(9)] == [row.pk]
    assert redelivery.redeliver(None, row.pk).leased_until is not None  # In flight: left alone.


def test_a_range_goes_again_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, other = factories.endpoint(), factories.endpoint()
    now = clock.now()
    rows = [
        factories.delivery(
            endpoint,
            factories.notice("a", number),
            status="given_up",
            created_at=now - (10 - number) * HOUR,
        )
        for number in range(1, 6)
    ]
    delivered = factories.delivery(endpoint, status="delivered", created_at=now - 7 * HOUR)
    factories.delivery(other, status="given_up", created_at=now - 7 * HOUR)
    times = {"after": now - 8.5 * HOUR, "before": now - 5.5 * HOUR}
    monkeypatch.setattr(redelivery, "RANGE_MAX", 2)
    assert redelivery.redeliver_range(None, endpoint.pk, **times) == (2, True)
    assert redelivery.redeliver_range(None, endpoint.pk, **times) == (1, False)
    assert redelivery.redeliver_range(None, endpoint.pk, **times) == (0, False)
    pending = Delivery.objects.filter(status="pending").order_by("sequence")
    assert [row.pk for row in pending] == [row.pk for row in rows[1:4]]
    assert [row.pk for row in leases.take(9)] == [rows[1].pk]
    counted = redelivery.redeliver_range(None, endpoint.pk, **times, status="delivered")
    assert counted == (1, False)
    delivered.refresh_from_db()
    assert delivered.status == "pending"
    assert AuditEntry.objects.filter(action="delivery.redeliver").count() == 3


def test_nothing_is_sent_to_an_endpoint_that_is_disabled_or_deleted() -> None:
    endpoint = factories.endpoint()
    row = factories.delivery(endpoint, status="given_up")
    now = clock.now()
    Endpoint.objects.update(is_enabled=False)
    with pytest.raises(EndpointDisabled):
        redelivery.test(None, endpoint.pk)
    with pytest.raises(EndpointDisabled):
        redelivery.redeliver(None, row.pk)
    Endpoint.objects.update(deleted_at=now)
    with pytest.raises(NotFound):
        redelivery.redeliver_range(None, endpoint.pk, after=now - HOUR, before=now)
    with pytest.raises(NotFound):
        redelivery.redeliver(None, row.pk)
    with pytest.raises(NotFound):
        redelivery.redeliver(None, uuid4())
    assert Delivery.objects.get().status == "given_up"
