"""An endpoint's URL and secrets, encrypted at rest (``controlplane.secrets.encryption``).

A URL is a secret too: those of Slack and Teams let everyone who has one write into the channel.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from controlplane.deliveries.models import Endpoint
from controlplane.deliveries.receivers.base import Target
from controlplane.secrets import encryption

MASKED_MIN = 8  # Shorter texts are no secrets of their own, and would be stars everywhere.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The parts of an endpoint that no answer shows."""

    url: str = ""
    secret: str = ""  # Signs.
    previous: str = ""  # The secret before, which signs as well until ``previous_until``.
    previous_until: datetime | None = None
    routing_key: str = ""
    authorization: str = ""

    def secrets_at(self, now: datetime) -> tuple[str, ...]:
        """The secrets that sign at a time, the newest first."""
        is_rotating = self.previous_until is not None and now < self.previous_until
        return tuple(filter(None, (self.secret, self.previous if is_rotating else "")))

    def masked(self) -> "Sealed":
        """The same with stars for its secrets, to show what was sent."""
        return replace(
            self,
            routing_key=self.routing_key and "***",
            authorization=self.authorization and "***",
        )

    def repeatable(self) -> tuple[str, ...]:
        """The secret texts that an answer may repeat, the longest first."""
        parts = urlsplit(self.url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        credentials = self.authorization.split()[-1:]
        texts = {self.url, self.secret, self.previous, self.routing_key, self.authorization}
        texts |= {*credentials, path}
        return tuple(sorted((text for text in texts if len(text) >= MASKED_MIN), key=len))[::-1]


def seal(endpoint_id: UUID, sealed: Sealed) -> bytes:
    """The encrypted form.

    Raises:
        Unreadable: No encryption key is set.
    """
    return encryption.encrypt(_name(endpoint_id), msgspec.json.encode(sealed).decode())


def unseal(endpoint: Endpoint) -> Sealed:
    """The parts of an endpoint that are encrypted.

    Raises:
        Unreadable: No key reads them.
    """
    opened = encryption.decrypt(_name(endpoint.pk), bytes(endpoint.sealed))
    return msgspec.json.decode(opened, type=Sealed)


def target(endpoint: Endpoint, sealed: Sealed, now: datetime) -> Target:
    """The endpoint as its receiver's shape needs it."""
    return Target(
        url=sealed.url,
        secrets=sealed.secrets_at(now),
        routing_key=sealed.routing_key,
        authorization=sealed.authorization,
        recipients=tuple(endpoint.recipients),
    )


def rotated(endpoint: Endpoint) -> bytes:
    """The same, encrypted with the first key.

    Raises:
        Unreadable: No key reads it.
    """
    return encryption.rotate(_name(endpoint.pk), bytes(endpoint.sealed))


def _name(endpoint_id: UUID) -> str:
    return f"endpoint {endpoint_id}"
