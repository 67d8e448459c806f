"""E-mail in plain text. The mails of one alert are one thread.

Source: RFC 5322, section 3.6.4 (``Message-ID``, ``In-Reply-To``, ``References``).
"""

from typing import ClassVar
from urllib.parse import urlsplit

from controlplane.deliveries.receivers.base import (
    Mail,
    Message,
    Receiver,
    Target,
    evidence_lines,
    iso,
)


class Email(Receiver):
    """Addresses of e-mail."""

    kind: ClassVar[str] = "email"
    title: ClassVar[str] = "E-mail"
    takes: ClassVar[frozenset[str]] = frozenset({"recipients"})
    needs: ClassVar[frozenset[str]] = frozenset({"recipients"})

    def render(self, message: Message, target: Target) -> Mail:
        """The mail; its id is the delivery's, that of the thread is the alert's."""
        notice = message.notice
        host = urlsplit(message.source).hostname or "weir"
        times = [f"began: {iso(notice.began_at)}"]
        if notice.ended_at is not None:
            times.append(f"ended: {iso(notice.ended_at)}")
        links = [f"{text}: {url}" for text, url in notice.links]
        parts = [[notice.summary], evidence_lines(notice), times, links]
        thread = f"<alert.{_word(notice.alert)}@{host}>"
        return Mail(
            recipients=target.recipients,
            subject=_line(f"[Weir] {notice.title}"),
            text="\n\n".join("\n".join(lines) for lines in parts if lines) + "\n",
            headers={
                "Message-ID": f"<{message.id}@{host}>",
                "In-Reply-To": thread,
                "References": thread,
                "Auto-Submitted": "auto-generated",
            },
        )


def _line(text: str) -> str:
    return " ".join(text.split())  # A line break would end the header.


def _word(text: str) -> str:
    return "".join(one if one.isalnum() and one.isascii() else "-" for one in text)
