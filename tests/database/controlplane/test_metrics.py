"""The metrics that Prometheus scrapes, against the rows they describe."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from checkpoints.models import Checkpoint, GateAlignment
from controlplane import metrics
from controlplane.accounts.models import Role, Token, digest_of
from controlplane.base import clock
from jobs.models import Attempt, Job, Operation, OutboxCommand
from tests.process.controlplane.rows import make_driver, make_job, make_user
from weir.protocol.lifecycle import JobStatus

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_totals() -> Iterator[None]:
    """Forget the totals that an earlier test's jobs of the same name left in this process."""
    yield
    for collector in list(metrics.REGISTRY._collector_to_names):
        if isinstance(collector, metrics.Rows):
            collector._totals.clear()


@pytest.fixture
def job() -> Job:
    """A running job that takes checkpoints every second."""
    return make_job(checkpoint_config={"interval_ms": 1_000})


def scraped(client: Client, settings: Settings) -> Samples:
    """All samples by name and labels."""
    settings.WEIR_METRICS_PUBLIC = True
    answer = client.get("/metrics", headers={"Accept": "text/plain"})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    families: list[Metric] = list(text_string_to_metric_families(answer.content.decode()))
    assert all(family.documentation for family in families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """One sample."""
    return samples.get((name, tuple(sorted(labels.items()))))


def make_checkpoint(job: Job, number: int, status: str = "completed", **fields: Any) -> Checkpoint:
    now = clock.now()
    settled = None if status in ("pending", "finalizing") else now
    values: dict[str, Any] = {
        "attempt": 1,
        "kind": "checkpoint",
        "triggered_at": now - timedelta(seconds=1),
        "settled_at": settled,
        "duration_ms": None if settled is None else 200,
        "alignment_ms": 4.0,
        "subtask_count": 2,
        "state_bytes": 1_000 * number,
        "written_bytes": 100 * number,
        "in_flight_bytes": 10 * number,
    }
    return Checkpoint.objects.create(job=job, number=number, status=status, **values | fields)


def test_checkpoints_are_counted_by_how_they_ended(
    client: Client, settings: Settings, job: Job
) -> None:
    statuses = ["completed", "subsumed", "discarded", "aborted", "pending"]
    for number, status in enumerate(statuses, 1):
        make_checkpoint(job, number, status)
    samples = scraped(client, settings)
    assert value(samples, "weir_checkpoints_total", job=job.pk, result="completed") == 3
    assert value(samples, "weir_checkpoints_total", job=job.pk, result="failed") == 1


def test_a_checkpoint_counts_once_however_often_it_is_read(
    client: Client, settings: Settings, job: Job
) -> None:
    """Each scrape reads on from where everything was settled, past a pending one later."""
    make_checkpoint(job, 1)
    pending = make_checkpoint(job, 2, "pending")
    make_checkpoint(job, 3, "aborted")
    for _ in range(2):
        samples = scraped(client, settings)
        assert value(samples, "weir_checkpoints_total", job=job.pk, result="completed") == 1
        assert value(samples, "weir_checkpoints_total", job=job.pk, result="failed") == 0
    pending.status, pending.settled_at, pending.duration_ms = "completed", clock.now(), 300
    pending.save()
    Checkpoint.objects.filter(number=1).update(status="subsumed")
    for _ in range(2):
        samples = scraped(client, settings)
        assert value(samples, "weir_checkpoints_total", job=job.pk, result="completed") == 2
        assert value(samples, "weir_checkpoints_total", job=job.pk, result="failed") == 1


def test_durations_are_a_histogram(client: Client, settings: Settings, job: Job) -> None:
    for number, duration_ms in enumerate((40, 100, 101, 900_000), 1):
        make_checkpoint(job, number, duration_ms=duration_ms)
    make_checkpoint(job, 5, "aborted", duration_ms=40)
    samples = scraped(client, settings)
    name = "weir_checkpoint_duration_seconds"
    buckets = {
        bound: value(samples, f"{name}_bucket", job=job.pk, le=bound)
        for bound in ("0.05", "0.1", "0.25", "600.0", "+Inf")
    }
    assert buckets == {"0.05": 1, "0.1": 2, "0.25": 3, "600.0": 3, "+Inf": 4}
    assert value(samples, f"{name}_count", job=job.pk) == 4
    assert value(samples, f"{name}_sum", job=job.pk) == pytest.approx(900.241)
    alignment = value(samples, "weir_checkpoint_alignment_seconds_sum", job=job.pk)
    assert alignment == pytest.approx(0.016)


def test_the_newest_completed_checkpoint_has_an_age_and_sizes(
    client: Client, settings: Settings, job: Job
) -> None:
    settled = clock.now() - timedelta(seconds=100)
    make_checkpoint(job, 1)
    make_checkpoint(job, 2, settled_at=settled)
    make_checkpoint(job, 3, "aborted")
    samples = scraped(client, settings)
    age = value(samples, "weir_seconds_since_last_completed_checkpoint", job=job.pk)
    assert age == pytest.approx(100, abs=10)
    at = value(samples, "weir_last_completed_checkpoint_timestamp_seconds", job=job.pk)
    assert at == pytest.approx(settled.timestamp())
    sizes = {
        kind: value(samples, "weir_checkpoint_state_bytes", job=job.pk, kind=kind)
        for kind in ("full", "delta", "inflight")
    }
    assert sizes == {"full": 2_000, "delta": 200, "inflight": 20}


def test_a_job_without_a_completed_checkpoint_grows_old_since_it_ran(
    client: Client, settings: Settings, job: Job
) -> None:
    Job.objects.update(started_at=clock.now() - timedelta(minutes=5))
    make_job("without-checkpoints-1", checkpoint_config={"interval_ms": None})
    samples = scraped(client, settings)
    name = "weir_seconds_since_last_completed_checkpoint"
    assert value(samples, name, job=job.pk) == pytest.approx(300, abs=10)
    assert value(samples, name, job="without-checkpoints-1") is None


def test_jobs_are_counted_in_every_status(client: Client, settings: Settings, job: Job) -> None:
    make_job("other-1")
    samples = scraped(client, settings)
    counts = {status: value(samples, "weir_jobs", status=status.value) for status in JobStatus}
    assert counts == dict.fromkeys(JobStatus, 0) | {JobStatus.RUNNING: 2}


def test_restarts_and_the_phases_of_the_newest_are_told(
    client: Client, settings: Settings, job: Job
) -> None:
    driver = make_driver(job, "token")
    now = clock.now()
    for number in (1, 2, 3):
        Attempt.objects.create(
            job=job,
            driver=driver,
            number=number,
            started_at=now,
            **{} if number == 1 else {"backoff_ms": 0, "redeploy_ms": 500, "restore_ms": number},
        )
    samples = scraped(client, settings)
    assert value(samples, "weir_job_restarts_total", job=job.pk) == 2
    phases = {
        phase: value(samples, "weir_restore_duration_seconds", job=job.pk, phase=phase)
        for phase in ("backoff", "redeploy", "restore", "catch_up")
    }
    assert phases == {"backoff": 0, "redeploy": 0.5, "restore": 0.003, "catch_up": None}


def test_what_waits_is_told(client: Client, settings: Settings, job: Job) -> None:
    samples = scraped(client, settings)
    assert value(samples, "weir_outbox_commands") == 0
    assert value(samples, "weir_outbox_age_seconds") == 0
    assert value(samples, "weir_open_operations", kind="cancel") == 0
    now = clock.now()
    OutboxCommand.objects.create(job=job, message={}, created_at=now - timedelta(seconds=60))
    for status, ended_at in (("pending", None), ("succeeded", now)):
        Operation.objects.create(
            job=job,
            kind="cancel",
            status=status,
            created_at=now,
            deadline_at=now,
            ended_at=ended_at,
        )
    samples = scraped(client, settings)
    assert value(samples, "weir_outbox_commands") == 1
    assert value(samples, "weir_outbox_age_seconds") == pytest.approx(60, abs=10)
    assert value(samples, "weir_open_operations", kind="cancel") == 1


def test_the_web_process_tells_of_itself(client: Client, settings: Settings) -> None:
    samples = scraped(client, settings)
    assert value(samples, "weir_web_event_streams") == 0
    assert value(samples, "weir_web_command_polls") == 0
    busy = value(samples, "weir_web_database_threads", state="busy")
    idle = value(samples, "weir_web_database_threads", state="idle")
    assert (busy, idle) == (0, settings.WEIR_DATABASE_THREADS)
    assert value(samples, "process_open_fds") is not None


def test_series_of_a_job_end_an_hour_after_it(client: Client, settings: Settings, job: Job) -> None:
    def ended(at: datetime) -> dict[str, Any]:
        return {"status": JobStatus.FINISHED.value, "ended_at": at}

    make_job("recent-1", **ended(clock.now() - timedelta(minutes=59)))
    make_job("old-1", **ended(clock.now() - timedelta(minutes=61)))
    names = {dict(labels).get("job") for _, labels in scraped(client, settings)}
    assert names == {None, job.pk, "recent-1"}


def test_there_are_never_more_series_than_of_the_newest_jobs(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "JOBS_MAX", 3)
    now = clock.now()
    for number in range(5):
        make_job(f"job-{number}", created_at=now + timedelta(seconds=number))
    names = {dict(labels).get("job") for _, labels in scraped(client, settings)}
    assert names == {None, "job-2", "job-3", "job-4"}


def test_queries_do_not_grow_with_the_jobs(client: Client, settings: Settings) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            scraped(client, settings)
        return len(captured)

    for number in range(2):
        make_checkpoint(make_job(f"job-{number}"), 1)
    few = queries()
    for number in range(2, 30):
        make_checkpoint(make_job(f"job-{number}"), 1)
    assert queries() == few <= 16


def test_only_who_may_view_sees_metrics(client: Client) -> None:
    assert client.get("/metrics").status_code == 401
    user = make_user(role=Role.VIEWER)
    token = Token.objects.create(
        user=user, name="prometheus", digest=digest_of("weir_secret"), created_at=clock.now()
    )
    bearer = {"Authorization": "Bearer weir_secret"}
    for accept in ("*/*", "application/openmetrics-text; version=1.0.0", "text/plain"):
        assert client.get("/metrics", headers=bearer | {"Accept": accept}).status_code == 200
    token.revoked_at = clock.now()
    token.save()
    assert client.get("/metrics", headers=bearer).status_code == 401
    client.force_login(user)
    assert client.get("/metrics").status_code == 200


def test_openmetrics_is_spoken_to_who_asks_for_it(client: Client, settings: Settings) -> None:
    settings.WEIR_METRICS_PUBLIC = True
    accept = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    answer = client.get("/metrics", headers={"Accept": accept})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")


def test_a_scrape_is_quick_with_very_many_checkpoints(
    client: Client, settings: Settings, job: Job
) -> None:
    """The first scrape of a process reads all of them once; each one after reads what is new."""
    count = 100_000
    make_checkpoint(job, 1, "subsumed")
    columns = [f.column for f in Checkpoint._meta.concrete_fields if not f.primary_key]
    values = ["series" if column == "number" else column for column in columns]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO checkpoints_checkpoint ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"FROM checkpoints_checkpoint, generate_series(2, {count}) AS series"
        )
        cursor.execute("ANALYZE checkpoints_checkpoint")
    took = []
    for number in range(6):
        make_checkpoint(job, count + number + 1)
        started = time.monotonic()
        samples = scraped(client, settings)
        took.append(time.monotonic() - started)
        completed = value(samples, "weir_checkpoints_total", job=job.pk, result="completed")
        assert completed == count + number + 1
    assert min(took[1:]) < 0.1, took
    assert took[0] < 5, took


def test_the_slowest_edges_of_the_newest_checkpoint_are_shown(
    client: Client, settings: Settings, job: Job
) -> None:
    """By the slowest channel of each edge, and no more edges than a dashboard can show."""
    make_checkpoint(job, 1)
    newest = make_checkpoint(job, 2)
    for operator in range(12):
        for index in range(2):
            GateAlignment.objects.create(
                checkpoint=newest,
                operator=f"op-{operator}",
                index=index,
                gate=0,
                upstream=["the-source-0", "the-source-1"],
                arrived_ms=[0.0, None if operator == 0 else 100.0 * operator + index],
                blocked_ms=[10.0 * operator, 0.0],
                bytes_during=[0, 0],
            )
    samples = scraped(client, settings)
    delays = {
        dict(labels)["edge"]: told
        for (name, labels), told in samples.items()
        if name == "weir_channel_barrier_delay_seconds"
    }
    assert delays == {f"the-source -> op-{n}": pytest.approx(0.1 * n + 0.001) for n in range(2, 12)}
    name = "weir_checkpoint_blocked_seconds"
    assert value(samples, name, job=job.pk, edge="the-source -> op-11") == pytest.approx(0.11)
