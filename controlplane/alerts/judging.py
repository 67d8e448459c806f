"""The judgement of all rules about all jobs; facts that have not changed are not judged again.

A judgement depends on the rule, the sections of the facts that its kind reads, and the time. So one
of a kind about a job stands while these sections stay equal, and until the first time at which one
of its rules says that it may differ. It is no state: without it, the same comes out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from controlplane.alerts.facts import JobFacts
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.kinds.base import Holding, Kind, Parameters
from controlplane.alerts.machine import Policy
from controlplane.alerts.matching import Scope
from controlplane.alerts.models import Rule
from controlplane.alerts.reading import Needs

logger = logging.getLogger(__name__)

Place = tuple[UUID, str, str]  # Rule, job and subject.


@dataclass(frozen=True, slots=True)
class ReadyRule:
    """A rule with its parameters read."""

    row: Rule
    kind: Kind
    parameters: Parameters
    policy: Policy
    matches: Callable[[str, str], bool]

    @classmethod
    def read(cls, row: Rule) -> "ReadyRule":
        """The rule of a row.

        Raises:
            Exception: The row is no rule of ours, such as one with unknown parameters.
        """
        kind = KINDS[row.kind]
        return cls(
            row,
            kind,
            kind.read(row.parameters),
            policy_of(row),
            Scope(row.job, row.job_pattern).matcher(),
        )


def policy_of(row: Rule) -> Policy:
    """The machine's policy of a rule."""
    return Policy(hold=timedelta(seconds=row.hold_s), cooldown=timedelta(seconds=row.cooldown_s))


def needs_of(rules: Sequence[ReadyRule]) -> Needs:
    """The parts of the facts that rules read."""
    windows = [getattr(rule.parameters, "window_s", 0) for rule in rules]
    sizes = [rule.parameters.window_s for rule in rules if "sizes" in rule.kind.reads]  # type: ignore[attr-defined]
    return Needs(
        frozenset(name for rule in rules for name in rule.kind.reads),
        timedelta(seconds=max(windows, default=0)),
        frozenset(sizes),
    )


@dataclass(slots=True)
class _Standing:
    """The last judgement of a kind's rules about a job."""

    sections: Any
    judged_at: datetime
    until: datetime | None
    holding: dict[Place, Holding]

    def stands(self, sections: Any, now: datetime) -> bool:
        """Whether it would come out the same now."""
        return (
            self.judged_at <= now
            and (self.until is None or now < self.until)
            and self.sections == sections
        )


@dataclass(slots=True)
class Outcome:
    """The conditions that hold, and the rules that could not be judged, with their causes."""

    holding: dict[Place, Holding] = field(default_factory=dict)
    failed: dict[UUID, str] = field(default_factory=dict)
    judged: int = 0  # Judgements that were made anew.


class Judge:
    """The judgement of a fixed list of rules."""

    def __init__(self, rules: Sequence[ReadyRule]) -> None:
        self._rules = rules
        self._by_job: dict[str, list[tuple[Kind, Callable[[Any], Any], list[ReadyRule]]]] = {}
        self._standing: dict[tuple[str, str], _Standing] = {}

    def judge(self, facts: Mapping[str, JobFacts], now: datetime) -> Outcome:
        """The conditions that hold now. A rule that raises is left out with its cause."""
        outcome = Outcome()
        for gone in self._by_job.keys() - facts.keys():
            for kind, _, _ in self._by_job.pop(gone):
                self._standing.pop((kind.name, gone), None)
        for job in facts.values():
            for kind, read, rules in self._rules_of(job):
                key = kind.name, job.id
                sections, standing = read(job), self._standing.get(key)
                if standing is None or not standing.stands(sections, now):
                    standing = self._judged(rules, job, now, sections, outcome)
                    self._standing[key] = standing
                if standing.holding:
                    outcome.holding.update(standing.holding)
        return outcome

    def _rules_of(self, job: JobFacts) -> list[tuple[Kind, Callable[[Any], Any], list[ReadyRule]]]:
        if job.id not in self._by_job:
            by_kind: dict[str, list[ReadyRule]] = {}
            for rule in self._rules:
                if rule.matches(job.id, job.name):
                    by_kind.setdefault(rule.kind.name, []).append(rule)
            self._by_job[job.id] = [
                (KINDS[name], attrgetter(*KINDS[name].reads), rules)
                for name, rules in by_kind.items()
            ]
        return self._by_job[job.id]

    def _judged(
        self,
        rules: Sequence[ReadyRule],
        job: JobFacts,
        now: datetime,
        sections: Any,
        outcome: Outcome,
    ) -> _Standing:
        until: datetime | None = None
        holding: dict[Place, Holding] = {}
        for rule in rules:
            if rule.row.pk in outcome.failed:
                continue
            try:
                judged = rule.kind.judge(rule.parameters, job, now)
            except Exception as error:
                logger.exception("the rule %s cannot be judged about %s", rule.row.name, job.id)
                outcome.failed[rule.row.pk] = f"{type(error).__name__}: {error}"
                continue
            outcome.judged += 1
            if judged.until is not None and (until is None or judged.until < until):
                until = judged.until
            for one in judged.holding:
                holding[rule.row.pk, job.id, one.subject] = one
        return _Standing(sections, now, until, holding)
