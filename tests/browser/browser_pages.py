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

from controlplane.accounts.models import Role, User
from controlplane.audit.models import record
from controlplane.base import clock
from frontend.confirm.views import QUESTIONS
from jobs.models import Job, Operation, Subtask
from tests.database.frontend import documents, rows
from weir.config import CheckpointConfig
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.wire import to_wire

COMPLETED = 60
FAILED = COMPLETED - 12  # As ``rows.history`` has it.
UNDER_WAY = COMPLETED + 3
RESTORED = 12  # By the second attempt,
BACK = timedelta(seconds=COMPLETED - RESTORED)  # which began so long ago.


@dataclass(frozen=True, slots=True)
class Shown:
    """A page: what it is called, where it is, and what its answer's status is."""

    name: str
    path: str
    status: int = 200


TABS = ("", "checkpoints/", "savepoints/", "recovery/", "configuration/", "logs/", "audit/")

# What needs no rows.
EMPTY_OVERVIEW = Shown("overview-empty", "/jobs/")
LOGIN = Shown("login", "/login/")


def seeded(directory: Path, by: User) -> list[Shown]:
    """Make the rows; the pages that show them, for an administrator.

    ``directory`` takes the files that previews and comparisons are made of.
    """
    running = _running(by)
    failed, finished = _failed(), _finished()
    fork = _fork(running)
    starting = rows.job("orders-backfill", status=JobStatus.CREATED, created_at=clock.now())
    operations = _operations(running, fork, by, directory)
    savepoint = running.savepoints.get(name="before-release")
    record(by, "job.cancel", f"job/{finished.pk}", after={"desired": "canceled"})
    record(by, "savepoint.take", f"job/{running.pk}", after={"name": savepoint.name})
    record(None, "job.restart", f"job/{running.pk}", after={"attempt": 2})
    at = f"/jobs/{running.pk}/"
    return [
        Shown("overview", "/jobs/"),
        Shown("overview-nothing-found", "/jobs/?q=nothing-is-called-this"),
        Shown("submit", "/jobs/new"),
        Shown("audit", "/audit/"),
        *_of_job("running", running),
        *_of_job("failed", failed, "", "checkpoints/", "recovery/"),
        *_of_job("finished", finished, ""),
        *_of_job("starting", starting, "", "checkpoints/", "savepoints/", "recovery/"),
        *_of_job("fork", fork, "", "savepoints/"),
        Shown("checkpoint-completed", f"{at}checkpoints/{COMPLETED}/"),
        Shown("checkpoint-failed", f"{at}checkpoints/{FAILED}/"),
        Shown("checkpoint-under-way", f"{at}checkpoints/{UNDER_WAY}/"),
        Shown("checkpoint-savepoint", f"{at}checkpoints/{savepoint.checkpoint.number}/"),
        *(Shown(f"ask-{name}", f"{at}{name}") for name in QUESTIONS),
        Shown("savepoint-delete", f"{at}savepoints/{savepoint.pk}/delete"),
        Shown("savepoint-describe", f"{at}savepoints/{savepoint.pk}/describe"),
        *(Shown(f"operation-{name}", f"{at}operations/{o.pk}") for name, o in operations.items()),
        Shown("not-found", "/jobs/no-such-job-00000001/", 404),
    ]


def _of_job(name: str, job: Job, *tabs: str) -> Iterator[Shown]:
    for tab in tabs or TABS:
        yield Shown("-".join(filter(None, (name, tab.strip("/")))), f"/jobs/{job.pk}/{tab}")


