"""The length of a recovery: from a failure until the job runs again. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from controlplane.alerts.facts import AttemptFacts


@dataclass(frozen=True, slots=True)
class Outage:
    """A time without a running job, from a failure on."""

    began_at: datetime
    ended_at: datetime | None  # None: it lasts.
    cause: str = ""


def last_outage(attempts: Sequence[AttemptFacts]) -> Outage | None:
    """The newest outage of a job; None where its last end was planned, or none.

    An attempt that fails before it runs prolongs the outage.

    Args:
        attempts: The newest first.
    """
    began: datetime | None = None
    over: datetime | None = None
    cause = ""
    for attempt in attempts:
        if attempt.has_failed and attempt.ended_at is not None:
            began, cause = attempt.ended_at, cause or attempt.cause
            if attempt.running_at is not None:
                break  # It ran: the outage begins with its end.
        elif began is None and attempt.ended_at is None:
            over = attempt.running_at
        else:
            break  # A planned end.
    return None if began is None else Outage(began, over, cause)


def recovery_ms(attempts: Sequence[AttemptFacts]) -> float | None:
    """The length of the outage that the first of these attempts ended; None: it ended none.

    Args:
        attempts: The newest first.
    """
    if not attempts or attempts[0].running_at is None:
        return None
    runs = replace(attempts[0], ended_at=None, has_failed=False)
    outage = last_outage((runs, *attempts[1:]))
    if outage is None or outage.ended_at is None:
        return None
    return (outage.ended_at - outage.began_at).total_seconds() * 1_000
