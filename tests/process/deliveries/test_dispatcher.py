"""The dispatcher against a real receiver: each notice arrives, in order, signed, with one id."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from controlplane.base import clock
from controlplane.deliveries import endpoints, leases
from controlplane.deliveries.dispatcher import Dispatcher
from controlplane.deliveries.models import Delivery, DeliveryAttempt, Endpoint
from controlplane.deliveries.outbox import post
from tests import factories
from tests.process.deliveries.conftest import OLDER, SECRET
from tests.process.deliveries.receiver import BUSY_RETRY_AFTER_S, Running
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def quick(settings: Settings) -> None:
    """Retries within a second."""
    settings.WEIR_DELIVERY_RETRY_FIRST_MS = 100
    settings.WEIR_DELIVERY_TIMEOUT_S = 1


def endpoint_at(receiver: Running, path: str, **columns: object) -> Endpoint:
    given = {"secret": SECRET, "allow_internal": True, **columns}
    return factories.endpoint(receiver.url(path), **given)  # type: ignore[arg-type]


def dispatch(until: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Runs as beat and worker make them, until something holds."""
    dispatcher, connected = Dispatcher(), connections_of_database()

    def run() -> bool:
        dispatcher.run(0.5)
        return until()

    wait_until(run, "the deliveries have got so far", timeout_s, 0.05)
    wait_until(lambda: not dispatcher._flying or not dispatcher.run(0.2), "flights have landed")
    assert connections_of_database() == connected  # No flight has one of its own.


def connections_of_database() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def all_settled() -> bool:
    return not Delivery.objects.filter(status="pending").exists()


def test_lines_arrive_in_order_and_each_message_keeps_its_id(receiver: Running) -> None:
    """Each message fails a few times, by status, reset, garbage and Retry-After."""
    path = "/moody/order"
    endpoint = endpoint_at(receiver, path)
    rows = [
        row
        for line in range(3)
        for number in (1, 2, 3)
        for row in post(factories.notice(f"order-{line}", number), [endpoint])
    ]
    dispatch(all_settled, 120)
    requests = receiver.requests(path)
    assert any(request["answer"] != "ok" for request in requests)
    accepted = [one["headers"]["webhook-id"] for one in requests if one["answer"] == "ok"]
    assert sorted(accepted) == sorted(row.message_id for row in rows)
    for line in range(3):
        expected = [row.message_id for row in rows if row.alert == f"order-{line}"]
        assert [message for message in accepted if message in expected] == expected
    for row in Delivery.objects.all():
        mine = [one for one in requests if one["headers"]["webhook-id"] == row.message_id]
        assert len({one["body"] for one in mine}) == 1
        assert all(one["verified"] == [True, False] for one in mine)
        assert row.attempts == len(mine) == row.ended_attempts.count()
        first = row.ended_attempts.get(number=1)
        assert first.outcome == ("delivered" if mine[0]["answer"] == "ok" else "failed")


def test_during_a_rotation_receivers_with_either_secret_verify(receiver: Running) -> None:
    path = "/ok/rotation"
    endpoint = endpoint_at(receiver, path, secret=OLDER)
    endpoints.rotate(None, endpoint.pk, SECRET)
    post(factories.notice("rotation"), [Endpoint.objects.get()])
    dispatch(all_settled)
    (request,) = receiver.requests(path)
    assert request["verified"] == [True, True]


def test_retry_after_is_honoured(receiver: Running) -> None:
    path = "/busy/retry-after"
    post(factories.notice("retry-after"), [endpoint_at(receiver, path)])
    dispatch(all_settled)
    first, second = receiver.requests(path)
    assert (first["answer"], second["answer"]) == ("busy", "ok")
    assert second["at"] - first["at"] >= BUSY_RETRY_AFTER_S - 0.1


def test_a_gone_endpoint_is_asked_once_and_disabled(receiver: Running) -> None:
    path = "/gone/x"
    endpoint = endpoint_at(receiver, path)
    for number in (1, 2):
        post(factories.notice("gone", number), [endpoint])
    dispatch(lambda: Delivery.objects.filter(status="given_up").exists())
    endpoint.refresh_from_db()
    assert (endpoint.state, endpoint.disabled_reason) == ("disabled", "it answered 410 Gone")
    assert Dispatcher().run(0.2) == 0
    assert len(receiver.requests(path)) == 1
    assert Delivery.objects.get(sequence=2).status == "pending"


