"""The decisions about deliveries and endpoints. Pure: time and chance are arguments.

A **delivery** is *pending* until an attempt succeeds (*delivered*) or no further one is made
(*given up*). An attempt that fails is repeated after a random time below a bound that doubles with
each try (full jitter), so that the retries of many deliveries spread. A day after it was queued a
delivery has its last attempt; each has one at least, however long it waited for the notice before.

An **endpoint** fails from its first failure after a success until its next success. Attempts that
were under way together count as one failure. While it fails, it rests longer and longer between
attempts and has one delivery in flight. ``Retry-After`` holds up the endpoint as a whole, for an
hour at most. A *410 Gone*, or days of failures without a success, disable it.

Source: Standard Webhooks 1.0.0, "Deliverability and reliability"; AWS Architecture Blog,
"Exponential backoff and jitter" (full jitter); RFC 9110, section 10.2.3 (Retry-After).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from uuid import UUID


class DeliveryStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"  # Waits for its turn or its next attempt, or is in flight.
    DELIVERED = "delivered"  # The endpoint took it.
    GIVEN_UP = "given_up"  # Not delivered, and not tried again by itself.


TRANSITIONS: Mapping[DeliveryStatus, Set[DeliveryStatus]] = {
    DeliveryStatus.PENDING: {DeliveryStatus.DELIVERED, DeliveryStatus.GIVEN_UP},
    DeliveryStatus.DELIVERED: {DeliveryStatus.PENDING},  # A person asks for a redelivery.
    DeliveryStatus.GIVEN_UP: {DeliveryStatus.PENDING},  # The same.
}


class Meaning(StrEnum):
    """The meaning of an attempt's end."""

    DELIVERED = "delivered"
    GONE = "gone"  # The receiver does not want to be called any more.
    FAILED = "failed"  # By status, time-out, connection, refused address: tried again.


# By HTTP status, the first range that has it; without a status an attempt has failed. A redirect is
# a failure: following it would lead to an address that no admin named.
MEANINGS: tuple[tuple[range, Meaning], ...] = (
    (range(200, 300), Meaning.DELIVERED),
    (range(410, 411), Meaning.GONE),
    (range(100, 600), Meaning.FAILED),
)

DOUBLINGS_MAX = 30  # Far beyond the bounds of waits, and within those of a timedelta.
FLIGHTS_MAX = 64  # Of one worker.
FLIGHTS_PER_ENDPOINT = 8
FLIGHTS_OF_FAILING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The bounds of retries; settings give them."""

    retry_first: timedelta = timedelta(seconds=5)  # The bound of the first wait; it doubles.
    retry_max: timedelta = timedelta(hours=1)
    give_up_after: timedelta = timedelta(days=1)
    disable_after: timedelta = timedelta(days=3)
    retry_after_max: timedelta = timedelta(hours=1)
    rest_max: timedelta = timedelta(minutes=1)

    @property
    def rest_first(self) -> timedelta:
        """The rest of an endpoint after its second failure in a row; it doubles."""
        return self.retry_first / 5


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt."""

    meaning: Meaning
    began_at: datetime
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The next state of a delivery; ``next_at`` is its next attempt while it is pending."""

    status: DeliveryStatus
    next_at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an endpoint as far as its last attempts tell."""

    failures: int = 0  # In a row.
    failed_at: datetime | None = None  # The last one that counted.
    failing_since: datetime | None = None
    held_until: datetime | None = None  # No attempt before.

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt that counts has failed."""
        return self.failures > 0

    def is_held(self, now: datetime) -> bool:
        """Whether the endpoint rests."""
        return self.held_until is not None and now < self.held_until

    def flights(self, now: datetime) -> int:
        """The number of deliveries that may be in flight to the endpoint."""
        if self.is_held(now):
            return 0
        return FLIGHTS_OF_FAILING if self.is_failing else FLIGHTS_PER_ENDPOINT


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending delivery."""

    id: UUID
    endpoint: UUID
    alert: str
    sequence: int
    next_at: datetime
    tie: tuple[datetime, int] = field(default=(datetime.min, 0))  # Decides between equal times.


