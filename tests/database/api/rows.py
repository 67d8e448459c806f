"""Rows for the API's tests: plain functions with defaults."""

import hashlib
import itertools
from datetime import timedelta
from typing import Any

from django.utils import timezone

from checkpoints.models import Checkpoint, CoordinatorRow, GateAlignment, Savepoint, SubtaskAck
from controlplane.accounts import services as accounts
from controlplane.accounts.models import Role, User
from jobs.models import (
    Artifact,
    Attempt,
    Driver,
    DriverStatus,
    Edge,
    Job,
    JobException,
    Operation,
    OperationKind,
    OperationStatus,
    Operator,
    Subtask,
    Worker,
)

PASSWORD = "a-long-enough-password"
_numbers = itertools.count(1)


def user(role: str = "operator", name: str | None = None) -> User:
    """An account with ``PASSWORD``."""
    name = name or f"{role}-{next(_numbers)}"
    return accounts.create_user(None, name, Role(role), password=PASSWORD)[0]


def secret_of(owner: User, role: str | None = None) -> str:
    """A fresh token's secret, of the owner's role unless said otherwise."""
    return accounts.create_token(None, owner, "test", Role(role or owner.effective_role))[1]


def job(name: str = "flights", **given: Any) -> Job:
    """A running job."""
    now = timezone.now()
    values: dict[str, Any] = {
        "pk": f"{name}-{next(_numbers):08x}",
        "name": name,
        "pipeline_kind": "module",
        "pipeline_target": "weir.examples.flights",
        "spark_master": "local[2]",
        "storage": "/checkpoints",
        "status": "running",
        "created_at": now,
        "status_changed_at": now,
        "started_at": now,
        "slot_count": 2,
    }
    return Job.objects.create(**values | given)


def driver(of: Job, number: int = 1, **given: Any) -> Driver:
    """A running driver."""
    values: dict[str, Any] = {
        "status": DriverStatus.RUNNING,
        "created_at": timezone.now(),
        "launched_by": "launcher-1",
        "pid": 4711,
    }
    return Driver.objects.create(job=of, number=number, **values | given)


def attempt(of: Driver, number: int = 1, workers: int = 2) -> Attempt:
    """An attempt that runs, with its workers."""
    now = timezone.now()
    made = Attempt.objects.create(
        job=of.job, driver=of, number=number, started_at=now, running_at=now
    )
    for index in range(workers):
        Worker.objects.create(
            attempt=made, slot_index=index, host="slot", pid=100 + index, started_at=now
        )
    return made


def graph(of: Job) -> None:
    """A source, a keyed operator and a sink, with subtasks of two chains."""
    for position, (uid, chain) in enumerate(
        [("source", "source"), ("totals", "totals"), ("sink", "totals")]
    ):
        Operator.objects.create(
            job=of,
            uid=uid,
            name=uid,
            position=position,
            parallelism=2,
            max_parallelism=128,
            chain=chain,
            is_source=uid == "source",
            is_sink=uid == "sink",
            is_keyed=uid == "totals",
        )
    for position, (source, target) in enumerate([("source", "totals"), ("totals", "sink")]):
        Edge.objects.create(
            job=of,
            position=position,
            source=source,
            target=target,
            partitioning="hash" if position == 0 else "forward",
            input_index=0,
        )
    for chain, index in itertools.product(("source", "totals"), range(2)):
        Subtask.objects.create(
            job=of,
            chain=chain,
            index=index,
            attempt=1,
            status="running",
            metrics={"records_in": 10},
            updated_at=timezone.now(),
        )


def checkpoint(of: Job, number: int = 1, *, status: str = "completed", **given: Any) -> Checkpoint:
    """A checkpoint; one that is over took 250 ms."""
    triggered = timezone.now()
    is_open = status in ("pending", "finalizing")
    values: dict[str, Any] = {
        "attempt": 1,
        "kind": "checkpoint",
        "triggered_at": triggered,
        "settled_at": None if is_open else triggered + timedelta(milliseconds=250),
        "duration_ms": None if is_open else 250,
        "reason": "checkpoint_expired" if status == "aborted" else "",
        "subtask_count": 6,
        "acknowledged_count": 6 if status == "completed" else 2,
        "state_bytes": 1_000,
    }
    return Checkpoint.objects.create(job=of, number=number, status=status, **values | given)


