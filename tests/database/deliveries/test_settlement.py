"""Outcomes as rows: delivered, retried, given up; endpoints that fail, rest and are disabled."""

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.deliveries import leases, sweep
from controlplane.deliveries.dispatcher import _settle
from controlplane.deliveries.machine import Meaning
from controlplane.deliveries.models import Delivery, DeliveryAttempt, Endpoint
from controlplane.deliveries.sending.outcome import Outcome, failed
from controlplane.deliveries.settlement import Landed, settle
from tests import factories

pytestmark = pytest.mark.django_db

OK = Outcome(meaning=Meaning.DELIVERED, status_code=200, address="203.0.113.7", body="ok")
DAY = timedelta(days=1)


def answered(status: int, **fields: Any) -> Outcome:
    meaning = Meaning.GONE if status == 410 else Meaning.FAILED
    error = f"the endpoint answered {status}"
    return Outcome(meaning=meaning, status_code=status, error=error, **fields)


def landed(row: Delivery, outcome: Outcome, **changed: Any) -> Landed:
    assert row.leased_until is not None
    began_at = row.leased_until - leases.LEASE
    fields = {"number": row.attempts, "began_at": began_at, **changed}
    return Landed(delivery=row.pk, endpoint=row.endpoint_id, took_s=0.25, outcome=outcome, **fields)


def attempted(outcome: Outcome, **changed: Any) -> Delivery:
    """The only due delivery, after an attempt."""
    (row,) = leases.take(9)
    settle([landed(row, outcome, **changed)])
    return Delivery.objects.select_related("endpoint").get(pk=row.pk)


def test_a_delivered_notice() -> None:
    factories.delivery(factories.endpoint(failures=2, failing_since=clock.now()))
    row = attempted(OK)
    assert (row.status, row.next_at, row.leased_until, row.error) == ("delivered", None, None, "")
    assert row.settled_at is not None
    endpoint = row.endpoint
    assert (endpoint.state, endpoint.failing_since, endpoint.held_until) == ("ok", None, None)
    assert (endpoint.delivered_count, endpoint.failed_attempts) == (1, 0)
    assert endpoint.delivered_at is not None
    (attempt,) = row.ended_attempts.all()
    assert (attempt.number, attempt.outcome, attempt.status_code) == (1, "delivered", 200)
    assert (attempt.address, attempt.body) == ("203.0.113.7", "ok")
    assert attempt.began_at is not None
    assert attempt.ended_at - attempt.began_at == timedelta(seconds=0.25)


def test_a_failed_attempt_is_followed_by_another() -> None:
    factories.delivery(factories.endpoint())
    row = attempted(answered(500))
    assert (row.status, row.error, row.leased_until) == (
        "pending",
        "the endpoint answered 500",
        None,
    )
    assert row.next_at is not None
    assert row.next_at <= clock.now() + timedelta(seconds=5)
    endpoint = row.endpoint
    assert (endpoint.state, endpoint.failures, endpoint.failed_attempts) == ("failing", 1, 1)


def test_retry_after_holds_the_delivery_and_the_endpoint() -> None:
    factories.delivery(factories.endpoint())
    row = attempted(answered(429, retry_after="600"))
    at_least = clock.now() + timedelta(seconds=590)
    assert row.next_at is not None
    assert row.next_at > at_least
    assert row.endpoint.held_until is not None
    assert row.endpoint.held_until > at_least


def test_a_delivery_is_given_up_after_a_day_and_the_next_in_line_goes() -> None:
    endpoint = factories.endpoint()
    factories.delivery(endpoint, factories.notice("a", 1), queued_at=clock.now() - DAY)
    later = factories.delivery(endpoint, factories.notice("a", 2))
    row = attempted(failed("the connection failed"))
    assert row.status == "given_up"
    assert row.error == "its time ended after 1 attempt; the connection failed"
    assert row.endpoint.given_up_count == 1
    (taken,) = leases.take(9)
    assert taken.pk == later.pk


def test_410_gives_up_disables_and_is_audited() -> None:
    endpoint = factories.endpoint(name="On call")
    factories.delivery(endpoint)
    other = factories.delivery(endpoint)
    (first, _) = leases.take(9)
    settle([landed(first, answered(410))])
    endpoint.refresh_from_db()
    assert (endpoint.is_enabled, endpoint.state) == (False, "disabled")
    assert endpoint.disabled_reason == "it answered 410 Gone"
    (entry,) = AuditEntry.objects.filter(action="endpoint.disable")
    assert (entry.actor_name, entry.target) == ("control plane", "endpoint/On call")
    assert Delivery.objects.get(pk=other.pk).status == "pending"


def test_an_endpoint_that_was_disabled_meanwhile_keeps_the_reason_it_was_given() -> None:
    factories.delivery(factories.endpoint())
    (row,) = leases.take(9)
    Endpoint.objects.update(is_enabled=False, disabled_reason="moved", disabled_at=clock.now())
    settle([landed(row, answered(410))])
    endpoint = Endpoint.objects.get()
    assert (endpoint.is_enabled, endpoint.disabled_reason) == (False, "moved")
    assert not AuditEntry.objects.filter(action="endpoint.disable").exists()


