"""Rules tried on the past: the alerts that one would have fired, by the same judgement and machine.

The stored past of a job is replayed: its checkpoints, attempts, failed operations and changes of
status, in their order. Between them the replay stops when the judgement or the machine says that
time alone may change something.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.alerts import machine
from controlplane.alerts.facts import (
    ATTEMPTS_MAX,
    AttemptFacts,
    Ended,
    FailedOperation,
    History,
    JobFacts,
    Life,
)
from controlplane.alerts.judging import ReadyRule
from controlplane.alerts.kinds.base import Holding
from controlplane.alerts.machine import IDLE, Edge, Watch
from controlplane.alerts.matching import Scope, fits
from controlplane.alerts.models import Rule
from controlplane.alerts.reading import (
    SIZES_SLACK,
    SIZES_SLACK_LEAST,
    checkpoint_end,
    interval_ms,
    newest_ends,
)
from controlplane.base import clock
from jobs.headlines import headline
from jobs.models import (
    FINAL_JOB_STATUSES,
    Attempt,
    AttemptEnd,
    Job,
    JobEvent,
    JobEventKind,
    Operation,
    OperationStatus,
)

JOBS_MAX = 50  # The newest.
EVENTS_MAX = 20_000  # Of all jobs together, the newest.
ATTEMPTS_READ_MAX = 1_000
LOOKS_MAX = 100_000
SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAlert:
    """A time in which the rule would have fired."""

    job: str
    job_name: str
    subject: str
    began_at: datetime
    fired_at: datetime
    ended_at: datetime | None  # Null: it would fire now.
    summary: str
    checkpoint: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The outcome of a rule that was tried; ``alerts`` are the newest ones, newest first."""

    is_stored: bool  # False: nothing is known about the past of what the kind judges.
    from_at: datetime
    is_complete: bool = True
    count: int = 0
    alerts: Sequence[PastAlert] = ()


def would_have_fired(rule: Rule, hours: int = 24) -> Tried:
    """The alerts that a rule would have fired in the last hours; nothing is written.

    A rule that is disabled, set aside or not even stored is tried like any other.

    Raises:
        msgspec.ValidationError: Its parameters are not those of its kind.
    """
    now = clock.now()
    from_at = now - timedelta(hours=hours)
    ready = ReadyRule.read(rule)
    if not ready.kind.is_stored:
        return Tried(is_stored=False, from_at=from_at)
    window = timedelta(seconds=getattr(ready.parameters, "window_s", 0))
    pasts, is_complete = _pasts(ready, from_at, window, now)
    alerts = [
        alert
        for past in pasts
        for alert in replay(ready, past, now)
        if alert.ended_at is None or alert.ended_at > from_at
    ]
    alerts.sort(key=lambda alert: alert.fired_at, reverse=True)
    return Tried(
        is_stored=True,
        from_at=from_at,
        is_complete=is_complete,
        count=len(alerts),
        alerts=alerts[:SHOWN_MAX],
    )


# The replay ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Past:
    """The past of one job: the facts at its begin, and the changes since in their order."""

    facts: JobFacts
    from_at: datetime
    changes: list[tuple[datetime, Callable[[JobFacts], JobFacts]]] = field(default_factory=list)


def replay(rule: ReadyRule, past: Past, now: datetime) -> Iterator[PastAlert]:
    """The alerts that a rule would have fired about a job until ``now``. Pure."""
    facts = past.facts
    watches: dict[str, Watch] = {}
    firing: dict[str, PastAlert] = {}
    sizes = _Sizes(rule)
    changes = sorted(past.changes, key=lambda change: change[0])
    due: list[datetime] = [past.from_at]
    at = 0
    for _ in range(LOOKS_MAX):
        if at < len(changes) and (not due or changes[at][0] <= due[0]):
            moment, change = changes[at]
            facts = change(facts)
            at += 1
        elif due and due[0] <= now:
            moment = heapq.heappop(due)
            while due and due[0] <= moment:
                heapq.heappop(due)
            facts = replace(facts, history=facts.history.grown(()))
        else:
            break
        judged = rule.kind.judge(rule.parameters, sizes.added(facts, moment), moment)
        if judged.until is not None and judged.until > moment:
            heapq.heappush(due, judged.until)
        holding = {one.subject: one for one in judged.holding}
        for subject in dict.fromkeys((*watches, *holding)):
            one = holding.get(subject)
            watch, edge = machine.step(
                watches.get(subject, IDLE), one is not None, moment, rule.policy
            )
            if edge is Edge.FIRED and one is not None:
                firing[subject] = _alert(facts, one, watch.held_since or moment, moment)
            elif edge is Edge.RESOLVED:
                yield replace(firing.pop(subject), ended_at=moment)
            if watch == IDLE:
                watches.pop(subject, None)
                continue
            watches[subject] = watch
            look = machine.next_look(watch, one is not None, rule.policy)
            if look is not None and look > moment:
                heapq.heappush(due, look)
    yield from firing.values()


