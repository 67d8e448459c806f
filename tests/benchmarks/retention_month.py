"""A month of a job that takes a checkpoint every second, written day by day.

Each day's rows are as a control plane leaves them: one in ten failed, the newest ten are
completed and the rest discarded, the newest few have acknowledgements, alignments and evidence.
Beside them come operations, failures, attempts and audit entries.

Weir's clock is moved by its own correction (``controlplane.base.clock``), for all processes, so
that retention and pages take the day that is being written for today.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.benchmarks.dashboard_data import copy

if TYPE_CHECKING:
    from jobs.models import Attempt, Driver, Job

PARALLELISM = 2
PARTS = 4  # Of a day; retention looks after each.
RETAINED = 10
DETAILED = 600  # Of each part: more than are kept in detail.
DAY = timedelta(days=1)
LOOK_S = 600.0  # A look here may take as long as it has rows to remove.


@dataclass(slots=True)
class Month:
    """The job, and what was written and removed so far."""

    job: "Job"
    driver: "Driver"
    attempt: "Attempt"
    per_day: int
    written: int = 0  # Checkpoints; the number of the newest.
    removed: int = 0
    removing_s: float = 0.0
    batches_s: list[float] = field(default_factory=list)  # Each held its job's lock for so long.


def begin(per_day: int) -> Month:
    """A job that runs, without checkpoints yet."""
    from checkpoints.models import CoordinatorRow
    from tests import factories
    from weir.config import CheckpointConfig
    from weir.protocol.coordinator import CoordinatorState
    from weir.protocol.wire import to_wire

    job = factories.job("flights", created_at=now() - 40 * DAY)
    factories.graph(job, PARALLELISM)
    factories.subtasks(job, parallelism=PARALLELISM)
    driver = factories.driver(job)
    attempt = factories.attempt(driver)
    config = CheckpointConfig(interval_ms=1_000)
    CoordinatorRow.objects.create(job=job, state=to_wire(CoordinatorState(config=config)))
    return Month(job, driver, attempt, per_day)


def now() -> datetime:
    """The time by Weir's clock."""
    from controlplane.base import clock

    return clock.now()


def set_clock(offset: timedelta) -> None:
    """Move Weir's clock, of this process and of all others on the same database."""
    from django.db import connection

    from controlplane.base import clock

    clock.now()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO controlplane_clockcorrection (id, number, offset_s, since, looked_at) "
            "VALUES (1, 1, %s, clock_timestamp(), clock_timestamp()) ON CONFLICT (id) DO UPDATE "
            "SET number = controlplane_clockcorrection.number + 1, "
            "offset_s = EXCLUDED.offset_s, since = EXCLUDED.since",
            [offset.total_seconds()],
        )


def live_a_day(month: Month) -> None:
    """Write the day that ends now, and let retention look after each part of it."""
    end = now()
    for part in range(1, PARTS + 1):
        until = end - DAY * (PARTS - part) / PARTS
        _write(month, until, month.per_day // PARTS)
        look(month)
    _write_rest(month, end)
    look(month)
    with_vacuum()


def look(month: Month) -> None:
    """Retention as Celery runs it, until nothing is left to be removed."""
    from unittest.mock import patch

    from checkpoints.retention import rows as checkpoint_rows
    from checkpoints.retention import sweep
    from controlplane.retention import rows, tasks
    from controlplane.retention.models import Tally

    real = checkpoint_rows.remove_batch

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*arguments)
        finally:
            month.batches_s.append(time.perf_counter() - started)

    while sweep.trim_details():
        pass
    tasks.seal()
    Tally.objects.update(counted_at=None)
    with (
        patch.object(checkpoint_rows, "remove_batch", timed),
        patch.object(rows, "RULE_S", LOOK_S),
    ):
        started = time.perf_counter()
        month.removed += rows.look(seconds=LOOK_S)
        month.removing_s += time.perf_counter() - started


