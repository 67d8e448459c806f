"""``GET /metrics``: metrics for Prometheus, read from the rows at each scrape.

The newest ``JOBS_MAX`` jobs have series, until an hour after their end; so the number of series is
bounded. Totals over all checkpoints of a job are read once: later scrapes add the checkpoints
settled since. Every web process gives the same numbers, except for ``weir_web_*``, which are its
own.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Min, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse
from drf_spectacular.utils import extend_schema
from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from checkpoints.models import Checkpoint
from controlplane.base import clock, threads
from controlplane.channel_metrics import channel_metrics
from controlplane.process_metrics import REGISTRY
from jobs.models import (
    FINAL_JOB_STATUSES,
    OPEN_OPERATIONS,
    Attempt,
    Job,
    Operation,
    OperationKind,
    OutboxCommand,
)
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

JOBS_MAX = 200
KEPT_AFTER_END = timedelta(hours=1)
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
ALIGNMENT_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)

_ABORTED = CheckpointStatus.ABORTED.value
_UNSETTLED = (CheckpointStatus.PENDING.value, CheckpointStatus.FINALIZING.value)
_RESTORE_PHASES = ("backoff", "redeploy", "restore", "catch_up")


class _Anything(BaseContentNegotiation):
    """No negotiation by REST framework: the exposition format negotiates itself."""

    def select_parser(self, request: Request, parsers: Sequence[Any]) -> Any:
        """The first parser, which is not used."""
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: Sequence[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The first renderer, which renders refusals."""
        return renderers[0], str(renderers[0].media_type)


@extend_schema(exclude=True)
class MetricsView(APIView):
    """The metrics, for viewers; without any check if ``WEIR_METRICS_PUBLIC`` is set."""

    content_negotiation_class = _Anything
    throttle_classes = ()

    def get_authenticators(self) -> list[Any]:
        """None if the metrics are public: an expired token must not fail the request."""
        return [] if settings.WEIR_METRICS_PUBLIC else super().get_authenticators()

    def get_permissions(self) -> list[Any]:
        """None if the metrics are public."""
        return [] if settings.WEIR_METRICS_PUBLIC else super().get_permissions()

    def get(self, request: HttpRequest) -> HttpResponse:
        """All metrics, in the requested format."""
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return HttpResponse(encoder(REGISTRY), content_type=content_type)


view = MetricsView.as_view()


@dataclass(slots=True)
class _Totals:
    """Totals over all settled checkpoints of a job up to number ``up_to``."""

    up_to: int = 0
    completed: int = 0
    failed: int = 0
    durations: list[int] = field(default_factory=lambda: [0] * len(DURATION_BUCKETS_S))
    durations_ms: float = 0.0
    alignments: list[int] = field(default_factory=lambda: [0] * len(ALIGNMENT_BUCKETS_S))
    alignments_ms: float = 0.0

    def add(self, row: dict[str, Any], up_to: int) -> None:
        """Add the checkpoints that ``row`` aggregates."""
        self.up_to = up_to
        self.completed += row["completed"]
        self.failed += row["failed"]
        self.durations_ms += row["durations_ms"] or 0
        self.alignments_ms += row["alignments_ms"] or 0
        for index in range(len(self.durations)):
            self.durations[index] += row[f"duration_{index}"]
        for index in range(len(self.alignments)):
            self.alignments[index] += row[f"alignment_{index}"]


class Rows(Collector):
    """The collector of metrics from rows, read at each scrape."""

    def __init__(self) -> None:
        self._totals: dict[str, _Totals] = {}
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration must not read rows."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric, each read at one moment."""
        now = clock.now()
        jobs = _shown_jobs(now)
        yield from _job_metrics(jobs)
        with self._lock:
            self._bring_up_to_date([job.pk for job in jobs])
            yield from _total_metrics(self._totals)
        yield from _last_checkpoint_metrics(jobs, now)
        yield from _restore_metrics(jobs)
        yield from _queue_metrics(now)

    def _bring_up_to_date(self, job_ids: list[str]) -> None:
        self._totals = {job_id: self._totals.get(job_id, _Totals()) for job_id in job_ids}
        ends = _settled_up_to(job_ids)
        ranges = Q()
        for job_id, totals in self._totals.items():
            if (end := ends.get(job_id, 0)) > totals.up_to:
                ranges |= Q(job=job_id, number__gt=totals.up_to, number__lte=end)
        if ranges:
            for row in _sums(ranges):
                self._totals[row["job"]].add(row, ends[row["job"]])


