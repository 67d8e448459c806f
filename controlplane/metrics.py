"""``GET /metrics``: metrics for Prometheus, read from the rows at each scrape.

The newest ``JOBS_MAX`` jobs have series, until an hour after their end; so the number of series is
bounded. Totals over all checkpoints of a job are read once: later scrapes add the checkpoints
settled since. Rows that retention removes are counted before (``checkpoints.retention.totals``).
Every web process gives the same numbers, except for ``weir_web_*``, which are its own.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from django.conf import settings
from django.db.models import Count, Min, OuterRef, Q, Subquery
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
from rest_framework.authentication import BaseAuthentication
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from checkpoints.catalog.undeleted import Undeleted, undeleted_of_job
from checkpoints.models import UNSETTLED, AlignmentOutcome, Checkpoint, RemovedCheckpoints
from checkpoints.retention import totals
from controlplane.accounts.permissions import RolePermission
from controlplane.alert_metrics import alert_metrics
from controlplane.base import clock, threads
from controlplane.channel_metrics import channel_metrics
from controlplane.delivery_metrics import delivery_metrics
from controlplane.job_metrics import counted, job_metrics, tick_metrics
from controlplane.process_metrics import REGISTRY
from controlplane.retention import report
from jobs.models import (
    FINAL_JOB_STATUSES,
    OPEN_OPERATIONS,
    Attempt,
    Job,
    Operation,
    OperationKind,
    OutboxCommand,
)
from weir.protocol.lifecycle import CheckpointStatus

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations  # In the stubs only, as the other.
    from rest_framework.permissions import _SupportsHasPermission

JOBS_MAX = 200
KEPT_AFTER_END = timedelta(hours=1)
READ_TIMES_MAX = 3  # Where rows are removed meanwhile; then the next scrape has the totals again.

_RESTORE_PHASES = ("backoff", "redeploy", "restore", "catch_up")


class _Anything(BaseContentNegotiation):
    """No negotiation by REST framework: the exposition format negotiates itself."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        """The first parser, which is not used."""
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The first renderer, which renders refusals."""
        first = next(iter(renderers))
        return first, str(first.media_type)


@extend_schema(exclude=True)
class MetricsView(APIView):
    """The metrics, for viewers; without any check if ``WEIR_METRICS_PUBLIC`` is set."""

    content_negotiation_class = _Anything
    permission_classes = (RolePermission,)  # Prometheus may send parameters of its own.
    throttle_classes = ()

    def get_authenticators(self) -> list[BaseAuthentication]:
        """None if the metrics are public: an expired token must not fail the request."""
        return [] if settings.WEIR_METRICS_PUBLIC else super().get_authenticators()

    def get_permissions(self) -> "Sequence[_SupportsHasPermission]":
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

    sums: Mapping[str, float]  # By the names of ``totals.sums``.
    up_to: int = 0

    def add(self, row: Mapping[str, Any], up_to: int) -> None:
        """Add the checkpoints that ``row`` aggregates."""
        self.sums, self.up_to = totals.added(self.sums, row), up_to

    def count(self, name: str) -> float:
        """One of the totals."""
        return self.sums.get(name, 0)


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
        yield from job_metrics(jobs, now)
        with self._lock:
            self._bring_up_to_date([job.pk for job in jobs])
            yield from _total_metrics(self._totals)
        yield from _last_checkpoint_metrics(jobs, now)
        yield from _restore_metrics(jobs)
        yield _undeleted_metric(jobs)
        yield from _queue_metrics(now)
        yield from tick_metrics(now)
        yield from delivery_metrics(now)
        yield from alert_metrics(now)
        yield from _retention_metrics()

    def _bring_up_to_date(self, job_ids: list[str]) -> None:
        for _ in range(READ_TIMES_MAX):
            removed = totals.removed_of(job_ids)
            self._totals = {job_id: self._known(job_id, removed) for job_id in job_ids}
            self._read_on(job_ids)
            again = totals.removed_of(job_ids)
            if {pk: r.totals for pk, r in removed.items()} == {
                pk: r.totals for pk, r in again.items()
            }:
                return
            self._totals = {}  # Rows were removed in between: they counted twice, or not at all.

    def _known(self, job_id: str, removed: Mapping[str, RemovedCheckpoints]) -> _Totals:
        """The totals of the last scrape; anew where rows were removed that it had not read."""
        known, gone = self._totals.get(job_id), removed.get(job_id)
        if known is None or (gone is not None and gone.up_to > known.up_to):
            return _Totals({} if gone is None else gone.totals)
        return known

    def _read_on(self, job_ids: list[str]) -> None:
        ends = _settled_up_to(job_ids)
        ranges = Q()
        for job_id, known in self._totals.items():
            if (end := ends.get(job_id, 0)) > known.up_to:
                ranges |= Q(job=job_id, number__gt=known.up_to, number__lte=end)
        if ranges:
            for row in totals.sums(Checkpoint.objects.filter(ranges)):
                self._totals[row["job"]].add(row, ends[row["job"]])


