"""Every page there is, with rows that show each in a state worth looking at.

One table for the accessibility tests and the screenshots, which go through all pages. The rows
are of a job that runs with a checkpoint under way, of one that failed, one that finished, one that
is a fork, and one that has not begun.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.test import override_settings

from checkpoints.operations import savepoints
from controlplane.accounts.models import Role, User
from controlplane.alerts import defaults
from controlplane.alerts.models import Alert, Rule
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.deliveries.models import Delivery, Endpoint
from controlplane.secrets import services as secrets
from frontend.confirm.views import QUESTIONS
from frontend.models import SavedFilter
from jobs import uploads
from jobs.models import Artifact, Job, Operation, Subtask
from tests import factories
from tests.database.frontend import documents, flights, rows_operator, rows_recovery
from weir.config import CheckpointConfig
from weir.examples import flights as example
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.operations import Before, OperationKind, OperationState, Phase
from weir.protocol.wire import to_wire

COMPLETED = 60
FAILED = COMPLETED - 12  # As ``flights.history`` has it.
UNDER_WAY = COMPLETED + 3
RESTORED = 12  # By the second attempt,
BACK = timedelta(seconds=COMPLETED - RESTORED)  # which began so long ago.


@dataclass(frozen=True, slots=True)
class Shown:
    """A page: what it is called, where it is, and what its answer's status is."""

    name: str
    path: str
    status: int = 200


TABS = (
    *("", "checkpoints/", "savepoints/", "recovery/", "slots/", "alerts/", "configuration/"),
    *("logs/", "audit/"),
)

# A rescale with which the job did not come to run.
TAKEN_BACK = OperationState(
    OperationKind.RESCALE,
    Phase.DONE,
    saved="/var/lib/weir/checkpoints/flights/chk-58",
    before=Before(parallelism=2),
    error="the job is failed: 4 of 64 slots registered within 60000 ms; the cluster has 4 cores",
    has_returned=True,
)

# An upgrade whose job is ending.
UPGRADING = OperationState(
    OperationKind.UPGRADE,
    Phase.ENDING,
    saved="/var/lib/weir/checkpoints/savepoints/flights/upgrade-20260301-120000-1a2b3c",
    before=Before(),
    checks=True,
    is_checked=True,
)
UPGRADE = {
    "runs": {
        "pipeline_kind": "upload",
        "pipeline_target": "flights_v2.py",
        "artifact_digest": "1f" * 32,
        "options": {"parallelism": 2, "parameters": {"tariff": "night"}},
    },
    "was": {"pipeline_kind": "module", "pipeline_target": "weir.examples.flights"},
    "run_within_s": 120,
}

# What needs no rows.
EMPTY_OVERVIEW = Shown("overview-empty", "/jobs/")
LOGIN = Shown("login", "/login/")


# As driver, Spark and pipeline write it.
LOG = """weir: the pipeline is flights
26/03/01 10:20:30 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform
{"at": "2026-03-01T10:20:31.405+00:00", "level": "info", "logger": "weir.jobmaster.job_master", \
"message": "attempt 1 runs on 2 slots", "job": "flights", "driver": 1}
{"at": "2026-03-01T10:24:02.117+00:00", "level": "error", "logger": "weir.jobmaster.job_master", \
"message": "attempt 1 failed: slot 1 is gone", "job": "flights", "driver": 1, "traceback": \
"Traceback (most recent call last):\\n  File \\"job_master.py\\", line 7, in step\\nSlotLost: 1"}
26/03/01 10:24:03 ERROR Executor: Exception in task 1.0 in stage 0.0 (TID 1)
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:120)
{"at": "2026-03-01T10:24:05.008+00:00", "level": "warning", "logger": "weir.spark.slot", \
"message": "the slot’s worker process was replaced after 1.2 s", "job": "flights", "driver": 1}
1,204,118 flights so far
"""


