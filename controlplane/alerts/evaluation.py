"""A round of the evaluator: what changed is judged, alerts fire and resolve, notices are posted.

All of it is one transaction under one advisory lock. It reads jobs and checkpoints without locks
and writes rows of alerts, deliveries and its own, so it holds up no checkpoint.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F

from controlplane.alerts import alerting, machine
from controlplane.alerts.alerting import END_COLUMNS, TOLD_COLUMNS, Teller
from controlplane.alerts.facts import JobFacts
from controlplane.alerts.judging import Judge, Outcome, ReadyRule, needs_of
from controlplane.alerts.machine import IDLE, Edge
from controlplane.alerts.models import (
    FIRING,
    SUBJECT_LENGTH_MAX,
    Alert,
    Evaluator,
    Rule,
    Watch,
)
from controlplane.alerts.reading import Needs, Reader
from controlplane.alerts.rules import bump_version, set_aside
from controlplane.alerts.sentences import Sentences
from controlplane.base import advisory_locks, clock
from controlplane.deliveries.notice import cut

logger = logging.getLogger(__name__)

FIRED_MAX = 1_000  # Alerts that fire in one round; the others fire in the next.
BATCH = 500
_WATCH_COLUMNS = ("phase", "held_since", "clear_since", "resolved_at", "flaps", "alert")


@dataclass(slots=True)
class Round:
    """The outcome of a round."""

    judged: int = 0
    fired: int = 0
    resolved: int = 0


@dataclass(slots=True)
class _Changes:
    """The rows that a round writes."""

    new: list[Watch] = field(default_factory=list)
    changed: list[Watch] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    fired: list[Alert] = field(default_factory=list)
    resolved: list[Alert] = field(default_factory=list)


class Evaluation:
    """The evaluator of this process. ``run`` is called again and again, by one thread at a time."""

    def __init__(self, now: Callable[[], datetime] = clock.now) -> None:
        self._now = now
        self._reader = Reader()
        self._rules: Mapping[UUID, ReadyRule] = {}
        self._rules_version: int | None = None
        self._needs = Needs()
        self._judge = Judge(())

    def run(self) -> Round | None:
        """One round; None where another process is in the middle of one.

        Raises:
            Exception: The round was rolled back; it is counted.
        """
        try:
            with transaction.atomic():
                return self._run() if advisory_locks.try_lock(alerting.LOCK) else None
        except Exception:
            self._reader.forget()
            self._rules_version = None
            Evaluator.objects.filter(pk=1).update(errors=F("errors") + 1)
            raise

    def _run(self) -> Round:
        began_s = time.perf_counter()
        row, _ = Evaluator.objects.get_or_create(pk=1)
        now = self._now()
        failed = self._read_rules(row.rules_version)
        facts, position = self._reader.look(row.position, self._needs, now)
        outcome = self._judge.judge(facts, now)
        self._set_aside(row, failed | outcome.failed, now)
        done = self._step(row, facts, outcome, now)
        row.position, row.evaluated_at = position, now
        row.last_s = time.perf_counter() - began_s
        row.rounds, row.seconds = row.rounds + 1, row.seconds + row.last_s
        # Not the version, which changes of rules write.
        row.save(
            update_fields=[
                "position",
                "evaluated_at",
                "last_s",
                "rounds",
                "seconds",
                "errors",
                "fired",
            ]
        )
        return done

    def _read_rules(self, version: int) -> dict[UUID, str]:
        """Read the rules if they have changed; return those that cannot be read, with causes."""
        failed: dict[UUID, str] = {}
        if version == self._rules_version:
            return failed
        ready: dict[UUID, ReadyRule] = {}
        for row in Rule.objects.filter(is_enabled=True, problem="").order_by("name"):
            try:
                ready[row.pk] = ReadyRule.read(row)
            except Exception as error:
                logger.exception("the rule %s cannot be read", row.name)
                failed[row.pk] = f"{type(error).__name__}: {error}"
        self._rules, self._rules_version = ready, version
        self._needs, self._judge = needs_of(list(ready.values())), Judge(list(ready.values()))
        return failed

    def _set_aside(self, row: Evaluator, failed: Mapping[UUID, str], now: datetime) -> None:
        if not failed:
            return
        row.errors += len(failed)
        for rule in Rule.objects.filter(pk__in=failed):
            set_aside(rule, failed[rule.pk])
            alerting.resolve_of(rule, alerting.RULE_SET_ASIDE, now)
        bump_version()

    def _step(
        self, row: Evaluator, facts: Mapping[str, JobFacts], outcome: Outcome, now: datetime
    ) -> Round:
        watches = {(w.rule_id, w.job, w.subject): w for w in Watch.objects.all()}
        holding = {
            (rule, job, cut(subject, SUBJECT_LENGTH_MAX)): one
            for (rule, job, subject), one in outcome.holding.items()
            if rule not in outcome.failed
        }
        changes, sentences = _Changes(), Sentences()
        ended: dict[UUID, str] = {}
        for place in dict.fromkeys((*watches, *holding)):
            rule, watch = self._rules.get(place[0]), watches.get(place)
            before = IDLE if watch is None else watch.value
            one = holding.get(place)
            if rule is None or place[0] in outcome.failed:
                edge, after = machine.withdraw(before), IDLE
            else:
                if one is not None and len(changes.fired) >= FIRED_MAX and before == IDLE:
                    continue
                after, edge = machine.step(before, one is not None, now, rule.policy)
            if edge is Edge.RESOLVED and watch is not None and watch.alert_id is not None:
                ended[watch.alert_id] = alerting.CLEARED if rule else alerting.RULE_DISABLED
                watch.alert = None
            if after == before and edge is None:
                continue
            if watch is None:
                watch = Watch(rule_id=place[0], job=place[1], subject=place[2])
                changes.new.append(watch)
            elif after == IDLE:
                changes.over.append(watch.pk)
                continue
            else:
                changes.changed.append(watch)
            watch.value = after
            if edge is Edge.FIRED:
                assert rule is not None
                assert one is not None
                worded = sentences.worded(place[1], one)
                watch.alert = alerting.new_alert(
                    rule.row,
                    place[1],
                    facts[place[1]].name,
                    worded,
                    began_at=after.held_since or now,
                    now=now,
                )
                watch.alert.subject = place[2]
                changes.fired.append(watch.alert)
        changes.resolved = list(Alert.objects.filter(pk__in=ended, state=FIRING))
        for alert in changes.resolved:
            alerting.end(alert, now, ended[alert.pk])
        self._write(row, changes, now)
        return Round(outcome.judged, len(changes.fired), len(changes.resolved))

    def _write(self, row: Evaluator, changes: _Changes, now: datetime) -> None:
        # Alerts that ended first: another one of their rule may fire at once.
        teller = Teller(now)
        for alert in (*changes.resolved, *changes.fired):
            teller.tell(alert)
        Alert.objects.bulk_update(changes.resolved, [*END_COLUMNS, *TOLD_COLUMNS], batch_size=BATCH)
        Alert.objects.bulk_create(changes.fired, batch_size=BATCH)
        Watch.objects.bulk_create(changes.new, batch_size=BATCH)
        Watch.objects.bulk_update(changes.changed, _WATCH_COLUMNS, batch_size=BATCH)
        Watch.objects.filter(pk__in=changes.over).delete()
        for alert in changes.fired:
            by_severity = row.fired.setdefault(alert.kind, {})
            by_severity[alert.severity] = by_severity.get(alert.severity, 0) + 1
        # Those that fire behind a silence, which may have ended, or has just begun.
        untold = Alert.objects.filter(state=FIRING, sequence=0, acknowledged_at=None)
        late = untold.exclude(pk__in=[alert.pk for alert in changes.fired]).select_related("rule")
        told = [alert for alert in late if teller.tell(alert)]
        Alert.objects.bulk_update(told, TOLD_COLUMNS, batch_size=BATCH)
