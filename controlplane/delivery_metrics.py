"""Metrics of endpoints and deliveries. Counts are kept by endpoints: deliveries' rows go."""

from collections.abc import Iterator
from datetime import datetime

from django.db.models import Count, Min, Q, Sum
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controlplane.deliveries.machine import DeliveryStatus
from controlplane.deliveries.models import Delivery, Endpoint
from controlplane.deliveries.receivers import KINDS

_COUNTS = {"delivered": "delivered_count", "given_up": "given_up_count"}


def delivery_metrics(now: datetime) -> Iterator[Metric]:
    """The metric families, by kind of endpoint; deleted endpoints count as before."""
    columns = (*_COUNTS.values(), "failed_attempts")
    sums = {
        row["kind"]: row
        for row in Endpoint.objects.order_by()
        .values("kind")
        .annotate(**{f"sum_{column}": Sum(column) for column in columns})
    }

    def total(kind: str, column: str) -> int:
        return int(sums[kind][f"sum_{column}"]) if kind in sums else 0

    ends = CounterMetricFamily(
        "weir_deliveries", "Deliveries of notices, by their end.", labels=["kind", "result"]
    )
    failed = CounterMetricFamily(
        "weir_delivery_attempts_failed", "Attempts of deliveries that failed.", labels=["kind"]
    )
    for kind in KINDS:
        for result, column in _COUNTS.items():
            ends.add_metric([kind, result], total(kind, column))
        failed.add_metric([kind], total(kind, "failed_attempts"))
    yield from (ends, failed)
    yield from _states(now)


def _states(now: datetime) -> Iterator[Metric]:
    endpoints = Endpoint.objects.filter(deleted_at=None).aggregate(
        disabled=Count("pk", filter=Q(is_enabled=False)),
        failing=Count("pk", filter=Q(is_enabled=True, failures__gt=0)),
        ok=Count("pk", filter=Q(is_enabled=True, failures=0)),
    )
    states = GaugeMetricFamily("weir_endpoints", "Endpoints by state.", labels=["state"])
    for state, count in endpoints.items():
        states.add_metric([state], count)
    yield states
    pending = Delivery.objects.filter(status=DeliveryStatus.PENDING)
    waiting = pending.aggregate(
        count=Count("pk"),
        untried=Min("queued_at", filter=Q(tries=0, endpoint__is_enabled=True)),
    )
    yield GaugeMetricFamily(
        "weir_deliveries_waiting", "Deliveries without an end yet.", waiting["count"]
    )
    oldest = waiting["untried"]
    yield GaugeMetricFamily(
        "weir_delivery_untried_age_seconds",
        "Age of the oldest delivery to an enabled endpoint that has had no attempt yet.",
        0.0 if oldest is None else (now - oldest).total_seconds(),
    )
