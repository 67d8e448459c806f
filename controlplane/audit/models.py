"""Audit entries, the head of their chain, and the two functions that write entries.

A change is an entry of its own (``record``). Refusals come as often as an attacker likes, so they
are counted (``record_refusal``): one entry for all of one kind and source within an hour, and a
bound on such entries in all, beyond which the sources of an hour share one.
"""

import hashlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.db.models import F

from controlplane.base import clock, logs
from controlplane.base.limits import addresses

if TYPE_CHECKING:  # The stubs' name for the model of ``AUTH_USER_MODEL``, which lies above.
    from django.contrib.auth.models import _User

REFUSAL_ENTRIES_MAX = 1_000  # In an hour.
UNKNOWN_CLIENT = "unknown client"  # No account's name: those have no blanks.
_OTHERS = "others"
_TARGET_LENGTH_MAX = 200


class AuditEntry(models.Model):
    """One change, or the refusals of one kind and source within an hour.

    A null actor is the control plane itself, or for a refusal a client without a known account.
    """

    at = models.DateTimeField()
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_name = models.CharField(max_length=200)  # Kept when the account is deleted.
    action = models.CharField(max_length=64)  # E.g. "job.cancel".
    target = models.CharField(max_length=200, db_index=True)  # E.g. "job/flights-1a2b3c4d".
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    address = models.GenericIPAddressField(null=True)
    request_id = models.CharField(max_length=64, blank=True)
    count = models.PositiveIntegerField(default=1)
    last_at = models.DateTimeField(null=True)  # Of several refusals; ``at`` is the first one's.
    # Of refusals: the hour and the source, by which later ones find the entry.
    fold = models.CharField(max_length=80, null=True, unique=True, editable=False)
    # Its place in the chain and its digest (controlplane.audit.chain); null: not sealed yet.
    number = models.BigIntegerField(null=True, editable=False)
    digest = models.CharField(max_length=64, blank=True, editable=False)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["at", "id"]),
            models.Index(fields=["number"], name="audit_chain"),
        ]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.actor_name}: {self.action} {self.target}"


class AuditChain(models.Model):
    """Both ends of the chain of entries; there is one row, and its lock is the chain's."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    number = models.BigIntegerField(default=0)  # Of the newest sealed entry.
    digest = models.CharField(max_length=64, blank=True)
    removed_number = models.BigIntegerField(default=0)  # Of the last entry that retention removed.
    removed_digest = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(id=1), name="audit_chain_single"),
        ]

    def __str__(self) -> str:
        return f"entries {self.removed_number + 1} to {self.number}"


def record(
    actor: "_User | None",
    action: str,
    target: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Note a change, in the transaction that makes it.

    Address and request id come from the request under way (``controlplane.base.logs``), if any.
    """
    context = logs.current()
    return AuditEntry.objects.create(
        at=clock.now(),
        actor=actor,
        actor_name="control plane" if actor is None else actor.get_username(),
        action=action,
        target=target,
        before=before,
        after=after,
        address=addresses.plain(context.get("address")),
        request_id=context.get("request_id", ""),
    )


def record_refusal(
    actor: "_User | None",
    action: str,
    target: str,
    *,
    after: dict[str, Any] | None = None,
) -> None:
    """Count a refused request, by its action, its source and the hour.

    The source is the account, or without one the address of the request under way and the target.
    """
    context, now = logs.current(), clock.now()
    address = addresses.plain(context.get("address"))
    hour = f"{now:%Y%m%d%H}"
    source = addresses.source(address) if actor is None else f"user {actor.pk}"
    fold = f"{hour}:{_digest(action, source, target)}"
    if _count_again(fold, now):
        return
    if AuditEntry.objects.filter(fold__startswith=f"{hour}:").count() >= REFUSAL_ENTRIES_MAX:
        actor, address, target, after = None, None, _OTHERS, None
        fold = f"{hour}:{_digest(action, _OTHERS, _OTHERS)}"
        if _count_again(fold, now):
            return
    try:
        with transaction.atomic():
            AuditEntry.objects.create(
                at=now,
                actor=actor,
                actor_name=UNKNOWN_CLIENT if actor is None else actor.get_username(),
                action=action,
                target=target[:_TARGET_LENGTH_MAX],
                after=after,
                address=address,
                request_id=context.get("request_id", ""),
                fold=fold,
            )
    except IntegrityError:  # A concurrent refusal made the entry.
        _count_again(fold, now)


def _count_again(fold: str, now: datetime) -> bool:
    # A sealed entry never changes; its hour is long over unless the clock was set back by hours.
    entries = AuditEntry.objects.filter(fold=fold, number=None)
    changed = entries.update(count=F("count") + 1, last_at=now)
    return changed == 1


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
