"""Prometheus itself reads the metrics, the rules and every query of the dashboard."""

import io
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from controlplane.embedded.server import free_port
from tests import factories
from tests.process.deploy.monitoring import (
    ALERTS,
    DASHBOARD,
    PROMETHEUS,
    RECORDED,
    RULES,
    TARGET,
    make_rows,
    queries,
)
from tests.process.deploy.promql import Selector, names
from tests.waiting import TIMEOUT_S, wait_until

SYNTHETIC = {"up": {"job": {"weir"}}}  # Prometheus' own, and its values of labels.


def program(name: str) -> str:
    """A program of Debian's package ``prometheus``."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: apt-get install prometheus")
    return path


def promtool(*arguments: object, cwd: Path = PROMETHEUS) -> "subprocess.CompletedProcess[str]":
    command = [program("promtool"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


# Names.


@pytest.fixture
def known(db: None, client: Client, settings: Settings) -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric in a scrape; recorded ones have labels alone."""
    make_rows()
    settings.WEIR_METRICS_PUBLIC = True
    text = client.get("/metrics", headers={"Accept": "text/plain"}).content.decode()
    metrics: dict[str, dict[str, set[str]]] = {
        name: {label: set() for label in labels} for name, labels in RECORDED.items()
    }
    for name, labels in SYNTHETIC.items():
        metrics[name] = dict(labels)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = metrics.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return metrics


def unknown(expression: str, known: dict[str, dict[str, set[str]]]) -> list[str]:
    """The names in an expression that no scrape has."""
    read = names(expression)
    assert read.selectors, expression
    wrong = [one.metric for one in read.selectors if one.metric not in known]
    selectors = [one for one in read.selectors if one.metric in known]
    for one in selectors:
        wrong += [f"{one.metric}{{{part}}}" for part in _unmatched(one, known[one.metric])]
    labels = TARGET.union(*(known[one.metric] for one in selectors))
    return wrong + sorted(read.labels - labels)


def _unmatched(selector: Selector, labels: dict[str, set[str]]) -> Iterator[str]:
    for label, operator, wanted in selector.matchers:
        values = labels.get(label)
        if values is None:
            if label not in TARGET:
                yield label
        elif operator == "=" and wanted not in values:
            yield f'{label}="{wanted}"'
        elif operator == "=~":
            for part in wanted.split("|"):
                if not any(re.fullmatch(part, value) for value in values):
                    yield f'{label}=~"{part}"'


def test_every_name_in_rules_and_dashboard_is_in_a_scrape(
    known: dict[str, dict[str, set[str]]],
) -> None:
    expressions = [rule["expr"] for rule in RULES] + [expression for _, expression, _ in queries()]
    assert len(expressions) > 60
    wrong = {expression: said for expression in expressions if (said := unknown(expression, known))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("max by (job) (weir_job)", ["weir_job"]),
        ("max by (jobs) (weir_job_info)", ["jobs"]),
        ('rate(weir_checkpoints_total{results="failed"}[5m])', ["weir_checkpoints_total{results}"]),
        ('weir_checkpoints_total{result="fail"}', ['weir_checkpoints_total{result="fail"}']),
        (
            'weir_checkpoints_total{result=~"failed|lost"}',
            ['weir_checkpoints_total{result=~"lost"}'],
        ),
        ("1 - (weir_outbox_commands / weir_outbox)", ["weir_outbox"]),
        ('up{job="weird"} == 0', ['up{job="weird"}']),
        ("weir_job_info * on (job) group_left (nam) job_name:weir_job_info:max", ["nam"]),
        ("sum(weir_job_info) by (job) > bool 3 or weir_jobs offset 5m", []),
    ],
)
def test_a_wrong_name_is_noticed(
    known: dict[str, dict[str, set[str]]], expression: str, wrong: list[str]
) -> None:
    assert unknown(expression, known) == wrong


@pytest.mark.parametrize("expression", ['{job="flights-1"}', "weir_jobs{status}", "weir_jobs @ 0"])
def test_an_expression_that_cannot_be_read_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"selector|matchers|token"):
        names(expression)


# promtool.


def test_promtool_accepts_rules_and_scrape(tmp_path: Path) -> None:
    checked = promtool("check", "rules", "weir.rules.yml")
    assert checked.returncode == 0, checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout
    configuration = tmp_path / "scrape.yml"
    token = tmp_path / "weir.token"
    token.write_text("weir_secret")
    text = (PROMETHEUS / "scrape.yml").read_text()
    configuration.write_text(text.replace("/etc/prometheus/weir.token", str(token)))
    checked = promtool("check", "config", configuration)
    assert checked.returncode == 0, checked.stderr


