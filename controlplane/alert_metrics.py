"""Metrics of alerts and their evaluator. Counts are kept by the evaluator: rows of alerts go."""

from collections.abc import Iterator
from datetime import datetime

from django.db.models import Count, Q
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controlplane.alerts.kinds import KINDS
from controlplane.alerts.machine import Phase
from controlplane.alerts.models import FIRING, Alert, Evaluator, Rule, Watch
from controlplane.deliveries.notice import SEVERITIES

STATES = ("pending", "firing", "acknowledged", "silenced")


def alert_metrics(now: datetime) -> Iterator[Metric]:
    """The metric families, each label with a sample from the beginning on."""
    counts = {(severity, state): 0 for severity in SEVERITIES for state in STATES}
    pending = Watch.objects.filter(phase=Phase.PENDING.value).order_by()
    for severity, count in pending.values_list("rule__severity").annotate(Count("pk")):
        counts[severity, "pending"] += count
    firing = Alert.objects.filter(state=FIRING).order_by()
    columns = ("severity", "is_silenced", "is_new")
    rows = firing.annotate(is_new=Q(acknowledged_at=None)).values_list(*columns)
    for severity, is_silenced, is_new, count in rows.annotate(Count("pk")):
        state = "silenced" if is_silenced else "firing" if is_new else "acknowledged"
        counts[severity, state] += count
    alerts = GaugeMetricFamily(
        "weir_alerts", "Alerts that fire or are about to.", labels=["severity", "state"]
    )
    for (severity, state), count in counts.items():
        alerts.add_metric([severity, state], count)
    yield alerts
    row = Evaluator.objects.first() or Evaluator()
    fired = CounterMetricFamily(
        "weir_alerts_fired", "Alerts that have fired.", labels=["kind", "severity"]
    )
    for kind in KINDS:
        for severity in SEVERITIES:
            fired.add_metric([kind, severity], row.fired.get(kind, {}).get(severity, 0))
    yield fired
    yield from _evaluator(row, now)


def _evaluator(row: Evaluator, now: datetime) -> Iterator[Metric]:
    rules = GaugeMetricFamily("weir_alert_rules", "Rules by state.", labels=["state"])
    states = Rule.objects.aggregate(
        active=Count("pk", filter=Q(is_enabled=True, problem="")),
        set_aside=Count("pk", filter=Q(is_enabled=True) & ~Q(problem="")),
        disabled=Count("pk", filter=Q(is_enabled=False)),
    )
    for state, count in states.items():
        rules.add_metric([state], count)
    yield rules
    yield CounterMetricFamily(
        "weir_alert_evaluations", "Rounds of the evaluator of rules.", value=row.rounds
    )
    yield CounterMetricFamily(
        "weir_alert_evaluation_seconds", "Time that these rounds took.", value=row.seconds
    )
    yield CounterMetricFamily(
        "weir_alert_evaluation_errors",
        "Rounds that failed, and rules that were set aside.",
        value=row.errors,
    )
    if row.evaluated_at is not None:
        yield GaugeMetricFamily(
            "weir_alert_evaluation_age_seconds",
            "Time since the last round.",
            max(0.0, (now - row.evaluated_at).total_seconds()),
        )
