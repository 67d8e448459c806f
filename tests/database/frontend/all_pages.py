"""Every page, figure and API answer about a job, opened one after another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from pytest_django.fixtures import Settings

from checkpoints.operations import savepoints
from controlplane.alerts.models import Alert
from controlplane.deliveries.models import Delivery
from frontend.job import snapshot
from jobs.models import Job
from tests import factories
from tests.database.frontend import flights, rows_checkpoint

PAGE_BYTES_MAX = 8 << 20


def job_on_every_page(settings: Settings, directory: Path) -> Job:
    """A job with a completed checkpoint, one under way and a savepoint; its files are kept."""
    settings.WEIR_DRIVERS = directory / "drivers"
    job = flights.running()
    rows_checkpoint.keep_in(job, directory / "checkpoints")
    for number in (1, 2):
        savepoints.request_checkpoint(None, job.pk)
        if number == 1:
            flights.complete(job, number)
    factories.savepoint(job, "nightly", 1_000)
    for records in (0.0, 400.0):
        factories.chain_sample(job, "flights", records_in=records, watermark_ms=1_735_700_400_000)
    factories.attempted(factories.delivery(factories.endpoint(), factories.notice(job=job.pk)))
    rule = factories.rule("checkpoint_duration", parameters={"seconds": 1.0})
    factories.silence(rule=rule, job=job.pk)
    factories.alert(rule, job, checkpoint=1, silence=factories.silence(), is_silenced=True)
    factories.alert(rule, job, state="resolved", resolution="The condition is over.")
    return job


def addresses(job: Job) -> list[str]:
    """Every page, figure and API answer about the job."""
    given: dict[str, Any] = {"job_id": job.pk, "number": 1}
    operator = job.operators.order_by("position").first()
    if operator is not None:
        given["uid"] = operator.uid
    delivery = Delivery.objects.select_related("endpoint").order_by("created_at").first()
    if delivery is not None:
        given["kind"] = delivery.endpoint.kind
        given |= {"endpoint_id": delivery.endpoint_id, "delivery_id": delivery.pk}
    alert = Alert.objects.order_by("fired_at").first()
    if alert is not None:
        given |= {"alert_id": alert.pk, "rule_id": alert.rule_id}
    figures = {
        "job-figure": ("history", "alignment"),
        "checkpoint-figure": ("timeline", "state"),
        "recovery-figure": ("attempts",),
    }
    to = []
    for name, parts in named(get_resolver()):
        needed = parts - {"name"}
        if not needed <= given.keys():
            continue
        for figure in figures.get(name, ()) if "name" in parts else ("",):
            kwargs = {key: given[key] for key in needed} | ({"name": figure} if figure else {})
            to.append(reverse(name, kwargs=kwargs))
    return to


def named(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, set[str]]]:
    """The names of all pages and API views, and the parts that their addresses need."""
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLPattern) and pattern.name is not None:
            yield f"{prefix}{pattern.name}", set(pattern.pattern.converters)
        elif isinstance(pattern, URLResolver) and pattern.namespace in (None, "api"):
            inner = f"{pattern.namespace}:" if pattern.namespace else prefix
            yield from named(pattern, inner)


def assert_every_page_opens(client: Client, job: Job) -> None:
    # Not every address is read with GET, and a driver may be gone: 404 and 405 are answers.
    broken = {}
    for address in addresses(job):
        answer = client.get(address)
        content = b"".join(answer) if answer.streaming else answer.content
        if answer.status_code >= 500:
            broken[address] = content[:500]
        assert len(content) < PAGE_BYTES_MAX, address
    assert not broken
    assert snapshot.snapshot(job.pk) is not None
