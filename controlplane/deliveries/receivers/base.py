"""The contract of a receiver: a notice and a target in, a request or an e-mail out. Pure."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from controlplane.deliveries.notice import Notice

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint's own part: its address and its keys, decrypted."""

    url: str = ""
    secrets: tuple[str, ...] = ()  # Sign, the newest first.
    routing_key: str = ""
    authorization: str = ""
    recipients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A delivery's part: its notice, and its id, which is the same over all attempts."""

    id: str
    notice: Notice
    sent_at: datetime  # The attempt's.
    source: str  # The URL of this control plane.


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A POST; ``headers`` are those that the kind adds."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """An e-mail in plain text."""

    recipients: tuple[str, ...]
    subject: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Receiver(ABC):
    """One kind of endpoint.

    ``takes`` are the fields of an endpoint's request that the kind has, ``needs`` those that it
    cannot do without; ``url`` is the address of those that give none.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset({"url"})
    needs: ClassVar[frozenset[str]] = frozenset({"url"})
    url: ClassVar[str] = ""
    # The receiver keeps an alert open until it is resolved, that of a test too.
    keeps_open: ClassVar[bool] = False

    @abstractmethod
    def render(self, message: Message, target: Target) -> HttpRequest | Mail:
        """The message in the shape that the endpoint reads."""


def json_request(
    target: Target, document: Any, *, url: str = "", content_type: str = JSON
) -> HttpRequest:
    """A JSON document as a request to the target, with the authorization that it asks for."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"Content-Type": content_type}
    if target.authorization:
        headers["Authorization"] = target.authorization
    return HttpRequest(url=url or target.url, body=body, headers=headers)


def iso(moment: datetime) -> str:
    """A time as RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def evidence_lines(notice: Notice) -> list[str]:
    """The evidence as ``name: value``."""
    return [f"{name}: {value}" for name, value in notice.evidence]
