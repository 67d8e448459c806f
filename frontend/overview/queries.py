"""Queries of the overview: its jobs in order, and the facts shown with each.

Each function is one query, whose cost does not grow with the number of stored checkpoints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    DurationField,
    FloatField,
    Func,
    IntegerChoices,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Coalesce, Greatest, JSONObject
from django.db.models.lookups import Exact, IsNull, LessThan

from checkpoints.catalog.undeleted import Undeleted, undeleted, undeleted_of_job
from checkpoints.conditions import judge
from checkpoints.models import Checkpoint
from controlplane.base import clock
from controlplane.base.rest.filters import with_label
from frontend.base.up_time import ended_up_time
from frontend.overview.filters import STATUSES, Group, Wanted
from frontend.overview.sparkline import SHOWN, Point
from jobs.models import (
    FINAL_JOB_STATUSES,
    Attempt,
    AttemptEnd,
    Driver,
    DriverStatus,
    Job,
    Operator,
    Subtask,
)
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

SomeJob = TypeVar("SomeJob", bound=Job)

FAILURES_WINDOW = timedelta(hours=1)
FAILED_LATELY = Value(timedelta(days=1))  # An older failure needs no attention any more.
LAUNCH_PATIENCE = Value(timedelta(milliseconds=judge.LAUNCH_PATIENCE_MS))


class _Milliseconds(Func):
    """A number of milliseconds as an interval of PostgreSQL."""

    template = "make_interval(secs => (%(expressions)s) / 1000.0)"
    output_field = DurationField()


class Urgency(IntegerChoices):
    """The rank of a job in the list."""

    BAD = 0  # ``list_conditions`` has a bad one, or the job is recovering or failed lately.
    WARN = 1  # ``list_conditions`` has others only.
    WELL = 2
    OVER = 3  # The job has ended, other than in a failure within ``FAILED_LATELY``.


class ListColumns(TypedDict):
    """The further columns of a job in the list: of its newest driver and attempt, among others."""

    now: datetime
    driver_status: str | None
    driver_heard_at: datetime | None
    driver_created_at: datetime | None
    attempt_number: int | None
    attempt_running_at: datetime | None
    attempt_ended_at: datetime | None
    ended_up_time: timedelta | None
    completed_id: int | None
    parallelism: str | None
    recovered: int
    urgency: int
    undeleted: Undeleted | None


@lru_cache(maxsize=1)
def _listed(silent_after: timedelta) -> "QuerySet[WithAnnotations[Job, ListColumns]]":
    """All jobs in their order; every list begins with it, and it takes long to put together."""
    return (
        Job.objects.defer("options", "spark_conf", "settings", "restart_state")
        .annotate(
            now=clock.DatabaseNow(),
            driver_status=_newest(Driver, "status"),
            driver_heard_at=_newest(Driver, "heard_at"),
            driver_created_at=_newest(Driver, "created_at"),
            attempt_number=_newest(Attempt, "number"),
            attempt_running_at=_newest(Attempt, "running_at"),
            attempt_ended_at=_newest(Attempt, "ended_at"),
            ended_up_time=ended_up_time(),
            completed_id=_completed("id"),
            # Of the newest graph; before there is one, as submitted.
            parallelism=Coalesce(KT("settings__parallelism"), KT("options__parallelism")),
        )
        .annotate(recovered=_recoveries(), undeleted=undeleted_of_job())
        .annotate(urgency=_urgency(silent_after))
        .order_by("urgency", "-created_at", "id")
    )


def jobs(wanted: Wanted, silent_after: timedelta) -> "QuerySet[WithAnnotations[Job, ListColumns]]":
    """The filtered jobs: those that need attention first, then other live ones, then ended ones.

    Each has ``now``, its ``urgency``, and columns of its newest driver and attempt.
    """
    is_archived = wanted.group is Group.ARCHIVED
    rows = _listed(silent_after).filter(archived_at__isnull=not is_archived)
    match wanted.group:
        case Group.ALL | Group.ARCHIVED:
            pass
        case Group.ATTENTION:
            rows = rows.filter(urgency__lte=Urgency.WARN)
        case group:
            rows = rows.filter(status__in=STATUSES[group])
    return _searched(rows, wanted)


def _newest(model: Any, field: str) -> Subquery:
    return Subquery(model.objects.filter(job=OuterRef("pk")).order_by("-number").values(field)[:1])


def _recoveries() -> Coalesce:
    """The number of the job's attempts that ran, failed and were replaced."""
    failed = Attempt.objects.filter(
        job=OuterRef("pk"),
        end=AttemptEnd.FAILED,
        running_at__isnull=False,
        number__lt=OuterRef("attempt_number"),
    )
    counted = failed.order_by().values("job").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