def seeded(directory: Path, by: User, home: Path) -> list[Shown]:
    """Make the rows; the pages that show them, for an administrator.

    ``directory`` takes the files that previews and comparisons are made of, ``home``, the web
    process's own, those of drivers.
    """
    running = _running(by)
    factories.log_of(running.drivers.get(), home).write_text(LOG)
    failed, finished = _failed(), _finished()
    fork = _fork(running)
    unaligned = _unaligned()
    starting = factories.job("orders-backfill", status=JobStatus.CREATED, created_at=clock.now())
    operations = _operations(running, fork, by, directory)
    upload = _uploads(home, by)
    savepoint = running.savepoints.get(name="before-release")
    factories.driver(starting, 1, "starting", heard_at=None, created_at=clock.now())
    archived = _cancelled(by)
    record(by, "job.cancel", f"job/{finished.pk}", after={"desired": "canceled"})
    record(by, "savepoint.take", f"job/{running.pk}", after={"name": savepoint.name})
    record(None, "job.restart", f"job/{running.pk}", after={"attempt": 2})
    factories.token(
        by, "weir_4f1c", "viewer", name="wallboard", expires_at=clock.now() + timedelta(days=60)
    )
    for name in ("EXCHANGE_TOKEN", "WAREHOUSE_PASSWORD"):
        secrets.store(by, name, "correct horse battery staple")
    Job.objects.filter(pk=fork.pk).update(options={**fork.options, "secrets": ["EXCHANGE_TOKEN"]})
    Job.objects.filter(pk=running.pk).update(
        options={**running.options, "secrets": ["WAREHOUSE_PASSWORD"]}
    )
    labels = {"team": "prices", "tier": "1", "owner": "ada", "region": "eu-west", "on-call": "yes"}
    Job.objects.filter(pk__in=[running.pk, fork.pk]).update(
        labels=labels, settings={**running.settings, "parallelism": 2}
    )
    SavedFilter.objects.create(
        user=by, name="Ours", query="label=team%3Aprices", created_at=clock.now()
    )
    endpoint, delivery = _deliveries(running)
    alert, rule = _alerts(running, finished, by)
    at = f"/jobs/{running.pk}/"
    return [
        Shown("overview", "/jobs/"),
        Shown("overview-nothing-found", "/jobs/?q=nothing-is-called-this"),
        Shown("overview-filtered", "/jobs/?label=team:prices&label=tier:1"),
        Shown("submit", "/jobs/new"),
        Shown("audit", "/audit/"),
        Shown("about", "/about/"),
        Shown("retention", "/retention/"),
        Shown("activity", "/activity/"),
        Shown("account", "/account/"),
        Shown("account-password", "/account/password"),
        Shown("account-token", "/account/tokens/new"),
        Shown("accounts", "/accounts/"),
        Shown("accounts-one", f"/accounts/{by.pk}/"),
        Shown("accounts-change", f"/accounts/{by.pk}/change"),
        Shown("uploads", "/uploads/"),
        Shown("upload", f"/uploads/{upload.pk}"),
        Shown("upload-difference", f"/uploads/{upload.pk}/difference"),
        Shown("secrets", "/secrets/"),
        Shown("secret-store", "/secrets/new"),
        Shown("secret-replace", "/secrets/WAREHOUSE_PASSWORD/replace"),
        Shown("secret-delete", "/secrets/WAREHOUSE_PASSWORD/delete"),
        Shown("alerts", "/alerts/"),
        Shown("alert", f"/alerts/{alert.pk}"),
        Shown("rules", "/alerts/rules/"),
        Shown("rule", f"/alerts/rules/{rule.pk}?tried"),
        Shown("rule-kinds", "/alerts/rules/new"),
        Shown("rule-new", "/alerts/rules/new/checkpoint_duration"),
        Shown("rule-change", f"/alerts/rules/{rule.pk}/change"),
        Shown("rule-delete", f"/alerts/rules/{rule.pk}/delete"),
        Shown("silences", "/alerts/silences/"),
        Shown("silence-new", f"/alerts/silences/new?rule={rule.pk}"),
        Shown("endpoints", "/alerts/endpoints/"),
        Shown("endpoint-kinds", "/alerts/endpoints/new"),
        Shown("endpoint-new", "/alerts/endpoints/new/webhook"),
        Shown("endpoint-change", f"/alerts/endpoints/{endpoint.pk}/change"),
        Shown("endpoint-secret", f"/alerts/endpoints/{endpoint.pk}/secret"),
        Shown("endpoint-delete", f"/alerts/endpoints/{endpoint.pk}/delete"),
        Shown("deliveries", "/alerts/deliveries/"),
        Shown("delivery", f"/alerts/deliveries/{delivery.pk}"),
        Shown("delivery-range", f"/alerts/deliveries/redeliver?endpoint={endpoint.pk}"),
        *_of_job("running", running),
        Shown("running-logs-searched", f"{at}logs/?level=error&q=slot"),
        *_of_job("failed", failed, "", "checkpoints/", "recovery/"),
        *_of_job("finished", finished, ""),
        *_of_job("starting", starting, "", "checkpoints/", "savepoints/", "recovery/", "slots/"),
        *_of_job("fork", fork, "", "savepoints/"),
        *_of_job("unaligned", unaligned, "", "checkpoints/", "checkpoints/1/", "checkpoints/2/"),
        Shown("unaligned-channels", f"/jobs/{unaligned.pk}/checkpoints/2/alignment?by=in_flight"),
        Shown("checkpoint-completed", f"{at}checkpoints/{COMPLETED}/"),
        Shown("checkpoint-failed", f"{at}checkpoints/{FAILED}/"),
        Shown("checkpoint-under-way", f"{at}checkpoints/{UNDER_WAY}/"),
        Shown("checkpoint-savepoint", f"{at}checkpoints/{savepoint.checkpoint.number}/"),
        *(Shown(f"ask-{name}", f"{at}{name}") for name in QUESTIONS),
        Shown("operator", f"{at}operators/hourly/"),
        Shown("operator-in-chain", f"{at}operators/totals-sink/?window=15m&sort=busy"),
        Shown("operator-of-ended", f"/jobs/{finished.pk}/operators/flights/"),
        Shown("ask-archive", f"/jobs/{finished.pk}/archive"),
        Shown("archived", f"/jobs/{archived.pk}/"),
        Shown("ask-unarchive", f"/jobs/{archived.pk}/unarchive"),
        Shown("upgrade", f"/jobs/{fork.pk}/upgrade"),
        Shown("savepoint-delete", f"{at}savepoints/{savepoint.pk}/delete"),
        Shown("savepoint-describe", f"{at}savepoints/{savepoint.pk}/describe"),
        *(Shown(f"operation-{name}", f"{at}operations/{o.pk}") for name, o in operations.items()),
        Shown("not-found", "/jobs/no-such-job-00000001/", 404),
    ]


