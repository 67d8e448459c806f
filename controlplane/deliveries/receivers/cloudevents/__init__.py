"""CloudEvents 1.0 in structured mode, one event a request, signed as Standard Webhooks are.

Source: CloudEvents 1.0.2, "JSON event format"; "HTTP 1.1 web hooks for event delivery". The
handshake of the latter (``WebHook-Request-Origin``) is not made: an endpoint is an admin's word.
"""

from typing import ClassVar

from controlplane.deliveries.receivers import signing
from controlplane.deliveries.receivers.base import (
    JSON,
    HttpRequest,
    Message,
    Receiver,
    Target,
    iso,
    json_request,
)
from controlplane.deliveries.receivers.webhook import data, event_type

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


class CloudEvents(Receiver):
    """Endpoints that read CloudEvents."""

    kind: ClassVar[str] = "cloudevents"
    title: ClassVar[str] = "CloudEvents 1.0 (signed)"
    takes: ClassVar[frozenset[str]] = frozenset({"url", "secret", "authorization"})

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The signed request; the event's id is the delivery's."""
        notice = message.notice
        document = {
            "specversion": "1.0",
            "id": message.id,
            "source": message.source,
            "type": event_type(notice),
            "subject": notice.alert,
            "time": iso(notice.at),
            "datacontenttype": JSON,
            "data": data(notice),
        }
        request = json_request(target, document, content_type=CONTENT_TYPE)
        return signing.signed(request, message.id, message.sent_at, target.secrets)
