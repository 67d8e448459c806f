"""The only writers of silences. Each change leaves an audit entry."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from controlplane.accounts.models import User
from controlplane.alerts import rules
from controlplane.alerts.errors import SilenceOver
from controlplane.alerts.models import Rule, Silence
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import Problems, existing

LONGEST = timedelta(days=90)


def listed() -> QuerySet[Silence]:
    """All silences, with their rules."""
    return Silence.objects.select_related("rule")


def create(actor: User | None, given: Mapping[str, Any]) -> Silence:
    """Create a silence; without a scope it is about every alert.

    Args:
        given: ``until_at`` and ``reason``; ``from_at``, now unless given; ``rule`` (its id),
            ``job``, ``job_pattern`` and ``severity``.

    Raises:
        Invalid: A field is malformed.
    """
    now = clock.now()
    from_at: datetime = given.get("from_at") or now
    until_at: datetime = given["until_at"]
    job, pattern = given.get("job", ""), given.get("job_pattern", "")
    problems = Problems()
    if until_at <= max(from_at, now):
        problems.add("until_at", "Give a time to come, after the begin.")
    elif until_at - max(from_at, now) > LONGEST:
        problems.add("until_at", f"A silence lasts {LONGEST.days} days at most.")
    if not given["reason"].strip():
        problems.add("reason", "Say why, for those who wonder later.")
    if job and pattern:
        problems.add("job_pattern", "Give a job or a pattern of names, not both.")
    rules.check_pattern(problems, pattern)
    rule_id = given.get("rule")
    rule = None if rule_id is None else Rule.objects.filter(pk=rule_id).first()
    if rule_id is not None and rule is None:
        problems.add("rule", f"There is no rule {rule_id}.")
    problems.refuse("The silence cannot be stored")
    with transaction.atomic():
        silence = Silence.objects.create(
            rule=rule,
            job=job,
            job_pattern=pattern,
            severity=given.get("severity", ""),
            from_at=from_at,
            until_at=until_at,
            reason=given["reason"].strip(),
            created_at=now,
            created_by=actor,
            created_by_name="control plane" if actor is None else actor.get_username(),
        )
        record(actor, "silence.create", f"silence/{silence.pk}", after=_told(silence))
    return silence


@transaction.atomic
def end(actor: User | None, silence_id: UUID) -> Silence:
    """End a silence now; alerts that still fire are then told.

    Raises:
        NotFound: There is no such silence.
        SilenceOver: It is over.
    """
    silence = existing(
        listed().select_for_update(of=("self",)).filter(pk=silence_id),
        f"There is no silence {silence_id}.",
    )
    now = clock.now()
    if silence.until_at <= now:
        raise SilenceOver("The silence is over.")
    silence.until_at = silence.ended_at = now
    silence.ended_by_name = "control plane" if actor is None else actor.get_username()
    silence.save(update_fields=["until_at", "ended_at", "ended_by_name"])
    record(actor, "silence.end", f"silence/{silence.pk}", before=_told(silence))
    return silence


def _told(silence: Silence) -> dict[str, Any]:
    return {
        "rule": silence.rule.name if silence.rule else None,
        "job": silence.job,
        "job_pattern": silence.job_pattern,
        "severity": silence.severity,
        "from": silence.from_at.isoformat(),
        "until": silence.until_at.isoformat(),
        "reason": silence.reason,
    }
