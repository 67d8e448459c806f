"""Queries of the job page; their number does not depend on the amount of data."""

import itertools
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from django.contrib.postgres.aggregates import ArrayAgg
from django.contrib.postgres.expressions import ArraySubquery
from django.db import connection
from django.db.models import (
    BooleanField,
    Count,
    Exists,
    ExpressionWrapper,
    F,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
)
from django.db.models.functions import JSONObject
from django.http import Http404

from checkpoints.catalog.undeleted import Undeleted, undeleted_of_job
from checkpoints.models import COMPLETED_ONCE, UNSETTLED, Checkpoint, Savepoint, SubtaskAck
from checkpoints.verdict.facts import Gate
from controlplane.alerts.models import FIRING, Alert
from controlplane.base import clock
from controlplane.base.lookups import only
from frontend.base.alignment import NOTHING_ALIGNED, Aligned
from frontend.base.query_parameters import BIGINT_MAX
from frontend.base.up_time import ended_up_time
from frontend.graph.state import ChainSubtasks, Load, Stall, Waiting, WaitingGate
from frontend.job.history import Window
from jobs.models import (
    OPEN_OPERATIONS,
    Attempt,
    Driver,
    Edge,
    Job,
    JobException,
    Operation,
    Operator,
    Subtask,
    Worker,
)
from weir.bounds import COUNT_MAX
from weir.protocol.lifecycle import CheckpointStatus, SubtaskStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

RECENT_CHECKPOINTS = 30  # Enough for pending ones, the last settled ones and a run of failures.
RECENT_OPERATIONS = 6
HISTORY_ROWS = 20
SAVEPOINTS_SHOWN = 20
RESTORABLE_SHOWN = 100
FORKS_SHOWN = 10
EXCEPTIONS_SHOWN = 10
FIRING_SHOWN = 5
RECOVERIES_SHOWN = 10
WAITING_READ = 48  # Aligning or stuck subtasks; others are counted by their acknowledgements.
HISTORY_MAX = 10_000  # Checkpoints of one window.
HAPPENINGS_MAX = 200  # Attempts, and exceptions, of one window.


class RevisionColumns(TypedDict):
    """The columns of a job from which the revisions of its page are made."""

    newest_exception: int | None
    newest_alert: int | None
    firing_alerts: int | None


class Fork(TypedDict):
    """A fork of a job, as its lineage shows it."""

    id: str
    name: str
    status: str
    uri: str


class PageColumns(RevisionColumns):
    """The further columns of a job on its page."""

    now: datetime
    undeleted: Undeleted | None
    ended_up_time: timedelta | None
    fork_list: list[Fork]


# The newest alert of a job, and how many fire: with these, its page changes.
_NEWEST_ALERT = Subquery(
    Alert.objects.filter(job=OuterRef("pk")).order_by("-fired_at", "-id").values("id")[:1]
)
_FIRING_ALERTS = Subquery(
    Alert.objects.filter(job=OuterRef("pk"), state=FIRING)
    .order_by()
    .values("job")
    .annotate(count=Count("pk"))
    .values("count")
)


@cache
def _jobs_with_now() -> "QuerySet[WithAnnotations[Job, PageColumns]]":
    """All jobs as ``job_with_now`` gives one; most pages ask, and it takes long to put together."""
    return (
        Job.objects.select_related("coordinator")
        .defer("coordinator__state", "options", "spark_conf", "settings", "restart_state")
        .annotate(
            now=clock.DatabaseNow(),
            ended_up_time=ended_up_time(),
            newest_exception=Subquery(
                JobException.objects.filter(job=OuterRef("pk"))
                .order_by("-at", "-id")
                .values("id")[:1]
            ),
            newest_alert=_NEWEST_ALERT,
            firing_alerts=_FIRING_ALERTS,
            undeleted=undeleted_of_job(),
            fork_list=ArraySubquery(
                Job.objects.filter(origin=OuterRef("pk"))
                .order_by("-created_at", "id")
                .values(found=JSONObject(id="id", name="name", status="status", uri="origin_uri"))[
                    :FORKS_SHOWN
                ]
            ),
        )
    )


