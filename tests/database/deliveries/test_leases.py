"""Which deliveries are taken, in which order, and what becomes of those of a dead worker."""

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.base import clock
from controlplane.deliveries import leases
from controlplane.deliveries.machine import FLIGHTS_PER_ENDPOINT, Waiting, admitted
from controlplane.deliveries.models import Delivery, DeliveryAttempt, Endpoint
from tests import factories

SECOND = timedelta(seconds=1)


def line(endpoint: Endpoint, alert: str, *sequences: int, **columns: object) -> list[Delivery]:
    return [
        factories.delivery(endpoint, factories.notice(alert, number), **columns)
        for number in sequences
    ]


def ids(rows: list[Delivery]) -> list[UUID]:
    return [row.pk for row in rows]


@pytest.mark.django_db
def test_one_of_a_line_at_a_time_and_lines_side_by_side() -> None:
    endpoint = factories.endpoint()
    first, second = line(endpoint, "a", 1, 2)
    (other,) = line(endpoint, "b", 1)
    assert set(ids(leases.take(9))) == {first.pk, other.pk}
    assert leases.take(9) == []
    Delivery.objects.filter(pk=first.pk).update(
        status="delivered", next_at=None, leased_until=None, settled_at=clock.now()
    )
    (taken,) = leases.take(9)
    assert taken.pk == second.pk
    assert (taken.attempts, taken.tries) == (1, 1)


@pytest.mark.django_db
def test_what_another_worker_settles_in_the_meantime_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled, retried, due = (line(factories.endpoint(), name, 1)[0] for name in "abc")
    chosen: list[list[UUID]] = []

    def choose(*arguments: Any) -> list[UUID]:
        chosen.append(admitted(*arguments))
        Delivery.objects.filter(pk=settled.pk).update(
            status="delivered", next_at=None, settled_at=clock.now()
        )
        Delivery.objects.filter(pk=retried.pk).update(next_at=clock.now() + SECOND)
        return chosen[-1]

    monkeypatch.setattr(leases, "admitted", choose)
    assert ids(leases.take(9)) == [due.pk]
    assert set(chosen[0]) == {settled.pk, retried.pk, due.pk}


@pytest.mark.django_db
def test_a_later_notice_waits_while_an_earlier_one_is_retried() -> None:
    endpoint = factories.endpoint()
    first, second = line(endpoint, "a", 1, 2)
    Delivery.objects.filter(pk=first.pk).update(next_at=clock.now() + timedelta(hours=1))
    assert leases.take(9) == []
    Delivery.objects.filter(pk=first.pk).update(
        status="given_up", next_at=None, settled_at=clock.now()
    )
    assert ids(leases.take(9)) == [second.pk]


@pytest.mark.django_db
def test_lines_of_one_alert_at_two_endpoints_do_not_wait_for_each_other() -> None:
    slow, quick = factories.endpoint(), factories.endpoint()
    (first,) = line(slow, "a", 1)
    Delivery.objects.filter(pk=first.pk).update(next_at=clock.now() + timedelta(hours=1))
    (second,) = line(quick, "a", 2)
    assert ids(leases.take(9)) == [second.pk]


@pytest.mark.django_db
def test_disabled_and_resting_endpoints_get_nothing() -> None:
    held = factories.endpoint(held_until=clock.now() + timedelta(hours=1))
    disabled = factories.endpoint()
    rows = [*line(held, "a", 1), *line(disabled, "a", 1)]
    Endpoint.objects.filter(pk=disabled.pk).update(is_enabled=False)
    assert leases.take(9) == []
    Endpoint.objects.update(is_enabled=True, held_until=None)
    assert set(ids(leases.take(9))) == set(ids(rows))


@pytest.mark.django_db
def test_an_endpoint_with_many_does_not_crowd_out_another() -> None:
    crowded, other = factories.endpoint(), factories.endpoint()
    for number in range(40):
        line(crowded, f"a-{number}", 1)
    (last,) = line(other, "b", 1)
    taken = leases.take(32)
    assert len(taken) == FLIGHTS_PER_ENDPOINT + 1
    assert last.pk in ids(taken)
    assert leases.take(32) == []


