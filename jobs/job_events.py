"""Job events: one row for each fact about a job, written with what it tells of and read in order.

Writing: ``record`` and ``record_all`` insert rows in the transaction that makes the facts true, so
that neither exists without the other. Under the job's lock the ids of its events grow in the order
in which its facts became true; only ends of previews, comparisons and deletions come without it.

Reading: ids are given out in one order, and transactions commit in another. A reader that remembers
the highest id that it has seen would pass over an event with a lower id whose transaction commits
later. ``after`` therefore ends before the first id that a transaction under way may still fill::

    id            41          42                 43
    transaction   committed   under way          committed
    after(40) ->  [41]        held back with it  held back until 42 is known

Each writing transaction takes a shared advisory lock on the last id that was given out before its
own, so all its ids are higher. The least lock that another transaction holds bounds what may be
read. No transaction waits for these locks, and one that writes no events delays no reader.

A reader keeps one number, the id of the last event that it took in, in the transaction in which it
acts on it. It needs the isolation level READ COMMITTED: each statement looks anew. Events older
than their retention are deleted; a reader that was away for longer goes on with the oldest that is
left.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import connection

from jobs.headlines import headline
from jobs.models import Job, JobEvent, JobEventKind
from jobs.storable_text import storable

READ_MAX = 1_000

_LOCKS = 0x57454952  # The class of advisory locks on ids: two 32-bit keys, so no name meets them.
_KEY_MASK = 0x7FFFFFFF  # A lock's second key holds the lower 31 bits of an id.

_GIVEN_OUT = """
    SELECT coalesce(max(last_value), 0) FROM pg_sequences
    WHERE schemaname = current_schema() AND sequencename = 'jobs_jobevent_id_seq'
"""
_ANNOUNCE = f"SELECT pg_advisory_xact_lock_shared(%s, (({_GIVEN_OUT}) & %s)::int)"
# How far the ids reach back that others may be filling. A difference beyond half of the range is
# that of a writer that began after ``_GIVEN_OUT`` was read.
_HELD_BACK = """
    SELECT coalesce(max(back) FILTER (WHERE back <= %(mask)s / 2), 0)
    FROM (
        SELECT (%(given_out)s - objid::bigint) & %(mask)s AS back
        FROM pg_locks
        WHERE locktype = 'advisory' AND classid = %(locks)s AND objsubid = 2
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND pid <> pg_backend_pid()
    ) AS others
"""


def event(
    job: Job | str,
    kind: JobEventKind,
    at: datetime,
    /,
    *,
    planned: bool = False,
    reason: str = "",
    **facts: Any,
) -> JobEvent:
    """A new event for ``record_all``; of each text its headline is kept."""
    return JobEvent(
        job_id=job if isinstance(job, str) else job.pk,
        kind=kind,
        at=at,
        planned=planned,
        reason=reason,
        facts={name: _bounded(fact) for name, fact in facts.items() if fact not in (None, "")},
    )


def record(
    job: Job | str,
    kind: JobEventKind,
    at: datetime,
    /,
    *,
    planned: bool = False,
    reason: str = "",
    **facts: Any,
) -> None:
    """Record a fact in the transaction that makes it one."""
    record_all([event(job, kind, at, planned=planned, reason=reason, **facts)])


def record_all(events: Iterable[JobEvent]) -> None:
    """Record facts, in their order."""
    rows = list(events)
    if not rows:
        return
    if not connection.in_atomic_block:
        raise AssertionError("an event is recorded in the transaction of its fact")
    with connection.cursor() as cursor:
        cursor.execute(_ANNOUNCE, [_LOCKS, _KEY_MASK])
    JobEvent.objects.bulk_create(rows)


def after(position: int, *, job_id: str | None = None, limit: int = READ_MAX) -> list[JobEvent]:
    """The events of all jobs, or of one, after an id: in order, and final up to the last of them.

    Events that a transaction under way could still precede are left to the next call.
    """
    with connection.cursor() as cursor:
        # In this order: an id that is given out later is higher, and an event whose transaction has
        # ended by the second statement is visible to the third.
        cursor.execute(_GIVEN_OUT)
        (given_out,) = cursor.fetchone()
        cursor.execute(_HELD_BACK, {"given_out": given_out, "mask": _KEY_MASK, "locks": _LOCKS})
        (held_back,) = cursor.fetchone()
    settled = JobEvent.objects.filter(pk__gt=position, pk__lte=given_out - held_back)
    if job_id is not None:
        settled = settled.filter(job_id=job_id)
    return list(settled.order_by("pk")[:limit])


def _bounded(fact: Any) -> Any:
    if not isinstance(fact, str):
        return fact
    return storable(headline(fact))
