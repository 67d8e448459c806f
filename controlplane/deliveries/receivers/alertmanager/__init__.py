"""A Prometheus Alertmanager, by its API v2: it groups, silences and routes the alerts.

An Alertmanager resolves an alert by itself some minutes after it last heard of it, unless the alert
says when it ends. An alert of Weir's ends when Weir says so: until then its end is far away.

Source: prometheus/alertmanager ``api/v2/openapi.yaml``, ``postableAlerts``.
"""

from datetime import timedelta
from typing import Any, ClassVar

from controlplane.deliveries.receivers import prometheus
from controlplane.deliveries.receivers.base import (
    HttpRequest,
    Message,
    Receiver,
    Target,
    iso,
    json_request,
)

PATH = "/api/v2/alerts"
OPEN_FOR = timedelta(days=365)


class Alertmanager(Receiver):
    """Alertmanagers; the URL is that of their pages, or ends in ``/api/v2/alerts``."""

    kind: ClassVar[str] = "alertmanager"
    title: ClassVar[str] = "Prometheus Alertmanager (API v2)"
    takes: ClassVar[frozenset[str]] = frozenset({"url", "authorization"})
    keeps_open: ClassVar[bool] = True

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The request with one alert."""
        notice = message.notice
        ends_at = notice.ended_at if notice.status == "resolved" else None
        alert: dict[str, Any] = {
            "labels": prometheus.labels(notice),
            "annotations": prometheus.annotations(notice),
            "startsAt": iso(notice.began_at),
            "endsAt": iso(ends_at or notice.began_at + OPEN_FOR),
        }
        if notice.links:
            alert["generatorURL"] = notice.links[0][1]
        base = target.url.rstrip("/").removesuffix(PATH)
        return json_request(target, [alert], url=base + PATH)