def _running(by: User) -> Job:
    """It has recovered once, has savepoints, and the barriers of a checkpoint are on their way."""
    job = rows.running(created_by=by)
    now = clock.now()
    first = job.attempts.get(number=1)
    cause = "slot 1 is gone: its worker process (pid 4711) ended with signal 9"
    first.ended_at, first.end, first.cause = now - BACK, "failed", cause
    first.save()
    rows.attempt(
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
    rows.exception(job, cause, "driver", at=now - BACK, attempt_number=1)
    rows.history(job, COMPLETED)
    _acknowledge(job, COMPLETED)
    failed = job.checkpoints.get(number=FAILED)
    failed.acknowledged_count = 0
    rows.acknowledge_chain(failed, "flights", 0)
    failed.acks.update(acknowledged_at=failed.triggered_at + timedelta(milliseconds=60))
    note = "The last one before the new tariff table."
    labels = {"release": "2025.1"}
    rows.savepoint(job, "before-release", COMPLETED + 1, by=by, note=note, labels=labels)
    _acknowledge(job, COMPLETED + 1)
    for chain, index in itertools.product(("hourly", "totals"), range(rows.PARALLELISM)):
        taken = job.checkpoints.get(number=COMPLETED + 1)
        rows.gate_alignment(taken, chain, index, [31.0 + index, 0.0]).save()
    rows.savepoint(
        job,
        "nightly",
        COMPLETED + 2,
        by=by,
        status=CheckpointStatus.ABORTED,
    )
    job.checkpoints.filter(number__gt=RESTORED).update(attempt=2)
    _aligning(job)
    return job


def _acknowledge(job: Job, number: int) -> None:
    """All subtasks of a completed checkpoint, shortly before its manifest was written."""
    completed = job.checkpoints.get(number=number)
    completed.acknowledged_count = 0  # Each acknowledgement counts itself.
    for chain, index in itertools.product(rows.CHAINS, range(rows.PARALLELISM)):
        rows.acknowledge_chain(completed, chain, index)
    heard = completed.settled_at - timedelta(milliseconds=12)
    completed.acks.update(acknowledged_at=heard)


def _aligning(job: Job) -> None:
    """A checkpoint whose barrier waits in one channel, with what the subtasks say of it."""
    triggered = clock.now() - timedelta(seconds=4)
    under_way = rows.checkpoint(
        job, UNDER_WAY, status=CheckpointStatus.PENDING, attempt=2, triggered_at=triggered
    )
    rows.acknowledge_chain(under_way, "flights", 0)
    rows.acknowledge_chain(under_way, "totals", 1)
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
    job = rows.job("orders", status=JobStatus.FAILED, cause=rows.TRACEBACK)
    driver = rows.driver(job, status="ended", ended_at=clock.now(), cause="the pipeline failed")
    rows.attempt(driver, ended_at=clock.now(), end="failed", cause=rows.TRACEBACK)
    rows.graph(job)
    rows.subtasks(job, SubtaskStatus.FAILED)
    rows.checkpoint(
        job,
        1,
        status=CheckpointStatus.ABORTED,
        reason=FailureReason.CHECKPOINT_EXPIRED,
        acknowledged_count=7,
        duration_ms=60_000,
    )
    rows.exception(job)
    return job


def _finished() -> Job:
    job = rows.job("clicks", status=JobStatus.FINISHED)
    driver = rows.driver(job, status="ended", ended_at=clock.now())
    rows.attempt(driver, ended_at=clock.now(), end="finished")
    rows.graph(job)
    rows.subtasks(job, SubtaskStatus.FINISHED)
    rows.history(job, 15, until=job.ended_at)
    return job


def _fork(origin: Job) -> Job:
    """A second job that began with a savepoint of another one."""
    savepoint = origin.savepoints.get(name="before-release")
    fork = rows.job("flights-trial", origin=origin, origin_uri=savepoint.location)
    fork.checkpoint_config = to_wire(CheckpointConfig(interval_ms=1_000))
    rows.graph(fork)
    rows.subtasks(fork)
    rows.attempt(rows.driver(fork), restored_checkpoint=savepoint.checkpoint.number)
    rows.checkpoint(fork, 1)
    return fork


def _operations(job: Job, fork: Job, by: User, directory: Path) -> dict[str, Operation]:
    """Operations of every kind of answer, and one that has not ended."""
    outputs = [documents.comparison(directory / "compare", is_equal=False)]
    rollback = {"kind": "rollback", "checkpoint": COMPLETED - 4, "rewind_output": True}
    restore = {"kind": "restore", "restore": str(directory / "restore"), "parameters": {}}
    return {
        "savepoint": rows.operation(
            job, by, "savepoint", result={"path": "/var/lib/weir/savepoints/before-release"}
        ),
        "failed": rows.operation(
            job, by, "savepoint", "failed", error="checkpoint expired before completing"
        ),
        "stopping": rows.operation(job, by, "rescale", "running", parameters={"parallelism": 4}),
        "rollback-preview": rows.operation(
            job,
            by,
            "preview",
            parameters=rollback,
            result=documents.rollback(directory / "rollback"),
        ),
        "restore-preview": rows.operation(
            job, by, "preview", parameters=restore, result=documents.restore(directory / "restore")
        ),
        "restore-refused": rows.operation(
            job,
            by,
            "preview",
            parameters=restore,
            result=documents.refused_restore(directory / "refused"),
        ),
        "comparison": rows.operation(
            job,
            by,
            "compare",
            parameters={"other": fork.pk, "keys": ["carrier"]},
            result={"outputs": outputs},
        ),
    }


def administrator() -> User:
    """A user who may see every page."""
    return rows.user(Role.ADMIN, "ada")