def _uploads(home: Path, by: User) -> Artifact:
    """Two versions of a pipeline, in the directory of the web process; the later one."""
    early = Path(example.__file__).read_text()
    late = early.replace("minutes", "hours").replace("import os\n", "import os\nimport sys\n")
    with override_settings(WEIR_UPLOADS=home / "uploads"):
        uploads.store(by, "flights.py", [early.encode()])
        return uploads.store(by, "flights.py", [late.encode()])


def _of_job(name: str, job: Job, *tabs: str) -> Iterator[Shown]:
    for tab in tabs or TABS:
        yield Shown("-".join(filter(None, (name, tab.strip("/")))), f"/jobs/{job.pk}/{tab}")


def _running(by: User) -> Job:
    """It has recovered once, has savepoints, and the barriers of a checkpoint are on their way."""
    job = flights.running(created_by=by)
    now = clock.now()
    first = job.attempts.get(number=1)
    cause = "slot 1 is gone: its worker process (pid 4711) ended with signal 9"
    first.ended_at, first.end, first.cause = now - BACK, "failed", cause
    first.save()
    factories.attempt(
        first.driver,
        2,
        restored_checkpoint=RESTORED,
        started_at=now - BACK,
        running_at=now - BACK + timedelta(milliseconds=1_640),
        recovery_cause=cause,
        backoff_ms=1_000.0,
        redeploy_ms=310.0,
        restore_ms=330.0,
        catch_up_ms=2_200.0,
        restored_bytes=1_840_000,
        replayed_records=48_210,
    )
    factories.exception(job, cause, "driver", at=now - BACK, attempt_number=1)
    flights.history(job, COMPLETED)
    _acknowledge(job, COMPLETED)
    failed = job.checkpoints.get(number=FAILED)
    failed.acknowledged_count = 0
    factories.acknowledge_chain(failed, "flights", 0)
    failed.acks.update(acknowledged_at=failed.triggered_at + timedelta(milliseconds=60))
    note = "The last one before the new tariff table."
    labels = {"release": "2025.1"}
    factories.savepoint(job, "before-release", COMPLETED + 1, by=by, note=note, labels=labels)
    _acknowledge(job, COMPLETED + 1)
    for chain, index in itertools.product(("hourly", "totals"), range(factories.PARALLELISM)):
        taken = job.checkpoints.get(number=COMPLETED + 1)
        factories.gate_alignment(taken, chain, index, [31.0 + index, 0.0])
    factories.savepoint(
        job,
        "nightly",
        COMPLETED + 2,
        by=by,
        status=CheckpointStatus.FAILED,
    )
    job.checkpoints.filter(number__gt=RESTORED).update(attempt=2)
    _aligning(job)
    rows_operator.series(job, timedelta(minutes=50), restarted=BACK)
    rows_operator.workers(job)
    return job


