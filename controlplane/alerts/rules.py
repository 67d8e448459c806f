"""The only writers of rules. Each change leaves an audit entry."""

import re
from collections.abc import Collection, Mapping
from fnmatch import translate
from typing import Any
from uuid import UUID

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet

from controlplane.accounts.models import User
from controlplane.alerts import alerting
from controlplane.alerts.errors import RuleNameTaken
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import NAME_LENGTH_MAX, Evaluator, Rule
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import Problems, existing
from controlplane.deliveries.models import Endpoint

HOLD_MAX_S = COOLDOWN_MAX_S = 7 * 86_400
FIELDS = (
    *("name", "description", "parameters", "job", "job_pattern", "severity", "hold_s"),
    *("cooldown_s", "is_enabled", "to_all_endpoints"),
)
# A change of these ends the alerts that fired for what the rule said before.
_CONDITION = ("parameters", "job", "job_pattern", "severity")


def listed() -> QuerySet[Rule]:
    """All rules, with their endpoints."""
    return Rule.objects.prefetch_related("endpoints")


def one(rule_id: UUID) -> Rule:
    """One rule.

    Raises:
        NotFound: There is none with this id.
    """
    return existing(listed().filter(pk=rule_id), f"There is no rule {rule_id}.")


def create(actor: User | None, kind: str, given: Mapping[str, Any]) -> Rule:
    """Create a rule.

    Args:
        given: ``name`` and ``severity``; the others of ``FIELDS`` and ``endpoints``, ids of those
            that its alerts go to, where not to all.

    Raises:
        Invalid: A field is malformed.
        RuleNameTaken: Another rule has the name.
    """
    now = clock.now()
    rule = Rule(
        kind=kind,
        created_at=now,
        changed_at=now,
        created_by=actor,
        created_by_name="control plane" if actor is None else actor.get_username(),
    )
    chosen = fill(rule, given)
    with transaction.atomic():
        alerting.lock()
        _save(rule, force_insert=True)
        rule.endpoints.set(chosen or ())
        bump_version()
        record(actor, "rule.create", _target(rule), after=_told(rule))
    return rule


def change(actor: User | None, rule_id: UUID, given: Mapping[str, Any]) -> Rule:
    """Change the fields that are given; the kind stays. A rule that was set aside is tried again.

    Alerts that it fired are resolved if its condition changes, or it is disabled.

    Raises:
        NotFound: There is no such rule.
        Invalid: As ``create``.
        RuleNameTaken: Another rule has the name.
    """
    with transaction.atomic():
        alerting.lock()
        rule = one(rule_id)
        before, told = {name: getattr(rule, name) for name in FIELDS}, _told(rule)
        chosen = fill(rule, given)
        now = clock.now()
        rule.problem, rule.set_aside_at, rule.changed_at = "", None, now
        _save(rule)
        if chosen is not None:
            rule.endpoints.set(chosen)
        if not rule.is_enabled:
            alerting.resolve_of(rule, alerting.RULE_DISABLED, now)
        elif any(getattr(rule, name) != before[name] for name in _CONDITION):
            alerting.resolve_of(rule, alerting.RULE_CHANGED, now)
        bump_version()
        rule = one(rule_id)
        record(actor, "rule.change", _target(rule), before=told, after=_told(rule))
    return rule


def delete(actor: User | None, rule_id: UUID) -> None:
    """Delete a rule; its alerts are resolved and stay in the list.

    Raises:
        NotFound: There is no such rule.
    """
    with transaction.atomic():
        alerting.lock()
        rule = one(rule_id)
        told = _told(rule)
        alerting.resolve_of(rule, alerting.RULE_DELETED, clock.now())
        record(actor, "rule.delete", _target(rule), before=told)
        rule.delete()
        bump_version()


def locked(rule_id: UUID) -> Rule:
    """A rule, which no transaction changes until the caller's ends.

    Raises:
        NotFound: There is no such rule.
    """
    alerting.lock()
    return one(rule_id)


