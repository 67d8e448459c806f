"""Rows as tests need them: a function for each kind, with defaults for what does not matter.

The defaults are of a real job: a replay of flights at parallelism 2. Rows are written by hand only
to show states that take long to reach; what acts goes through the services.
"""

import hashlib
import itertools
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from checkpoints.models import (
    LAST_PHASES,
    Checkpoint,
    CoordinatorRow,
    GateAlignment,
    Savepoint,
    SubtaskAck,
)
from controlplane.accounts.models import Role, Token, User, digest_of, new_secret
from controlplane.alerts.models import Alert, Rule, Silence
from controlplane.alerts.rules import bump_version
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.deliveries.models import Delivery, DeliveryAttempt, Endpoint
from controlplane.deliveries.notice import Notice
from controlplane.deliveries.outbox import post
from controlplane.deliveries.receivers import signing
from controlplane.deliveries.sealing import Sealed, seal
from jobs.models import (
    FINAL_JOB_STATUSES,
    Artifact,
    Attempt,
    ChainSample,
    Driver,
    DriverStatus,
    Edge,
    Job,
    JobEvent,
    JobEventKind,
    JobException,
    Operation,
    Operator,
    OutboxCommand,
    Subtask,
    Worker,
)
from weir.config import CheckpointConfig
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus, SubtaskStatus
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


_numbers = itertools.count(1)


# Accounts -----------------------------------------------------------------------------------------


def user(role: str = Role.VIEWER, name: str | None = None) -> User:
    """A user with a role, who can log in with ``PASSWORD``."""
    return User.objects.create_user(
        name or f"{role}-{next(_numbers)}",
        password=PASSWORD,
        role=role,
        is_staff=role == Role.ADMIN,
        is_superuser=role == Role.ADMIN,
    )


def token(owner: User, secret: str, role: str | None = None, **columns: Any) -> Token:
    """A token of the owner's role unless said otherwise."""
    return Token.objects.create(
        **{
            "user": owner,
            "name": "test",
            "role": role or owner.effective_role,
            "digest": digest_of(secret),
            "hint": secret[:9],
            "created_at": clock.now(),
            **columns,
        }
    )


def secret_of(owner: User, role: str | None = None) -> str:
    """The secret of a new token."""
    secret = new_secret()
    token(owner, secret, role)
    return secret


def audit_entry(action: str = "job.cancel", target: str = "job/none", **columns: Any) -> AuditEntry:
    """A change that mara made just now."""
    return AuditEntry.objects.create(
        **{
            "at": clock.now(),
            "actor_name": "mara",
            "action": action,
            "target": target,
            **columns,
        }
    )


# Deliveries ---------------------------------------------------------------------------------------


def notice(
    alert: str = "8f14e45f-ceea-467f-a3b2-5b7c1a0d9e11", sequence: int = 1, **fields: Any
) -> Notice:
    """A slow checkpoint of the flights, as an alert tells it."""
    status = fields.setdefault("status", "firing")
    began_at = fields.setdefault("began_at", datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC))
    return Notice(
        **{
            "alert": alert,
            "sequence": sequence,
            "severity": "warning",
            "rule": "Slow checkpoints",
            "summary": "Checkpoint 41 took 48 s: hourly-0 was busy & its barrier waited.",
            "evidence": (("duration", "48 s"), ("longest start delay", "44 s")),
            "labels": {"team": "flights"},
            "links": (("Checkpoint 41", "https://weir.example/jobs/flights-1/checkpoints/41"),),
            "job": "flights-1",
            "job_name": "flights",
            "ended_at": began_at + timedelta(minutes=3) if status == "resolved" else None,
            **fields,
        }
    )


def endpoint(
    url: str = "https://203.0.113.7/weir", kind: str = "webhook", **given: Any
) -> Endpoint:
    """An endpoint with a secret, past the checks of its address; columns may be given."""
    sealed = {
        name: given.pop(name, "") for name in ("secret", "previous", "routing_key", "authorization")
    }
    pk, now = uuid.UUID(str(given.pop("id", uuid.uuid4()))), clock.now()
    if kind in ("webhook", "cloudevents"):
        sealed["secret"] = sealed["secret"] or signing.new_secret()
    parts = Sealed(url=url, previous_until=given.get("previous_secret_until"), **sealed)
    return Endpoint.objects.create(
        **{
            "id": pk,
            "name": f"endpoint-{next(_numbers)}",
            "kind": kind,
            "origin": "/".join(url.split("/")[:3]),
            "sealed": seal(pk, parts),
            "created_at": now,
            "changed_at": now,
            "created_by_name": "mara",
            **given,
        }
    )


