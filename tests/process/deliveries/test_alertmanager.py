"""Debian's own Alertmanager takes an alert, groups it with another, and resolves it."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from controlplane.base import clock
from controlplane.deliveries.dispatcher import Dispatcher
from controlplane.deliveries.models import Delivery
from controlplane.deliveries.outbox import post
from controlplane.embedded.server import free_port
from tests import factories
from tests.process.deliveries.receiver import Running
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.django_db(transaction=True)]

NAMES = ("prometheus-alertmanager", "alertmanager")
CONFIGURATION = """
route:
  receiver: us
  group_by: [alertname]
  group_wait: 1s
  group_interval: 1s
receivers:
  - name: us
    webhook_configs:
      - url: {url}
        send_resolved: true
"""


class Alertmanager:
    """A running Alertmanager, by its API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as response:
            return json.load(response)

    def answers(self) -> bool:
        try:
            return bool(self.get("/api/v2/status"))
        except OSError:
            return False

    def alerts(self) -> dict[str, Any]:
        """Its open alerts by Weir's id."""
        return {alert["labels"]["weir_alert"]: alert for alert in self.get("/api/v2/alerts")}


@pytest.fixture
def alertmanager(tmp_path: Path, receiver: Running) -> Iterator[Alertmanager]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.fail("Alertmanager is missing: apt-get install prometheus-alertmanager")
    configuration = tmp_path / "alertmanager.yml"
    configuration.write_text(CONFIGURATION.format(url=receiver.url("/ok/alertmanager")))
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={configuration}",
                f"--storage.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            server = Alertmanager(port)
            wait_until(server.answers, lambda: f"Alertmanager: {(tmp_path / 'log').read_text()}")
            yield server
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def deliver() -> None:
    dispatcher = Dispatcher()

    def is_delivered() -> bool:
        dispatcher.run(0.5)
        return not Delivery.objects.exclude(status="delivered").exists()

    wait_until(is_delivered, lambda: str(list(Delivery.objects.values_list("error"))))


def told(receiver: Running) -> dict[str, str]:
    """The status of each alert that Alertmanager told last, by Weir's id."""
    states = {}
    for request in receiver.requests("/ok/alertmanager"):
        for alert in json.loads(request["body"])["alerts"]:
            states[alert["labels"]["weir_alert"]] = alert["status"]
    return states


def test_alertmanager_groups_alerts_and_resolves_them(
    alertmanager: Alertmanager, receiver: Running
) -> None:
    endpoint = factories.endpoint(alertmanager.url, kind="alertmanager", allow_internal=True)
    began_at = clock.now() - timedelta(minutes=10)  # Longer than Alertmanager's own patience.
    for job in ("flights", "orders"):
        notice = factories.notice(f"alert-{job}", job=job, job_name=job, began_at=began_at)
        post(notice, [endpoint])
    post(factories.notice("alert-other", rule="Job failed", began_at=began_at), [endpoint])
    deliver()
    wait_until(lambda: len(alertmanager.alerts()) == 3, "three alerts are open")
    groups = {
        group["labels"]["alertname"]: {one["labels"]["weir_alert"] for one in group["alerts"]}
        for group in alertmanager.get("/api/v2/alerts/groups")
    }
    assert groups == {
        "Slow checkpoints": {"alert-flights", "alert-orders"},
        "Job failed": {"alert-other"},
    }
    flights = alertmanager.alerts()["alert-flights"]
    assert flights["status"]["state"] == "active"
    assert flights["annotations"]["summary"].startswith("Checkpoint 41 took 48 s")
    wait_until(lambda: told(receiver).get("alert-flights") == "firing", "it told of the alert")

    resolved = factories.notice(
        "alert-flights",
        2,
        status="resolved",
        job="flights",
        job_name="flights",
        began_at=began_at,
        ended_at=clock.now(),
    )
    post(resolved, [endpoint])
    deliver()
    wait_until(lambda: set(alertmanager.alerts()) == {"alert-orders", "alert-other"}, "it resolved")
    wait_until(lambda: told(receiver).get("alert-flights") == "resolved", "it told of the end")
    assert told(receiver)["alert-orders"] == "firing"