def _shown_jobs(now: datetime) -> list[Job]:
    lives = ~Q(status__in=FINAL_JOB_STATUSES) | Q(ended_at__gte=now - KEPT_AFTER_END)
    return list(
        Job.objects.filter(lives)
        .order_by("-created_at")
        .only("name", "status", "started_at", "ended_at", "checkpoint_config")[:JOBS_MAX]
    )


def _settled_up_to(job_ids: list[str]) -> dict[str, int]:
    """The number up to which all checkpoints of a job are settled, by job."""
    own = Checkpoint.objects.filter(job=OuterRef("pk"))
    newest = own.order_by("-number").values("number")[:1]
    unsettled = own.filter(status__in=_UNSETTLED).order_by("number").values("number")[:1]
    rows = (
        Job.objects.filter(pk__in=job_ids)
        .order_by()
        .annotate(newest=Subquery(newest), unsettled=Subquery(unsettled))
        .values_list("pk", "newest", "unsettled")
    )
    return {pk: unsettled - 1 if unsettled else newest or 0 for pk, newest, unsettled in rows}


def _sums(ranges: Q) -> Iterable[dict[str, Any]]:
    completed = ~Q(status=_ABORTED)
    durations = {
        f"duration_{i}": Count("pk", filter=completed & Q(duration_ms__lte=bound * 1_000))
        for i, bound in enumerate(DURATION_BUCKETS_S)
    }
    alignments = {
        f"alignment_{i}": Count("pk", filter=completed & Q(alignment_ms__lte=bound * 1_000))
        for i, bound in enumerate(ALIGNMENT_BUCKETS_S)
    }
    return (
        Checkpoint.objects.filter(ranges)
        .order_by()
        .values("job")
        .annotate(
            completed=Count("pk", filter=completed),
            failed=Count("pk", filter=~completed),
            durations_ms=Sum("duration_ms", filter=completed),
            alignments_ms=Sum("alignment_ms", filter=completed),
            **durations,
            **alignments,
        )
    )


def _job_metrics(jobs: list[Job]) -> Iterator[Metric]:
    counts = dict.fromkeys((status.value for status in JobStatus), 0)
    counts |= _counted(Job.objects.all(), "status")
    statuses = GaugeMetricFamily("weir_jobs", "Jobs by status.", labels=["status"])
    for status, count in counts.items():
        statuses.add_metric([status], count)
    yield statuses

    info = GaugeMetricFamily(
        "weir_job_info", "Always 1; maps a job to its name.", labels=["job", "name"]
    )
    for job in jobs:
        info.add_metric([job.pk, job.name], 1)
    yield info

    restarts = CounterMetricFamily(
        "weir_job_restarts", "Attempts of a job after its first.", labels=["job"]
    )
    attempts = _counted(Attempt.objects.filter(job__in=[job.pk for job in jobs]), "job")
    for job in jobs:
        restarts.add_metric([job.pk], max(0, attempts.get(job.pk, 0) - 1))
    yield restarts


def _counted(rows: QuerySet[Any], by: str) -> dict[str, int]:
    """The number of rows by the value of a column."""
    groups = rows.order_by().values(by).annotate(count=Count("pk"))
    return dict(groups.values_list(by, "count"))


def _total_metrics(all_totals: dict[str, _Totals]) -> Iterator[Metric]:
    counts = CounterMetricFamily(
        "weir_checkpoints",
        "Settled checkpoints and savepoints, completed or failed.",
        labels=["job", "result"],
    )
    durations = HistogramMetricFamily(
        "weir_checkpoint_duration_seconds",
        "Time from trigger to completion of completed checkpoints.",
        labels=["job"],
    )
    alignments = HistogramMetricFamily(
        "weir_checkpoint_alignment_seconds",
        "The longest alignment among the subtasks, of completed checkpoints.",
        labels=["job"],
    )
    for job_id, totals in all_totals.items():
        counts.add_metric([job_id, "completed"], totals.completed)
        counts.add_metric([job_id, "failed"], totals.failed)
        durations.add_metric(
            [job_id],
            _buckets(DURATION_BUCKETS_S, totals.durations, totals.completed),
            totals.durations_ms / 1_000,
        )
        alignments.add_metric(
            [job_id],
            _buckets(ALIGNMENT_BUCKETS_S, totals.alignments, totals.completed),
            totals.alignments_ms / 1_000,
        )
    yield from (counts, durations, alignments)


def _buckets(bounds: Sequence[float], counts: Sequence[int], total: int) -> list[tuple[str, float]]:
    named = [(str(float(bound)), float(n)) for bound, n in zip(bounds, counts, strict=True)]
    return [*named, ("+Inf", float(total))]


