"""The removal of rows by the rules, in small batches within a budget of time."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, QuerySet
from django.utils.text import Truncator

from controlplane.base import clock, logs
from controlplane.base.ticks import Budget
from controlplane.retention.models import Tally
from controlplane.retention.rules import RULES, Remover, Rule

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # One look, with all rules; a batch that has begun is finished.
RULE_S = 2.0
# Counting the rows of each job reads an index from end to end, so it is done less often.
COUNTED_EVERY = timedelta(minutes=10)
CROWDED_MAX = 50  # Jobs with too many rows, in one look.
PROBLEM_LENGTH_MAX = 500


def look(rules: Sequence[Rule] = RULES, seconds: float = LOOK_S) -> int:
    """Remove the rows that go now, as far as there is time; return their number.

    Each look begins with the rule that has waited longest, so that none starves behind another.
    """
    budget = Budget(seconds)
    looked = dict(Tally.objects.filter(place="").values_list("kind", "looked_at"))
    never = datetime.min.replace(tzinfo=clock.now().tzinfo)
    count = 0
    for rule in sorted(rules, key=lambda rule: looked.get(rule.kind) or never):
        if budget.is_spent:
            break
        with logs.guarding(logger, "the rule of retention failed", rule=rule.kind):
            count += _apply(rule, Budget(min(RULE_S, budget.left_s)))
    return count


def _apply(rule: Rule, budget: Budget) -> int:
    now = clock.now()
    tally, _ = Tally.objects.get_or_create(kind=rule.kind, place="")
    counts = tally.counted_at is None or tally.counted_at <= now - COUNTED_EVERY
    older = now - timedelta(days=rule.days_kept) if rule.days_kept else None
    most = rule.most_kept if counts else None
    try:
        count = (rule.remove or _remover(rule))(older, most, budget)
    except Exception as error:
        problem = Truncator(f"{type(error).__name__}: {error}").chars(PROBLEM_LENGTH_MAX)
        note(tally, 0, now, problem=problem)
        raise
    # With the budget spent there may be more; the next look counts again.
    note(tally, count, now, **({"counted_at": now} if counts and not budget.is_spent else {}))
    if count:
        logger.info("retention removed %d rows: %s", count, rule.kind)
    return count


def note(tally: Tally, removed: int, now: datetime, **values: Any) -> None:
    """Add the outcome of a look to its tally."""
    if removed:
        values |= {"removed": F("removed") + removed, "removed_at": now}
    values = {"looked_at": now, "problem": "", **values}
    Tally.objects.filter(pk=tally.pk).update(**values)


def _remover(rule: Rule) -> Remover:
    def remove(older: datetime | None, most: int | None, budget: Budget) -> int:
        rows = rule.model._default_manager.filter(rule.removable)
        count = 0
        if older is not None:
            count += _remove_batches(rule, rows.filter(**{f"{rule.age}__lt": older}), budget)
        if most is not None:
            for excess in _excesses(rule, rows, most):
                count += _remove_batches(rule, excess, budget)
        return count

    return remove


def _excesses(rule: Rule, rows: QuerySet[Any], most: int) -> list[QuerySet[Any]]:
    """The rows behind the newest ``most`` of each job that has more."""
    crowded = rows.order_by().values("job").annotate(count=Count("pk")).filter(count__gt=most)
    excesses = []
    for job in list(crowded.values_list("job", flat=True)[:CROWDED_MAX]):
        own = rows.filter(job=job)
        age, pk = own.order_by(f"-{rule.age}", "-pk").values_list(rule.age, "pk")[most - 1]
        excesses.append(own.filter(Q(**{f"{rule.age}__lt": age}) | Q(**{rule.age: age}, pk__lt=pk)))
    return excesses


def _remove_batches(rule: Rule, rows: QuerySet[Any], budget: Budget) -> int:
    """Remove rows, the oldest first; those that other transactions hold stay for the next look."""
    count = 0
    oldest = rows.order_by(rule.age, "pk")
    while not budget.is_spent:
        with transaction.atomic():
            free = oldest.select_for_update(skip_locked=True, of=("self",))
            keys = list(free.values_list("pk", flat=True)[: rule.batch])
            if rule.note_removal is not None:
                rule.note_removal(keys)
            rule.model._default_manager.filter(pk__in=keys).delete()
        count += len(keys)
        if len(keys) < rule.batch:
            break
    return count
