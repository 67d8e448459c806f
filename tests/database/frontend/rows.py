"""Jobs as rows, with the numbers of a real one: a replay of flights at parallelism 2.

Plain functions with defaults. Rows are written by hand only to show a page states that take long
to reach; what acts (``test_actions``) goes through the services.
"""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import transaction

from checkpoints.coordinator.shell import pump
from checkpoints.models import Checkpoint, GateAlignment, Savepoint, SubtaskAck
from controlplane.accounts.models import Role, User
from controlplane.base import clock, wakeups
from jobs import services
from jobs.models import (
    FINAL_JOB_STATUSES,
    Attempt,
    Driver,
    Edge,
    Job,
    JobException,
    Operation,
    Operator,
    Subtask,
)
from weir.config import CheckpointConfig
from weir.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskId
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointingStarted,
    CoordinatorEvent,
    ManifestWritten,
    OperatorAck,
    SnapshotMetrics,
)
from weir.protocol.messages import GateAlignment as GateAlignmentMessage
from weir.protocol.pending import CheckpointPlan, PlannedChain, SubtaskRange
from weir.protocol.wire import to_wire

PASSWORD = "a long enough password"
PARALLELISM = 2

# uid, name, head of its chain, source, sink, keyed: what the flights example builds.
FLIGHTS = (
    ("flights", "flights", "flights", True, False, False),
    ("flights-watermarks", "flights: watermarks", "flights", False, False, False),
    ("totals-combine", "Aggregate: combine", "flights", False, False, False),
    ("hourly", "Window Aggregate", "hourly", False, False, True),
    ("mean-delay", "Map Batches", "hourly", False, False, False),
    ("hourly-sink", "ParquetSink", "hourly", False, True, False),
    ("late-sink", "ParquetSink", "hourly", False, True, False),
    ("totals", "Aggregate", "totals", False, False, True),
    ("totals-sink", "ParquetSink", "totals", False, True, False),
)
FLIGHTS_EDGES = (
    ("flights", "flights-watermarks", "forward"),
    ("flights-watermarks", "hourly", "hash"),
    ("hourly", "mean-delay", "forward"),
    ("mean-delay", "hourly-sink", "forward"),
    ("hourly", "late-sink", "forward"),
    ("flights-watermarks", "totals-combine", "forward"),
    ("totals-combine", "totals", "hash"),
    ("totals", "totals-sink", "forward"),
)
CHAINS = ("flights", "hourly", "totals")

TRACEBACK = """Traceback (most recent call last):
  File "pipelines/orders.py", line 41, in main
    build(env, orders_path, output)
  File "pipelines/orders.py", line 23, in build
    orders.key_by("shop").sum("amuont")
weir.errors.UserError: there is no column 'amuont'; there are shop, amount and at"""


def user(role: Role = Role.VIEWER, name: str | None = None) -> User:
    """A user with a role, who can log in with ``PASSWORD``."""
    return User.objects.create_user(name or f"a-{role}", password=PASSWORD, role=role)


def job(name: str = "flights", *, status: JobStatus = JobStatus.RUNNING, **columns: Any) -> Job:
    """A job without anything yet; it has run for two hours if it ran at all."""
    now = clock.now()
    columns.setdefault("created_at", now - timedelta(hours=2, minutes=3))
    columns.setdefault("status_changed_at", now)
    if status not in (JobStatus.CREATED, JobStatus.INITIALIZING):
        columns.setdefault("started_at", now - timedelta(hours=2, minutes=2, seconds=48))
    if status.value in FINAL_JOB_STATUSES:
        columns.setdefault("ended_at", now - timedelta(minutes=1))
    number = Job.objects.count() + 1
    return Job.objects.create(
        **{
            "id": f"{name}-{number:08x}",
            "name": name,
            "status": status,
            "pipeline_kind": "module",
            "pipeline_target": "weir.examples.flights",
            "spark_master": "local[2]",
            "storage": "/var/lib/weir/checkpoints",
            **columns,
        }
    )


