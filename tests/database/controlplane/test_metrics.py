"""The metrics that Prometheus scrapes, against the rows they describe."""

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

from checkpoints.catalog.undeleted import TRIES_MIN
from checkpoints.models import Checkpoint, RemovedCheckpoints
from controlplane import metrics
from controlplane.alerts.evaluation import Evaluation
from controlplane.alerts.models import Alert, Rule
from controlplane.base import clock
from jobs.models import ControlPlanePulse, Job
from tests import factories
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
    return factories.job(checkpoint_config={"interval_ms": 1_000})


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


def about(moment: datetime) -> Any:
    """Roughly its age, however long the test has taken so far."""
    return pytest.approx((clock.now() - moment).total_seconds(), abs=10)


def make_checkpoint(job: Job, number: int, status: str = "completed", **fields: Any) -> Checkpoint:
    """A checkpoint whose sizes grow with its number."""
    sizes = {
        "alignment_ms": 4.0,
        "state_bytes": 1_000 * number,
        "written_bytes": 100 * number,
        "in_flight_bytes": 10 * number,
    }
    return factories.checkpoint(job, number, status=status, **sizes | fields)


def test_checkpoints_are_counted_by_how_they_ended(
    client: Client, settings: Settings, job: Job
) -> None:
    statuses = ["completed", "subsumed", "discarded", "failed", "aborted", "aborted", "pending"]
    for number, status in enumerate(statuses, 1):
        make_checkpoint(job, number, status)
    samples = scraped(client, settings)
    assert value(samples, "weir_checkpoints_total", job=job.pk, result="completed") == 3
    assert value(samples, "weir_checkpoints_total", job=job.pk, result="failed") == 1
    assert value(samples, "weir_checkpoints_total", job=job.pk, result="aborted") == 2


def test_a_checkpoint_counts_once_however_often_it_is_read(
    client: Client, settings: Settings, job: Job
) -> None:
    """Each scrape reads on from where everything was settled, past a pending one later."""
    make_checkpoint(job, 1)
    pending = make_checkpoint(job, 2, "pending")
    make_checkpoint(job, 3, "failed")
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
    make_checkpoint(job, 5, "failed", duration_ms=40)
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


def test_checkpoints_are_counted_by_how_their_barriers_went(
    client: Client, settings: Settings, job: Job
) -> None:
    unaligned = {"unaligned_count": 4, "in_flight_bytes": 70_000}
    timed_out = {"unaligned_count": 4, "switched_count": 1, "in_flight_bytes": 3_000_000}
    for number, columns in enumerate(({"in_flight_bytes": 0}, unaligned, timed_out, timed_out), 1):
        make_checkpoint(job, number, **columns)
    make_checkpoint(job, 5, "failed", **unaligned)
    samples = scraped(client, settings)
    counts = {
        alignment: value(
            samples, "weir_checkpoints_by_alignment_total", job=job.pk, alignment=alignment
        )
        for alignment in ("aligned", "unaligned", "timed_out")
    }
    assert counts == {"aligned": 1, "unaligned": 1, "timed_out": 2}
    name = "weir_checkpoint_in_flight_bytes"
    buckets = {
        bound: value(samples, f"{name}_bucket", job=job.pk, le=bound)
        for bound in ("0.0", "65536.0", "1048576.0", "8388608.0", "+Inf")
    }
    assert buckets == {"0.0": 1, "65536.0": 1, "1048576.0": 2, "8388608.0": 4, "+Inf": 4}
    assert value(samples, f"{name}_sum", job=job.pk) == 6_070_000


def test_totals_of_rows_removed_before_data_in_flight_was_counted_are_in_no_bucket(
    client: Client, settings: Settings, job: Job
) -> None:
    RemovedCheckpoints.objects.create(job=job, up_to=3, totals={"completed": 3})
    make_checkpoint(job, 4, in_flight_bytes=5)
    samples = scraped(client, settings)
    assert value(samples, "weir_checkpoints_total", job=job.pk, result="completed") == 4
    assert value(samples, "weir_checkpoint_in_flight_bytes_count", job=job.pk) == 1
    aligned = {"job": job.pk, "alignment": "aligned"}
    assert value(samples, "weir_checkpoints_by_alignment_total", **aligned) == 1