class _Columns(TypedDict):
    undeleted: Undeleted | None


def _shown_jobs(now: datetime) -> "list[WithAnnotations[Job, _Columns]]":
    lives = ~Q(status__in=FINAL_JOB_STATUSES) | Q(ended_at__gte=now - KEPT_AFTER_END)
    return list(
        Job.objects.filter(lives)
        .annotate(undeleted=undeleted_of_job())
        .order_by("-created_at")
        .only(
            *("name", "status", "started_at", "ended_at", "checkpoint_config"),
            "failed_attempts_removed",
        )[:JOBS_MAX]
    )


def _settled_up_to(job_ids: list[str]) -> dict[str, int]:
    """The number up to which all checkpoints of a job are settled, by job."""
    own = Checkpoint.objects.filter(job=OuterRef("pk"))
    newest = own.order_by("-number").values("number")[:1]
    unsettled = own.filter(status__in=UNSETTLED).order_by("number").values("number")[:1]
    rows = (
        Job.objects.filter(pk__in=job_ids)
        .order_by()
        .annotate(newest=Subquery(newest), unsettled=Subquery(unsettled))
        .values_list("pk", "newest", "unsettled")
    )
    return {pk: unsettled - 1 if unsettled else newest or 0 for pk, newest, unsettled in rows}


def _total_metrics(all_totals: Mapping[str, _Totals]) -> Iterator[Metric]:
    counts = CounterMetricFamily(
        "weir_checkpoints",
        "Settled checkpoints and savepoints: completed, failed, or aborted by a planned end.",
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
    in_flight = HistogramMetricFamily(
        "weir_checkpoint_in_flight_bytes",
        "Persisted in-flight data of completed checkpoints: records that barriers overtook.",
        labels=["job"],
    )
    by_alignment = CounterMetricFamily(
        "weir_checkpoints_by_alignment",
        "Completed checkpoints: aligned, unaligned from the start, or after the time-out.",
        labels=["job", "alignment"],
    )
    for job_id, known in all_totals.items():
        for alignment in AlignmentOutcome.values:
            by_alignment.add_metric([job_id, alignment], known.count(alignment))
        in_flight.add_metric(
            [job_id],
            _buckets("in_flight", totals.IN_FLIGHT_BUCKETS, known, of="in_flight"),
            known.count("in_flight_bytes_in_all"),
        )
        for result in ("completed", "failed", "aborted"):
            counts.add_metric([job_id, result], known.count(result))
        durations.add_metric(
            [job_id],
            _buckets("duration", totals.DURATION_BUCKETS_S, known),
            known.count("durations_ms") / 1_000,
        )
        alignments.add_metric(
            [job_id],
            _buckets("alignment", totals.ALIGNMENT_BUCKETS_S, known),
            known.count("alignments_ms") / 1_000,
        )
    yield from (counts, durations, alignments, in_flight, by_alignment)


def _buckets(
    name: str, bounds: Sequence[float], known: _Totals, of: str = "completed"
) -> list[tuple[str, float]]:
    named = [(str(float(bound)), known.count(f"{name}_{i}")) for i, bound in enumerate(bounds)]
    return [*named, ("+Inf", known.count(of))]


def _last_checkpoint_metrics(jobs: Sequence[Job], now: datetime) -> Iterator[Metric]:
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
            assert row.settled_at is not None  # It has completed.
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


def _restore_metrics(jobs: Sequence[Job]) -> Iterator[Metric]:
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


def _undeleted_metric(jobs: "Iterable[WithAnnotations[Job, _Columns]]") -> Metric:
    metric = GaugeMetricFamily(
        "weir_undeleted_checkpoints",
        "Checkpoints that nothing needs and whose files could not be deleted in several tries.",
        labels=["job"],
    )
    for job in jobs:
        metric.add_metric([job.pk], job.undeleted["count"] if job.undeleted else 0)
    return metric


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
    counts |= counted(Operation.objects.filter(status__in=OPEN_OPERATIONS), "kind")
    for kind, count in counts.items():
        operations.add_metric([kind], count)
    yield operations


def _retention_metrics() -> Iterator[Metric]:
    removed = CounterMetricFamily(
        "weir_retention_removed", "Rows and files that retention removed.", labels=["kind"]
    )
    for kind, count in report.removed_in_all().items():
        removed.add_metric([kind], count)
    yield removed
    looked_at = report.latest_look()
    if looked_at is not None:
        yield GaugeMetricFamily(
            "weir_retention_timestamp_seconds",
            "Time of the last look at rows that may go.",
            looked_at.timestamp(),
        )


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