def driver(of: Job, number: int = 1, status: str = "running", **columns: Any) -> Driver:
    """A driver that has just been heard of, and does not fall silent while a test runs."""
    now = clock.now()
    return Driver.objects.create(
        **{
            "job": of,
            "number": number,
            "status": status,
            "created_at": of.created_at,
            "heard_at": now + timedelta(minutes=10),
            "spark_application": "local-1763728200512",
            **columns,
        }
    )


def log_of(driver: Driver, home: Path) -> Path:
    """The place of its log below the home of a web process, in a directory that is there."""
    file = home / "drivers" / driver.job_id / str(driver.number) / "driver.log"
    file.parent.mkdir(parents=True)
    return file


def attempt(of: Driver, number: int = 1, **columns: Any) -> Attempt:
    """A deployment that runs."""
    started = of.job.started_at or clock.now()
    return Attempt.objects.create(
        **{
            "job": of.job,
            "driver": of,
            "number": number,
            "started_at": started,
            "running_at": started + timedelta(milliseconds=840),
            **columns,
        }
    )


def graph(of: Job, parallelism: int = PARALLELISM, interval_ms: int | None = 1_000) -> None:
    """The flights example's graph, with its settings."""
    of.planned_name, of.slot_count = of.name, parallelism
    of.checkpoint_config = to_wire(CheckpointConfig(interval_ms=interval_ms))
    of.save()
    Operator.objects.bulk_create(
        Operator(
            job=of,
            uid=uid,
            name=name,
            position=position,
            parallelism=parallelism,
            chain=chain,
            is_source=is_source,
            is_sink=is_sink,
            is_keyed=is_keyed,
        )
        for position, (uid, name, chain, is_source, is_sink, is_keyed) in enumerate(FLIGHTS)
    )
    Edge.objects.bulk_create(
        Edge(job=of, position=at, source=source, target=target, partitioning=kind, input_index=0)
        for at, (source, target, kind) in enumerate(FLIGHTS_EDGES)
    )


def subtasks(
    of: Job, status: SubtaskStatus = SubtaskStatus.RUNNING, parallelism: int = PARALLELISM
) -> None:
    """The chains' subtasks, all of them as far."""
    now = clock.now()
    Subtask.objects.bulk_create(
        Subtask(job=of, chain=chain, index=index, attempt=1, status=status, updated_at=now)
        for chain in CHAINS
        for index in range(parallelism)
    )


def plan(parallelism: int = PARALLELISM) -> CheckpointPlan:
    """The checkpoint plan of the flights example."""
    flights = OperatorId("flights")
    fed = {"flights": (), "hourly": (flights,), "totals": (flights,)}
    return CheckpointPlan(
        chains=tuple(
            PlannedChain(
                head=OperatorId(head),
                operators=tuple(OperatorId(uid) for uid, _, chain, *_ in FLIGHTS if chain == head),
                upstream=(tuple(SubtaskRange(sender, 0, parallelism - 1) for sender in senders),)
                * parallelism,
            )
            for head, senders in fed.items()
        )
    )


def drive(of: Job, *events: CoordinatorEvent) -> None:
    """Let the job's coordinator learn of something, as its driver's events do."""
    with transaction.atomic():
        locked = services.locked(of.pk)
        pump(locked, events, now_ms=clock.now_ms())
        wakeups.on_commit(wakeups.job(of.pk))


def chain_acknowledged(
    number: int, chain: str, index: int, *, arrived_ms: Sequence[float] = (), parts: float = 1.0
) -> Acknowledged:
    """The report of a chain's subtask for a checkpoint; ``parts`` scales its durations."""
    last = max(arrived_ms, default=0.0)
    gates = (
        GateAlignmentMessage(
            gate_index=0,
            upstream=tuple(f"flights-{sender}" for sender in range(len(arrived_ms))),
            arrived_ms=tuple(arrived_ms),
            blocked_ms=tuple(last - ms for ms in arrived_ms),
            bytes_during=tuple(int(ms * 5_200) for ms in arrived_ms),
        ),
    )
    uids = [uid for uid, _, head, *_ in FLIGHTS if head == chain]
    return Acknowledged(
        AttemptNumber(1),
        CheckpointId(number),
        SubtaskId(OperatorId(chain), index),
        tuple(
            OperatorAck(
                SubtaskId(OperatorId(uid), index),
                metrics=SnapshotMetrics(
                    start_delay_ms=4.0 * parts,
                    alignment_ms=last,
                    sync_ms=1.5 * parts,
                    async_ms=42.0 * parts,
                    state_size=40_000,
                    written_size=40_000,
                    gates=gates if uid == chain and arrived_ms else (),
                ),
            )
            for uid in uids
        ),
    )


