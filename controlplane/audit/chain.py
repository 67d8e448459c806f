"""The chain of audit entries: each sealed entry's digest covers its content and the digest before.

::

    entry 41 ── digest ──> entry 42 ── digest ──> entry 43      AuditChain: 43 and its digest
    (removed; its digest                                        AuditChain: 41 and its digest
     is kept)

So an entry that is changed, deleted, inserted or put elsewhere breaks the chain at its place, and
one that is cut off at either end disagrees with the row of both ends. A person who can write to the
database can forge the whole chain as well: ``verify`` returns the head, and a copy of it that is
kept elsewhere (``expected``) shows that, too.

**Sealing** comes after writing. A lock on the chain in the transaction that writes an entry would
let every change of the control plane wait for every other one. So entries are written free, and
``seal`` numbers those that have committed, a batch at a time. Numbers have no gaps; ids, which
rolled-back transactions leave out, have. An entry that counts refusals is sealed once its hour is
over, since it changes until then.

**The content** of an entry is everything that never changes: the account by its name, not by its
row, which may be deleted.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from controlplane.audit.models import AuditChain, AuditEntry, record
from controlplane.base import clock
from controlplane.base.ticks import Budget

FORMAT = 1
BATCH = 1_000
# From the start of a refusal's hour on; its last count may come a little later than the hour ends.
COUNTED_FOR = timedelta(hours=2)
PROBLEMS_MAX = 20

_CONTENT = (
    *("id", "at", "actor_name", "action", "target", "before", "after", "address", "request_id"),
    *("count", "last_at"),
)


@dataclass(slots=True)
class Verified:
    """The result of a verification."""

    first: int = 0
    last: int = 0
    digest: str = ""  # Of the last entry.
    count: int = 0
    waiting: int = 0  # Entries that are not sealed yet.
    problems: list[str] = field(default_factory=list)
    has_more_problems: bool = False

    def add(self, problem: str) -> None:
        """Add a problem; beyond ``PROBLEMS_MAX`` only that there are more."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        else:
            self.has_more_problems = True


def seal(budget: Budget) -> int:
    """Seal the entries that have committed; return their number, 0 where another process does.

    The order is that of the entries' ids, as far as their transactions have committed.
    """
    count = 0
    while not budget.is_spent:
        sealed = _seal_batch()
        count += sealed
        if sealed < BATCH:
            break
    return count


def _seal_batch() -> int:
    with transaction.atomic():
        chain = _locked(skip_locked=True)
        if chain is None:
            return 0
        is_final = Q(fold=None) | Q(at__lt=clock.now() - COUNTED_FOR)
        entries = list(AuditEntry.objects.filter(is_final, number=None).order_by("id")[:BATCH])
        if not entries:
            return 0
        for entry in entries:
            entry.number = chain.number = chain.number + 1
            entry.digest = chain.digest = digest(chain.digest, entry)
        _write(entries)
        chain.save(update_fields=["number", "digest"])
        return len(entries)


def digest(before: str, entry: AuditEntry) -> str:
    """The digest of a numbered entry behind the one with the digest ``before``."""
    content = {name: _plain(getattr(entry, name)) for name in _CONTENT}
    content |= {"format": FORMAT, "number": entry.number, "previous": before}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _write(entries: Sequence[AuditEntry]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE audit_auditentry entry SET number = one.number, digest = one.digest "
            "FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS one (id, number, digest) "
            "WHERE entry.id = one.id",
            [
                [entry.pk for entry in entries],
                [entry.number for entry in entries],
                [entry.digest for entry in entries],
            ],
        )


def _locked(*, skip_locked: bool = False) -> AuditChain | None:
    """The chain, locked until the transaction ends; None where another process holds it."""
    AuditChain.objects.get_or_create(id=1)
    return AuditChain.objects.select_for_update(skip_locked=skip_locked).filter(id=1).first()


# Verification -------------------------------------------------------------------------------------


