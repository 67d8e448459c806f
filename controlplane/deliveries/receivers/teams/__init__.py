"""Microsoft Teams: an adaptive card for the webhook of a workflow.

All texts are text runs, which read no Markdown: a job's name can make no link.

Source: Microsoft, "Create incoming webhooks with Workflows"; Adaptive Cards schema 1.4.
"""

from typing import Any, ClassVar

from controlplane.deliveries.receivers.base import (
    HttpRequest,
    Message,
    Receiver,
    Target,
    json_request,
)

COLOURS = {"info": "accent", "warning": "warning", "critical": "attention"}
ACTIONS_MAX = 4


class Teams(Receiver):
    """Channels of Teams, by the URL of a workflow that posts cards."""

    kind: ClassVar[str] = "teams"
    title: ClassVar[str] = "Microsoft Teams (Workflows)"

    def render(self, message: Message, target: Target) -> HttpRequest:
        """The request."""
        notice = message.notice
        colour = "good" if notice.status == "resolved" else COLOURS[notice.severity]
        title = {"text": notice.title, "weight": "bolder", "size": "medium", "color": colour}
        body = [_text(title), _text({"text": notice.summary})]
        body += [
            _text({"text": f"{name}: ", "weight": "bolder"}, {"text": value or "–"})
            for name, value in notice.evidence
        ]
        card: dict[str, Any] = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": body,
            "actions": [
                {"type": "Action.OpenUrl", "title": text, "url": url}
                for text, url in notice.links[:ACTIONS_MAX]
            ],
        }
        attachment = {
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": card,
        }
        return json_request(target, {"type": "message", "attachments": [attachment]})


def _text(*runs: dict[str, str]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run} for run in runs]}
