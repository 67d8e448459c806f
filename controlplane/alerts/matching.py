"""Scopes of rules and silences: which jobs and alerts they are about. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import translate
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Scope:
    """One job, the jobs whose name fits a pattern as of file names, or all."""

    job: str = ""
    pattern: str = ""

    def matcher(self) -> Callable[[str, str], bool]:
        """A function of a job's id and name: whether the job is in the scope."""
        if self.job:
            return lambda id, name: id == self.job
        if self.pattern:
            fits = re.compile(translate(self.pattern)).match
            return lambda id, name: fits(name) is not None
        return lambda id, name: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A silence, as far as it decides."""

    id: UUID
    scope: Scope
    rule: UUID | None
    severity: str  # Empty: any.
    from_at: datetime
    until_at: datetime

    def covers(
        self, *, rule: UUID | None, job: str, job_name: str, severity: str, now: datetime
    ) -> bool:
        """Whether it holds back notices of such an alert now."""
        return (
            self.from_at <= now < self.until_at
            and (self.rule is None or self.rule == rule)
            and (not self.severity or self.severity == severity)
            and self.scope.matcher()(job, job_name)
        )


def silence_of(
    silences: Iterable[Quiet],
    *,
    rule: UUID | None,
    job: str,
    job_name: str,
    severity: str,
    now: datetime,
) -> UUID | None:
    """The silence that holds an alert's notices back for longest; None: none does."""
    covering = [
        one
        for one in silences
        if one.covers(rule=rule, job=job, job_name=job_name, severity=severity, now=now)
    ]
    return max(covering, key=lambda one: (one.until_at, one.id)).id if covering else None


def fits(scope: Scope, jobs: Mapping[str, str]) -> list[str]:
    """The ids, of jobs by id and name, in a scope."""
    if scope.job:
        return [scope.job] if scope.job in jobs else []
    matches = scope.matcher()
    return [id for id, name in jobs.items() if matches(id, name)]