def verify(expected: tuple[int, str] | None = None) -> Verified:
    """Verify the chain from its first kept entry to its head.

    Nothing is sealed or removed meanwhile; entries are written all the same.

    Args:
        expected: Number and digest of an entry, noted earlier, that the chain has to hold.
    """
    with transaction.atomic():
        chain = _locked()
        assert chain is not None  # Without skip_locked the lock is waited for.
        result = Verified(first=chain.removed_number + 1, digest=chain.removed_digest)
        result.last = chain.removed_number
        seen = expected is None or expected == (chain.removed_number, chain.removed_digest)
        for entry in _chained():
            number = _checked_number(entry, result)
            if entry.digest != digest(result.digest, entry):
                result.add(
                    f"entry {number} ({entry.action} {entry.target}, {entry.at:%Y-%m-%d %H:%M:%S}) "
                    "does not have the content that it was sealed with, or not its predecessor"
                )
            result.last, result.digest = number, entry.digest
            result.count += 1
            seen = seen or expected == (number, entry.digest)
        if (result.last, result.digest) != (chain.number, chain.digest):
            result.add(
                f"the chain ends with entry {result.last}, and its head is entry {chain.number}: "
                "the newest entries are missing, or the head was changed"
            )
        if expected is not None and not seen:
            if expected[0] < chain.removed_number:
                reason = "retention has removed it; give a newer one"
            else:
                reason = "the log was forged, or is another control plane's"
            result.add(f"entry {expected[0]} with the digest {expected[1]} is missing: {reason}")
        result.waiting = AuditEntry.objects.filter(number=None).count()
        return result


def _checked_number(entry: AuditEntry, result: Verified) -> int:
    """The entry's number, which has to follow the last one."""
    assert entry.number is not None
    following = result.last + 1
    if entry.number < result.first:
        result.add(f"entry {entry.number} is there, although retention has removed its number")
    elif entry.number < following:
        result.add(f"the number {entry.number} is there twice")
    elif entry.number == following + 1:
        result.add(f"entry {following} is missing")
    elif entry.number > following:
        result.add(f"entries {following} to {entry.number - 1} are missing")
    return entry.number


def _chained() -> Iterator[AuditEntry]:
    """All sealed entries in the order of their numbers, a batch at a time."""
    after = (0, 0)
    while True:
        rows = AuditEntry.objects.filter(number__gte=after[0]).exclude(
            number=after[0], pk__lte=after[1]
        )
        batch = list(rows.order_by("number", "pk")[:BATCH])
        if not batch:
            return
        yield from batch
        assert batch[-1].number is not None
        after = (batch[-1].number, batch[-1].pk)


# Removal ------------------------------------------------------------------------------------------


def remove(older: datetime, budget: Budget) -> int:
    """Remove the sealed entries from before ``older``, oldest numbers first; return how many.

    The removal is an entry itself, with the number and the digest of the last one removed. An entry
    stays while one with a lower number is younger.
    """
    count = 0
    while not budget.is_spent:
        removed = _remove_batch(older)
        count += removed
        if removed < BATCH:
            break
    return count


def _remove_batch(older: datetime) -> int:
    with transaction.atomic():
        chain = _locked(skip_locked=True)
        if chain is None:
            return 0
        rows = AuditEntry.objects.filter(number__gt=chain.removed_number)
        batch = list(rows.order_by("number").only("number", "at", "digest")[:BATCH])
        kept = next((at for at, entry in enumerate(batch) if entry.at >= older), len(batch))
        if kept == 0:
            return 0
        last = batch[kept - 1]
        before = {"from": chain.removed_number + 1}
        assert last.number is not None
        chain.removed_number, chain.removed_digest = last.number, last.digest
        chain.save(update_fields=["removed_number", "removed_digest"])
        AuditEntry.objects.filter(pk__in=[entry.pk for entry in batch[:kept]]).delete()
        record(
            None,
            "audit.remove",
            "audit",
            before=before,
            after={"up_to": last.number, "digest": last.digest, "older_than": older.isoformat()},
        )
        return kept