def test_the_newest_completed_checkpoint_has_an_age_and_sizes(
    client: Client, settings: Settings, job: Job
) -> None:
    settled = clock.now() - timedelta(seconds=100)
    make_checkpoint(job, 1)
    make_checkpoint(job, 2, settled_at=settled)
    make_checkpoint(job, 3, "failed")
    samples = scraped(client, settings)
    age = value(samples, "weir_seconds_since_last_completed_checkpoint", job=job.pk)
    assert age == about(settled)
    at = value(samples, "weir_last_completed_checkpoint_timestamp_seconds", job=job.pk)
    assert at == pytest.approx(settled.timestamp())
    sizes = {
        kind: value(samples, "weir_checkpoint_state_bytes", job=job.pk, kind=kind)
        for kind in ("full", "delta", "inflight")
    }
    assert sizes == {"full": 2_000, "delta": 200, "inflight": 20}


def test_checkpoints_whose_files_cannot_be_deleted_are_counted(
    client: Client, settings: Settings, job: Job
) -> None:
    other = factories.job()
    factories.undeleted_checkpoint(job, 1, tries=TRIES_MIN)
    factories.undeleted_checkpoint(job, 2, tries=TRIES_MIN + 7)
    factories.undeleted_checkpoint(job, 3, tries=TRIES_MIN - 1)
    samples = scraped(client, settings)
    assert value(samples, "weir_undeleted_checkpoints", job=job.pk) == 2
    assert value(samples, "weir_undeleted_checkpoints", job=other.pk) == 0


def test_a_job_without_a_completed_checkpoint_grows_old_since_it_ran(
    client: Client, settings: Settings, job: Job
) -> None:
    Job.objects.update(started_at=clock.now() - timedelta(minutes=5))
    other = factories.job(checkpoint_config={"interval_ms": None})
    samples = scraped(client, settings)
    name = "weir_seconds_since_last_completed_checkpoint"
    assert value(samples, name, job=job.pk) == pytest.approx(300, abs=10)
    assert value(samples, name, job=other.pk) is None


def test_jobs_are_counted_in_every_status(client: Client, settings: Settings, job: Job) -> None:
    factories.job()
    samples = scraped(client, settings)
    counts = {status: value(samples, "weir_jobs", status=status.value) for status in JobStatus}
    assert counts == dict.fromkeys(JobStatus, 0) | {JobStatus.RUNNING: 2}


def test_restarts_and_the_phases_of_the_newest_are_told(
    client: Client, settings: Settings, job: Job
) -> None:
    driver = factories.driver(job)
    for number in (1, 2, 3):
        recovery = {"backoff_ms": 0, "redeploy_ms": 500, "restore_ms": number}
        ended = {"end": "failed", "ended_at": clock.now()} if number < 3 else {}
        shown = {} if number == 1 else recovery
        factories.attempt(driver, number, running_at=None, **ended, **shown)
    samples = scraped(client, settings)
    assert restarts(samples, job) == {"true": 0, "false": 2}
    phases = {
        phase: value(samples, "weir_restore_duration_seconds", job=job.pk, phase=phase)
        for phase in ("backoff", "redeploy", "restore", "catch_up")
    }
    assert phases == {"backoff": 0, "redeploy": 0.5, "restore": 0.003, "catch_up": None}


def restarts(samples: Samples, job: Job) -> dict[str, float | None]:
    name = "weir_job_restarts_total"
    return {
        planned: value(samples, name, job=job.pk, planned=planned) for planned in ("true", "false")
    }


