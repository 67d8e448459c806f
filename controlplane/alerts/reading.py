"""The facts about all jobs, from rows: a fixed number of queries, however many jobs and rules.

Checkpoints are taken from the events of jobs in their order, so that none is missed that came and
went between two looks. A process keeps the newest of each job in memory, and reads them anew when
another process went on with the events meanwhile, or its own transaction was rolled back.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import F, FloatField, Max, Min, Q
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from checkpoints.models import Checkpoint
from controlplane.alerts.facts import (
    ATTEMPTS_MAX,
    HISTORY_MAX,
    AttemptFacts,
    ChainFacts,
    DriverFacts,
    Ended,
    FailedOperation,
    History,
    JobFacts,
    Life,
    SlotFacts,
)
from controlplane.base import clock
from jobs import job_events
from jobs.headlines import headline
from jobs.models import (
    FINAL_JOB_STATUSES,
    AttemptEnd,
    ControlPlanePulse,
    Driver,
    DriverStatus,
    Job,
    JobEvent,
    JobEventKind,
    Operation,
    OperationStatus,
    Subtask,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus

READS_MAX = 20  # Of ``job_events.READ_MAX`` events each, in one look.
CATCH_UP_MAX = 5_000  # Events that are behind another process; beyond, all is read anew.
OPERATIONS_MAX = 500
SIZES_KEPT = timedelta(minutes=1)
# Of checkpoints a window ago: those within this part of the window before it count.
SIZES_SLACK = 0.1
SIZES_SLACK_LEAST = timedelta(minutes=1)

COMPLETED = JobEventKind.CHECKPOINT_COMPLETED.value
ENDS = (COMPLETED, JobEventKind.CHECKPOINT_FAILED.value, JobEventKind.CHECKPOINT_EXPIRED.value)

_NEWEST_ENDS = """
    SELECT job.id, event.at, event.kind, event.reason, event.facts::text
    FROM unnest(%s::text[]) AS job (id)
    CROSS JOIN LATERAL (
        SELECT id, at, kind, reason, facts FROM jobs_jobevent
        WHERE job_id = job.id AND id <= %s AND kind = ANY(%s) AND NOT planned
        ORDER BY id DESC LIMIT %s
    ) AS event
    ORDER BY event.id
"""
_NEWEST_ATTEMPTS = """
    SELECT attempt.*
    FROM unnest(%s::text[]) AS job (id)
    CROSS JOIN LATERAL (
        SELECT job_id, number, started_at, running_at, ended_at, "end",
               CASE WHEN row_number() OVER (ORDER BY number DESC) <= 2 THEN cause ELSE '' END
        FROM jobs_attempt
        WHERE job_id = job.id
        ORDER BY number DESC LIMIT %s
    ) AS attempt
    ORDER BY attempt.job_id, attempt.number DESC
"""

# Shares of memory in percents: a report changes them a little, and nothing follows from that.
_SLOTS = """
    SELECT slot.job_id, slot.index, slot.cpu_wait, worker.host,
           worker.memory_bytes * 100 / nullif(worker.memory_limit_bytes, 0)
    FROM (
        SELECT job_id, "index", attempt, max((rates ->> 'cpu_wait')::float) AS cpu_wait
        FROM jobs_subtask
        WHERE status = %s AND job_id = ANY(%s)
        GROUP BY job_id, "index", attempt
    ) AS slot
    LEFT JOIN jobs_attempt AS attempt
        ON attempt.job_id = slot.job_id AND attempt.number = slot.attempt
    LEFT JOIN jobs_worker AS worker
        ON worker.attempt_id = attempt.id AND worker.slot_index = slot.index
    ORDER BY slot.job_id, slot.index
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """The parts of the facts that the rules in force read."""

    sections: frozenset[str] = frozenset()
    window: timedelta = timedelta(hours=1)  # The longest in which something past counts.
    sizes: frozenset[int] = frozenset()  # Windows of state sizes, in seconds.


@dataclass(slots=True)
class _Sizes:
    read_at: datetime
    by_job: Mapping[str, tuple[datetime, int]] = field(default_factory=dict)