def meaning_of(status: int) -> Meaning:
    """The meaning of an HTTP status."""
    return next((said for codes, said in MEANINGS if status in codes), Meaning.FAILED)


def after_attempt(
    *, queued_at: datetime, tries: int, ended: Ended, now: datetime, draw: float, policy: Policy
) -> Step:
    """The next state of a delivery whose attempt number ``tries`` since ``queued_at`` has ended.

    Args:
        draw: A random number, at least 0 and less than 1.
    """
    match ended.meaning:
        case Meaning.DELIVERED:
            return Step(DeliveryStatus.DELIVERED)
        case Meaning.GONE:
            return Step(DeliveryStatus.GIVEN_UP)
    last_at = queued_at + policy.give_up_after
    if now >= last_at:
        attempts = "1 attempt" if tries == 1 else f"{tries} attempts"
        return Step(DeliveryStatus.GIVEN_UP, reason=f"its time ended after {attempts}")
    wait = retry_bound(tries, policy) * draw
    return Step(
        DeliveryStatus.PENDING,
        next_at=max(min(now + wait, last_at), now + held_for(ended, policy)),
    )


def retry_bound(tries: int, policy: Policy) -> timedelta:
    """The longest wait after attempt number ``tries``."""
    return min(policy.retry_max, _doubled(policy.retry_first, tries - 1))


def held_for(ended: Ended, policy: Policy) -> timedelta:
    """The time that the endpoint asked for in ``Retry-After``, bounded."""
    return min(ended.retry_after or timedelta(0), policy.retry_after_max)


def after_end(
    health: Health, ended: Ended, now: datetime, policy: Policy
) -> tuple[Health, str | None]:
    """An endpoint's health after an attempt, and the reason to disable it; None: it stays.

    An attempt that was under way when another one failed says nothing new, failed or not.
    """
    is_another = health.failed_at is None or ended.began_at > health.failed_at
    if ended.meaning is Meaning.DELIVERED:
        return Health() if is_another else health, None
    if ended.meaning is Meaning.GONE:
        return health, "it answered 410 Gone"
    failures = health.failures + is_another
    since = health.failing_since or now
    rest = _rest(failures, policy) if is_another else timedelta(0)
    held_until = now + max(rest, held_for(ended, policy))
    if health.held_until is not None:
        held_until = max(held_until, health.held_until)
    failing = Health(failures, now if is_another else health.failed_at, since, held_until)
    if now - since >= policy.disable_after:
        return failing, f"no attempt has succeeded since {since:%Y-%m-%d %H:%M} UTC"
    return failing, None


def _rest(failures: int, policy: Policy) -> timedelta:
    if failures < 2:
        return timedelta(0)
    return min(policy.rest_max, _doubled(policy.rest_first, failures - 2))


def _doubled(first: timedelta, times: int) -> timedelta:
    return first * (1 << min(times, DOUBLINGS_MAX))


def admitted(
    waiting: Iterable[Waiting],
    endpoints: Mapping[UUID, Health],
    flying: Sequence[tuple[UUID, str]],
    now: datetime,
    free: int,
) -> list[UUID]:
    """The deliveries to send now, at most ``free``, the longest due first.

    Args:
        waiting: Pending deliveries: with one of a line also those before it.
        endpoints: The enabled endpoints.
        flying: Endpoint and alert of each delivery in flight.
    """
    heads: dict[tuple[UUID, str], Waiting] = {}
    for one in waiting:
        line = one.endpoint, one.alert
        if line not in heads or one.sequence < heads[line].sequence:
            heads[line] = one
    busy = set(flying)
    left = Counter({id: health.flights(now) for id, health in endpoints.items()})
    left.subtract(endpoint for endpoint, _ in flying)
    taken: list[UUID] = []
    for line, head in sorted(heads.items(), key=lambda item: (item[1].next_at, item[1].tie)):
        if len(taken) >= free:
            break
        if head.next_at <= now and line not in busy and left[head.endpoint] > 0:
            left[head.endpoint] -= 1
            taken.append(head.id)
    return taken


def parsed_retry_after(value: str | None, now: datetime) -> timedelta | None:
    """The wait that a ``Retry-After`` header asks for: seconds or a date; None: it says nothing."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:10]), 10**9))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return max(timedelta(0), at - now)