def _alert(facts: JobFacts, one: Holding, began_at: datetime, fired_at: datetime) -> PastAlert:
    return PastAlert(
        job=facts.id,
        job_name=facts.name,
        subject=one.subject,
        began_at=began_at,
        fired_at=fired_at,
        ended_at=None,
        summary=one.summary,
        checkpoint=one.checkpoint,
    )


class _Sizes:
    """The sizes of state so far, for rules that compare with a window ago."""

    def __init__(self, rule: ReadyRule) -> None:
        self._window_s: int | None = None
        if "sizes" in rule.kind.reads:
            self._window_s = getattr(rule.parameters, "window_s", 0)
        self._times: list[datetime] = []
        self._held: list[int] = []

    def added(self, facts: JobFacts, moment: datetime) -> JobFacts:
        """The facts with the size of a window ago."""
        newest = facts.history.completed
        if self._window_s is None or newest is None:
            return facts
        if not self._times or newest.at > self._times[-1]:
            self._times.append(newest.at)
            self._held.append(newest.state_bytes)
        window = timedelta(seconds=self._window_s)
        at = bisect_right(self._times, moment - window) - 1
        if at < 0 or moment - window - self._times[at] > max(
            SIZES_SLACK_LEAST, window * SIZES_SLACK
        ):
            return facts
        return replace(facts, sizes={self._window_s: (self._times[at], self._held[at])})


# The stored past ----------------------------------------------------------------------------------


def _pasts(
    rule: ReadyRule, from_at: datetime, window: timedelta, now: datetime
) -> tuple[list[Past], bool]:
    """The past of the jobs in a rule's scope, and whether all of it was read."""
    alive = Job.objects.filter(created_at__lte=now).exclude(
        status__in=FINAL_JOB_STATUSES, ended_at__lt=from_at - window
    )
    if rule.row.job:
        alive = alive.filter(pk=rule.row.job)
    names = dict(alive.order_by("-created_at", "pk").values_list("pk", "name"))
    ids = fits(Scope(rule.row.job, rule.row.job_pattern), names)
    jobs = list(Job.objects.filter(pk__in=ids[:JOBS_MAX]).order_by("-created_at", "pk"))
    kinds = [*_KINDS_OF_EVENTS] if "history" in rule.kind.reads else [JobEventKind.JOB_CHANGED]
    begin = from_at - window  # What fired before is forgotten: its begin is not known.
    rows = JobEvent.objects.filter(job__in=jobs, kind__in=kinds, at__gte=begin, at__lte=now)
    events = list(rows.order_by("-pk")[: EVENTS_MAX + 1])
    is_complete = len(events) <= EVENTS_MAX and len(ids) <= JOBS_MAX
    events = events[:EVENTS_MAX][::-1]
    first = events[0].pk - 1 if events else 0
    before = newest_ends([job.pk for job in jobs], first) if "history" in rule.kind.reads else {}
    by_job: dict[str, list[JobEvent]] = {job.pk: [] for job in jobs}
    for event in events:
        by_job[event.job_id].append(event)
    start = events[0].at if events and len(events) == EVENTS_MAX else begin
    pasts = []
    for job in jobs:
        past = Past(
            JobFacts(
                id=job.pk,
                name=job.name,
                life=_life_before(job, by_job[job.pk]),
                history=_until(before.get(job.pk, History()), start),
            ),
            start,
        )
        past.changes += [
            (event.at, change)
            for event in by_job[job.pk]
            if (change := _change(job, event)) is not None
        ]
        pasts.append(past)
    if "attempts" in rule.kind.reads:
        _add_attempts(pasts, start)
    if "operations" in rule.kind.reads:
        _add_operations(pasts, start)
    return pasts, is_complete


_KINDS_OF_EVENTS = (
    JobEventKind.CHECKPOINT_COMPLETED,
    JobEventKind.CHECKPOINT_FAILED,
    JobEventKind.CHECKPOINT_EXPIRED,
    JobEventKind.JOB_CHANGED,
)


