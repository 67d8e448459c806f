"""The webhook of an Alertmanager, version 4: for receivers that were made for one.

Each request is a group of one alert; the group's key is the alert's.

Source: prometheus/alertmanager ``docs/configuration.md``, ``<webhook_config>``.
"""

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

NO_END = "0001-01-01T00:00:00Z"  # Go's zero time, which the format has for alerts without an end.


class AlertmanagerWebhook(Receiver):
    """Endpoints that read an Alertmanager's webhook."""

    kind: ClassVar[str] = "alertmanager_webhook"
    title: ClassVar[str] = "Alertmanager webhook (version 4)"
    takes: ClassVar[frozenset[str]] = frozenset({"url", "authorization"})

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The request with a group of one alert."""
        notice = message.notice
        labels, annotations = prometheus.labels(notice), prometheus.annotations(notice)
        status = "resolved" if notice.status == "resolved" else "firing"
        document: dict[str, Any] = {
            "version": "4",
            "groupKey": f"weir:{notice.alert}",
            "truncatedAlerts": 0,
            "status": status,
            "receiver": "weir",
            "groupLabels": {"alertname": labels["alertname"]},
            "commonLabels": labels,
            "commonAnnotations": annotations,
            "externalURL": message.source,
            "alerts": [
                {
                    "status": status,
                    "labels": labels,
                    "annotations": annotations,
                    "startsAt": iso(notice.began_at),
                    "endsAt": NO_END if notice.ended_at is None else iso(notice.ended_at),
                    "generatorURL": notice.links[0][1] if notice.links else message.source,
                    "fingerprint": prometheus.fingerprint(labels),
                }
            ],
        }
        return json_request(target, document)
