"""What the overview reads beside the jobs themselves; each function is one query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import (
    BooleanField,
    Case,
    Count,
    DurationField,
    F,
    FloatField,
    Func,
    IntegerField,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Greatest, JSONObject

from checkpoints.models import Checkpoint
from frontend import attention, queries
from frontend.overview_filters import STATUSES, Group, Wanted
from frontend.overview_sparkline import SHOWN, Point
from jobs.models import FINAL_JOB_STATUSES, DriverStatus, Job, Operator, Subtask
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus


class _Milliseconds(Func):
    """A number of milliseconds as a span of time."""

    template = "make_interval(secs => (%(expressions)s) / 1000.0)"
    output_field = DurationField()


def jobs(wanted: Wanted, silent_after: timedelta) -> QuerySet[Job]:
    """The jobs that are wanted: what needs attention first, then what goes on, then what is over.

    Each has ``needs_attention``: whether ``attention.of`` has something to say of it that is new.
    """
    rows = _with_attention(queries.jobs_by_attention(silent_after))
    urgency = Case(
        When(rank=0, then=Value(0)),
        When(needs_attention=True, then=Value(1)),
        When(~Q(rank=queries.RANK_OVER), then=Value(2)),
        default=Value(queries.RANK_OVER),
        output_field=IntegerField(),
    )
    rows = rows.annotate(urgency=urgency).order_by("urgency", "-created_at", "id")
    match wanted.group:
        case Group.ALL:
            pass
        case Group.ATTENTION:
            rows = rows.filter(needs_attention=True)
        case group:
            rows = rows.filter(status__in=STATUSES[group])
    return _searched(rows, wanted.search)


def counts(wanted: Wanted) -> dict[Group, int]:
    """How many of the jobs that are searched for each group has, ``ATTENTION`` aside."""
    total = _searched(Job.objects.order_by(), wanted.search).aggregate(
        **{
            group.value: Count("pk", filter=Q(status__in=statuses))
            for group, statuses in STATUSES.items()
        },
        all=Count("pk"),
    )
    return {Group(name): count for name, count in total.items()}


def attention_count(wanted: Wanted, silent_after: timedelta) -> int:
    """How many of the jobs that are searched for need attention."""
    return jobs(wanted.of(Group.ATTENTION), silent_after).count()


def _searched(rows: QuerySet[Job], search: str) -> QuerySet[Job]:
    if not search:
        return rows
    return rows.filter(Q(name__icontains=search) | Q(pk__icontains=search))


def _with_attention(rows: QuerySet[Job]) -> QuerySet[Job]:
    """The conditions of ``attention.of``, for the database; a test compares the two."""
    completed = Checkpoint.objects.filter(
        job=OuterRef("pk"), status=CheckpointStatus.COMPLETED
    ).order_by("-number")
    now = queries.DatabaseNow()
    patience = Greatest(
        Value(attention.OVERDUE_FLOOR_MS),
        F("interval_ms") * attention.OVERDUE_INTERVALS,
        F("last_duration_ms") * attention.OVERDUE_DURATIONS,
        output_field=FloatField(),
    )
    is_running = Q(status=JobStatus.RUNNING)
    return (
        rows.annotate(
            interval_ms=Cast(KT("checkpoint_config__interval_ms"), FloatField()),
            last_completed_at=Subquery(completed.values("settled_at")[:1]),
            last_duration_ms=Cast(Subquery(completed.values("duration_ms")[:1]), FloatField()),
        )
        .annotate(
            # Both ignore what is null: a job without a completed checkpoint waits since it runs.
            waits_since=Greatest("attempt_running_at", "last_completed_at"),
            patience=_Milliseconds(patience),
        )
        .annotate(
            needs_attention=Case(
                When(rank=0, then=Value(True)),
                When(status__in=FINAL_JOB_STATUSES, then=Value(False)),
                When(
                    driver_status=DriverStatus.REQUESTED,
                    driver_created_at__lt=_before(now, attention.LAUNCH_PATIENCE_MS),
                    then=Value(True),
                ),
                When(
                    is_running & Q(newest_settled_status=CheckpointStatus.ABORTED),
                    then=Value(True),
                ),
                When(
                    is_running
                    & Q(interval_ms__isnull=False, attempt_running_at__isnull=False)
                    & Q(waits_since__lt=now - F("patience")),
                    then=Value(True),
                ),
                default=Value(False),
                output_field=BooleanField(),
            )
        )
    )


def _before(now: Combinable, milliseconds: float) -> Combinable:
    return now - Value(timedelta(milliseconds=milliseconds))


def recent_points(job_ids: Sequence[str]) -> dict[str, list[Point]]:
    """The newest settled checkpoints of each job, newest first."""
    # One walk down the index of (job, number) per job, whatever is stored.
    newest = Checkpoint.objects.filter(job=OuterRef("pk"), settled_at__isnull=False)
    points = newest.order_by("-number").values(
        point=JSONObject(duration_ms="duration_ms", status="status")
    )
    rows = Job.objects.filter(pk__in=job_ids).order_by()
    return {
        pk: [
            Point(point["duration_ms"], point["status"] == CheckpointStatus.ABORTED)
            for point in found
        ]
        for pk, found in rows.annotate(points=ArraySubquery(points[:SHOWN])).values_list(
            "pk", "points"
        )
    }


@dataclass(frozen=True, slots=True)
class BackPressure:
    """The chain whose subtasks wait most for those downstream, by the uid of its head."""

    chain: str
    share: float  # Of about the last two seconds, in its slowest subtask: 0 to 1.


def back_pressure(job_ids: Sequence[str]) -> dict[str, BackPressure]:
    """The most back-pressured chain of each job; jobs that measured none are left out."""
    share = Max(Cast(KT("rates__back_pressured"), FloatField()))
    rows = (
        Subtask.objects.filter(job__in=job_ids, status=SubtaskStatus.RUNNING)
        .order_by()
        .values_list("job", "chain")
        .annotate(share=share)
    )
    found: dict[str, BackPressure] = {}
    for job, chain, most in rows:
        if most is not None and (job not in found or most > found[job].share):
            found[job] = BackPressure(chain, most)
    return found


def names_of(chains: Mapping[str, str]) -> dict[str, str]:
    """What the operator of a uid is called, for one operator of each job."""
    rows = Operator.objects.filter(job__in=chains, uid__in=set(chains.values())).order_by()
    return {
        job: name for job, uid, name in rows.values_list("job", "uid", "name") if chains[job] == uid
    }