def _until(history: History, at: datetime) -> History:
    """A history without the checkpoint that is kept as the newest, if it is younger than that."""
    if history.completed is not None and history.completed.at > at:
        return History(history.ended, 0, None)
    return history


def _life_before(job: Job, events: Sequence[JobEvent]) -> Life:
    """The life of a job before its first event that is read."""
    life = Life(
        status=job.status,
        is_planned=job.is_planned,
        cause=headline(job.cause),
        started_at=job.started_at,
        ended_at=job.ended_at,
        interval_ms=interval_ms(job.checkpoint_config),
        recovery_target_s=job.recovery_target_s,
    )
    for event in events:
        if event.kind == JobEventKind.JOB_CHANGED:
            before = event.facts.get("before", "") if isinstance(event.facts, dict) else ""
            return replace(life, status=str(before), is_planned=True, cause="", ended_at=None)
    return life


def _change(job: Job, event: JobEvent) -> Callable[[JobFacts], JobFacts] | None:
    if event.kind == JobEventKind.JOB_CHANGED:
        facts: Any = event.facts if isinstance(event.facts, dict) else {}
        ended_at = event.at if event.reason in FINAL_JOB_STATUSES else None

        def changed(job: JobFacts) -> JobFacts:
            life = replace(
                job.life,
                status=event.reason,
                is_planned=event.planned,
                cause=str(facts.get("cause", "")),
                ended_at=ended_at,
            )
            return replace(job, life=life, history=job.history.grown(()))

        return changed
    one = checkpoint_end(event)
    return None if one is None else _grown_by(one)


def _grown_by(one: Ended) -> Callable[[JobFacts], JobFacts]:
    return lambda job: replace(job, history=job.history.grown((one,)))


def _add_attempts(pasts: Sequence[Past], from_at: datetime) -> None:
    by_job = {past.facts.id: past for past in pasts}
    rows = Attempt.objects.filter(job__in=by_job).order_by("-started_at", "-number")
    columns = ("job", "number", "started_at", "running_at", "ended_at", "end", "cause")
    for job, number, started_at, running_at, ended_at, end, cause in list(
        rows.values_list(*columns)[:ATTEMPTS_READ_MAX]
    )[::-1]:
        past = by_job[job]
        attempt = AttemptFacts(number=number, started_at=started_at)
        past.changes.append((started_at, _with_attempt(attempt)))
        if running_at is not None:
            attempt = replace(attempt, running_at=running_at)
            past.changes.append((running_at, _with_attempt(attempt)))
        if ended_at is not None:
            has_failed = end == AttemptEnd.FAILED
            attempt = replace(
                attempt, ended_at=ended_at, has_failed=has_failed, cause=headline(cause)
            )
            past.changes.append((ended_at, _with_attempt(attempt)))
    for past in pasts:  # Those before the begin are its first facts.
        early = [change for change in past.changes if change[0] < from_at]
        past.changes = [change for change in past.changes if change[0] >= from_at]
        for _, change in sorted(early, key=lambda pair: pair[0]):
            past.facts = change(past.facts)


def _with_attempt(attempt: AttemptFacts) -> Callable[[JobFacts], JobFacts]:
    def changed(job: JobFacts) -> JobFacts:
        others = (one for one in job.attempts if one.number != attempt.number)
        newest = sorted((attempt, *others), key=lambda one: -one.number)[:ATTEMPTS_MAX]
        return replace(job, attempts=tuple(newest), history=job.history.grown(()))

    return changed


def _add_operations(pasts: Sequence[Past], from_at: datetime) -> None:
    by_job = {past.facts.id: past for past in pasts}
    rows = Operation.objects.filter(
        job__in=by_job,
        status__in=(OperationStatus.FAILED, OperationStatus.EXPIRED),
        ended_at__gte=from_at,
    ).order_by("ended_at", "pk")
    columns = ("job", "pk", "kind", "ended_at", "error")
    for job, pk, kind, at, error in rows.values_list(*columns)[:EVENTS_MAX]:
        failed = FailedOperation(id=str(pk), kind=kind, at=at, error=headline(error))
        by_job[job].changes.append((at, _with_operation(failed)))


def _with_operation(failed: FailedOperation) -> Callable[[JobFacts], JobFacts]:
    return lambda job: replace(
        job, operations=(*job.operations, failed), history=job.history.grown(())
    )