@pytest.mark.parametrize(
    ("ends", "planned", "failed"),
    [
        ([], 0, 0),
        ([""], 0, 0),
        (["failed"], 0, 0),
        (["canceled", "suspended", ""], 2, 0),
        (["failed", "canceled", "failed", "failed"], 1, 2),
        (["failed", "finished", ""], 1, 1),
    ],
)
def test_planned_restarts_are_told_from_those_after_a_failure(
    client: Client, settings: Settings, job: Job, ends: list[str], planned: int, failed: int
) -> None:
    driver = factories.driver(job)
    for number, end in enumerate(ends, 1):
        factories.attempt(driver, number, end=end, ended_at=clock.now() if end else None)
    samples = scraped(client, settings)
    assert restarts(samples, job) == {"true": planned, "false": failed}


def test_what_waits_is_told(client: Client, settings: Settings, job: Job) -> None:
    samples = scraped(client, settings)
    assert value(samples, "weir_outbox_commands") == 0
    assert value(samples, "weir_outbox_age_seconds") == 0
    assert value(samples, "weir_open_operations", kind="cancel") == 0
    factories.command(job, created_at=clock.now() - timedelta(seconds=60))
    for status in ("pending", "succeeded"):
        factories.operation(job, None, "cancel", status)
    samples = scraped(client, settings)
    assert value(samples, "weir_outbox_commands") == 1
    assert value(samples, "weir_outbox_age_seconds") == pytest.approx(60, abs=10)
    assert value(samples, "weir_open_operations", kind="cancel") == 1


def test_a_job_has_its_status_and_while_it_lives_its_interval(
    client: Client, settings: Settings, job: Job
) -> None:
    other = factories.job(status="failed", checkpoint_config={"interval_ms": 1_000})
    manual = factories.job(checkpoint_config={"interval_ms": None})
    samples = scraped(client, settings)
    statuses = {
        labels for (name, labels), told in samples.items() if name == "weir_job_status" and told
    }
    assert statuses == {
        (("job", job.pk), ("status", "running")),
        (("job", manual.pk), ("status", "running")),
        (("job", other.pk), ("status", "failed")),
    }
    name = "weir_checkpoint_interval_seconds"
    assert value(samples, name, job=job.pk) == 1
    assert value(samples, name, job=manual.pk) is None
    assert value(samples, name, job=other.pk) is None


def test_live_drivers_are_silent_or_wait_for_a_launcher(
    client: Client, settings: Settings, job: Job
) -> None:
    ago = clock.now() - timedelta(seconds=100)
    factories.driver(job, 1, "lost", heard_at=ago)
    factories.driver(job, 2, heard_at=ago)
    waiting, ahead, ended = factories.job(), factories.job(), factories.job(status="failed")
    factories.driver(waiting, 1, "requested", created_at=ago, heard_at=None)
    factories.driver(ahead)  # Heard at a time that this machine has not reached.
    factories.driver(ended, 1, "ended", heard_at=ago)
    samples = scraped(client, settings)
    silence = {
        pk: value(samples, "weir_seconds_since_driver_heard", job=pk)
        for pk in (job.pk, waiting.pk, ahead.pk, ended.pk)
    }
    assert silence == {
        job.pk: about(ago),
        waiting.pk: None,
        ahead.pk: 0,
        ended.pk: None,
    }
    name = "weir_driver_launch_wait_seconds"
    assert value(samples, name, job=waiting.pk) == about(ago)
    assert value(samples, name, job=job.pk) is None


def test_back_pressure_is_that_of_the_worst_subtask(
    client: Client, settings: Settings, job: Job
) -> None:
    for chain, share in (("a", 0.2), ("b", 0.7), ("c", 0.4)):
        factories.subtasks(job, chains=[chain], rates={"back_pressured": share})
    unmeasured = factories.job()
    factories.subtasks(unmeasured)
    samples = scraped(client, settings)
    assert value(samples, "weir_back_pressured_ratio", job=job.pk) == 0.7
    assert value(samples, "weir_back_pressured_ratio", job=unmeasured.pk) is None