@pytest.mark.django_db
def test_a_failing_endpoint_has_one_in_flight() -> None:
    endpoint = factories.endpoint(failures=3, failed_at=clock.now(), failing_since=clock.now())
    for number in range(5):
        line(endpoint, f"a-{number}", 1)
    assert len(leases.take(32)) == 1
    assert leases.take(32) == []


@pytest.mark.django_db
def test_the_delivery_of_a_dead_worker_is_taken_again_and_the_attempt_noted() -> None:
    (row,) = line(factories.endpoint(), "a", 1)
    (first,) = leases.take(9)
    Delivery.objects.update(leased_until=clock.now() - SECOND)
    (second,) = leases.take(9)
    assert (first.pk, second.pk) == (row.pk, row.pk)
    assert (first.attempts, second.attempts) == (1, 2)
    (attempt,) = DeliveryAttempt.objects.all()
    assert (attempt.number, attempt.outcome, attempt.began_at) == (1, "interrupted", None)


@pytest.mark.django_db
def test_a_renewed_lease_is_that_of_the_same_attempt() -> None:
    line(factories.endpoint(), "a", 1)
    (taken,) = leases.take(9)
    soon = clock.now() + SECOND
    Delivery.objects.update(leased_until=soon)
    leases.renew([(taken.pk, 7)])
    assert Delivery.objects.get().leased_until == soon
    leases.renew([(taken.pk, 1)])
    renewed = Delivery.objects.get().leased_until
    assert renewed is not None
    assert renewed > soon
    leases.renew([])


@pytest.mark.django_db(transaction=True)
def test_workers_that_take_together_take_each_delivery_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "LEASE", timedelta(minutes=10))  # None falls free meanwhile.
    endpoints = [factories.endpoint() for _ in range(4)]
    for number in range(24):
        line(endpoints[number % 4], f"a-{number}", 1)
    taken: list[UUID] = []
    start = threading.Barrier(4)

    def work() -> None:
        try:
            start.wait(30)
            for _ in range(6):
                taken.extend(ids(leases.take(2)))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 24
    assert len(set(taken)) == 24


@pytest.mark.django_db
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2),  # Endpoint.
            st.integers(0, 2),  # Alert.
            st.integers(1, 4),  # Sequence.
            st.sampled_from([-2_000, -1_000, 1_000]),  # Due.
            st.sampled_from([None, None, -500, 500]),  # Leased until.
            st.booleans(),  # Settled.
        ),
        max_size=14,
        unique_by=lambda row: row[:3],
    ),
    failing=st.booleans(),
    free=st.integers(1, 12),
)
def test_the_query_takes_what_the_machine_would_of_all_rows(
    rows: list[tuple[int, int, int, int, int | None, bool]], failing: bool, free: int
) -> None:
    """The query selects a few heads; the machine, given all rows, chooses the same."""
    Delivery.objects.all().delete()
    Endpoint.objects.all().delete()
    now = clock.now()
    health = {"failures": 1, "failed_at": now, "failing_since": now} if failing else {}
    endpoints = [factories.endpoint(**health), factories.endpoint(), factories.endpoint()]
    waiting, flying = [], []
    for endpoint, alert, sequence, due, leased, is_settled in rows:
        leased_until = None if leased is None or is_settled else now + leased * SECOND
        row = factories.delivery(
            endpoints[endpoint],
            factories.notice(f"alert-{alert}", sequence),
            next_at=now + due * SECOND,
            leased_until=leased_until,
            status="delivered" if is_settled else "pending",
        )
        if is_settled:
            continue
        if leased_until is not None and leased_until > now:
            flying.append(row)
        else:
            assert row.next_at is not None
            tie = (row.created_at, sequence)
            waiting.append(Waiting(row.pk, row.endpoint_id, row.alert, sequence, row.next_at, tie))
    lines = [(row.endpoint_id, row.alert) for row in flying]
    expected = admitted(
        waiting, {one.pk: one.health for one in Endpoint.objects.all()}, lines, now, free
    )
    assert set(ids(leases.take(free))) == set(expected)
