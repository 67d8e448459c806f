"""Jobs as tests need them: plain functions, each with a default for what does not matter."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from checkpoints import job_hooks
from controlplane.accounts.models import User, digest_of
from controlplane.base import clock
from jobs import services
from jobs.drivers import drivers
from jobs.events import driver_events
from jobs.models import Driver, DriverStatus, Job, Operation
from jobs.submissions import Submission
from weir.config import CheckpointConfig, RestartConfig, RestartStrategyKind
from weir.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskId
from weir.protocol.deployment import Versions
from weir.protocol.driver_messages import (
    DriverEvent,
    EdgeDescription,
    JobPlanned,
    OperatorDescription,
)
from weir.protocol.events import AttemptStarted, JobChanged, WorkerStarted
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import SubtaskChanged
from weir.protocol.slot_memory import MemoryLimit

ALWAYS_AT_ONCE = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1_000, delay_ms=0)


def submission(**given: Any) -> Submission:
    """A script below the script root."""
    defaults = {"name": "flights", "pipeline_kind": "script", "pipeline_target": "pipeline.py"}
    return Submission(**(defaults | given))


def submitted(actor: User | None = None, **given: Any) -> Job:
    """A job that was just submitted: its first driver is requested."""
    return services.submit(actor, submission(**given)).job


def driver_of(job: Job) -> Driver:
    """The job's newest driver, as it is now."""
    driver = drivers.newest(job)
    assert driver is not None
    return driver


def started(job: Job, token: str | None = None) -> Driver:
    """The job's requested driver as if a launcher somewhere else had started it."""
    driver = driver_of(job)
    assert driver.status == DriverStatus.REQUESTED
    driver.status = DriverStatus.STARTING
    driver.launched_by = "elsewhere"
    driver.token_digest = digest_of(token or f"token-{job.pk}-{driver.number}")
    driver.save()
    return driver


def speaking(job: Job) -> Driver:
    """The job's requested driver, started and heard of."""
    driver = started(job)
    drivers.heard(driver, clock.now())
    return driver


def hook_calls(monkeypatch: pytest.MonkeyPatch, hook: str) -> list[tuple[Any, ...]]:
    """Calls of one of the jobs' hooks from now on: the job's status, then other arguments."""
    calls: list[tuple[Any, ...]] = []
    hooked = getattr(job_hooks, hook)

    def call(job: Job, *others: Any) -> Any:
        calls.append((job.status, *others))
        return hooked(job, *others)

    monkeypatch.setattr(job_hooks, hook, call)
    return calls


def apply(job: Job, *happened: DriverEvent) -> Job:
    """A batch of the job's newest driver is applied; gives the job as it is afterwards."""
    with transaction.atomic():
        locked = services.locked(job.pk)
        driver = drivers.newest(locked)
        assert driver is not None
        driver_events.apply(locked, driver, happened, clock.now())
    return Job.objects.get(pk=job.pk)


def planned(
    *, restart: RestartConfig | None = None, interval_ms: int | None = 1_000, parallelism: int = 2
) -> JobPlanned:
    """A source of two subtasks, chained with a parser, into a keyed sink of two."""

    def operator(uid: str, chain: str, **facts: bool) -> OperatorDescription:
        flags = {"is_source": False, "is_sink": False, "is_keyed": False} | facts
        return OperatorDescription(
            OperatorId(uid), uid.title(), parallelism, None, OperatorId(chain), **flags
        )

    def edge(source: str, target: str, partitioning: str) -> EdgeDescription:
        return EdgeDescription(OperatorId(source), OperatorId(target), partitioning, 0, None)

    return JobPlanned(
        at_ms=0,
        name="flights of a day",
        operators=(
            operator("sink", "sink", is_sink=True, is_keyed=True),
            operator("source", "source", is_source=True),
            operator("parse", "source"),
        ),
        edges=(edge("source", "parse", "forward"), edge("parse", "sink", "hash")),
        checkpoints=CheckpointConfig(interval_ms=interval_ms),
        restart=restart or RestartConfig(),
        slot_count=parallelism,
        versions=Versions("0.1", "3.11", "20"),
        spark_application="local-1",
        settings={"parallelism": parallelism},
    )


def changed(status: JobStatus, cause: str = "") -> JobChanged:
    return JobChanged(0, status, cause)


def subtask(name: str) -> SubtaskId:
    operator, _, index = name.rpartition("-")
    return SubtaskId(OperatorId(operator), int(index))


def subtask_changed(name: str, status: SubtaskStatus, attempt: int = 1, **more: Any) -> Any:
    return SubtaskChanged(AttemptNumber(attempt), subtask(name), status, **more)


def attempt_started(number: int = 1, checkpoint: int | None = None) -> AttemptStarted:
    restored = None if checkpoint is None else CheckpointId(checkpoint)
    return AttemptStarted(0, AttemptNumber(number), restored)


def worker_started(
    attempt: int = 1, slot: int = 0, pid: int = 4711, limit: MemoryLimit | None = None
) -> WorkerStarted:
    return WorkerStarted(0, AttemptNumber(attempt), slot, pid, limit)


def coming_up(attempt: int = 1) -> tuple[DriverEvent, ...]:
    """From a driver's first event until its job runs."""
    return (
        changed(JobStatus.INITIALIZING),
        attempt_started(attempt),
        changed(JobStatus.RUNNING),
    )


def running(actor: User | None = None, plan: JobPlanned | None = None, **given: Any) -> Job:
    """A job whose driver runs and has brought it up."""
    job = submitted(actor, **given)
    speaking(job)
    return apply(job, plan or planned(), *coming_up())


def reload(row: Any) -> Any:
    """The row as the database has it now."""
    return type(row).objects.get(pk=row.pk)


def lose(job: Job, cause: str = "its JVM was killed") -> Job:
    """The job's newest driver is found to be gone."""
    with transaction.atomic():
        locked = services.locked(job.pk)
        drivers.lost(locked, driver_of(locked), cause)
    return Job.objects.get(pk=job.pk)


def pass_time(row: Any, seconds: float, *columns: str) -> None:
    """Move due times of a row into the past, instead of waiting."""
    moved = {column: F(column) - timedelta(seconds=seconds) for column in columns}
    type(row).objects.filter(pk=row.pk).update(**moved)


def statuses(job: Job) -> list[tuple[str, str]]:
    """Kind and status of the job's operations, oldest first."""
    operations = Operation.objects.filter(job=job).order_by("created_at")
    return [(operation.kind, operation.status) for operation in operations]


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Run all of it at the same time, each on a connection of its own; results or exceptions."""
    gate = threading.Barrier(len(work))
    results: list[Any] = [None] * len(work)

    def run(index: int, one: Callable[[], Any]) -> None:
        try:
            gate.wait(timeout=60)
            results[index] = one()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    return results


def kinds(rows: Sequence[Any]) -> list[str]:
    return [row.kind for row in rows]