def _acknowledge(job: Job, number: int) -> None:
    """All subtasks of a completed checkpoint, shortly before its manifest was written."""
    completed = job.checkpoints.get(number=number)
    completed.acknowledged_count = 0  # Each acknowledgement counts itself.
    for chain, index in itertools.product(factories.CHAINS, range(factories.PARALLELISM)):
        factories.acknowledge_chain(completed, chain, index)
    heard = completed.settled_at - timedelta(milliseconds=12)
    completed.acks.update(acknowledged_at=heard)


def _aligning(job: Job) -> None:
    """A checkpoint whose barrier waits in one channel, with what the subtasks say of it."""
    triggered = clock.now() - timedelta(seconds=4)
    under_way = factories.checkpoint(
        job, UNDER_WAY, status=CheckpointStatus.PENDING, attempt=2, triggered_at=triggered
    )
    factories.acknowledge_chain(under_way, "flights", 0)
    factories.acknowledge_chain(under_way, "totals", 1)
    Subtask.objects.filter(job=job).update(
        attempt=2,
        metrics={"records_in": 1_204_118, "records_out": 1_204_118, "watermark_ms": 1735700400000},
        rates={
            "window_ms": 2_000.0,
            "records_in_per_s": 18_240.0,
            "records_out_per_s": 18_240.0,
            "bytes_in_per_s": 1_482_000.0,
            "bytes_out_per_s": 1_120_000.0,
            "busy": 0.31,
            "idle": 0.65,
            "back_pressured": 0.04,
        },
    )
    gate = {
        "gate": 0,
        "upstream": ["flights-0", "flights-1"],
        "arrived_ms": [0.0, None],
        "blocked_ms": [3_200.0, 0.0],
        "bytes_during": [0, 1_640_000],
        "ended": [False, False],
    }
    Subtask.objects.filter(job=job, chain="hourly").update(
        aligning={
            "checkpoint": UNDER_WAY,
            "since_ms": (triggered + timedelta(milliseconds=800)).timestamp() * 1_000,
            "waited_ms": 3_200.0,
            "gates": [gate],
        }
    )


def _failed() -> Job:
    job = factories.job("orders", status=JobStatus.FAILED, cause=factories.TRACEBACK)
    driver = factories.driver(
        job, status="ended", ended_at=clock.now(), cause="the pipeline failed"
    )
    factories.attempt(driver, ended_at=clock.now(), end="failed", cause=factories.TRACEBACK)
    factories.graph(job)
    factories.subtasks(job, SubtaskStatus.FAILED)
    factories.checkpoint(
        job,
        1,
        status=CheckpointStatus.FAILED,
        reason=FailureReason.CHECKPOINT_EXPIRED,
        acknowledged_count=7,
        duration_ms=60_000,
    )
    factories.exception(job)
    return job