def draft(kind: str, given: Mapping[str, Any]) -> Rule:
    """A rule that is not stored, to be tried.

    Raises:
        Invalid: As ``create``.
    """
    now = clock.now()
    rule = Rule(kind=kind, created_at=now, changed_at=now)
    fill(rule, {"name": "A rule to be tried", "severity": "warning", **given})
    return rule


def fill(rule: Rule, given: Mapping[str, Any]) -> list[Endpoint] | None:
    """Set the given fields of a rule; return the given endpoints, None where none are given.

    Raises:
        Invalid: A field is malformed.
    """
    problems = Problems()
    for name in FIELDS:
        if name in given:
            setattr(rule, name, given[name])
    if not 0 < len(rule.name.strip()) <= NAME_LENGTH_MAX or not rule.name.isprintable():
        problems.add("name", f"Give 1 to {NAME_LENGTH_MAX} printable characters.")
    rule.name = rule.name.strip()
    if rule.job and rule.job_pattern:
        problems.add("job_pattern", "Give a job or a pattern of names, not both.")
    check_pattern(problems, rule.job_pattern)
    for name, most in (("hold_s", HOLD_MAX_S), ("cooldown_s", COOLDOWN_MAX_S)):
        if not 0 <= getattr(rule, name) <= most:
            problems.add(name, f"Give 0 to {most:,} seconds.")
    kind = KINDS[rule.kind]
    try:
        read = kind.read(rule.parameters)
        if kind.is_limitless(read) and (rule._state.adding or "parameters" in given):
            names = " or ".join(kind.limits)
            problems.add("parameters", f"Give {names} a limit above 0: without one it never fires.")
        rule.parameters = msgspec.json.decode(msgspec.json.encode(read))  # As the column has it.
    except msgspec.ValidationError as error:
        problems.add("parameters", f"{error}.")
    chosen = _endpoints(problems, given["endpoints"]) if "endpoints" in given else None
    problems.refuse("The rule cannot be stored")
    return chosen


def check_pattern(problems: Problems, pattern: str) -> None:
    """Note a problem of a pattern of names."""
    try:
        re.compile(translate(pattern))
    except re.error as error:
        problems.add("job_pattern", f"Give a pattern such as flights-*: {error}.")


def set_aside(rule: Rule, problem: str) -> None:
    """Keep a rule that cannot be evaluated from being tried again until it is changed."""
    rule.problem, rule.set_aside_at = problem, clock.now()
    rule.save(update_fields=["problem", "set_aside_at"])


def bump_version() -> None:
    """Tell evaluators that rules have changed, in the transaction that changes them."""
    Evaluator.objects.get_or_create(pk=1)
    Evaluator.objects.filter(pk=1).update(rules_version=F("rules_version") + 1)


def _endpoints(problems: Problems, ids: Collection[UUID]) -> list[Endpoint]:
    rows = list(Endpoint.objects.filter(pk__in=ids, deleted_at=None).defer("sealed"))
    for missing in sorted(set(ids) - {row.pk for row in rows}, key=str):
        problems.add("endpoints", f"There is no endpoint {missing}.")
    return rows


def _save(rule: Rule, *, force_insert: bool = False) -> None:
    try:
        with transaction.atomic():
            rule.save(force_insert=force_insert)
    except IntegrityError:
        if Rule.objects.filter(name=rule.name).exclude(pk=rule.pk).exists():
            raise RuleNameTaken(f"Another rule is called {rule.name!r}.") from None
        raise


def _target(rule: Rule) -> str:
    return f"rule/{rule.name}"


def _told(rule: Rule) -> dict[str, Any]:
    told = {name: getattr(rule, name) for name in FIELDS}
    return {"kind": rule.kind, **told, "endpoints": sorted(e.name for e in rule.endpoints.all())}