def test_the_memory_of_slots_is_that_of_the_attempt_that_runs(
    client: Client, settings: Settings, job: Job
) -> None:
    driver = factories.driver(job, 7)
    ended = factories.attempt(driver, 7, end="failed", ended_at=clock.now())
    factories.worker(ended, 0, memory_bytes=9_000)
    runs = factories.attempt(driver, 8)
    factories.worker(runs, 0, memory_bytes=1_000)
    factories.worker(runs, 1, memory_bytes=1 << 33, memory_limit_bytes=1 << 34)
    factories.worker(runs, 2)
    over = factories.job(status="finished")
    factories.worker(factories.attempt(factories.driver(over)), 0, memory_bytes=5_000)
    samples = scraped(client, settings)
    known = [value(samples, "weir_slot_memory_bytes", job=job.pk, slot=str(n)) for n in range(3)]
    assert known == [1_000, 1 << 33, None]
    name = "weir_slot_memory_limit_bytes"
    limits = [value(samples, name, job=job.pk, slot=str(n)) for n in range(3)]
    assert limits == [None, 1 << 34, None]
    assert value(samples, "weir_slot_memory_bytes", job=over.pk, slot="0") is None


def test_the_wait_for_a_processor_is_that_of_the_slot_that_is_worst_off(
    client: Client, settings: Settings, job: Job
) -> None:
    for chain, share in (("a", 0.2), ("b", 0.7), ("c", 0.4)):
        factories.subtasks(job, chains=[chain], rates={"cpu_wait": share})
    factories.subtasks(job, "finished", chains=["d"], rates={"cpu_wait": 0.9})
    earlier = factories.job()
    factories.subtasks(earlier, rates={"back_pressured": 0.7})
    samples = scraped(client, settings)
    assert value(samples, "weir_cpu_wait_ratio", job=job.pk) == 0.7
    assert value(samples, "weir_cpu_wait_ratio", job=earlier.pk) is None


def test_records_are_those_of_sources_and_of_chains_with_a_sink(
    client: Client, settings: Settings, job: Job
) -> None:
    factories.graph(job)
    heads = {
        "in": set(job.operators.filter(is_source=True).values_list("chain", flat=True)),
        "out": set(job.operators.filter(is_sink=True).values_list("chain", flat=True)),
    }
    counts = {}
    for count, chain in enumerate(sorted(set(job.operators.values_list("chain", flat=True))), 1):
        counts[chain] = count * factories.PARALLELISM
        factories.subtasks(job, chains=[chain], metrics={"records_in": count})
    assert heads["in"] != heads["out"]
    samples = scraped(client, settings)
    for direction, chains in heads.items():
        shown = value(samples, "weir_records_total", job=job.pk, direction=direction)
        assert shown == sum(counts[chain] for chain in chains)


def test_the_watermark_lag_is_that_of_the_last_subtask(
    client: Client, settings: Settings, job: Job
) -> None:
    now_ms = int(clock.now().timestamp() * 1_000)
    for chain, behind_s in (("a", 30), ("b", 100), ("c", -50)):
        watermark = {"watermark_ms": now_ms - 1_000 * behind_s}
        factories.subtasks(job, chains=[chain], metrics=watermark, rates={"busy": behind_s / 200})
    done = factories.job()
    factories.subtasks(done, metrics={"watermark_ms": 2**63 - 1})
    samples = scraped(client, settings)
    lag_s = value(samples, "weir_watermark_lag_seconds", job=job.pk)
    assert lag_s == pytest.approx(100, abs=30)
    assert value(samples, "weir_busy_ratio", job=job.pk) == 0.5
    assert value(samples, "weir_watermark_lag_seconds", job=done.pk) is None


def test_requests_are_measured_by_area_and_class_of_status(
    client: Client, settings: Settings
) -> None:
    def counts() -> dict[tuple[str, str], float | None]:
        samples = scraped(client, settings)
        name = "weir_web_request_duration_seconds_count"
        pairs = (("api", "4xx"), ("pages", "3xx"), ("api", "5xx"))
        return {(a, s): value(samples, name, area=a, status=s) for a, s in pairs}

    before = counts()
    client.get("/api/v1/jobs")
    client.get("/jobs/")
    grown = {
        key: count - (before[key] or 0) for key, count in counts().items() if count is not None
    }
    assert grown == {("api", "4xx"): 1, ("pages", "3xx"): 1, ("api", "5xx"): 0}