def running(
    name: str = "flights",
    *,
    parallelism: int = PARALLELISM,
    interval_ms: int | None = 1_000,
    **columns: Any,
) -> Job:
    """A job that runs, without a checkpoint so far; its coordinator waits for the first."""
    of = job(name, **columns)
    graph(of, parallelism, interval_ms)
    subtasks(of, parallelism=parallelism)
    attempt(driver(of))
    started = CheckpointingStarted(AttemptNumber(1), plan(parallelism), interval_ms or 0)
    drive(of, started)
    return of


def complete(of: Job, number: int, arrived_ms: Sequence[float] = (30.0, 0.0)) -> None:
    """The checkpoint that was triggered last is acknowledged by all, and durable."""
    acknowledged = [
        chain_acknowledged(
            number, chain, index, arrived_ms=() if chain == "flights" else arrived_ms
        )
        for chain in CHAINS
        for index in range(PARALLELISM)
    ]
    drive(of, *acknowledged, ManifestWritten(CheckpointId(number)))


def checkpoint(of: Job, number: int, **columns: Any) -> Checkpoint:
    """A checkpoint of ``of`` that completed just now, without acknowledgements of its own."""
    now = clock.now()
    columns.setdefault("status", CheckpointStatus.COMPLETED)
    is_settled = columns["status"] not in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)
    columns.setdefault("triggered_at", now - timedelta(milliseconds=300))
    if is_settled:
        columns.setdefault("duration_ms", 212)
        triggered = columns["triggered_at"]
        columns.setdefault("settled_at", triggered + timedelta(milliseconds=columns["duration_ms"]))
    if columns["status"] == CheckpointStatus.ABORTED:
        columns.setdefault("reason", FailureReason.CHECKPOINT_EXPIRED)
    total = len(FLIGHTS) * PARALLELISM
    columns.setdefault("subtask_count", total)
    columns.setdefault("acknowledged_count", columns["subtask_count"] if is_settled else 0)
    return Checkpoint.objects.create(
        **{"job": of, "number": number, "attempt": 1, "kind": "checkpoint", **columns}
    )


def acknowledge(
    of: Checkpoint, operator: str, index: int, *, chain: str | None = None, **columns: Any
) -> SubtaskAck:
    """One operator subtask's acknowledgement; the checkpoint's count grows with it."""
    row = SubtaskAck.objects.create(
        **{
            "checkpoint": of,
            "operator": operator,
            "index": index,
            "chain": chain or operator,
            "acknowledged_at": clock.now(),
            "start_delay_ms": 4.0,
            "alignment_ms": 20.0,
            "sync_ms": 1.5,
            "async_ms": 30.0,
            "bytes_during_alignment": 20_000,
            "in_flight_bytes": 0,
            "state_bytes": 40_000,
            "written_bytes": 40_000,
            "unaligned": False,
            "records": 10_000,
            "handles": [],
            **columns,
        }
    )
    of.acknowledged_count += 1
    of.save()
    return row


def acknowledge_chain(of: Checkpoint, chain: str, index: int) -> None:
    """All operators of a chain's subtask, as they come together."""
    for uid, _, head, *_ in FLIGHTS:
        if head == chain:
            acknowledge(of, uid, index, chain=chain)


def gate_alignment(
    of: Checkpoint,
    operator: str,
    index: int,
    arrived_ms: Sequence[float | None],
    *,
    gate: int = 0,
    upstream: str = "flights",
) -> GateAlignment:
    """One gate, not saved: channels were blocked from their barrier to the last one."""
    last = max((ms for ms in arrived_ms if ms is not None), default=0.0)
    return GateAlignment(
        checkpoint=of,
        operator=operator,
        index=index,
        gate=gate,
        upstream=[f"{upstream}-{sender}" for sender in range(len(arrived_ms))],
        arrived_ms=list(arrived_ms),
        blocked_ms=[0.0 if ms is None else last - ms for ms in arrived_ms],
        bytes_during=[0 if not ms else int(ms * 5_200) for ms in arrived_ms],
    )


