"""Deliveries and their attempts as the log shows them."""

import json
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from controlplane.base.formatting import duration, milliseconds_between
from controlplane.deliveries import shown
from controlplane.deliveries.models import PENDING, Delivery, DeliveryAttempt
from controlplane.deliveries.notice import Notice
from controlplane.deliveries.shown import ShownRequest
from frontend.base import status

OUTCOMES = {
    "delivered": {"text": "Delivered", "tone": "good"},
    "failed": {"text": "Failed", "tone": "bad"},
    "interrupted": {"text": "Interrupted", "tone": "warn"},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One delivery."""

    id: UUID
    message_id: str
    alert: str
    endpoint: str
    endpoint_id: UUID
    is_endpoint_deleted: bool
    status: dict[str, str]
    notice: dict[str, str]
    rule: str
    job: str | None
    attempts: int
    created_at: datetime
    settled_at: datetime | None
    next_at: datetime | None
    error: str


def row(delivery: Delivery, now: datetime) -> Row:
    """The delivery of a row with its endpoint."""
    is_flying = delivery.is_flying(now)
    return Row(
        id=delivery.pk,
        message_id=delivery.message_id,
        alert=delivery.alert,
        endpoint=delivery.endpoint.name,
        endpoint_id=delivery.endpoint_id,
        is_endpoint_deleted=delivery.endpoint.deleted_at is not None,
        status=status.of_delivery(
            delivery.status, is_flying=is_flying, is_retried=delivery.tries > 0
        ),
        notice=status.of_notice(delivery.notice_status, delivery.severity),
        rule=delivery.rule,
        job=delivery.job,
        attempts=delivery.attempts,
        created_at=delivery.created_at,
        settled_at=delivery.settled_at,
        next_at=None if is_flying or not delivery.endpoint.is_enabled else _next_at(delivery),
        error=delivery.error if delivery.status != "delivered" else "",
    )


def _next_at(delivery: Delivery) -> datetime | None:
    """The next attempt: the delivery's own time, or the endpoint's where that is later."""
    held_until = delivery.endpoint.held_until
    if delivery.status != PENDING or delivery.next_at is None or held_until is None:
        return delivery.next_at
    return max(delivery.next_at, held_until)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt with the endpoint's answer."""

    number: int
    began_at: datetime | None
    duration: str
    outcome: dict[str, str]
    status_code: int | None
    address: str
    error: str
    headers: list[tuple[str, str]]
    body: str


def attempts(delivery: Delivery) -> list[Attempt]:
    """The newest attempts, the newest first. One query."""
    return [_attempt(one) for one in shown.newest_attempts(delivery)]


def _attempt(one: DeliveryAttempt) -> Attempt:
    return Attempt(
        number=one.number,
        began_at=one.began_at,
        duration=duration(milliseconds_between(one.began_at, one.ended_at)),
        outcome=OUTCOMES[one.outcome],
        status_code=one.status_code,
        address=one.address,
        error=one.error,
        headers=[(str(name), str(value)) for name, value in one.headers.items()],
        body=one.body,
    )


def readable_notice(delivery: Delivery) -> Notice | None:
    """The notice; None: it was written in another shape."""
    try:
        return Notice.from_json(delivery.notice)
    except msgspec.ValidationError:
        return None


def readable_request(delivery: Delivery) -> ShownRequest | None:
    """The request with its JSON indented; None: the endpoint is deleted, or no key reads it."""
    try:
        request = shown.shown_request(delivery)
    except msgspec.ValidationError:
        return None
    if request is None or not request.body.startswith(("{", "[")):
        return request
    document = json.loads(request.body)
    indented = json.dumps(document, indent=2, ensure_ascii=False)
    return ShownRequest(request.to, request.headers, indented)