def _last_checkpoint_metrics(jobs: list[Job], now: datetime) -> Iterator[Metric]:
    completed_at = GaugeMetricFamily(
        "weir_last_completed_checkpoint_timestamp_seconds",
        "Time of completion of a job's newest completed checkpoint.",
        labels=["job"],
    )
    age = GaugeMetricFamily(
        "weir_seconds_since_last_completed_checkpoint",
        "Age of a live job's newest completed checkpoint; without one, since the job first ran.",
        labels=["job"],
    )
    size = GaugeMetricFamily(
        "weir_checkpoint_state_bytes",
        "Size of a job's newest completed checkpoint: all state, newly written, in flight.",
        labels=["job", "kind"],
    )
    newest = (
        Checkpoint.objects.filter(job=OuterRef("pk"), status=CheckpointStatus.COMPLETED.value)
        .order_by("-number")
        .values("pk")[:1]
    )
    ids = Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list(Subquery(newest))
    fields = ("job", "settled_at", "state_bytes", "written_bytes", "in_flight_bytes")
    last = {
        row.job_id: row for row in Checkpoint.objects.filter(pk__in=list(_flat(ids))).only(*fields)
    }
    for job in jobs:
        row = last.get(job.pk)
        if row is not None:
            completed_at.add_metric([job.pk], row.settled_at.timestamp())
            size.add_metric([job.pk, "full"], row.state_bytes)
            size.add_metric([job.pk, "delta"], row.written_bytes)
            size.add_metric([job.pk, "inflight"], row.in_flight_bytes)
        since = job.started_at if row is None else row.settled_at
        is_periodic = (job.checkpoint_config or {}).get("interval_ms") is not None
        if not job.is_over and since is not None and (row is not None or is_periodic):
            age.add_metric([job.pk], (now - since).total_seconds())
    yield from (completed_at, age, size)
    yield from channel_metrics({row.pk: job_id for job_id, row in last.items()})


def _flat(rows: Iterable[tuple[Any]]) -> Iterator[Any]:
    return (value for (value,) in rows if value is not None)


def _restore_metrics(jobs: list[Job]) -> Iterator[Metric]:
    restores = GaugeMetricFamily(
        "weir_restore_duration_seconds",
        "Phases of a job's newest recovery: waiting, deploying, restoring state, catching up.",
        labels=["job", "phase"],
    )
    newest = (
        Attempt.objects.filter(job=OuterRef("pk"), restore_ms__isnull=False)
        .order_by("-number")
        .values("pk")[:1]
    )
    ids = Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list(Subquery(newest))
    for attempt in Attempt.objects.filter(pk__in=list(_flat(ids))):
        for phase in _RESTORE_PHASES:
            if (took_ms := getattr(attempt, f"{phase}_ms")) is not None:
                restores.add_metric([attempt.job_id, phase], took_ms / 1_000)
    yield restores


def _queue_metrics(now: datetime) -> Iterator[Metric]:
    outbox = OutboxCommand.objects.aggregate(depth=Count("pk"), oldest=Min("created_at"))
    yield GaugeMetricFamily(
        "weir_outbox_commands", "Commands that drivers have not taken yet.", outbox["depth"]
    )
    oldest = outbox["oldest"]
    yield GaugeMetricFamily(
        "weir_outbox_age_seconds",
        "Age of the oldest command that a driver has not taken yet.",
        0.0 if oldest is None else (now - oldest).total_seconds(),
    )
    operations = GaugeMetricFamily(
        "weir_open_operations", "Operations without an end yet.", labels=["kind"]
    )
    counts = dict.fromkeys(OperationKind.values, 0)
    counts |= _counted(Operation.objects.filter(status__in=OPEN_OPERATIONS), "kind")
    for kind, count in counts.items():
        operations.add_metric([kind], count)
    yield operations


class DatabasePool(Collector):
    """The collector of metrics of this process's database threads."""

    def describe(self) -> Iterable[Metric]:
        """Nothing: the pool may not exist yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The size and the use of the pool."""
        pool = threads.shared()
        used = GaugeMetricFamily(
            "weir_web_database_threads",
            "Threads of this process that have a database connection.",
            labels=["state"],
        )
        used.add_metric(["busy"], pool.busy)
        used.add_metric(["idle"], pool.size - pool.busy)
        yield used
        yield GaugeMetricFamily(
            "weir_web_database_waiting", "Calls that wait for such a thread.", pool.waiting
        )


REGISTRY.register(Rows())
REGISTRY.register(DatabasePool())
ProcessCollector(registry=REGISTRY)