def _unaligned() -> Job:
    """Its checkpoints are unaligned, one from the start and one after a time-out."""
    job = flights.running("slow-sink", interval_ms=None)
    for number, timed_out_ms in enumerate((None, 512.0, 498.0), 1):
        savepoints.request_checkpoint(None, job.pk)
        flights.complete_unaligned(job, number, timed_out_ms)
    return job


def _finished() -> Job:
    job = factories.job("clicks", status=JobStatus.FINISHED)
    driver = factories.driver(job, status="ended", ended_at=clock.now())
    factories.attempt(driver, ended_at=clock.now(), end="finished")
    factories.graph(job)
    factories.subtasks(job, SubtaskStatus.FINISHED)
    flights.history(job, 15, until=job.ended_at)
    return job


def _cancelled(by: User) -> Job:
    """A job that was rescaled, whose last checkpoint a cancellation aborted; archived."""
    job = factories.job("trips")
    factories.graph(job)
    factories.subtasks(job)
    rows_recovery.eventful(job)
    flights.history(job, 12)
    for number, reason in ((13, "job_rescaled"), (14, "job_canceled")):
        factories.checkpoint(job, number, status=CheckpointStatus.ABORTED, reason=reason)
    now = clock.now()
    job.attempts.filter(ended_at=None).update(end="canceled", ended_at=now)
    factories.operation(job, by, "cancel", "succeeded")
    Job.objects.filter(pk=job.pk).update(status=JobStatus.CANCELED, ended_at=now, archived_at=now)
    return job


def _fork(origin: Job) -> Job:
    """A second job that began with a savepoint of another one."""
    savepoint = origin.savepoints.get(name="before-release")
    fork = factories.job("flights-trial", origin=origin, origin_uri=savepoint.location)
    fork.checkpoint_config = to_wire(CheckpointConfig(interval_ms=1_000))
    factories.graph(fork)
    factories.subtasks(fork)
    factories.attempt(factories.driver(fork), restored_checkpoint=savepoint.checkpoint.number)
    factories.checkpoint(fork, 1)
    return fork


def _operations(job: Job, fork: Job, by: User, directory: Path) -> dict[str, Operation]:
    """Operations of every kind of answer, and one that has not ended."""
    outputs = [documents.comparison(directory / "compare", is_equal=False)]
    rollback = {"kind": "rollback", "checkpoint": COMPLETED - 4, "rewind_output": True}
    restore = {"kind": "restore", "restore": str(directory / "restore"), "parameters": {}}
    return {
        "savepoint": factories.operation(
            job, by, "savepoint", result={"path": "/var/lib/weir/savepoints/before-release"}
        ),
        "failed": factories.operation(
            job, by, "savepoint", "failed", error="checkpoint expired before completing"
        ),
        "stopping": factories.operation(
            job, by, "rescale", "running", parameters={"parallelism": 4}
        ),
        "upgrading": factories.operation(
            job, by, "upgrade", "running", parameters=UPGRADE, progress=to_wire(UPGRADING)
        ),
        "taken-back": factories.operation(
            job,
            by,
            "rescale",
            "failed",
            parameters={"parallelism": 64},
            progress=to_wire(TAKEN_BACK),
            error=f"{TAKEN_BACK.error}; the job runs again as before; the checkpoint was taken and "
            f"is kept: {TAKEN_BACK.saved}",
        ),
        "rollback-preview": factories.operation(
            job,
            by,
            "preview",
            parameters=rollback,
            result=documents.rollback(directory / "rollback"),
        ),
        "restore-preview": factories.operation(
            job, by, "preview", parameters=restore, result=documents.restore(directory / "restore")
        ),
        "restore-refused": factories.operation(
            job,
            by,
            "preview",
            parameters=restore,
            result=documents.refused_restore(directory / "refused"),
        ),
        "comparison": factories.operation(
            job,
            by,
            "compare",
            parameters={"other": fork.pk, "keys": ["carrier"]},
            result={"outputs": outputs},
        ),
    }


