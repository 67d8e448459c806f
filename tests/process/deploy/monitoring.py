"""The files below ``deploy/``, their expressions, and rows that give every metric a series."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from controlplane.base import clock
from controlplane.retention.models import Tally
from jobs.models import ControlPlanePulse
from tests import factories
from tests.process.deploy.promql import names

ROOT = Path(__file__).resolve().parents[3] / "deploy"
PROMETHEUS = ROOT / "prometheus"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "weir.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
RECORDED = {
    rule["record"]: names(rule["expr"]).labels - {"le"} for rule in RULES if "record" in rule
}
DASHBOARD: dict[str, Any] = json.loads((ROOT / "grafana" / "weir.json").read_text())
TARGET = {"job", "instance"}  # Labels that Prometheus adds.


def panels(kind: str | None = None) -> list[dict[str, Any]]:
    """The dashboard's panels, of one kind or of all but rows."""
    return [
        panel
        for panel in DASHBOARD["panels"]
        if (panel["type"] == kind if kind else panel["type"] != "row")
    ]


def filled_in(expression: str) -> str:
    """A panel's expression as Grafana sends it where all jobs are chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$job", ".*")


def queries() -> Iterator[tuple[str, str, str]]:
    """Panel, expression and legend of each query of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], filled_in(target["expr"]), target["legendFormat"]


def make_rows() -> None:
    """Jobs, checkpoints, drivers, operations and endpoints of each kind that has a metric.

    Nothing but the failed job is worth an alert, however long the test takes.
    """
    now = clock.now()
    later = now + timedelta(minutes=10)
    job = factories.job(id="flights-1")
    factories.graph(job)
    rates = {"back_pressured": 0.25, "cpu_wait": 0.125, "busy": 0.5}
    measured = {"bad_records": 0, "records_in": 7, "watermark_ms": int(now.timestamp() * 1_000)}
    factories.subtasks(job, rates=rates, metrics=measured)
    driver = factories.driver(job, heard_at=later)
    ends = {"end": "failed", "ended_at": now}
    factories.attempt(driver, 1, **ends)
    recovered = {"backoff_ms": 1, "redeploy_ms": 2, "restore_ms": 3, "catch_up_ms": 4}
    factories.worker(factories.attempt(driver, 2, **recovered), memory_bytes=300_000_000)
    newest = factories.checkpoint(job, 1, settled_at=later)
    factories.gate_alignment(newest, "count", 0, [0.0, 7.0], upstream="source")
    factories.command(job, created_at=later)
    factories.operation(job, None, "rescale", "pending")
    waiting = factories.job("orders", id="orders-2")
    factories.driver(waiting, 1, "requested", created_at=later)
    factories.job("trips", id="trips-3", status="failed")
    factories.endpoint()
    ControlPlanePulse.objects.create(ticked_at=later, resumed_at=now)
    Tally.objects.create(kind="attempt", looked_at=now)