def job_with_now(job_id: str) -> "WithAnnotations[Job, PageColumns] | None":
    """The job with its coordinator's due times, ``now``, and ids of the newest of its past."""
    return only(_jobs_with_now().filter(pk=job_id))


def job_or_404(job_id: str) -> "WithAnnotations[Job, PageColumns]":
    """``job_with_now`` of a job that exists.

    Raises:
        Http404: There is no such job.
    """
    job = job_with_now(job_id)
    if job is None:
        raise Http404(f"There is no job {job_id!r}.")
    return job


def newest_driver(job_id: str) -> Driver | None:
    """The newest driver, the only one whose events count."""
    return Driver.objects.filter(job=job_id).order_by("-number").first()


class WorkerColumns(TypedDict):
    """The further columns of an attempt: its workers whose memory is known, the largest first."""

    memory: list[dict[str, int]]  # Each with ``slot`` and ``bytes``.
    is_first: bool  # Of its driver.


def newest_attempt(job_id: str) -> "WithAnnotations[Attempt, WorkerColumns] | None":
    """The running attempt, or the last one, with the memory of its workers."""
    known = Worker.objects.filter(attempt=OuterRef("pk"), memory_bytes__isnull=False)
    largest_first = known.order_by("-memory_bytes", "slot_index")
    each = largest_first.values(json=JSONObject(slot="slot_index", bytes="memory_bytes"))
    earlier = Attempt.objects.filter(driver=OuterRef("driver"), number__lt=OuterRef("number"))
    attempts = Attempt.objects.filter(job=job_id).annotate(
        memory=ArraySubquery(each), is_first=~Exists(earlier)
    )
    return attempts.order_by("-number").first()


def recent_checkpoints(job_id: str) -> list[Checkpoint]:
    """The newest checkpoints, newest first."""
    return list(Checkpoint.objects.filter(job=job_id).order_by("-number")[:RECENT_CHECKPOINTS])


def last_completed(job_id: str) -> Checkpoint | None:
    """The newest checkpoint that a recovery would restore."""
    return (
        Checkpoint.objects.filter(job=job_id, status=CheckpointStatus.COMPLETED)
        .order_by("-number")
        .first()
    )


def operators(job_id: str) -> list[Operator]:
    """The graph's operators in topological order, those of a chain behind one another."""
    rows = list(Operator.objects.filter(job=job_id).order_by("position"))
    positions = {row.uid: row.position for row in rows}
    return sorted(rows, key=lambda row: (positions.get(row.chain, row.position), row.position))


def edges(job_id: str) -> list[Edge]:
    """The graph's edges by their position."""
    return list(Edge.objects.filter(job=job_id).order_by("position"))


def acknowledged(checkpoint_id: int | None) -> dict[str, list[int]]:
    """The indices of the subtasks that acknowledged a checkpoint (by its row's id), by chain."""
    rows = (
        SubtaskAck.objects.filter(checkpoint=checkpoint_id, operator=F("chain"))
        .order_by()
        .values("chain")
        .annotate(indices=ArrayAgg("index"))
    )
    return {row["chain"]: row["indices"] for row in rows}


# From the time on the columns are ``Load``'s, in their order. Figures are taken out of JSON once;
# arrays are compared from their first entry on, so that of equal shares the lowest index has its
# place.
_CHAINS = """
    SELECT chain, count(*), count(*) FILTER (WHERE status = ANY(%(up)s)),
           coalesce(array_agg("index") FILTER (WHERE status = %(finished)s), '{}'),
           min((metrics ->> 'watermark_ms')::bigint) FILTER (WHERE is_running),
           least(coalesce(sum((metrics ->> 'bad_records')::bigint), 0), %(most)s)::bigint,
           max(updated_at) FILTER (WHERE is_measured),
           coalesce(sum(records_in_per_s) FILTER (WHERE is_measured), 0),
           coalesce(sum(records_out_per_s) FILTER (WHERE is_measured), 0),
           coalesce(sum(bytes_in_per_s) FILTER (WHERE is_measured), 0),
           coalesce(sum(bytes_out_per_s) FILTER (WHERE is_measured), 0),
           avg(busy) FILTER (WHERE is_measured),
           avg(back_pressured) FILTER (WHERE is_measured),
           avg(idle) FILTER (WHERE is_measured),
           -(max(ARRAY[busy, -"index"]) FILTER (WHERE is_measured))[2]::int,
           max(busy) FILTER (WHERE is_measured),
           -(max(ARRAY[coalesce(cpu_wait, 0), -"index"]) FILTER (WHERE is_measured))[2]::int,
           coalesce(max(cpu_wait) FILTER (WHERE is_measured), 0)
    FROM (
        SELECT chain, "index", status, metrics, updated_at, r.*,
               status = %(running)s AS is_running,
               status = %(running)s AND busy IS NOT NULL AS is_measured
        FROM jobs_subtask CROSS JOIN LATERAL jsonb_to_record(rates) AS r (
            records_in_per_s float8, records_out_per_s float8,
            bytes_in_per_s float8, bytes_out_per_s float8,
            busy float8, back_pressured float8, idle float8, cpu_wait float8
        )
        WHERE job_id = %(job)s
    ) AS each
    GROUP BY chain
"""