def test_days_of_failures_disable_and_the_admins_are_told(settings: Settings) -> None:
    settings.EMAIL_HOST = "mail.example"
    admin = factories.user(Role.ADMIN)
    admin.email = "root@example.com"
    admin.save()
    endpoint = factories.endpoint(
        name="On call", failures=40, failed_at=clock.now(), failing_since=clock.now() - 3 * DAY
    )
    factories.delivery(endpoint)
    attempted(answered(500), began_at=clock.now())
    assert sweep.tell_admins() == 1
    assert sweep.tell_admins() == 0
    (told,) = mail.outbox
    assert told.to == ["root@example.com"]
    assert "On call (webhook): no attempt has succeeded since" in told.body
    endpoint.refresh_from_db()
    assert endpoint.admins_told_at is not None


def test_a_mail_that_cannot_be_sent_is_tried_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.EMAIL_HOST = "mail.example"
    admin = factories.user(Role.ADMIN)
    admin.email = "root@example.com"
    admin.save()
    now = clock.now()
    factories.endpoint(is_enabled=False, disabled_at=now, disabled_reason="it answered 410 Gone")
    factories.endpoint(is_enabled=False, disabled_at=now)  # By a person.
    backend = settings.EMAIL_BACKEND
    settings.EMAIL_BACKEND, settings.EMAIL_PORT = "django.core.mail.backends.smtp.EmailBackend", 1
    settings.EMAIL_HOST = "127.0.0.1"
    assert sweep.tell_admins() == 0
    settings.EMAIL_BACKEND = backend
    assert sweep.tell_admins() == 1
    assert len(mail.outbox) == 1


def test_an_outcome_that_comes_after_its_lease_was_taken_decides_nothing() -> None:
    """A worker stood still for longer than its lease; meanwhile another has the delivery."""
    factories.delivery(factories.endpoint())
    (old,) = leases.take(9)
    Delivery.objects.update(leased_until=clock.now() - timedelta(seconds=1))
    (new,) = leases.take(9)
    settle([landed(old, answered(500))])
    row = Delivery.objects.get()
    assert (row.status, row.attempts, row.error) == ("pending", 2, "")
    assert row.leased_until == new.leased_until
    # The attempt that was noted as interrupted did end.
    (attempt,) = DeliveryAttempt.objects.all()
    assert (attempt.number, attempt.outcome) == (1, "failed")
    settle([landed(new, OK)])
    assert Delivery.objects.get().status == "delivered"


def test_several_outcomes_are_settled_together() -> None:
    endpoint = factories.endpoint()
    for number in range(4):
        factories.delivery(endpoint, factories.notice(f"a-{number}"))
    rows = leases.take(9)
    outcomes = [OK, answered(500), OK, answered(503)]
    settle([landed(row, outcome) for row, outcome in zip(rows, outcomes, strict=True)])
    statuses = [Delivery.objects.get(pk=row.pk).status for row in rows]
    assert statuses == ["delivered", "pending", "delivered", "pending"]
    endpoint.refresh_from_db()
    assert (endpoint.delivered_count, endpoint.failed_attempts) == (2, 2)


def test_an_outcome_that_cannot_be_written_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endpoint = factories.endpoint()
    for number in range(3):
        factories.delivery(endpoint, factories.notice(f"a-{number}"))
    rows = leases.take(9)
    poison = Outcome(meaning=Meaning.DELIVERED, body="a\0b")
    outcomes = [OK, poison, OK]
    _settle([landed(row, outcome) for row, outcome in zip(rows, outcomes, strict=True)])
    statuses = [Delivery.objects.get(pk=row.pk).status for row in rows]
    assert statuses == ["delivered", "pending", "delivered"]
    assert f"the outcome of delivery {rows[1].pk} could not be written" in caplog.text


def test_an_outcome_of_a_deleted_row_is_dropped() -> None:
    factories.delivery(factories.endpoint())
    (row,) = leases.take(9)
    outcome = landed(row, OK)
    Delivery.objects.all().delete()
    settle([outcome])
    assert Endpoint.objects.get().delivered_count == 0


def test_deliveries_of_disabled_endpoints_wait_a_day_and_of_deleted_ones_not() -> None:
    disabled, deleted = factories.endpoint(), factories.endpoint()
    recent = factories.delivery(disabled)
    old = factories.delivery(disabled, queued_at=clock.now() - DAY)
    gone = factories.delivery(deleted)
    enabled = factories.delivery(factories.endpoint(), queued_at=clock.now() - 2 * DAY)
    Endpoint.objects.filter(pk=disabled.pk).update(is_enabled=False)
    Endpoint.objects.filter(pk=deleted.pk).update(is_enabled=False, deleted_at=clock.now())
    assert sweep.give_up_unsent() == 2
    rows = {row.pk: row for row in Delivery.objects.all()}
    assert rows[recent.pk].status == rows[enabled.pk].status == "pending"
    assert rows[old.pk].error == "the endpoint was disabled before it took the notice"
    assert rows[gone.pk].error == "the endpoint was deleted before it took the notice"
    disabled.refresh_from_db()
    assert disabled.given_up_count == 1
    assert sweep.give_up_unsent() == 0
