"""A delivery as people see it: its request with stars for secrets, and its newest attempts."""

from dataclasses import dataclass

from controlplane.base import clock
from controlplane.base.errors import Refusal
from controlplane.deliveries import sealing
from controlplane.deliveries.dispatcher import rendered
from controlplane.deliveries.models import Delivery, DeliveryAttempt
from controlplane.deliveries.receivers.base import Mail

ATTEMPTS_SHOWN = 100
_OF_ATTEMPTS = ("webhook-timestamp", "webhook-signature")  # Another one each time.


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """A request without its secrets."""

    to: str  # The URL's origin, or the recipients.
    headers: dict[str, str]
    body: str


def shown_request(delivery: Delivery) -> ShownRequest | None:
    """The request as it is sent now; None: the endpoint is deleted, or no key reads it."""
    endpoint = delivery.endpoint
    if endpoint.deleted_at is not None:
        return None
    try:
        sealed = sealing.unseal(endpoint).masked()
    except Refusal:  # No key reads it.
        return None
    made = rendered(delivery, sealed, clock.now())
    if isinstance(made, Mail):
        headers = {"Subject": made.subject, **made.headers}
        return ShownRequest(", ".join(made.recipients), headers, made.text)
    headers = {name: value for name, value in made.headers.items() if name not in _OF_ATTEMPTS}
    return ShownRequest(endpoint.origin, headers, made.body.decode())


def newest_attempts(delivery: Delivery) -> list[DeliveryAttempt]:
    """At most ``ATTEMPTS_SHOWN`` attempts that have ended, the newest first."""
    return list(delivery.ended_attempts.order_by("-number")[:ATTEMPTS_SHOWN])