def savepoint(of: Job, number: int = 9, name: str | None = None, **given: Any) -> Savepoint:
    """A savepoint with its checkpoint; ``given`` are fields of the savepoint."""
    name = name or f"savepoint-{number}"
    location = f"{of.storage}/{of.pk}/savepoints/{name}"
    return Savepoint.objects.create(
        **{
            "job": of,
            "checkpoint": checkpoint(of, number, kind="savepoint", location=location),
            "name": name,
            "location": location,
            "created_at": timezone.now(),
        }
        | given
    )


def ack(of: Checkpoint, operator: str = "totals", index: int = 0) -> SubtaskAck:
    """An acknowledgement."""
    return SubtaskAck.objects.create(
        checkpoint=of,
        operator=operator,
        index=index,
        chain=operator,
        acknowledged_at=timezone.now(),
        start_delay_ms=1.5,
        alignment_ms=2.5,
        sync_ms=0.5,
        async_ms=10.0,
        bytes_during_alignment=0,
        in_flight_bytes=0,
        state_bytes=500,
        written_bytes=500,
        unaligned=False,
        records=3,
        handles=[],
    )


def alignment(
    of: Checkpoint,
    operator: str = "totals",
    index: int = 0,
    gate: int = 0,
    *,
    arrived_ms: tuple[float | None, ...] = (0.0, 4.0, None),
) -> GateAlignment:
    """The barrier's arrival on a gate's channels; the last one to come blocked the others."""
    latest = max((one for one in arrived_ms if one is not None), default=0.0)
    return GateAlignment.objects.create(
        checkpoint=of,
        operator=operator,
        index=index,
        gate=gate,
        upstream=[f"source-{n}" for n in range(len(arrived_ms))],
        arrived_ms=list(arrived_ms),
        blocked_ms=[0.0 if one is None else latest - one for one in arrived_ms],
        bytes_during=[0] * len(arrived_ms),
    )


def operation(of: Job, by: User | None = None, **given: Any) -> Operation:
    """An operation that is under way."""
    now = timezone.now()
    values: dict[str, Any] = {
        "kind": OperationKind.CHECKPOINT,
        "status": OperationStatus.RUNNING,
        "created_at": now,
        "deadline_at": now + timedelta(minutes=5),
    }
    return Operation.objects.create(job=of, requested_by=by, **values | given)


def upload(content: bytes = b"print()", by: User | None = None) -> Artifact:
    """An uploaded pipeline's row, without its file."""
    return Artifact.objects.create(
        digest=hashlib.sha256(content).hexdigest(),
        file_name="pipeline.py",
        size=len(content),
        uploaded_by=by,
        uploaded_at=timezone.now(),
    )


def everything(by: User, **given: Any) -> Job:
    """A job with something of each kind."""
    made = job(created_by=by, **given)
    CoordinatorRow.objects.create(job=made, state={}, next_trigger_at=timezone.now())
    driver(made, 1, status=DriverStatus.LOST, cause="killed", ended_at=timezone.now())
    attempt(driver(made, 2))
    graph(made)
    JobException.objects.create(
        job=made, at=timezone.now(), kind="driver", driver_number=1, text="the driver was killed"
    )
    first = checkpoint(made, 1)
    second = checkpoint(made, 2, parent=first)
    for index in range(2):
        ack(second, "totals", index)
        alignment(second, "totals", index)
    checkpoint(made, 3, status="aborted", parent=second)
    savepoint(made, 4, created_by=by, labels={"release": "1"})
    operation(made, by)
    upload(made.pk.encode(), by)
    return made