def delivery(to: Endpoint, of: Notice | None = None, **columns: Any) -> Delivery:
    """A delivery that waits for its first attempt, unless columns say otherwise."""
    (row,) = post(of or notice(str(uuid.uuid4())), [to])
    for name, value in columns.items():
        setattr(row, name, value)
    if row.status != "pending":
        row.next_at, row.settled_at = None, row.settled_at or clock.now()
    row.save()
    return row


def attempted(delivery: Delivery, status_code: int = 503, **columns: Any) -> DeliveryAttempt:
    """An attempt of a delivery that has ended, with the endpoint's answer."""
    is_delivered = 200 <= status_code < 300
    ended_at = clock.now()
    attempt = DeliveryAttempt.objects.create(
        **{
            "delivery": delivery,
            "number": delivery.attempts + 1,
            "began_at": ended_at - timedelta(milliseconds=84),
            "ended_at": ended_at,
            "outcome": "delivered" if is_delivered else "failed",
            "address": "203.0.113.7",
            "status_code": status_code,
            "headers": {"Content-Type": "text/plain", "Server": "alerts"},
            "body": "ok" if is_delivered else "upstream is down",
            "error": "" if is_delivered else f"the endpoint answered {status_code}",
            **columns,
        }
    )
    delivery.attempts, delivery.tries = attempt.number, delivery.tries + 1
    delivery.error = attempt.error
    delivery.save()
    return attempt


# Alerts -------------------------------------------------------------------------------------------


def rule(
    kind: str = "job_failed", *, parameters: dict[str, Any] | None = None, **columns: Any
) -> Rule:
    """A rule about all jobs that evaluators know of."""
    now = clock.now()
    made = Rule.objects.create(
        **{
            "name": f"rule-{next(_numbers)}",
            "kind": kind,
            "parameters": parameters or {},
            "severity": "warning",
            "created_at": now,
            "changed_at": now,
            "created_by_name": "mara",
            **columns,
        }
    )
    bump_version()
    return made


def alert(of: Rule, about: Job | None = None, **columns: Any) -> Alert:
    """An alert that has fired for ten minutes, or did until a minute ago."""
    now = clock.now()
    if columns.get("state") == "resolved":
        columns.setdefault("ended_at", now - timedelta(minutes=1))
    return Alert.objects.create(
        **{
            "rule": of,
            "rule_name": of.name,
            "kind": of.kind,
            "severity": of.severity,
            "job": "flights-1" if about is None else about.pk,
            "job_name": "flights" if about is None else about.name,
            "began_at": now - timedelta(minutes=11),
            "fired_at": now - timedelta(minutes=10),
            "summary": "Checkpoint 41 took 48 s. hourly-0 was busy and its barrier waited.",
            "evidence": [["duration", "48 s"]],
            "labels": {"kind": of.kind},
            "links": [["Job", "https://weir.example/jobs/flights-1/"]],
            **columns,
        }
    )


def silence(**columns: Any) -> Silence:
    """A silence of everything for an hour."""
    now = clock.now()
    return Silence.objects.create(
        **{
            "from_at": now - timedelta(minutes=1),
            "until_at": now + timedelta(hours=1),
            "reason": "The cluster is upgraded.",
            "created_at": now,
            "created_by_name": "mara",
            **columns,
        }
    )


# Jobs ---------------------------------------------------------------------------------------------


def job(name: str = "flights", *, status: str = JobStatus.RUNNING, **columns: Any) -> Job:
    """A job without anything yet; it has run for two hours if it ran at all."""
    now = clock.now()
    columns.setdefault("created_at", now - timedelta(hours=2, minutes=3))
    columns.setdefault("status_changed_at", now)
    if status not in (JobStatus.CREATED, JobStatus.INITIALIZING):
        columns.setdefault("started_at", now - timedelta(hours=2, minutes=2, seconds=48))
    if status in FINAL_JOB_STATUSES:
        columns.setdefault("ended_at", now - timedelta(minutes=1))
    columns.setdefault("is_planned", status not in (JobStatus.RESTARTING, JobStatus.FAILED))
    return Job.objects.create(
        **{
            "id": f"{name}-{next(_numbers):08x}",
            "name": name,
            "status": status,
            "pipeline_kind": "module",
            "pipeline_target": "weir.examples.flights",
            "spark_master": "local[2]",
            "storage": "/var/lib/weir/checkpoints",
            **columns,
        }
    )


def upload(content: bytes = b"print()", by: User | None = None, **columns: Any) -> Artifact:
    """An uploaded pipeline, without its file."""
    return Artifact.objects.create(
        **{
            "digest": hashlib.sha256(content).hexdigest(),
            "file_name": "pipeline.py",
            "size": len(content),
            "uploaded_by": by,
            "uploaded_at": clock.now(),
            **columns,
        }
    )


