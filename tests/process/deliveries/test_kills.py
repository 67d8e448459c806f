"""Worker, Redis and PostgreSQL die in between: each notice arrives at least once, in its order.

A control plane of beat and the worker of deliveries, whose services are started again when they
die, as a supervisor does. The receiver fails each message a few times besides, or lets it wait.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.db import connections, transaction
from pytest_django import DjangoDbBlocker

from controlplane.base import env
from controlplane.base.threads import DATABASE_AWAY
from controlplane.deliveries.models import Delivery, DeliveryAttempt, Endpoint
from controlplane.deliveries.outbox import post
from controlplane.embedded.stack import Stack
from tests import factories
from tests.migrated import begin_migrated
from tests.process.deliveries.conftest import SECRET
from tests.process.deliveries.receiver import Running
from tests.processes import processes_of
from tests.services import reachable_directory, use_database
from tests.waiting import wait_until

HUNG = "/hung"
PATHS = ("/moody/a", "/moody/b", HUNG)
LINES = 6
LENGTH = 3
DELIVERIES = len(PATHS) * LINES * LENGTH
ENVIRONMENT = {
    "WEIR_DELIVERY_TIMEOUT_S": "2",
    "WEIR_DELIVERY_RETRY_FIRST_MS": "200",
    "WEIR_LOG_LEVEL": "WARNING",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The services that deliveries need."""
    with reachable_directory() as directory:
        stack = Stack(directory / "home", fast=True, environment=ENVIRONMENT)
        begin_migrated(stack.postgres)
        try:
            stack.start(["postgres", "redis", "deliveries", "beat"])
            yield stack
        finally:
            stack.stop()
        assert processes_of(directory) == []


@contextmanager
def rows_of(stack: Stack, blocker: DjangoDbBlocker) -> Iterator[None]:
    """Django in this process works on the stack's rows, with its keys."""
    before = dict(connections.settings["default"])
    with blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        use_database(stack.postgres.url)
        patch.setenv("WEIR_ENCRYPTION_KEYS_FILE", str(stack.home / "encryption-key"))
        patch.setattr(settings, "WEIR_ENCRYPTION_KEYS", env.keys("WEIR_ENCRYPTION_KEYS"))
        try:
            yield
        finally:
            connections["default"].close()
            connections.settings["default"].clear()
            connections.settings["default"].update(before)


def insisting(work: Callable[[], object]) -> None:
    """Do it in a transaction, again while the database is away."""

    def done() -> bool:
        try:
            with transaction.atomic():
                work()
        except DATABASE_AWAY:
            connections["default"].close()
            return False
        return True

    wait_until(done, "the database is back")


def test_nothing_is_lost_and_no_order_is_when_services_die(
    stack: Stack, receiver: Running, django_db_blocker: DjangoDbBlocker
) -> None:
    with rows_of(stack, django_db_blocker):
        endpoints: list[Endpoint] = []
        insisting(
            lambda: endpoints.extend(
                factories.endpoint(receiver.url(path), secret=SECRET, allow_internal=True)
                for path in PATHS
            )
        )
        lines = [str(uuid.uuid4()) for _ in range(LINES)]
        killed = []
        for sequence, name in enumerate(("deliveries", "redis", "postgres"), 1):
            for line in lines:
                notice = factories.notice(line, sequence)
                insisting(lambda notice=notice: post(notice, endpoints))
            seen = len(receiver.requests(HUNG))
            receiver.await_requests(seen + 1, HUNG)  # It waits for an answer.
            killed.append(Delivery.objects.filter(status="pending").count())
            stack.process(name).kill()
        assert all(killed), killed

        def is_all_delivered() -> bool:
            try:
                return Delivery.objects.filter(status="delivered").count() == DELIVERIES
            except DATABASE_AWAY:
                connections["default"].close()
                return False

        wait_until(is_all_delivered, lambda: f"all delivered; {told()}", 600, 0.5)
        deliveries = {row.message_id: row for row in Delivery.objects.all()}
        # The killed worker had some in flight.
        assert DeliveryAttempt.objects.filter(outcome="interrupted").exists()

    requests = [one for path in PATHS for one in receiver.requests(path)]
    accepted = [one for one in requests if one["answer"] == "ok"]
    assert {one["headers"]["webhook-id"] for one in requests} == set(deliveries)
    assert {one["headers"]["webhook-id"] for one in accepted} == set(deliveries)
    assert all(one["verified"][0] for one in requests)
    assert any(one["answer"] != "ok" for one in requests)
    bodies = {(one["headers"]["webhook-id"], one["body"]) for one in requests}
    assert len(bodies) == len(deliveries)
    newest: dict[tuple[str, str], int] = {}
    for one in requests:  # As they came: a repetition may come late, a first one not.
        row = deliveries[one["headers"]["webhook-id"]]
        line = one["path"], row.alert
        assert row.sequence <= newest.get(line, 0) + 1
        if one["answer"] == "ok":
            newest[line] = max(newest.get(line, 0), row.sequence)
    assert set(newest.values()) == {LENGTH}


def told() -> str:
    waiting = Delivery.objects.exclude(status="delivered")
    return str(list(waiting.values("status", "attempts", "next_at", "leased_until", "error")[:5]))
