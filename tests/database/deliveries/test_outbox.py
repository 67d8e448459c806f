"""Notices become rows with their alert's transaction, once each."""

import uuid

import pytest
from django.db import transaction

from controlplane.base import clock
from controlplane.deliveries.models import Delivery
from controlplane.deliveries.notice import Notice
from controlplane.deliveries.outbox import post
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_notice_waits_for_each_enabled_endpoint() -> None:
    first, second = factories.endpoint(), factories.endpoint()
    disabled = factories.endpoint(is_enabled=False)
    notice = factories.notice()
    rows = post(notice, [first, second, disabled])
    assert {row.endpoint_id for row in rows} == {first.pk, second.pk}
    for row in Delivery.objects.all():
        assert Notice.from_json(row.notice) == notice
        assert (row.status, row.attempts, row.tries) == ("pending", 0, 0)
        assert row.next_at is not None
        assert row.next_at <= clock.now()
        assert (row.severity, row.rule, row.job) == ("warning", "Slow checkpoints", "flights-1")


def test_a_notice_is_gone_with_the_transaction_of_its_alert() -> None:
    endpoint = factories.endpoint()
    with transaction.atomic():
        assert post(factories.notice(), [endpoint])
        transaction.set_rollback(True)
    assert not Delivery.objects.exists()


def test_posting_again_changes_nothing() -> None:
    endpoint = factories.endpoint()
    (row,) = post(factories.notice(), [endpoint])
    Delivery.objects.update(status="delivered", next_at=None, settled_at=clock.now())
    (again,) = post(factories.notice(summary="other"), [endpoint])
    assert (again.pk, again.status) == (row.pk, "delivered")
    assert Delivery.objects.count() == 1


def test_text_that_the_database_cannot_store_loses_no_notice() -> None:
    notice = factories.notice(str(uuid.uuid4()), summary="a\0b\ud800", job_name="\ud800")
    (row,) = post(notice, [factories.endpoint()])
    row.refresh_from_db()
    assert row.notice["summary"] == "a\ufffdb?"


def test_without_an_endpoint_nothing_is_stored() -> None:
    assert post(factories.notice(), []) == []
    assert not Delivery.objects.exists()
