"""Slack's incoming webhooks: a coloured attachment of blocks, and a text for notifications.

Source: Slack, "Sending messages using incoming webhooks"; "Formatting message text" (escaping).
"""

from typing import Any, ClassVar

from controlplane.deliveries.notice import Notice
from controlplane.deliveries.receivers.base import (
    HttpRequest,
    Message,
    Receiver,
    Target,
    json_request,
)

COLOURS = {"info": "#2f6fde", "warning": "#c98a00", "critical": "#c62828"}
RESOLVED = "#2e7d32"
FIELDS_MAX = 10  # Of a section.


class Slack(Receiver):
    """Slack channels, by the URL of an incoming webhook."""

    kind: ClassVar[str] = "slack"
    title: ClassVar[str] = "Slack"

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The request."""
        notice = message.notice
        blocks: list[dict[str, Any]] = [
            _section(f"*{escaped(notice.title)}*\n{escaped(notice.summary)}")
        ]
        if notice.evidence:
            fields = [
                {"type": "mrkdwn", "text": f"*{escaped(name)}*\n{escaped(value) or '–'}"}
                for name, value in notice.evidence[:FIELDS_MAX]
            ]
            blocks.append({"type": "section", "fields": fields})
        if notice.links:
            links = " · ".join(f"<{escaped(url)}|{_link_text(text)}>" for text, url in notice.links)
            blocks.append(_section(links))
        document = {
            "text": escaped(f"{notice.title}: {notice.summary}"),
            "attachments": [{"color": colour(notice), "blocks": blocks}],
        }
        return json_request(target, document)


def escaped(text: str) -> str:
    """A text without the three characters that are Slack's control characters."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def colour(notice: Notice) -> str:
    """The colour of a notice's edge."""
    return RESOLVED if notice.status == "resolved" else COLOURS[notice.severity]


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _link_text(text: str) -> str:
    return escaped(text).replace("|", "¦")  # A bar would end the link's address.
