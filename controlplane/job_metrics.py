"""Metrics of jobs: statuses, restarts, intervals, drivers, shares of time; the age of the tick.

The number of queries does not depend on the number of jobs.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db.models import (
    BigIntegerField,
    Count,
    Exists,
    FloatField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Sum,
)
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from frontend.overview.queries import back_pressure
from jobs.models import (
    Attempt,
    AttemptEnd,
    ControlPlanePulse,
    Driver,
    DriverStatus,
    Job,
    Operator,
    Subtask,
    Worker,
)
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.protocol.lifecycle import JobStatus, SubtaskStatus


def job_metrics(jobs: Sequence[Job], now: datetime) -> Iterator[Metric]:
    """The metric families of ``jobs``; their settings must have been read."""
    yield from _count_metrics(jobs)
    status = GaugeMetricFamily(
        "weir_job_status", "1 for the status that a job has.", labels=["job", "status"]
    )
    interval = GaugeMetricFamily(
        "weir_checkpoint_interval_seconds",
        "Interval of a live job's periodic checkpoints.",
        labels=["job"],
    )
    for job in jobs:
        status.add_metric([job.pk, job.status], 1)
        interval_ms = (job.checkpoint_config or {}).get("interval_ms")
        if interval_ms is not None and not job.is_over:
            interval.add_metric([job.pk], interval_ms / 1_000)
    yield from (status, interval)

    live = [job.pk for job in jobs if not job.is_over]
    yield from _driver_metrics(live, now)
    pressed = GaugeMetricFamily(
        "weir_back_pressured_ratio",
        "Share of about two seconds that a job's most back-pressured subtask waited: 0 to 1.",
        labels=["job"],
    )
    for job_id, most in back_pressure(live).items():
        pressed.add_metric([job_id], most.share)
    yield pressed
    yield from _subtask_metrics(live, now)
    yield from _memory_metrics(live)


def _subtask_metrics(job_ids: Sequence[str], now: datetime) -> Iterator[Metric]:
    waits = GaugeMetricFamily(
        "weir_cpu_wait_ratio",
        "Share of about two seconds in which the slot of a job that was worst off was ready to run "
        "and had no processor: 0 to 1.",
        labels=["job"],
    )
    busy = GaugeMetricFamily(
        "weir_busy_ratio",
        "Share of about two seconds that a job's busiest subtask worked: 0 to 1.",
        labels=["job"],
    )
    lag = GaugeMetricFamily(
        "weir_watermark_lag_seconds",
        "Time by which the watermark of a job's last subtask is behind the clock.",
        labels=["job"],
    )
    records = CounterMetricFamily(
        "weir_records",
        "Records that sources emitted (in), and that reached chains with a sink (out), since the "
        "attempt began.",
        labels=["job", "direction"],
    )
    bad = CounterMetricFamily(
        "weir_bad_records",
        "Records on which a function raised, and which were left out, since the attempt began.",
        labels=["job"],
    )
    running = Q(status=SubtaskStatus.RUNNING)
    taken_in = Cast(KT("metrics__records_in"), BigIntegerField())
    measured = (
        Subtask.objects.filter(job__in=job_ids)
        .order_by()
        .values("job")
        .annotate(
            wait=Max(Cast(KT("rates__cpu_wait"), FloatField()), filter=running),
            busy=Max(Cast(KT("rates__busy"), FloatField()), filter=running),
            watermark_ms=Min(Cast(KT("metrics__watermark_ms"), BigIntegerField()), filter=running),
            into=Sum(taken_in, filter=_of_chain_with(is_source=True)),
            out_of=Sum(taken_in, filter=_of_chain_with(is_sink=True)),
            bad=Sum(Cast(KT("metrics__bad_records"), BigIntegerField())),
        )
    )
    for row in measured:
        job_id = row["job"]
        least_ms = row["watermark_ms"]
        lag_s = None if not _is_time(least_ms) else max(0.0, now.timestamp() - least_ms / 1_000)
        families = ((waits, row["wait"]), (busy, row["busy"]), (lag, lag_s), (bad, row["bad"]))
        for family, value in families:
            if value is not None:
                family.add_metric([job_id], value)
        for direction, count in (("in", row["into"]), ("out", row["out_of"])):
            if count is not None:
                records.add_metric([job_id, direction], count)
    yield from (waits, busy, lag, records, bad)


def _memory_metrics(job_ids: Sequence[str]) -> Iterator[Metric]:
    memory = GaugeMetricFamily(
        "weir_slot_memory_bytes",
        "Resident memory of the worker process in a slot, as last reported.",
        labels=["job", "slot"],
    )
    limit = GaugeMetricFamily(
        "weir_slot_memory_limit_bytes",
        "Resident memory above which the worker process in a slot ends.",
        labels=["job", "slot"],
    )
    workers = Worker.objects.filter(attempt__job__in=job_ids, attempt__ended_at=None)
    columns = ("attempt__job", "slot_index", "memory_bytes", "memory_limit_bytes")
    for job_id, slot, *sizes in workers.order_by(*columns).values_list(*columns):
        for family, size in zip((memory, limit), sizes, strict=True):
            if size is not None:
                family.add_metric([job_id, str(slot)], size)
    yield from (memory, limit)


def _is_time(watermark_ms: int | None) -> bool:
    """Whether a watermark is a point in time: it is not before the first and not after the last."""
    return watermark_ms is not None and MIN_WATERMARK_MS < watermark_ms < MAX_WATERMARK_MS


def _of_chain_with(**operators: bool) -> Exists:
    """The condition that a subtask's chain has such an operator."""
    of_chain = Operator.objects.filter(job=OuterRef("job"), chain=OuterRef("chain"))
    return Exists(of_chain.filter(**operators))


