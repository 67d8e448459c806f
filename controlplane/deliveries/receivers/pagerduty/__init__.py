"""PagerDuty's Events API v2: an alert triggers an incident and resolves it by its id.

Source: PagerDuty, "PD-CEF" and "Send an alert event" (``POST /v2/enqueue``).
"""

from typing import Any, ClassVar

from controlplane.deliveries.receivers.base import (
    HttpRequest,
    Message,
    Receiver,
    Target,
    iso,
    json_request,
)


class PagerDuty(Receiver):
    """Integrations of PagerDuty's services, by their routing key."""

    kind: ClassVar[str] = "pagerduty"
    title: ClassVar[str] = "PagerDuty (Events API v2)"
    takes: ClassVar[frozenset[str]] = frozenset({"url", "routing_key"})
    needs: ClassVar[frozenset[str]] = frozenset({"routing_key"})
    url: ClassVar[str] = "https://events.pagerduty.com/v2/enqueue"
    keeps_open: ClassVar[bool] = True

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The request; a notice that resolves needs no more than the alert's id."""
        notice = message.notice
        document: dict[str, Any] = {
            "routing_key": target.routing_key,
            "event_action": "resolve" if notice.status == "resolved" else "trigger",
            "dedup_key": notice.alert,
            "client": "Weir",
            "client_url": message.source,
            "payload": {
                "summary": f"{notice.title}: {notice.summary}",
                "source": notice.job_name or notice.job or message.source,
                "severity": notice.severity,
                "timestamp": iso(notice.at),
                "class": notice.rule,
                "custom_details": dict(notice.evidence) | dict(notice.labels),
            },
            "links": [{"href": url, "text": text} for text, url in notice.links],
        }
        if notice.job is not None:
            document["payload"]["component"] = notice.job
        return json_request(target, document)