class Reader:
    """The facts, and what this process has read of them so far."""

    def __init__(self) -> None:
        self._histories: dict[str, History] = {}
        self._position: int | None = None
        self._sizes: dict[int, _Sizes] = {}

    def forget(self) -> None:
        """Read everything anew the next time: the last transaction was rolled back."""
        self._histories, self._position, self._sizes = {}, None, {}

    def look(
        self, position: int | None, needs: Needs, now: datetime
    ) -> tuple[dict[str, JobFacts], int]:
        """The facts about each job by its id, and the place among the events of jobs.

        Args:
            position: The event up to which everything was judged; None: only what is now counts.
        """
        if position is None:
            position = JobEvent.objects.aggregate(newest=Max("pk"))["newest"] or 0
        operations = _operations(needs, now)
        lives = _lives(needs, operations, now)
        live = [id for id, (_, life) in lives.items() if not life.is_over]
        running = [id for id, (_, life) in lives.items() if life.status == JobStatus.RUNNING]
        position = self._read_events(position, live)
        attempts = _attempts(live) if "attempts" in needs.sections else {}
        drivers = _drivers(live) if "driver" in needs.sections else {}
        chains = _chains(running) if "chains" in needs.sections else {}
        slots = _slots(running) if "slots" in needs.sections else {}
        sizes = {window: self._sizes_before(window, now) for window in needs.sizes}
        return {
            id: JobFacts(
                id=id,
                name=name,
                life=life,
                history=self._histories.get(id, History()),
                attempts=attempts.get(id, ()),
                driver=drivers.get(id),
                chains=chains.get(id, ()),
                slots=slots.get(id, ()),
                operations=operations.get(id, ()),
                sizes={w: by_job[id] for w, by_job in sizes.items() if id in by_job},
            )
            for id, (name, life) in lives.items()
        }, position

    def _read_events(self, position: int, live: Collection[str]) -> int:
        known = self._position
        if known is None or not 0 <= position - known <= CATCH_UP_MAX:
            self._histories, known = {}, position
        self._histories = {id: h for id, h in self._histories.items() if id in live}
        events = _after(known)
        seen = [event for event in events if event.pk <= position]
        fresh = [event for event in events if event.pk > position]
        added = [id for id in live if id not in self._histories]
        self._histories |= newest_ends(added, position)
        for batch, kept in ((seen, set(live) - set(added)), (fresh, set(live))):
            new: dict[str, list[Ended]] = {}
            for event in batch:
                if event.job_id in kept and (one := checkpoint_end(event)) is not None:
                    new.setdefault(event.job_id, []).append(one)
            for id in kept:
                self._histories[id] = self._histories[id].grown(tuple(new.get(id, ())))
        self._position = events[-1].pk if events else position
        return self._position

    def _sizes_before(self, window_s: int, now: datetime) -> Mapping[str, tuple[datetime, int]]:
        kept = self._sizes.get(window_s)
        if kept is None or not kept.read_at <= now < kept.read_at + SIZES_KEPT:
            kept = self._sizes[window_s] = _Sizes(
                now, _sizes(now - timedelta(seconds=window_s), window_s)
            )
        return kept.by_job


def _after(position: int) -> list[JobEvent]:
    events: list[JobEvent] = []
    for _ in range(READS_MAX):
        batch = job_events.after(events[-1].pk if events else position)
        events += batch
        if len(batch) < job_events.READ_MAX:
            break
    return events


def checkpoint_end(event: JobEvent) -> Ended | None:
    """The checkpoint that an event says has completed or failed; None: it says something else.

    Savepoints are left out: they take longer, and their failures are those of operations.
    """
    if event.planned or event.kind not in ENDS:
        return None
    return _ended(event.at, event.kind, event.reason, event.facts)