def with_vacuum() -> None:
    """Vacuum, as autovacuum would have by the end of a day."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")


def sizes() -> dict[str, int]:
    """The bytes on disk of each table under a rule, with its indices."""
    from django.db import connection

    from controlplane.retention.rules import RULES

    models = {model for rule in RULES for model in (rule.model, *rule.parts)}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relname = ANY(%s) "
            "AND relkind = 'r'",
            [[model._meta.db_table for model in models]],
        )
        return dict(cursor.fetchall())


def _write(month: Month, until: datetime, count: int) -> None:
    from checkpoints.models import Checkpoint, GateAlignment, SubtaskAck
    from tests.factories import CHAINS, FLIGHTS

    job, first = month.job, month.written + 1
    subtasks = len(FLIGHTS) * PARALLELISM
    pause = DAY / month.per_day
    chance = random.Random(first)
    own = Checkpoint.objects.filter(job=job, status="completed")
    own.update(status="discarded", discarded_at=until)

    seen = {"count": PARALLELISM, "busy": 0.3, "back_pressured": 0.1}
    evidence = {"chains": dict.fromkeys(CHAINS, seen)}

    def history() -> Iterator[Mapping[str, Any]]:
        for number in range(first, first + count):
            triggered = until - pause * (first + count - number)
            took = chance.randrange(120, 900)
            has_failed, left = number % 10 == 0, first + count - number
            kept = "completed" if left <= RETAINED else "discarded"
            yield {
                "number": number,
                "status": "failed" if has_failed else kept,
                "reason": "checkpoint_expired" if has_failed else "",
                "triggered_at": triggered,
                "settled_at": triggered + timedelta(milliseconds=took),
                "duration_ms": took,
                "acknowledged_count": subtasks - (3 if has_failed else 0),
                "alignment_ms": 0.5 * took,
                "state_bytes": 40_000 * subtasks,
                "has_details": left <= DETAILED,
                "evidence": evidence if left <= DETAILED else None,
            }

    fixed = {"job_id": job.pk, "attempt": 1, "kind": "checkpoint", "subtask_count": subtasks}
    copy(Checkpoint, history(), fixed)
    month.written += count
    detailed = Checkpoint.objects.filter(job=job, number__gte=first, has_details=True)
    keys = list(detailed.order_by("number").values_list("pk", flat=True))

    def acks() -> Iterator[Mapping[str, Any]]:
        for key in keys:
            for uid, _, chain, *_ in FLIGHTS:
                for index in range(PARALLELISM):
                    yield {"checkpoint_id": key, "operator": uid, "index": index, "chain": chain}

    def gates() -> Iterator[Mapping[str, Any]]:
        for key in keys:
            for operator in CHAINS[1:]:
                for index in range(PARALLELISM):
                    yield {"checkpoint_id": key, "operator": operator, "index": index}

    times = {"start_delay_ms": 4.0, "alignment_ms": 20.0, "sync_ms": 1.5, "async_ms": 30.0}
    volumes = {"bytes_during_alignment": 20_000, "in_flight_bytes": 0, "records": 10_000}
    written = {"state_bytes": 40_000, "written_bytes": 40_000, "unaligned": False, "handles": []}
    copy(SubtaskAck, acks(), {"acknowledged_at": until, **times, **volumes, **written})
    channels = {
        "upstream": [f"flights-{n}" for n in range(PARALLELISM)],
        "arrived_ms": [0.0, 20.0],
        "blocked_ms": [20.0, 0.0],
        "bytes_during": [100_000, 0],
    }
    copy(GateAlignment, gates(), {"gate": 0, **channels})


def _write_rest(month: Month, end: datetime) -> None:
    """The rest of a day: what people, failures and programs leave."""
    from controlplane.audit.models import AuditEntry
    from jobs.models import Attempt, JobException, Operation

    job, per_day = month.job, max(10, month.per_day // 100)

    def at(number: int) -> datetime:
        return end - DAY * (number + 0.5) / per_day

    of_job = {"job_id": job.pk}
    asked = (
        {"id": uuid4(), "created_at": at(n), "ended_at": at(n), "deadline_at": at(n)}
        for n in range(per_day)
    )
    copy(Operation, asked, of_job | {"kind": "checkpoint", "status": "succeeded"})
    text = "\n".join(["ValueError: a bad record", *("  at a line of the pipeline",) * 20])
    copy(
        JobException,
        ({"at": at(n)} for n in range(per_day)),
        of_job | {"kind": "attempt", "text": text},
    )
    entries = ({"at": at(n), "target": f"job/{job.pk}"} for n in range(per_day))
    copy(AuditEntry, entries, {"actor_name": "mara", "action": "job.checkpoint"})
    last = Attempt.objects.filter(job=job).order_by("-number").values_list("number", flat=True)[0]
    Attempt.objects.filter(job=job, ended_at=None).update(ended_at=end - DAY, end="failed")
    count = max(2, per_day // 20)
    attempts = (
        {
            "number": last + n,
            "started_at": end - DAY / n,
            "running_at": end - DAY / n,
            "ended_at": None if n == count else end,
            "end": "" if n == count else "failed",
        }
        for n in range(1, count + 1)
    )
    copy(Attempt, attempts, of_job | {"driver_id": month.driver.pk, "cause": "killed"})