def _completed(field: str) -> Subquery:
    rows = Checkpoint.objects.filter(job=OuterRef("pk"), status=CheckpointStatus.COMPLETED)
    return Subquery(rows.order_by("-number").values(field)[:1])


def _not_aborted() -> QuerySet[Checkpoint]:
    """The checkpoints of the job of the outer query that have completed or failed."""
    settled = Checkpoint.objects.filter(job=OuterRef("pk"), settled_at__isnull=False)
    return settled.exclude(status=CheckpointStatus.ABORTED)


def _urgency(silent_after: timedelta) -> Case:
    """The conditions of ``list_conditions`` for the database; a test compares the two."""
    now = clock.DatabaseNow()
    is_running = Q(status=JobStatus.RUNNING)
    newest_settled = Subquery(_not_aborted().order_by("-number").values("status")[:1])
    # Greatest ignores null: without a completed checkpoint a job waits since its attempt runs.
    waits_since = Greatest("attempt_running_at", _completed("settled_at"))
    interval_ms = Cast(KT("checkpoint_config__interval_ms"), FloatField())
    patience = Greatest(
        Value(judge.OVERDUE_FLOOR_MS),
        interval_ms * judge.OVERDUE_INTERVALS,
        Cast(_completed("duration_ms"), FloatField()) * judge.OVERDUE_DURATIONS,
        output_field=FloatField(),
    )
    return Case(
        When(status=JobStatus.FAILED, ended_at__gt=now - FAILED_LATELY, then=Urgency.BAD),
        When(status__in=FINAL_JOB_STATUSES, then=Urgency.OVER),
        When(status=JobStatus.FAILING, then=Urgency.BAD),
        When(status=JobStatus.RESTARTING, is_planned=False, then=Urgency.BAD),
        When(
            driver_status=DriverStatus.RUNNING,
            driver_heard_at__lt=now - Value(silent_after),
            then=Urgency.BAD,
        ),
        When(
            driver_status=DriverStatus.REQUESTED,
            driver_created_at__lt=now - LAUNCH_PATIENCE,
            then=Urgency.WARN,
        ),
        When(is_running & Exact(newest_settled, CheckpointStatus.FAILED), then=Urgency.WARN),
        When(
            is_running
            & IsNull(interval_ms, False)
            & Q(attempt_running_at__isnull=False)
            & LessThan(waits_since, now - _Milliseconds(patience)),
            then=Urgency.WARN,
        ),
        When(pk__in=undeleted().values("job"), then=Urgency.WARN),
        default=Urgency.WELL,
        output_field=IntegerField(),
    )


def counts(wanted: Wanted) -> dict[Group, int]:
    """The number of searched jobs by group, without ``ATTENTION``."""
    listed = Q(archived_at=None)
    total = _searched(Job.objects.order_by(), wanted).aggregate(
        **{
            group.value: Count("pk", filter=listed & Q(status__in=statuses))
            for group, statuses in STATUSES.items()
        },
        all=Count("pk", filter=listed),
        archived=Count("pk", filter=~listed),
    )
    return {Group(name): count for name, count in total.items()}


def attention_count(wanted: Wanted, silent_after: timedelta) -> int:
    """The number of searched jobs that need attention."""
    return jobs(wanted.in_group(Group.ATTENTION), silent_after).count()


def _searched(rows: QuerySet[SomeJob], wanted: Wanted) -> QuerySet[SomeJob]:
    if wanted.search:
        rows = rows.filter(Q(name__icontains=wanted.search) | Q(pk__icontains=wanted.search))
    for label in wanted.labels:
        rows = with_label(rows, "label", label)
    return rows


def completed_by_id(ids: Sequence[int]) -> Mapping[int, Checkpoint]:
    """Checkpoints by their rows' ids."""
    return Checkpoint.objects.in_bulk(ids)


