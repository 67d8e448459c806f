"""Alerting from end to end in a browser: an endpoint, a slow checkpoint, and its way to an end."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.alerts.evaluation import Evaluation
from controlplane.alerts.machine import SETTLING
from controlplane.alerts.models import Alert, Rule
from controlplane.base import clock
from controlplane.deliveries.dispatcher import Dispatcher
from controlplane.deliveries.models import Delivery, Endpoint
from jobs.models import Job
from tests import factories
from tests.browser.browser import Window
from tests.database.frontend.logging_in import log_in
from tests.process.deliveries import receiver as receivers
from tests.process.deliveries.receiver import Running
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Running]:
    """An endpoint outside, as a process of its own."""
    with receivers.running(tmp_path / "requests") as process:
        yield process


class Worker:
    """The evaluator and the dispatcher, as beat and workers run them; time passes on demand."""

    def __init__(self) -> None:
        self._passed = timedelta()
        self._evaluation = Evaluation(lambda: clock.now() + self._passed)
        self._dispatcher = Dispatcher()

    def evaluate(self, after: timedelta = timedelta(seconds=1)) -> None:
        """One round, so much later than the last."""
        self._passed += after
        assert self._evaluation.run() is not None

    def deliver(self, until: Callable[[], bool]) -> None:
        """Send what is due until something holds."""

        def run() -> bool:
            self._dispatcher.run(0.5)
            return until()

        wait_until(run, "the deliveries have got so far")


def attempted(**which: object) -> bool:
    """Whether such a delivery has an attempt that has ended."""
    ended = Delivery.objects.filter(tries__gt=0, leased_until=None)
    return ended.filter(**which).exists()


def complete(job: Job, number: int, duration_ms: int) -> None:
    """A completed checkpoint, and its place among the events."""
    checkpoint = factories.checkpoint(job, number, duration_ms=duration_ms)
    facts = {"checkpoint": number, "kind": "checkpoint", "duration_ms": duration_ms}
    factories.event(job, at=checkpoint.settled_at, facts=facts)


def test_an_alert_from_its_rule_to_its_resolution(
    window: Window, receiver: Running, settings: Settings
) -> None:
    settings.WEIR_DELIVERY_RETRY_FIRST_MS = 3_600_000  # Only a person repeats an attempt.
    window.may_complain("status of 400")  # The form that is refused.
    Rule.objects.all().delete()
    job, worker = factories.job("flights"), Worker()
    factories.graph(job)
    worker.evaluate()
    log_in(window, Role.ADMIN)

    # An endpoint; its secret is shown once, and the receiver verifies with it.
    window.follow("Alerts")
    window.sees("main", "No alerts yet")
    window.follow("Endpoints")
    window.sees("main", "No endpoints yet")
    window.follow("New endpoint")
    window.follow("Webhook (signed JSON)")
    window.fill("name", "On call")
    window.fill("url", receiver.url("/after/1"))
    window.click("Make the endpoint")
    window.sees("main", "plain HTTP is for endpoints in your own network")
    assert not Endpoint.objects.exists()
    window.fill("url", receiver.url("/after/1"))
    window.do(lambda page: page.check("[name=allow_internal]"))
    window.click("Make the endpoint")
    window.sees("#secret", "whsec_")

    # A test: its first attempt fails, which the page of its delivery follows.
    window.click("Send a test")
    window.sees("#delivery", "Waiting")
    worker.deliver(lambda: attempted(notice_status="test"))
    window.sees("#delivery", "Retrying")
    window.sees("#delivery", "500")
    window.click("Send it now")
    worker.deliver(lambda: attempted(notice_status="test", status="delivered"))
    window.sees("#delivery", "Delivered")
    assert [one["answer"] for one in receiver.requests()] == ["500", "ok"]

    # A rule, tried on the past and made.
    complete(job, 1, 400)
    window.follow("Rules")
    window.follow("New rule")
    window.follow("Slow checkpoints")
    window.fill("name", "Too slow")
    window.fill("parameter_seconds", "10")
    window.click("Try on the last 24 hours")
    window.sees("#tried", "It would not have fired in the last 24 hours")
    window.click("Make the rule")
    window.sees("main", "Rule Too slow was made.")

    # A slow checkpoint fires it; the list follows by itself, and the endpoint is told.
    window.follow("Alerts", within=".tabs")
    window.sees("main", "No alerts yet")
    complete(job, 2, 48_000)
    worker.evaluate()
    window.sees("#alerts", "Firing")
    worker.deliver(lambda: attempted(notice_status="firing"))
    window.follow("Too slow", within="#alerts")
    window.sees("#alert", "took 48.0 s")
    window.sees("#alert", "Firing to On call")
    window.click("Acknowledge")
    alert = Alert.objects.get()
    window.sees("#alert", f"{alert.acknowledged_by_name} looks after it")

    # Silenced, which the alert says at once.
    window.follow("Silence …")
    window.fill("reason", "The sink is moved")
    window.click("Silence them")
    window.sees("#silences", "The sink is moved")
    window.open(f"/alerts/{alert.pk}")
    window.sees("#alert", "The sink is moved")

    # The notice that failed is sent again, and arrives with the same id.
    window.follow("Firing to On call")
    window.click("Send it now")
    worker.deliver(lambda: attempted(notice_status="firing", status="delivered"))
    window.sees("#delivery", "Delivered")
    ids = [one["headers"]["webhook-id"] for one in receiver.requests()]
    assert len(ids) == 4
    assert ids[2] == ids[3]

    # A quick checkpoint resolves it; the endpoint is told, though a silence holds.
    complete(job, 3, 400)
    window.open(f"/alerts/{alert.pk}")
    worker.evaluate()
    worker.evaluate(SETTLING)
    window.sees("#alert", "Resolved")
    worker.deliver(lambda: attempted(notice_status="resolved"))
    window.sees("#alert", "Resolved to On call")
    window.open(f"/jobs/{job.pk}/alerts/")
    window.sees("#alerts", "Resolved")
    window.sees("main", "The sink is moved")
    assert window.complaints() == []