def _count_metrics(jobs: Sequence[Job]) -> Iterator[Metric]:
    counts = dict.fromkeys((status.value for status in JobStatus), 0)
    counts |= counted(Job.objects.all(), "status")
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
        "weir_job_restarts",
        "Attempts of a job after its first: planned, or because the one before failed.",
        labels=["job", "planned"],
    )
    by_job = _restarts_by_job(jobs)
    for job in jobs:
        planned, failed = by_job.get(job.pk, (0, 0))
        restarts.add_metric([job.pk, "true"], planned)
        restarts.add_metric([job.pk, "false"], failed)
    yield restarts


def _restarts_by_job(jobs: Sequence[Job]) -> dict[str, tuple[int, int]]:
    """The number of each job's planned restarts, and of those after a failure."""
    groups = (
        Attempt.objects.filter(job__in=[job.pk for job in jobs])
        .order_by()
        .values_list("job", "end")
        .annotate(count=Count("pk"), newest=Max("number"))
    )
    removed = {job.pk: job.failed_attempts_removed for job in jobs}
    by_job: dict[str, list[tuple[str, int, int]]] = {}
    for job_id, *group in groups:
        by_job.setdefault(job_id, []).append(tuple(group))
    restarts = {}
    for job_id, ends in by_job.items():
        last = max(newest for _, _, newest in ends)  # Nothing has followed this one.
        failed = sum(n - (newest == last) for end, n, newest in ends if end == AttemptEnd.FAILED)
        failed += removed[job_id]
        restarts[job_id] = (last - 1 - failed, failed)
    return restarts


def counted(rows: QuerySet[Any], by: str) -> dict[str, int]:
    """The number of rows by the value of a column."""
    groups = rows.order_by().values(by).annotate(count=Count("pk"))
    return dict(groups.values_list(by, "count"))


def _driver_metrics(job_ids: list[str], now: datetime) -> Iterator[Metric]:
    silence = GaugeMetricFamily(
        "weir_seconds_since_driver_heard", "Time since a running driver reported.", labels=["job"]
    )
    wait = GaugeMetricFamily(
        "weir_driver_launch_wait_seconds",
        "Time that a job's next driver has been waiting for a launcher.",
        labels=["job"],
    )
    drivers = Driver.objects.filter(
        job__in=job_ids, status__in=(DriverStatus.REQUESTED, DriverStatus.RUNNING)
    )
    columns = ("job", "status", "created_at", "heard_at")
    for job_id, status, created_at, heard_at in drivers.order_by().values_list(*columns):
        if status == DriverStatus.REQUESTED:
            wait.add_metric([job_id], _seconds(created_at, now))
        elif heard_at is not None:
            silence.add_metric([job_id], _seconds(heard_at, now))
    yield from (silence, wait)


def tick_metrics(now: datetime) -> Iterator[Metric]:
    """The age of the newest tick over jobs; none before the first one."""
    for ticked_at in ControlPlanePulse.objects.values_list("ticked_at", flat=True):
        yield GaugeMetricFamily(
            "weir_tick_age_seconds",
            "Time since a worker last looked at the drivers of all jobs.",
            _seconds(ticked_at, now),
        )


def _seconds(since: datetime, now: datetime) -> float:
    """The time since; 0 where another machine's clock is ahead."""
    return max(0.0, (now - since).total_seconds())