def driver(
    of: Job,
    number: int = 1,
    status: str = DriverStatus.RUNNING,
    *,
    token: str | None = None,
    **columns: Any,
) -> Driver:
    """A driver that has just been heard of, and does not fall silent while a test runs."""
    return Driver.objects.create(
        **{
            "job": of,
            "number": number,
            "status": status,
            "token_digest": None if token is None else digest_of(token),
            "created_at": of.created_at,
            "heard_at": clock.now() + timedelta(minutes=10),
            "sent_at": clock.now() + timedelta(minutes=10),
            "spark_application": "local-1763728200512",
            **columns,
        }
    )


def log_of(driver: Driver, home: Path) -> Path:
    """The place of its log below the home of a web process, in a directory that is there."""
    file = home / "drivers" / driver.job_id / str(driver.number) / "driver.log"
    file.parent.mkdir(parents=True)
    return file


def attempt(of: Driver, number: int = 1, *, workers: int = 0, **columns: Any) -> Attempt:
    """A deployment that runs."""
    started = columns.setdefault("started_at", of.job.started_at or clock.now())
    columns.setdefault("running_at", started + timedelta(milliseconds=840))
    made = Attempt.objects.create(**{"job": of.job, "driver": of, "number": number, **columns})
    for slot in range(workers):
        worker(made, slot)
    return made


def worker(of: Attempt, slot: int = 0, **columns: Any) -> Worker:
    """A worker process, whose pid counts from 100."""
    return Worker.objects.create(
        **{
            "attempt": of,
            "slot_index": slot,
            "host": "slot",
            "pid": 100 + slot,
            "started_at": of.started_at,
            **columns,
        }
    )


def graph(
    of: Job,
    parallelism: int = PARALLELISM,
    interval_ms: int | None = 1_000,
    *,
    operators: Sequence[tuple[str, str, str, bool, bool, bool]] = FLIGHTS,
    edges: Sequence[tuple[str, str, str]] = FLIGHTS_EDGES,
    **columns: Any,
) -> None:
    """The graph that the job's pipeline built, with its settings; columns are of operators."""
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
            **columns,
        )
        for position, (uid, name, chain, is_source, is_sink, is_keyed) in enumerate(operators)
    )
    Edge.objects.bulk_create(
        Edge(job=of, position=at, source=source, target=target, partitioning=kind, input_index=0)
        for at, (source, target, kind) in enumerate(edges)
    )


def subtasks(
    of: Job,
    status: str = SubtaskStatus.RUNNING,
    parallelism: int = PARALLELISM,
    *,
    chains: Iterable[str] = CHAINS,
    **columns: Any,
) -> None:
    """The chains' subtasks, all of them as far."""
    fixed = {"job": of, "attempt": 1, "status": status, "updated_at": clock.now(), **columns}
    Subtask.objects.bulk_create(
        Subtask(chain=chain, index=index, **fixed)
        for chain in chains
        for index in range(parallelism)
    )


def chain_sample(of: Job, chain: str = "totals", **columns: Any) -> ChainSample:
    """A sample of a chain of two subtasks, a quarter of whose time was busy."""
    return ChainSample.objects.create(
        **{
            "job": of,
            "chain": chain,
            "at": clock.now(),
            "is_first_of_minute": True,
            "attempt": 1,
            "running": PARALLELISM,
            "records_in": 10_000.0,
            "records_out": 400.0,
            "busy_ms": 5_000.0,
            "idle_ms": 14_000.0,
            "back_pressured_ms": 1_000.0,
            "busiest": 0.4,
            "state_bytes": {chain: 80_000},
            **columns,
        }
    )


def exception(
    of: Job, text: str = TRACEBACK, kind: str = "attempt", **columns: Any
) -> JobException:
    """A failure of just now."""
    return JobException.objects.create(
        **{"job": of, "at": clock.now(), "kind": kind, "text": text, **columns}
    )


def operation(
    of: Job,
    by: User | None = None,
    kind: str = "checkpoint",
    status: str = "succeeded",
    **columns: Any,
) -> Operation:
    """A request about a job."""
    columns.setdefault("created_at", clock.now() - timedelta(seconds=12))
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


def event(of: Job, checkpoint: int = 1, **columns: Any) -> JobEvent:
    """An event: a checkpoint of ``of`` completed."""
    return JobEvent.objects.create(
        **{
            "job": of,
            "kind": JobEventKind.CHECKPOINT_COMPLETED,
            "at": clock.now(),
            "planned": False,
            "facts": {"checkpoint": checkpoint},
            **columns,
        }
    )


def command(of: Job, **columns: Any) -> OutboxCommand:
    """A command on its way to the job's driver."""
    return OutboxCommand.objects.create(
        **{"job": of, "message": {}, "created_at": clock.now(), **columns}
    )


# Checkpoints --------------------------------------------------------------------------------------