def failures_by_job(job_ids: Sequence[str], now: datetime) -> dict[str, int]:
    """The number of each job's checkpoints that failed within ``FAILURES_WINDOW``."""
    rows = (
        Checkpoint.objects.filter(
            job__in=job_ids,
            status=CheckpointStatus.FAILED,
            triggered_at__gt=now - FAILURES_WINDOW,
        )
        .order_by()
        .values("job")
        .annotate(count=Count("id"))
    )
    return {row["job"]: row["count"] for row in rows}


def recent_points(job_ids: Sequence[str]) -> dict[str, list[Point]]:
    """The newest settled checkpoints by job, newest first."""
    # One scan of the index of (job, number) per job, however many checkpoints are stored.
    newest = Checkpoint.objects.filter(job=OuterRef("pk"), settled_at__isnull=False)
    points = newest.order_by("-number").values(
        point=JSONObject(duration_ms="duration_ms", status="status", reason="reason")
    )
    rows = Job.objects.filter(pk__in=job_ids).order_by()
    return {
        pk: [Point(**point) for point in newest_points]
        for pk, newest_points in rows.annotate(points=ArraySubquery(points[:SHOWN])).values_list(
            "pk", "points"
        )
    }


@dataclass(frozen=True, slots=True)
class BackPressure:
    """The chain whose subtasks wait most for those downstream, by the uid of its head."""

    chain: str
    share: float  # Of about the last two seconds, in its slowest subtask: 0 to 1.


@dataclass(frozen=True, slots=True)
class Load:
    """The last measurements of a chain's running subtasks."""

    back_pressured: float | None  # Of its slowest subtask: 0 to 1.
    records_in: float | None  # A second, of all its subtasks; a source's: emitted.
    watermark_ms: int | None  # The lowest.


def loads(job_ids: Sequence[str]) -> dict[str, dict[str, Load]]:
    """The load of each job's chains, by job and by the uid of the chain's head."""
    rows = (
        Subtask.objects.filter(job__in=job_ids, status=SubtaskStatus.RUNNING)
        .order_by()
        .values_list("job", "chain")
        .annotate(
            back_pressured=Max(Cast(KT("rates__back_pressured"), FloatField())),
            records_in=Sum(Cast(KT("rates__records_in_per_s"), FloatField())),
            watermark_ms=Min(Cast(KT("metrics__watermark_ms"), BigIntegerField())),
        )
    )
    by_job: dict[str, dict[str, Load]] = {}
    for job, chain, *measured in rows:
        by_job.setdefault(job, {})[chain] = Load(*measured)
    return by_job


def most_pressed(chains: Mapping[str, Load]) -> BackPressure | None:
    """The most back-pressured chain of a job; None: none has measured it."""
    measured = [
        BackPressure(chain, load.back_pressured)
        for chain, load in chains.items()
        if load.back_pressured is not None
    ]
    return max(measured, key=lambda one: one.share, default=None)


def back_pressure(job_ids: Sequence[str]) -> dict[str, BackPressure]:
    """The most back-pressured chain of each job; jobs that measured none are left out."""
    pressed = {job: most_pressed(chains) for job, chains in loads(job_ids).items()}
    return {job: one for job, one in pressed.items() if one is not None}


@dataclass(frozen=True, slots=True)
class Operators:
    """Of a job's operators, what the overview shows beside their load."""

    names: Mapping[str, str]  # By uid, of the wanted ones and of sources.
    source_chains: frozenset[str]


def operators(job_ids: Sequence[str], uids: Mapping[str, str]) -> dict[str, Operators]:
    """The sources of each job, and the operator of one uid."""
    rows = (
        Operator.objects.filter(job__in=job_ids)
        .filter(Q(is_source=True) | Q(uid__in=set(uids.values())))
        .order_by()
        .values_list("job", "uid", "name", "chain", "is_source")
    )
    names: dict[str, dict[str, str]] = {job: {} for job in job_ids}
    sources: dict[str, set[str]] = {job: set() for job in job_ids}
    for job, uid, name, chain, is_source in rows:
        names[job][uid] = name
        if is_source:
            sources[job].add(chain)
    return {job: Operators(names[job], frozenset(sources[job])) for job in job_ids}