def chain_subtasks(job_id: str) -> dict[str, ChainSubtasks]:
    """State and load of the newest attempt's subtasks, by chain."""
    values: dict[str, Any] = {
        "job": job_id,
        "most": COUNT_MAX,
        "up": [SubtaskStatus.RUNNING, SubtaskStatus.ENDED, SubtaskStatus.FINISHED],
        "running": SubtaskStatus.RUNNING,
        "finished": SubtaskStatus.FINISHED,
    }
    with connection.cursor() as cursor:
        cursor.execute(_CHAINS, values)
        return {
            chain: ChainSubtasks(
                total,
                running,
                frozenset(finished),
                None if load[0] is None else Load(*load),
                watermark_ms,
                bad_records,
            )
            for chain, total, running, finished, watermark_ms, bad_records, *load in cursor
        }


def held_up(job_id: str, checkpoint_number: int | None) -> tuple[list[Waiting], list[Stall]]:
    """The subtasks that wait for barriers of this checkpoint, and those stuck in a call.

    The first ``WAITING_READ`` of them: stuck ones, then those that have waited longest.
    """
    rows = (
        Subtask.objects.filter(Q(aligning__checkpoint=checkpoint_number) | Q(stall__isnull=False))
        .filter(job=job_id)
        .annotate(is_free=ExpressionWrapper(Q(stall__isnull=True), output_field=BooleanField()))
        .order_by("is_free", "aligning__since_ms", "chain", "index")
        .values("chain", "index", "aligning", "stall")[:WAITING_READ]
    )
    waiting, stalls = [], []
    for row in rows:
        place = {"chain": row["chain"], "index": row["index"]}
        aligning = row["aligning"]
        if aligning and aligning["checkpoint"] == checkpoint_number:
            gates = tuple(_waiting_gate(gate) for gate in aligning["gates"])
            waiting.append(Waiting(**place, since_ms=aligning["since_ms"], gates=gates))
        if row["stall"]:
            stalls.append(Stall(**place, since_ms=row["stall"]["since_ms"]))
    return waiting, stalls


def _waiting_gate(gate: Mapping[str, Any]) -> WaitingGate:
    """A gate as its driver reported it, which may have sent arrays of different lengths."""
    channels = list(zip(gate["upstream"], gate["arrived_ms"], gate["ended"], strict=False))
    return WaitingGate(
        gate=gate["gate"],
        upstream=[sender for sender, _, _ in channels],
        has_come=[arrived is not None or ended for _, arrived, ended in channels],
    )


def recent_operations(job_id: str) -> list[Operation]:
    """Operations under way, newest first, then the last ended: previews never hide a rescale."""
    return list(
        Operation.objects.filter(job=job_id)
        .select_related("requested_by")
        .order_by(F("ended_at").desc(nulls_first=True), "-created_at", "id")[:RECENT_OPERATIONS]
    )


def savepoints(job_id: str) -> list[Savepoint]:
    """Completed and pending savepoints, newest first; failed ones are operations only."""
    # Requested, but not triggered yet.
    waits = Q(checkpoint__isnull=True, operation__status__in=OPEN_OPERATIONS)
    stands = Q(checkpoint__status__in=[*UNSETTLED, CheckpointStatus.COMPLETED])
    return list(
        Savepoint.objects.filter(waits | stands, job=job_id)
        .select_related("checkpoint", "created_by")
        .order_by("-created_at", "id")[:SAVEPOINTS_SHOWN]
    )