def test_bad_records_add_up_over_the_subtasks_of_a_job(
    client: Client, settings: Settings, job: Job
) -> None:
    factories.subtasks(job, chains=["a"], metrics={"bad_records": 3})
    factories.subtasks(job, chains=["b"], metrics={"bad_records": 0})
    factories.subtasks(job, chains=["c"])
    unmeasured = factories.job()
    factories.subtasks(unmeasured)
    samples = scraped(client, settings)
    count = 3 * factories.PARALLELISM
    assert value(samples, "weir_bad_records_total", job=job.pk) == count
    assert value(samples, "weir_bad_records_total", job=unmeasured.pk) is None


def test_the_tick_has_an_age_once_there_was_one(client: Client, settings: Settings) -> None:
    assert value(scraped(client, settings), "weir_tick_age_seconds") is None
    at = clock.now() - timedelta(seconds=100)
    ControlPlanePulse.objects.create(ticked_at=at, resumed_at=at)
    age = value(scraped(client, settings), "weir_tick_age_seconds")
    assert age == about(at)


def test_the_web_process_tells_of_itself(client: Client, settings: Settings) -> None:
    samples = scraped(client, settings)
    assert value(samples, "weir_web_event_streams") == 0
    assert value(samples, "weir_web_command_polls") == 0
    assert value(samples, "weir_web_driver_refusals_total", code="invalid") is not None
    busy = value(samples, "weir_web_database_threads", state="busy")
    idle = value(samples, "weir_web_database_threads", state="idle")
    assert (busy, idle) == (0, settings.WEIR_DATABASE_THREADS)
    assert value(samples, "process_open_fds") is not None


def test_series_of_a_job_end_an_hour_after_it(client: Client, settings: Settings, job: Job) -> None:
    def ended(at: datetime) -> dict[str, Any]:
        return {"status": JobStatus.FINISHED.value, "ended_at": at}

    factories.job("recent", id="recent-1", **ended(clock.now() - timedelta(minutes=59)))
    factories.job("old", id="old-1", **ended(clock.now() - timedelta(minutes=61)))
    names = {dict(labels).get("job") for _, labels in scraped(client, settings)}
    assert names == {None, job.pk, "recent-1"}


def test_there_are_never_more_series_than_of_the_newest_jobs(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "JOBS_MAX", 3)
    now = clock.now()
    for number in range(5):
        factories.job(id=f"job-{number}", created_at=now + timedelta(seconds=number))
    names = {dict(labels).get("job") for _, labels in scraped(client, settings)}
    assert names == {None, "job-2", "job-3", "job-4"}


def test_queries_do_not_grow_with_the_jobs(client: Client, settings: Settings) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            scraped(client, settings)
        return len(captured)

    for _ in range(2):
        make_checkpoint(factories.job(), 1)
    few = queries()
    for _ in range(28):
        make_checkpoint(factories.job(), 1)
    assert queries() == few <= 28


def test_only_who_may_view_sees_metrics(client: Client) -> None:
    assert client.get("/metrics").status_code == 401
    user = factories.user()
    token = factories.token(user, "weir_secret")
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