def test_a_slow_endpoint_holds_up_no_other(receiver: Running) -> None:
    """It has as many waiting as it may have in flight, and more."""
    slow, quick = endpoint_at(receiver, "/slow/one"), endpoint_at(receiver, "/ok/quick")
    for number in range(20):
        post(factories.notice(f"slow-{number}"), [slow])
    post(factories.notice("quick"), [quick])
    dispatcher = Dispatcher()
    started = time.monotonic()

    def is_delivered() -> bool:
        dispatcher.run(0.3)
        return Delivery.objects.get(endpoint=quick).status == "delivered"

    wait_until(is_delivered, "the quick one is delivered")
    assert time.monotonic() - started < 20  # A slow one takes half a minute.
    assert len(receiver.await_requests(8, "/slow/one")) == 8
    assert Delivery.objects.filter(endpoint=slow, status="delivered").count() == 0
    wait_until(lambda: dispatcher.run(0.2) * 0 or not dispatcher._flying, "the slow ones landed")


def test_an_endpoint_on_an_internal_address_is_refused_when_it_connects(
    receiver: Running,
) -> None:
    """It was allowed once, or its name leads elsewhere since it was saved."""
    before = len(receiver.requests())
    post(factories.notice("ssrf"), [endpoint_at(receiver, "/ok/ssrf", allow_internal=False)])
    dispatch(lambda: DeliveryAttempt.objects.exists())
    attempt = DeliveryAttempt.objects.first()
    assert attempt is not None
    assert "plain HTTP is for endpoints in your own network" in attempt.error
    assert len(receiver.requests()) == before


def test_a_delivery_without_a_key_waits_for_one(receiver: Running, settings: Settings) -> None:
    path = "/ok/key"
    post(factories.notice("key"), [endpoint_at(receiver, path)])
    keys, settings.WEIR_ENCRYPTION_KEYS = settings.WEIR_ENCRYPTION_KEYS, []
    dispatch(lambda: DeliveryAttempt.objects.exists())
    assert "needs an encryption key" in Delivery.objects.get().error
    settings.WEIR_ENCRYPTION_KEYS = keys
    dispatch(all_settled)
    assert len(receiver.requests(path)) == 1


def test_a_lease_is_renewed_while_its_flight_lasts(
    receiver: Running, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEIR_DELIVERY_TIMEOUT_S = 5
    monkeypatch.setattr(leases, "RENEW_EVERY_S", 0.2)
    post(factories.notice("renewed"), [endpoint_at(receiver, "/slow/renewed")])
    dispatcher = Dispatcher()
    dispatcher.run(0.1)
    receiver.await_requests(1, "/slow/renewed")
    first = Delivery.objects.get().leased_until
    assert first is not None

    def is_renewed() -> bool:
        dispatcher.run(0.5)
        renewed = Delivery.objects.get().leased_until
        assert renewed is not None
        return renewed > first

    wait_until(is_renewed, "the lease is renewed")
    assert Dispatcher().run(0.2) == 0  # Another worker leaves it alone.


def test_two_dispatchers_send_each_delivery_once(receiver: Running, settings: Settings) -> None:
    settings.WEIR_DELIVERY_TIMEOUT_S = 100  # An answer that is late would be asked for again.
    path = "/ok/two"
    endpoint = endpoint_at(receiver, path)
    for number in range(40):
        post(factories.notice(f"two-{number}"), [endpoint])
    begun: list[int] = []
    start = threading.Barrier(2)

    def work() -> None:
        dispatcher = Dispatcher()
        try:
            start.wait(TIMEOUT_S)
            while not all_settled():
                begun.append(dispatcher.run(0.5))
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sum(begun) == 40
    assert len(receiver.requests(path)) == 40


def test_a_run_ends_when_the_worker_does(receiver: Running) -> None:
    post(factories.notice("stop"), [endpoint_at(receiver, "/ok/stop")])
    assert Dispatcher().run(5.0, should_stop=lambda: True) == 0
    assert Delivery.objects.get().attempts == 0


def test_mails_are_sent(settings: Settings) -> None:
    from django.core import mail

    settings.EMAIL_HOST = "mail.example"
    endpoint = factories.endpoint(kind="email", recipients=["oncall@example.com"])
    post(factories.notice("mail"), [endpoint])
    dispatch(all_settled)
    (sent,) = mail.outbox
    assert (sent.to, sent.subject) == (
        ["oncall@example.com"],
        "[Weir] warning: Slow checkpoints – flights",
    )


def test_a_mail_server_that_is_away_is_a_failed_attempt(settings: Settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", free.getsockname()[1]
        endpoint = factories.endpoint(kind="email", recipients=["oncall@example.com"])
        post(factories.notice("mail-away"), [endpoint])
        dispatch(lambda: DeliveryAttempt.objects.exists())
    row = Delivery.objects.get()
    assert row.status == "pending"
    assert "the mail server 127.0.0.1 did not take it" in row.error
    assert row.next_at is not None
    assert row.next_at <= clock.now() + leases.LEASE