def restorable(job_id: str) -> list[Checkpoint]:
    """Restorable checkpoints and savepoints, newest first, those left behind included."""
    kept = Checkpoint.objects.filter(status=CheckpointStatus.COMPLETED, discard_due_at=None)
    kept = kept.filter(savepoint__deleted_at=None)  # True for plain checkpoints as well.
    return list(
        kept.filter(job=job_id).select_related("savepoint").order_by("-number")[:RESTORABLE_SHOWN]
    )


def relatives(job: Job) -> list[Job]:
    """The job's origin and its forks."""
    return list(
        Job.objects.filter(Q(pk=job.origin_id) | Q(origin=job)).order_by("-created_at", "id")
    )


def settled(job_id: str, at_most: int) -> list[Checkpoint]:
    """The newest settled checkpoints, newest first."""
    # Unsettled ones are few and have the highest numbers: the index by number is enough.
    rows = Checkpoint.objects.filter(job=job_id, settled_at__isnull=False)
    return list(rows.order_by("-number")[:at_most])


def settled_within(job_id: str, window: Window) -> list[Checkpoint]:
    """The settled checkpoints of a window, newest first, ``HISTORY_MAX`` at the most."""
    rows = Checkpoint.objects.filter(job=job_id, settled_at__isnull=False).order_by("-number")
    if window.count is not None:
        return list(rows[: window.count])
    # The newest by number first: a condition on the time alone would scan all checkpoints.
    newest = Checkpoint.objects.filter(pk__in=rows.values("pk")[:HISTORY_MAX])
    return list(
        newest.filter(triggered_at__gt=clock.DatabaseNow() - Value(window.span)).order_by("-number")
    )


def attempts_since(job_id: str, since: datetime) -> list[Attempt]:
    """The attempts that ran or began since then, oldest first, and the attempt before them."""
    newest = Attempt.objects.filter(job=job_id).select_related("driver").order_by("-number")
    rows = newest[: HAPPENINGS_MAX + 1]
    attempts = list(reversed(rows))
    first = next((at for at, row in enumerate(attempts) if row.started_at > since), len(attempts))
    return attempts[max(first - 1, 0) :]


def exceptions_since(job_id: str, since: datetime) -> list[JobException]:
    """The exceptions since then, oldest first; the newest ``HAPPENINGS_MAX`` of them."""
    rows = JobException.objects.filter(job=job_id, at__gte=since).order_by("-at", "-id")
    return list(reversed(rows[:HAPPENINGS_MAX]))


def alerts_since(job_id: str, since: datetime) -> list[Alert]:
    """The alerts that fired since then, oldest first; the newest ``HAPPENINGS_MAX`` of them."""
    rows = Alert.objects.filter(job=job_id, fired_at__gte=since).order_by("-fired_at", "-id")
    return list(reversed(rows[:HAPPENINGS_MAX]))


def firing_alerts(job_id: str) -> list[Alert]:
    """The newest alerts of a job that fire."""
    rows = Alert.objects.filter(job=job_id, state=FIRING).order_by("-fired_at", "-id")
    return list(rows[:FIRING_SHOWN])


def latest_aligned(job_id: str) -> Checkpoint | None:
    """The newest completed checkpoint whose details are kept."""
    return (
        Checkpoint.objects.filter(job=job_id, status__in=COMPLETED_ONCE, has_details=True)
        .order_by("-number")
        .first()
    )