def coordinator(of: Job, **columns: Any) -> CoordinatorRow:
    """A coordinator that has nothing under way, and is about to trigger."""
    return CoordinatorRow.objects.create(
        **{"job": of, "state": {}, "next_trigger_at": clock.now(), **columns}
    )


def checkpoint(of: Job, number: int = 1, **columns: Any) -> Checkpoint:
    """A checkpoint of ``of`` that completed just now, without acknowledgements of its own."""
    columns.setdefault("status", CheckpointStatus.COMPLETED)
    is_settled = columns["status"] not in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)
    if "triggered_at" not in columns:  # The clock is a query.
        columns["triggered_at"] = clock.now() - timedelta(milliseconds=300)
    if is_settled:
        columns.setdefault("duration_ms", 212)
        triggered = columns["triggered_at"]
        columns.setdefault("settled_at", triggered + timedelta(milliseconds=columns["duration_ms"]))
    if columns["status"] == CheckpointStatus.FAILED:
        columns.setdefault("reason", FailureReason.CHECKPOINT_EXPIRED)
    if columns["status"] == CheckpointStatus.ABORTED:
        columns.setdefault("reason", FailureReason.JOB_RESTARTED)
    phases = {name: columns.get(name, 0.0) for name in LAST_PHASES}
    if any(phases.values()):
        columns.setdefault("last_subtask", {"subtask": "hourly-1", **phases})
    total = len(FLIGHTS) * PARALLELISM
    columns.setdefault("subtask_count", total)
    columns.setdefault("acknowledged_count", columns["subtask_count"] if is_settled else 0)
    return Checkpoint.objects.create(
        **{"job": of, "number": number, "attempt": 1, "kind": "checkpoint", **columns}
    )


def undeleted_checkpoint(of: Job, number: int, *, tries: int) -> Checkpoint:
    """A checkpoint that nothing needs, and whose files could not be deleted so often."""
    return checkpoint(
        of,
        number,
        status=CheckpointStatus.SUBSUMED,
        discard_due_at=clock.now() + timedelta(seconds=60),
        discard_tries=tries,
        discard_error="the bucket is away",
    )


def ack(of: Checkpoint, operator: str, index: int, **columns: Any) -> SubtaskAck:
    """One operator subtask's acknowledgement, not saved."""
    if "acknowledged_at" not in columns:
        columns["acknowledged_at"] = clock.now()
    return SubtaskAck(
        **{
            "checkpoint": of,
            "operator": operator,
            "index": index,
            "chain": operator,
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


def acknowledge(of: Checkpoint, operator: str, index: int, **columns: Any) -> SubtaskAck:
    """An acknowledgement, which the checkpoint counts unless it counts all already."""
    row = ack(of, operator, index, **columns)
    row.save()
    of.acknowledged_count = min(of.acknowledged_count + 1, of.subtask_count)
    of.save()
    return row


def acknowledge_chain(of: Checkpoint, chain: str, index: int) -> None:
    """The acknowledgements of a chain's subtask, which come together."""
    for uid, _, head, *_ in FLIGHTS:
        if head == chain:
            acknowledge(of, uid, index, chain=chain)


def acknowledge_all(of: Checkpoint, acks: Sequence[SubtaskAck]) -> None:
    """Save the acknowledgements of a checkpoint, which has no others."""
    SubtaskAck.objects.bulk_create(acks)
    of.acknowledged_count = len(acks)
    of.subtask_count = max(of.subtask_count, len(acks))
    of.save()


def gate_alignment(
    of: Checkpoint,
    operator: str,
    index: int,
    arrived_ms: Sequence[float | None],
    *,
    gate: int = 0,
    upstream: str = "flights",
    **columns: Any,
) -> GateAlignment:
    """The alignment of one gate: channels were blocked from their barrier to the last one."""
    last = max((ms for ms in arrived_ms if ms is not None), default=0.0)
    return GateAlignment.objects.create(
        **{
            "checkpoint": of,
            "operator": operator,
            "index": index,
            "gate": gate,
            "upstream": [f"{upstream}-{sender}" for sender in range(len(arrived_ms))],
            "arrived_ms": list(arrived_ms),
            "blocked_ms": [0.0 if ms is None else last - ms for ms in arrived_ms],
            "bytes_during": [0 if not ms else int(ms * 5_200) for ms in arrived_ms],
            **columns,
        }
    )


def savepoint(
    of: Job,
    name: str | None = None,
    number: int | None = 1,
    *,
    by: User | None = None,
    kind: str = "savepoint",
    status: str = CheckpointStatus.COMPLETED,
    **columns: Any,
) -> Savepoint:
    """A savepoint with its checkpoint; without a number one that was not triggered."""
    name = name or f"savepoint-{number}"
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