def _ended(at: datetime, kind: str, reason: str, facts: Any) -> Ended | None:
    if not isinstance(facts, dict) or type(facts.get("checkpoint")) is not int:
        return None  # Not one of ours.
    if facts.get("kind", CheckpointKind.CHECKPOINT.value) != CheckpointKind.CHECKPOINT.value:
        return None
    return Ended(
        number=facts["checkpoint"],
        at=at,
        is_completed=kind == COMPLETED,
        duration_ms=_number(facts.get("duration_ms")),
        alignment_ms=_number(facts.get("alignment_ms")) or 0.0,
        state_bytes=round(_number(facts.get("state_bytes")) or 0),
        reason=reason,
        cause=str(facts.get("cause", "")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def newest_ends(job_ids: Sequence[str], up_to: int) -> dict[str, History]:
    """The newest checkpoints of jobs up to an event; two queries."""
    if not job_ids:
        return {}
    ended: dict[str, list[Ended]] = {id: [] for id in job_ids}
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST_ENDS, [list(job_ids), up_to, list(ENDS), HISTORY_MAX])
        for id, at, kind, reason, facts in cursor.fetchall():
            if (one := _ended(at, kind, reason, json.loads(facts))) is not None:
                ended[id].append(one)
    completed = _completed(job_ids)
    return {
        id: History(
            tuple(of_job),
            0,
            next((one for one in reversed(of_job) if one.is_completed), completed.get(id)),
        )
        for id, of_job in ended.items()
    }


def _completed(job_ids: Sequence[str]) -> dict[str, Ended]:
    """The newest completed checkpoint of each job that is still kept."""
    rows = (
        Checkpoint.objects.filter(
            job__in=job_ids, status=CheckpointStatus.COMPLETED.value, settled_at__isnull=False
        )
        .order_by("job", "-number")
        .distinct("job")
        .values_list("job", "number", "settled_at", "duration_ms", "alignment_ms", "state_bytes")
    )
    return {
        job: Ended(
            number=number,
            at=at,
            is_completed=True,
            duration_ms=took_ms,
            alignment_ms=aligned_ms,
            state_bytes=held,
        )
        for job, number, at, took_ms, aligned_ms, held in rows
        if at is not None
    }


def _operations(needs: Needs, now: datetime) -> dict[str, tuple[FailedOperation, ...]]:
    if "operations" not in needs.sections:
        return {}
    rows = (
        Operation.objects.filter(
            status__in=(OperationStatus.FAILED, OperationStatus.EXPIRED),
            ended_at__gte=now - needs.window,
            # For the index; none stays open for longer.
            created_at__gte=now - needs.window - timedelta(days=2),
        )
        .order_by("-created_at", "pk")
        .values_list("job", "pk", "kind", "ended_at", "error")[:OPERATIONS_MAX]
    )
    by_job: dict[str, tuple[FailedOperation, ...]] = {}
    for job, pk, kind, at, error in rows:
        if at is None:
            continue  # The filter leaves none of those.
        failed = FailedOperation(id=str(pk), kind=kind, at=at, error=headline(error))
        by_job[job] = (*by_job.get(job, ()), failed)
    return by_job


def _lives(needs: Needs, also: Iterable[str], now: datetime) -> dict[str, tuple[str, Life]]:
    """Name and life of jobs that run, failed lately, or are among ``also``."""
    failed_lately = Q(status=JobStatus.FAILED.value, ended_at__gte=now - needs.window)
    rows = Job.objects.filter(
        ~Q(status__in=FINAL_JOB_STATUSES) | failed_lately | Q(pk__in=list(also))
    ).order_by()
    return {
        id: (
            name,
            Life(
                status=status,
                is_planned=is_planned,
                cause=headline(cause),
                started_at=started_at,
                ended_at=ended_at,
                interval_ms=interval_ms(config),
                recovery_target_s=target_s,
            ),
        )
        for id, name, status, is_planned, cause, started_at, ended_at, config, target_s in (
            rows.values_list(
                *("pk", "name", "status", "is_planned", "cause", "started_at", "ended_at"),
                *("checkpoint_config", "recovery_target_s"),
            )
        )
    }


def interval_ms(config: Any) -> float | None:
    """The interval in a job's checkpoint settings; None: no periodic checkpoints."""
    return _number(config.get("interval_ms")) if isinstance(config, dict) else None


def _attempts(job_ids: Sequence[str]) -> dict[str, tuple[AttemptFacts, ...]]:
    by_job: dict[str, list[AttemptFacts]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST_ATTEMPTS, [list(job_ids), ATTEMPTS_MAX])
        for job, number, started_at, running_at, ended_at, end, cause in cursor.fetchall():
            by_job.setdefault(job, []).append(
                AttemptFacts(
                    number=number,
                    started_at=started_at,
                    running_at=running_at,
                    ended_at=ended_at,
                    has_failed=end == AttemptEnd.FAILED,
                    cause=headline(cause),
                )
            )
    return {job: tuple(rows) for job, rows in by_job.items()}


def _drivers(job_ids: Sequence[str]) -> dict[str, DriverFacts]:
    """The running drivers. A driver could not report while the control plane was away."""
    resumed_at = ControlPlanePulse.objects.values_list("resumed_at", flat=True).first()
    rows = Driver.objects.filter(job__in=job_ids, status=DriverStatus.RUNNING).order_by()
    return {
        job: DriverFacts(
            number=number,
            is_running=True,
            heard_at=heard_at and (max(heard_at, resumed_at) if resumed_at else heard_at),
        )
        for job, number, heard_at in rows.values_list("job", "number", "heard_at")
    }


def _chains(job_ids: Sequence[str]) -> dict[str, tuple[ChainFacts, ...]]:
    running = Q(status=SubtaskStatus.RUNNING.value)
    rows = (
        Subtask.objects.filter(running, job__in=job_ids)
        .order_by("job", "chain")
        .values("job", "chain")
        .annotate(
            back_pressured=Max(_measured("rates__back_pressured")),
            busiest=Max(_measured("rates__busy")),
            watermark=Min(_measured("metrics__watermark_ms")),
            updated=Min(F("updated_at")),
        )
    )
    bad = _bad_records(job_ids)
    by_job: dict[str, list[ChainFacts]] = {}
    for row in rows:
        mark = row["watermark"]
        by_job.setdefault(row["job"], []).append(
            ChainFacts(
                chain=row["chain"],
                back_pressured=row["back_pressured"],
                busiest=row["busiest"],
                watermark_ms=None if mark is None else round(mark),
                updated_at=row["updated"],
                bad_records=bad.get((row["job"], row["chain"]), ()),
            )
        )
    return {job: tuple(of_job) for job, of_job in by_job.items()}


def _slots(job_ids: Sequence[str]) -> dict[str, tuple[SlotFacts, ...]]:
    by_job: dict[str, list[SlotFacts]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_SLOTS, [SubtaskStatus.RUNNING.value, list(job_ids)])
        for job, index, cpu_wait, host, percents in cursor.fetchall():
            slot = SlotFacts(
                index=index,
                host=host or "",
                cpu_wait=cpu_wait,
                memory_share=None if percents is None else percents / 100,
            )
            by_job.setdefault(job, []).append(slot)
    return {job: tuple(of_job) for job, of_job in by_job.items()}


def _bad_records(job_ids: Sequence[str]) -> dict[tuple[str, str], tuple[tuple[datetime, int], ...]]:
    """Times and numbers of bad records by job and chain; most subtasks have none."""
    rows = (
        Subtask.objects.filter(status=SubtaskStatus.RUNNING.value, job__in=job_ids)
        .exclude(bad_marks=[])
        .order_by("job", "chain", "index")
        .values_list("job", "chain", "bad_marks")
    )
    by_chain: dict[tuple[str, str], tuple[tuple[datetime, int], ...]] = {}
    for job, chain, marks in rows:
        of_subtask = tuple((clock.from_ms(at_ms), count) for at_ms, count in marks)
        by_chain[job, chain] = (*by_chain.get((job, chain), ()), *of_subtask)
    return by_chain


def _measured(path: str) -> Cast:
    return Cast(KT(path), FloatField())


def _sizes(at: datetime, window_s: int) -> dict[str, tuple[datetime, int]]:
    """Time and state of the last checkpoint of each job that completed shortly before a time."""
    slack = max(SIZES_SLACK_LEAST, timedelta(seconds=window_s * SIZES_SLACK))
    rows = JobEvent.objects.filter(kind=COMPLETED, at__lte=at, at__gt=at - slack)
    newest = rows.order_by("job", "-pk").distinct("job").values_list("job", "at", "facts")
    return {
        job: (was_at, round(_number(facts.get("state_bytes")) or 0))
        for job, was_at, facts in newest
        if isinstance(facts, dict)
    }