def test_a_scrape_reads_what_is_new_of_very_many_checkpoints(
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
        cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")  # Each counts its own.
    read = []
    for number in range(3):
        make_checkpoint(job, count + number + 1)
        before = checkpoints_read()
        samples = scraped(client, settings)
        read.append(checkpoints_read() - before)
        completed = value(samples, "weir_checkpoints_total", job=job.pk, result="completed")
        assert completed == count + number + 1
    assert count < read[0]
    assert max(read[1:]) < count / 100, read


def checkpoints_read() -> int:
    """Rows of checkpoints that this transaction has read."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables "
            "WHERE relname = 'checkpoints_checkpoint'"
        )
        (rows,) = cursor.fetchone()
    return int(rows)


def test_the_slowest_edges_of_the_newest_checkpoint_are_shown(
    client: Client, settings: Settings, job: Job
) -> None:
    """By the slowest channel of each edge, and no more edges than a dashboard can show."""
    make_checkpoint(job, 1)
    newest = make_checkpoint(job, 2)
    for operator in range(12):
        for index in range(2):
            factories.gate_alignment(
                newest,
                f"op-{operator}",
                index,
                [0.0, None if operator == 0 else 100.0 * operator + index],
                upstream="the-source",
                blocked_ms=[10.0 * operator, 0.0],
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


def test_deliveries_and_endpoints_are_counted(client: Client, settings: Settings) -> None:
    webhook = factories.endpoint(delivered_count=3, given_up_count=1, failed_attempts=9)
    factories.endpoint(
        delivered_count=4, is_enabled=False, deleted_at=clock.now()
    )  # Deleted, and still counted.
    factories.endpoint(kind="slack", failures=2)
    factories.endpoint(kind="teams", is_enabled=False)
    samples = scraped(client, settings)
    total = "weir_deliveries_total"
    assert value(samples, total, kind="webhook", result="delivered") == 7
    assert value(samples, total, kind="webhook", result="given_up") == 1
    assert value(samples, total, kind="email", result="delivered") == 0
    assert value(samples, "weir_delivery_attempts_failed_total", kind="webhook") == 9
    states = {state: value(samples, "weir_endpoints", state=state) for state in ENDPOINT_STATES}
    assert states == {"ok": 1, "failing": 1, "disabled": 1}
    assert value(samples, "weir_deliveries_waiting") == 0
    factories.delivery(webhook, queued_at=clock.now() - timedelta(seconds=60))
    factories.delivery(webhook, queued_at=clock.now() - timedelta(hours=1), tries=1)
    samples = scraped(client, settings)
    assert value(samples, "weir_deliveries_waiting") == 2
    assert value(samples, "weir_delivery_untried_age_seconds") == pytest.approx(60, abs=10)


ENDPOINT_STATES = ("ok", "failing", "disabled")


def test_alerts_rules_and_rounds_are_counted(client: Client, settings: Settings) -> None:
    Rule.objects.all().delete()
    rule = factories.rule("job_failed", severity="critical", parameters={"window_s": 86_400})
    factories.rule(is_enabled=False)
    factories.rule(problem="ValueError", set_aside_at=clock.now())
    Evaluation().run()
    factories.job(status=JobStatus.FAILED, ended_at=clock.now())
    Evaluation().run()
    assert Alert.objects.get().rule == rule
    factories.alert(rule, subject="a", acknowledged_at=clock.now())
    factories.alert(rule, subject="b", is_silenced=True)
    factories.alert(rule, subject="c", state="resolved")
    samples = scraped(client, settings)
    told = {
        state: value(samples, "weir_alerts", severity="critical", state=state)
        for state in ("pending", "firing", "acknowledged", "silenced")
    }
    assert told == {"pending": 0, "firing": 1, "acknowledged": 1, "silenced": 1}
    fired = "weir_alerts_fired_total"
    assert value(samples, fired, kind="job_failed", severity="critical") == 1
    assert value(samples, fired, kind="job_failed", severity="info") == 0
    states = {s: value(samples, "weir_alert_rules", state=s) for s in RULE_STATES}
    assert states == {"active": 1, "set_aside": 1, "disabled": 1}
    assert value(samples, "weir_alert_evaluations_total") == 2
    assert value(samples, "weir_alert_evaluation_errors_total") == 0
    assert (value(samples, "weir_alert_evaluation_seconds_total") or 0) > 0
    assert (value(samples, "weir_alert_evaluation_age_seconds") or 0) >= 0


RULE_STATES = ("active", "set_aside", "disabled")