# The totals read every gate in the database; only the slowest gates are fetched.
_SLOWEST_GATES = """
    SELECT g.operator, g."index", g.gate, g.upstream, g.arrived_ms, g.blocked_ms, g.bytes_during,
           coalesce(g.in_flight, '{}'),
           s.inputs, s.gate_count, s.channel_count, s.channels_max, s.blocked_ms
    FROM (
        SELECT id, position,
               count(*) OVER (PARTITION BY operator, "index") AS inputs,
               count(*) OVER () AS gate_count,
               (sum(channels) OVER ())::bigint AS channel_count,
               max(channels) OVER () AS channels_max,
               max(blocked) OVER () AS blocked_ms
        FROM (
            SELECT id, operator, "index", gate, arrived, channels,
                   (SELECT max(ms) FROM unnest(blocked_ms) AS ms) AS blocked,
                   array_position(
                       ARRAY(SELECT uid FROM jobs_operator WHERE job_id = %s ORDER BY position),
                       operator
                   ) AS position
            FROM checkpoints_gatealignment
            CROSS JOIN LATERAL (
                SELECT max(ms), count(*) FROM unnest(arrived_ms) AS ms
            ) AS a (arrived, channels)
            WHERE checkpoint_id = %s
        ) AS each
        ORDER BY arrived DESC NULLS LAST, position NULLS LAST, operator, "index", gate
        LIMIT %s
    ) AS s
    JOIN checkpoints_gatealignment g USING (id)
    ORDER BY s.position NULLS LAST, g.operator, g."index", g.gate
"""


def aligned(checkpoint: Checkpoint | None, at_most: int) -> Aligned:
    """The alignment of a checkpoint with ``at_most`` of its slowest gates; empty without one."""
    if checkpoint is None:
        return NOTHING_ALIGNED
    with connection.cursor() as cursor:
        cursor.execute(_SLOWEST_GATES, [checkpoint.job_id, checkpoint.pk, at_most])
        rows = cursor.fetchall()
    if not rows:
        return NOTHING_ALIGNED
    gates = [Gate(*row[:8]) for row in rows]
    inputs = {(gate.operator, gate.index): row[8] for gate, row in zip(gates, rows, strict=True)}
    gate_count, channel_count, channels_max, blocked_ms = rows[0][9:]
    return Aligned(gates, inputs, gate_count, channel_count, channels_max, blocked_ms or 0.0)


_IN_FLIGHT = f"""
    SELECT operator, gate, least(sum(bytes), {BIGINT_MAX})::bigint
    FROM checkpoints_gatealignment CROSS JOIN LATERAL unnest(in_flight) AS bytes
    WHERE checkpoint_id = %s AND in_flight IS NOT NULL
    GROUP BY operator, gate
"""


def in_flight(checkpoint: Checkpoint | None) -> dict[tuple[str, int], int]:
    """Bytes of records that barriers overtook at receivers, by receiving chain and input gate."""
    if checkpoint is None or not checkpoint.in_flight_bytes:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_IN_FLIGHT, [checkpoint.pk])
        return {(operator, gate): size for operator, gate, size in cursor.fetchall()}


def exceptions(job_id: str) -> list[JobException]:
    """The newest exceptions, newest first."""
    return list(JobException.objects.filter(job=job_id).order_by("-at", "-id")[:EXCEPTIONS_SHOWN])


def job_with_revisions(job_id: str) -> "WithAnnotations[Job, RevisionColumns] | None":
    """The job with its recovery target, the id of its newest exception, its alerts' revision."""
    newest = JobException.objects.filter(job=OuterRef("pk")).order_by("-at", "-id").values("id")
    rows = Job.objects.only("pk", "recovery_target_s").annotate(
        newest_exception=Subquery(newest[:1]),
        newest_alert=_NEWEST_ALERT,
        firing_alerts=_FIRING_ALERTS,
    )
    return rows.filter(pk=job_id).first()


def takeovers(job_id: str) -> list[tuple[Attempt, Attempt]]:
    """The newest attempts that replaced another one, each with that one, newest first."""
    newest = Attempt.objects.filter(job=job_id).select_related("driver").order_by("-number")
    return list(itertools.pairwise(newest[: RECOVERIES_SHOWN + 1]))


def newest_settled_at(job_id: str) -> datetime | None:
    """The last settlement among the recent checkpoints: it changes with every settlement."""
    recent = Checkpoint.objects.filter(job=job_id).order_by("-number")[:RECENT_CHECKPOINTS]
    rows = Checkpoint.objects.filter(pk__in=recent.values("pk"))
    newest: datetime | None = rows.aggregate(at=Max("settled_at"))["at"]
    return newest