def test_alerts_fire_and_planned_ends_raise_none() -> None:
    ran = promtool("test", "rules", "weir.rules.test.yml")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_is_seen_to_fire() -> None:
    """A scenario that expects it to fire alone; all others name every alert that fires."""
    scenarios = yaml.safe_load((PROMETHEUS / "weir.rules.test.yml").read_text())["tests"]
    fired = {
        match[1]
        for scenario in scenarios
        for expected in scenario["promql_expr_test"]
        for sample in expected["exp_samples"]
        if (match := re.search(r'alertname="(\w+)"', sample.get("labels", "")))
    }
    assert fired == ALERTS


def test_the_scenarios_notice_an_alert_on_planned_ends(tmp_path: Path) -> None:
    rules = (PROMETHEUS / "weir.rules.yml").read_text()
    shutil.copy(PROMETHEUS / "weir.rules.test.yml", tmp_path)
    for right, wrong in (
        ('{result="failed"}', '{result=~"failed|aborted"}'),
        ('{planned="false"}', "{}"),
    ):
        assert right in rules
        (tmp_path / "weir.rules.yml").write_text(rules.replace(right, wrong))
        assert promtool("test", "rules", "weir.rules.test.yml", cwd=tmp_path).returncode == 1


# Prometheus.


class Prometheus:
    """A running Prometheus, by its API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **query: str) -> Any:
        address = f"{self.url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=60) as response:
            return json.load(response)["data"]

    def targets(self) -> list[dict[str, Any]]:
        try:
            return list(self.get("targets")["activeTargets"])
        except OSError:
            return []

    def value(self, expression: str) -> list[dict[str, Any]]:
        return list(self.get("query", query=expression)["result"])

    def has_scraped(self, times: int) -> bool:
        """Whether so many scrapes succeeded."""
        scrapes = self.value('sum_over_time(up{job="weir"}[1h])') if self.targets() else []
        return bool(scrapes) and int(scrapes[0]["value"][1]) >= times


@pytest.fixture
def prometheus(
    transactional_db: None, live_server: LiveServer, tmp_path: Path
) -> Iterator[Prometheus]:
    """Prometheus on ``scrape.yml`` and the rules, in a hurry, with a token of a viewer."""
    make_rows()
    secret = io.StringIO()
    user = factories.user()
    call_command("weir_token", user.username, "--name", "prometheus", "--no-end", stdout=secret)
    (tmp_path / "weir.token").write_text(secret.getvalue())
    scrape = yaml.safe_load((PROMETHEUS / "scrape.yml").read_text())
    (job,) = scrape["scrape_configs"]
    job["scrape_interval"] = "2s"  # Also the longest that a scrape may take.
    job["authorization"]["credentials_file"] = str(tmp_path / "weir.token")
    job["static_configs"][0]["targets"] = [live_server.url.removeprefix("http://")]
    scrape["global"] = {"evaluation_interval": "1s"}
    scrape["rule_files"] = [str(PROMETHEUS / "weir.rules.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(scrape))
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            server = Prometheus(port)
            wait_until(
                lambda: server.has_scraped(3),
                lambda: f"scrapes: {server.targets()}, {(tmp_path / 'log').read_text()[-2000:]}",
            )
            yield server
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def test_prometheus_finds_what_rules_and_dashboard_ask_for(prometheus: Prometheus) -> None:
    def firing() -> dict[str, dict[str, str]]:
        alerts = prometheus.get("alerts")["alerts"]
        return {a["labels"]["alertname"]: a["labels"] for a in alerts if a["state"] == "firing"}

    wait_until(firing, "an alert fires")
    assert firing() == {
        "WeirJobFailed": {
            "alertname": "WeirJobFailed",
            "job": "trips-3",
            "name": "trips",
            "severity": "critical",
        }
    }
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(RULES)
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}

    for title, expression, legend in queries():
        series = wait_until(  # A scrape that comes too late takes all series away.
            lambda expression=expression: prometheus.value(expression), f"{title}: {expression}"
        )
        for one in series:
            assert set(re.findall(r"{{(\w+)}}", legend)) <= set(one["metric"]), (title, one)

    (variable,) = (v for v in DASHBOARD["templating"]["list"] if v["type"] == "query")
    match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert match is not None
    metric, label = match.groups()
    chosen = prometheus.get(f"label/{label}/values", **{"match[]": metric})
    assert chosen == ["flights-1", "orders-2", "trips-3"]
