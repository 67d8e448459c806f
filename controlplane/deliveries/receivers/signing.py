"""Standard Webhooks: signing secrets, and the headers by which a receiver knows the sender.

Source: Standard Webhooks 1.0.0, "Signature scheme" (symmetric, ``v1``).
"""

import base64
import binascii
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from standardwebhooks import Webhook

from controlplane.deliveries.receivers.base import HttpRequest

PREFIX = "whsec_"
SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64


def new_secret() -> str:
    """A new random secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def is_secret(text: str) -> bool:
    """Whether a text is a signing secret: ``whsec_`` and 24 to 64 bytes in base64."""
    if not text.startswith(PREFIX):
        return False
    try:
        raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return False
    return SECRET_BYTES_MIN <= len(raw) <= SECRET_BYTES_MAX


def signed(
    request: HttpRequest, message_id: str, sent_at: datetime, secrets: Sequence[str]
) -> HttpRequest:
    """The request with the three headers; the signatures of several secrets stand side by side."""
    text = request.body.decode()
    signatures = [Webhook(secret).sign(message_id, sent_at, text) for secret in secrets]
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
    return replace(request, headers={**request.headers, **headers})