def _deliveries(job: Job) -> tuple[Endpoint, Delivery]:
    """Endpoints in each state, and a delivery whose first attempt failed."""
    now = clock.now()
    on_call = factories.endpoint(
        "https://alerts.example/weir",
        name="On call",
        description="The rotation of the platform team",
        delivered_at=now - timedelta(minutes=4),
        delivered_count=1_204,
        secret_set_at=now - timedelta(days=9),
        authorization="Bearer hunter2",
    )
    factories.endpoint(
        "https://hooks.slack.example/services/T0",
        "slack",
        name="Channel of the flights team",
        is_enabled=False,
        disabled_at=now - timedelta(days=1),
        disabled_reason="it answered 410 Gone",
        given_up_count=3,
    )
    late = factories.endpoint(
        "https://events.pagerduty.example/v2/enqueue",
        "pagerduty",
        routing_key="R0UT1NG",
        name="Night shift",
        failures=2,
        failing_since=now - timedelta(minutes=2),
        held_until=now + timedelta(seconds=40),
        delivered_count=88,
    )
    delivered = factories.delivery(on_call, factories.notice("one", job=job.pk, job_name=job.name))
    factories.attempted(delivered)
    factories.attempted(delivered, 200, began_at=now - timedelta(seconds=3))
    Delivery.objects.filter(pk=delivered.pk).update(
        status="delivered", next_at=None, settled_at=now
    )
    retried = factories.notice("two", severity="critical", rule="Failing over", job=job.pk)
    factories.attempted(factories.delivery(late, retried))
    factories.delivery(late, factories.notice("test-1", status="test", severity="info"))
    given_up = factories.notice("three", 2, status="resolved", job=job.pk)
    factories.delivery(on_call, given_up, status="given_up", error="the connection was refused")
    return on_call, delivered


def _alerts(running: Job, finished: Job, by: User) -> tuple[Alert, Rule]:
    """Rules in each state, alerts that fire, are looked after, silenced and over, and silences."""
    now = clock.now()
    defaults.install(Rule.objects)
    slow = factories.rule(
        "checkpoint_duration",
        name="Late exchange rates",
        description="The exchange-rate service is usually the cause: see its dashboard.",
        parameters={"seconds": 0.1, "times_median": 0.0, "least_s": 1.0},
        severity="critical",
        job_pattern="flights*",
        cooldown_s=600,
    )
    factories.rule(
        "state_growth",
        name="Broken",
        problem="ZeroDivisionError: division by zero",
        severity="info",
    )
    noisy = Rule.objects.get(name="Back pressure")
    silence = factories.silence(
        rule=noisy, job_pattern="flights*", from_at=now - timedelta(hours=1), created_by_name="mara"
    )
    factories.silence(
        severity="info",
        reason="Too noisy during the replay",
        until_at=now - timedelta(hours=1),
        from_at=now - timedelta(hours=3),
        ended_at=now - timedelta(hours=1),
        ended_by_name="ada",
    )
    firing = factories.alert(
        slow,
        running,
        checkpoint=COMPLETED - 3,
        began_at=now - timedelta(seconds=20),
        fired_at=now - timedelta(seconds=18),
        evidence=[["duration", "48.2 s"], ["limit", "100 ms"], ["longest start delay", "44.0 s"]],
        acknowledged_at=now - timedelta(seconds=9),
        acknowledged_by=by,
        acknowledged_by_name=by.username,
    )
    factories.delivery(
        Endpoint.objects.get(name="On call"),
        factories.notice(str(firing.pk), rule=slow.name, job=running.pk),
        status="delivered",
    )
    silent = {"is_silenced": True, "silence": silence, "severity": "warning"}
    summary = (
        "hourly is held up by back pressure for 92% of the time: an operator behind it is slower."
    )
    factories.alert(noisy, running, subject="hourly", summary=summary, **silent)
    factories.alert(
        Rule.objects.get(name="Job failed"),
        finished,
        state="resolved",
        summary="The job failed: java.lang.OutOfMemoryError: Java heap space",
        resolution="The condition is over.",
    )
    return firing, slow


def administrator() -> User:
    """A user who may see every page."""
    return factories.user(Role.ADMIN, "ada")