def history(
    of: Job, count: int = 60, *, until: datetime | None = None, seed: int = 7
) -> list[Checkpoint]:
    """A past of one checkpoint a second; two of them failed, state grows, the last is aligned."""
    chance = random.Random(seed)
    until = until or clock.now()
    rows = []
    for number in range(1, count + 1):
        triggered = until - timedelta(seconds=count - number + 1)
        # A few barriers wait for a slow channel, as they do behind a compaction or a slow disk.
        wait = chance.choice([12, 18, 25, 30, 40, 260]) * chance.uniform(0.8, 1.3)
        start, sync, rest = chance.uniform(2, 9), chance.uniform(1, 5), chance.uniform(40, 95)
        state = 180_000 + 21_000 * number
        parts = {"start_delay_ms": start, "alignment_ms": wait, "sync_ms": sync, "async_ms": rest}
        if number in (count - 31, count - 12):
            expired = FailureReason.CHECKPOINT_DECLINED
            cause = "OSError: [Errno 28] No space left on device"
            rows.append(
                checkpoint(
                    of,
                    number,
                    status=CheckpointStatus.ABORTED,
                    reason=expired,
                    cause=cause,
                    triggered_at=triggered,
                    duration_ms=int(sum(parts.values())) + 90,
                    acknowledged_count=11,
                    **parts,
                )
            )
            continue
        kept = CheckpointStatus.COMPLETED if number > count - 10 else CheckpointStatus.DISCARDED
        rows.append(
            checkpoint(
                of,
                number,
                status=kept,
                triggered_at=triggered,
                duration_ms=int(sum(parts.values())) + 14,
                state_bytes=state,
                written_bytes=state,
                **parts,
            )
        )
    for operator in ("hourly", "totals"):
        for index in range(PARALLELISM):
            # flights-1 has no file of its own: its barrier is first, and waits for flights-0's.
            gate_alignment(rows[-1], operator, index, [chance.uniform(18, 41), 0.0]).save()
    return rows


def operation(
    of: Job, by: User | None, kind: str = "checkpoint", status: str = "succeeded", **columns: Any
) -> Operation:
    """Something that was asked of a job."""
    now = clock.now()
    columns.setdefault("created_at", now - timedelta(seconds=12))
    if status not in ("pending", "running"):
        columns.setdefault("ended_at", columns["created_at"] + timedelta(milliseconds=260))
    return Operation.objects.create(
        **{
            "job": of,
            "kind": kind,
            "status": status,
            "requested_by": by,
            "deadline_at": columns["created_at"] + timedelta(minutes=5),
            **columns,
        }
    )


def savepoint(
    of: Job,
    name: str,
    number: int | None,
    *,
    by: User | None = None,
    kind: str = "savepoint",
    status: CheckpointStatus = CheckpointStatus.COMPLETED,
    **columns: Any,
) -> Savepoint:
    """A savepoint with its checkpoint; without a number one that was not triggered."""
    location = f"{of.storage}/{of.pk}/savepoints/{name}"
    made = None
    if number is not None:
        made = checkpoint(
            of,
            number,
            kind=kind,
            status=status,
            location=location,
            state_bytes=1_240_000,
            watermark_ms=1_735_700_400_000,
        )
    return Savepoint.objects.create(
        **{
            "job": of,
            "checkpoint": made,
            "name": name,
            "location": location,
            "created_by": by,
            "created_at": made.triggered_at if made else clock.now(),
            **columns,
        }
    )


def exception(
    of: Job, text: str = TRACEBACK, kind: str = "attempt", **columns: Any
) -> JobException:
    """Something that went wrong just now."""
    return JobException.objects.create(
        **{"job": of, "at": clock.now(), "kind": kind, "text": text, **columns}
    )
