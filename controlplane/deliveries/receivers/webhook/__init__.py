"""Weir's own JSON, signed.

The document has ``type``, ``timestamp`` and ``data``, as Standard Webhooks asks for.
"""

from typing import Any, ClassVar

from controlplane.deliveries.notice import Notice
from controlplane.deliveries.receivers import signing
from controlplane.deliveries.receivers.base import (
    HttpRequest,
    Message,
    Receiver,
    Target,
    iso,
    json_request,
)


class Webhook(Receiver):
    """Endpoints that read Weir's own JSON."""

    kind: ClassVar[str] = "webhook"
    title: ClassVar[str] = "Webhook (signed JSON)"
    takes: ClassVar[frozenset[str]] = frozenset({"url", "secret", "authorization"})

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The signed request."""
        notice = message.notice
        document = {"type": event_type(notice), "timestamp": iso(notice.at), "data": data(notice)}
        return signing.signed(
            json_request(target, document), message.id, message.sent_at, target.secrets
        )


def event_type(notice: Notice) -> str:
    """The kind of event, in dotted words."""
    return f"weir.alert.{notice.status}"


def data(notice: Notice) -> dict[str, Any]:
    """The notice as JSON for receivers."""
    return {
        "alert": notice.alert,
        "sequence": notice.sequence,
        "status": notice.status,
        "severity": notice.severity,
        "rule": notice.rule,
        "summary": notice.summary,
        "evidence": [{"name": name, "value": value} for name, value in notice.evidence],
        "labels": dict(notice.labels),
        "links": [{"text": text, "url": url} for text, url in notice.links],
        "job": notice.job,
        "job_name": notice.job_name,
        "began_at": iso(notice.began_at),
        "ended_at": None if notice.ended_at is None else iso(notice.ended_at),
    }
