"""A full database for the dashboard: rows by COPY, as large as a large installation's.

::

    flights   100,000 checkpoints, the newest 20 with 9,000 acknowledgements and 40,000 channels
              each: 9 operators of 1,000 subtasks, 20 channels per receiving subtask
    wide      9 operators of 200 subtasks, all to all: two gates of 200 × 200 channels
    others    98 jobs with 200 checkpoints each

beside what the years leave behind: operations, exceptions, attempts, savepoints, audit entries.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from django.db.models import Model

    from jobs.models import Job

CHECKPOINTS = 100_000
PARALLELISM = 1_000
CHANNELS = 20  # Of each receiving subtask of ``flights``: 2,000 gates of it, 40,000 channels.
WIDE = 200
DETAILED = 20  # Checkpoints of ``flights`` whose acknowledgements are kept.
OTHER_JOBS = 98
OTHER_CHECKPOINTS = 200
OPERATIONS, EXCEPTIONS, ATTEMPTS, DRIVERS, SAVEPOINTS = 50_000, 2_000, 500, 25, 100
AUDIT_ENTRIES = 100_000  # One in five about ``flights``.
SLOW_CHANNEL_MS = 300.0
RETAINED = 10

# The tables that are so large that no page may read one from end to end.
LARGE = (
    "checkpoints_checkpoint",
    "checkpoints_subtaskack",
    "checkpoints_gatealignment",
    "jobs_operation",
    "jobs_subtask",
    "audit_auditentry",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """The rows that the pages show."""

    flights: str  # Ids of jobs.
    wide: str
    checkpoints: int
    completed: int  # Numbers of checkpoints of ``flights``.
    failed: int
    completed_wide: int

    @property
    def text(self) -> str:
        """It in a few words."""
        return (
            f"{self.checkpoints:,} checkpoints of one job and one of {PARALLELISM:,} subtasks per "
            f"operator stored"
        )


def fill(checkpoints: int) -> Stored:
    """Write everything; ``checkpoints`` of the job that is looked at."""
    from django.db import connection

    from controlplane.base import clock
    from tests import factories
    from tests.database.frontend.flights import running

    now = clock.now()
    flights = job_rows("flights", PARALLELISM, now)
    wide = job_rows("wide", WIDE, now)
    others = [running(f"job-{n}").pk for n in range(3)]
    others += [factories.job(f"job-{n}").pk for n in range(3, OTHER_JOBS)]
    checkpoint_rows(flights.pk, checkpoints, PARALLELISM, now)
    checkpoint_rows(wide.pk, DETAILED, WIDE, now)
    for other in others:
        checkpoint_rows(other, OTHER_CHECKPOINTS, 2, now, detailed=0)
    _acknowledgements(flights, PARALLELISM, CHANNELS)
    _acknowledgements(wide, WIDE, WIDE)
    _past(flights, checkpoints, now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    failed = checkpoints - checkpoints % 10 or checkpoints - 10
    completed = checkpoints if checkpoints % 10 else checkpoints - 1
    return Stored(flights.pk, wide.pk, checkpoints, completed, failed, DETAILED - 1)


def job_rows(name: str, parallelism: int, now: datetime) -> "Job":
    """A job that runs, with measurements of all its subtasks."""
    from jobs.models import Subtask
    from tests import factories

    job = factories.job(name)
    factories.graph(job, parallelism)
    slots = {str(n): {"host": f"executor-{n % 50}", "pid": 4_000 + n} for n in range(parallelism)}
    factories.attempt(
        factories.driver(job, DRIVERS, slots=slots),
        ATTEMPTS,
        started_at=now - timedelta(hours=2),
        running_at=now - timedelta(hours=1, minutes=59),
        restored_checkpoint=1,
    )
    factories.coordinator(job, next_trigger_at=now)
    chance = random.Random(7)
    counters = ("records_in", "records_out", "bytes_in", "bytes_out")

    def subtasks() -> Iterator[Mapping[str, Any]]:
        names = {field.attname for field in Subtask._meta.concrete_fields}
        for chain in factories.CHAINS:
            for index in range(parallelism):
                busy = chance.uniform(0.1, 0.6)
                measured: dict[str, Any] = {
                    "chain": chain,
                    "index": index,
                    "metrics": {name: chance.randrange(10**9) for name in counters}
                    | {"busy_ms": 1e6 * busy, "idle_ms": 1e6 * (1 - busy), "watermark_ms": 1},
                    "rates": {
                        "window_ms": 2_000.0,
                        **{f"{name}_per_s": chance.uniform(1e3, 1e5) for name in counters},
                        "busy": busy,
                        "idle": 0.9 - busy,
                        "back_pressured": 0.1,
                    },
                }
                yield {name: value for name, value in measured.items() if name in names}

    fixed = {"job_id": job.pk, "attempt": ATTEMPTS, "status": "running", "updated_at": now}
    copy(Subtask, subtasks(), fixed)
    return job


def checkpoint_rows(
    job_id: str, count: int, parallelism: int, now: datetime, detailed: int = DETAILED
) -> None:
    """A second apart; one in ten was failed, of the others the newest ten are retained."""
    from checkpoints.models import Checkpoint
    from tests.factories import FLIGHTS

    subtask_count = len(FLIGHTS) * parallelism
    chance = random.Random(job_id)

    def history() -> Iterator[Mapping[str, Any]]:
        for number in range(1, count + 1):
            triggered = now - timedelta(seconds=count - number + 1)
            took = chance.randrange(120, 900)
            is_failed = number % 10 == 0
            is_retained = number > count - RETAINED - 2
            kept = "completed" if is_retained else "discarded"
            yield {
                "number": number,
                "status": "failed" if is_failed else kept,
                "reason": "checkpoint_expired" if is_failed else "",
                "triggered_at": triggered,
                "settled_at": triggered + timedelta(milliseconds=took),
                "duration_ms": took,
                "acknowledged_count": subtask_count - (10 if is_failed else 0),
                "start_delay_ms": 0.05 * took,
                "alignment_ms": 0.5 * took,
                "sync_ms": 0.05 * took,
                "async_ms": 0.3 * took,
                "state_bytes": 40_000 * subtask_count + number,
                "written_bytes": 40_000 * subtask_count,
                "has_details": number > count - detailed,
            }

    fixed = {
        "job_id": job_id,
        "attempt": ATTEMPTS,
        "kind": "checkpoint",
        "subtask_count": subtask_count,
    }
    copy(Checkpoint, history(), fixed)


def _acknowledgements(job: "Job", parallelism: int, channels: int) -> None:
    """Of the newest checkpoints: everybody's, but ten subtasks' of those that were failed."""
    from django.db import connection

    from checkpoints.models import Checkpoint, GateAlignment, SubtaskAck
    from tests.factories import FLIGHTS

    newest = Checkpoint.objects.filter(job=job, has_details=True).order_by("-number")
    first = newest[0]
    chance = random.Random(7)

    def acks() -> Iterator[Mapping[str, Any]]:
        for uid, _, chain, *_ in FLIGHTS:
            for index in range(parallelism):
                waited = chance.uniform(1, 300)
                took = chance.uniform(5, 90)
                yield {
                    "operator": uid,
                    "index": index,
                    "chain": chain,
                    "acknowledged_at": first.triggered_at + timedelta(milliseconds=waited + took),
                    "start_delay_ms": chance.uniform(1, 20),
                    "alignment_ms": 0.0 if chain == "flights" else waited,
                    "sync_ms": 0.1 * took,
                    "async_ms": 0.9 * took,
                    "state_bytes": int(1_000 * took),
                    "handles": [
                        {
                            "kind": "keyed",
                            "name": uid,
                            "size": 40_000,
                            "digest": "5e" * 16,
                            "path": f"chk-{first.number}/{ATTEMPTS}/{uid}-{index}",
                        }
                    ],
                }

    def gates() -> Iterator[Mapping[str, Any]]:
        for chain in ("hourly", "totals"):
            for index in range(parallelism):
                arrived = [chance.uniform(0, 40) for _ in range(channels)]
                if index == 17 % parallelism:
                    arrived[3] = SLOW_CHANNEL_MS
                last = max(arrived)
                base = index - index % channels if channels < parallelism else 0
                yield {
                    "operator": chain,
                    "index": index,
                    "upstream": [f"flights-{base + n}" for n in range(channels)],
                    "arrived_ms": arrived,
                    "blocked_ms": [last - at for at in arrived],
                    "bytes_during": [int(5_200 * at) for at in arrived],
                }

    fixed = {
        "checkpoint_id": first.pk,
        "bytes_during_alignment": 20_000,
        "in_flight_bytes": 0,
        "written_bytes": 40_000,
        "unaligned": False,
        "records": 10_000,
    }
    copy(SubtaskAck, acks(), fixed)
    copy(GateAlignment, gates(), {"checkpoint_id": first.pk, "gate": 0})
    with connection.cursor() as cursor:
        for model in (SubtaskAck, GateAlignment):
            columns = [f'"{f.column}"' for f in model._meta.concrete_fields if not f.primary_key]
            shown = ", ".join("c.id" if n == '"checkpoint_id"' else f"a.{n}" for n in columns)
            late = f"AND (c.status <> 'failed' OR a.index < {parallelism - 10})"
            cursor.execute(
                f"INSERT INTO {model._meta.db_table} ({', '.join(columns)}) SELECT {shown} "
                f"FROM {model._meta.db_table} a CROSS JOIN {Checkpoint._meta.db_table} c "
                f"WHERE a.checkpoint_id = %s AND c.job_id = %s AND c.has_details "
                f"AND c.id <> a.checkpoint_id {late} ORDER BY c.id, a.id",  # As they come in.
                [first.pk, job.pk],
            )
        cursor.execute(
            "UPDATE checkpoints_checkpoint c SET parent_id = p.id FROM checkpoints_checkpoint p "
            "WHERE c.job_id = %s AND c.has_details AND p.job_id = c.job_id "
            "AND p.number = c.number - 1",
            [job.pk],
        )


def _past(job: "Job", checkpoints: int, now: datetime) -> None:
    """The operations and failures of the job."""
    from django.db import connection

    from checkpoints.models import Checkpoint, Savepoint
    from controlplane.audit.models import AuditEntry
    from jobs.models import Attempt, Driver, JobException, Operation

    def ago(seconds: float) -> datetime:
        return now - timedelta(seconds=seconds)

    of_job = {"job_id": job.pk}
    asked = (
        {
            "id": uuid4(),
            "kind": ("checkpoint", "savepoint", "preview")[n % 3],
            "created_at": ago(10 * n + 5),
            "deadline_at": ago(10 * n - 295),
            "ended_at": ago(10 * n + 4),
        }
        for n in range(OPERATIONS)
    )
    copy(Operation, asked, of_job | {"status": "succeeded"})
    text = "\n".join(["ValueError: what went wrong", *("  at some line of the pipeline",) * 40])
    went_wrong = ({"at": ago(60 * n)} for n in range(EXCEPTIONS))
    copy(JobException, went_wrong, of_job | {"kind": "attempt", "attempt_number": 3, "text": text})
    drivers = ({"number": n, "created_at": ago(9_000 * n)} for n in range(1, DRIVERS))
    lost = of_job | {"status": "lost", "cause": "killed", "ended_at": now}
    copy(Driver, drivers, lost)
    of_number = dict(Driver.objects.filter(job=job).values_list("number", "pk"))
    attempts = (
        {
            "number": n,
            "driver_id": of_number[1 + n * (DRIVERS - 1) // ATTEMPTS],
            "started_at": ago(400 * (ATTEMPTS - n) + 9_000),
            "running_at": ago(400 * (ATTEMPTS - n) + 8_999),
            "ended_at": ago(400 * (ATTEMPTS - n) + 8_601),
            "restored_checkpoint": n,
        }
        for n in range(1, ATTEMPTS)
    )
    measured = {"backoff_ms": 100.0, "redeploy_ms": 300.0, "restore_ms": 90.0, "catch_up_ms": 2e3}
    ended = of_job | measured | {"end": "failed", "cause": text, "recovery_cause": text}
    copy(Attempt, attempts, ended | {"replayed_records": 123_456, "restored_bytes": 10**8})
    every = checkpoints // SAVEPOINTS
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE checkpoints_checkpoint SET kind = 'savepoint', status = 'completed', "
            "location = %s || number WHERE job_id = %s AND mod(number, %s) = 1",
            [f"{job.storage}/{job.pk}/savepoints/savepoint-", job.pk, every],
        )
    of_savepoint = Checkpoint.objects.filter(job=job, kind="savepoint").values_list(
        "pk", "location", "triggered_at"
    )
    named = (
        {
            "id": uuid4(),
            "checkpoint_id": pk,
            "name": location.rpartition("/")[2],
            "location": location,
            "created_at": at,
        }
        for pk, location, at in of_savepoint
    )
    copy(Savepoint, named, of_job | {"labels": {"release": "1.2"}, "note": "before the release"})
    entries = (
        {
            "at": ago(n),
            "target": f"job/{job.pk}" if n % 5 == 0 else f"job/other-{n % 97}",
            "action": ("job.checkpoint", "job.savepoint", "job.cancel")[n % 3],
            "after": {"operation": str(n), "status": "succeeded"},
        }
        for n in range(AUDIT_ENTRIES)
    )
    copy(AuditEntry, entries, {"actor_name": "mara", "address": "10.0.0.1"})


# COPY ---------------------------------------------------------------------------------------------

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def copy(model: "type[Model]", rows: Iterable[Mapping[str, Any]], fixed: Mapping[str, Any]) -> None:
    """Insert rows by COPY; columns that neither they nor ``fixed`` name get the model's defaults.

    All rows name the same columns.
    """
    from django.db import connection
    from django.db.models import JSONField

    fields = [f for f in model._meta.concrete_fields if not f.primary_key or f.has_default()]
    are_json = {f.attname: isinstance(f, JSONField) for f in fields}
    text = StringIO()
    line: list[str] = []
    at: list[tuple[int, str, bool]] | None = None
    for row in rows:
        if at is None:
            at = [(n, f.attname, are_json[f.attname]) for n, f in enumerate(fields)]
            at = [place for place in at if place[1] in row]
            defaults = {f.attname: fixed.get(f.attname, f.get_default()) for f in fields}
            line = [_text(value, is_json=are_json[name]) for name, value in defaults.items()]
            if unknown := {*row, *fixed} - defaults.keys():
                raise ValueError(f"{model.__name__} has no {', '.join(unknown)}")
        for place, name, is_json in at:
            line[place] = _text(row[name], is_json=is_json)
        text.write("\t".join(line) + "\n")
    text.seek(0)
    columns = ", ".join(f'"{f.column}"' for f in fields)
    with connection.cursor() as cursor:
        cursor.copy_expert(f'COPY "{model._meta.db_table}" ({columns}) FROM STDIN', text)


def _text(value: Any, *, is_json: bool) -> str:
    """A value in COPY's text format."""
    match value:
        case None:
            return "\\N"
        case _ if is_json:
            return json.dumps(value).translate(_ESCAPES)
        case bool():
            return "t" if value else "f"
        case int() | float():
            return repr(value)
        case list():  # Of numbers, or of names without quotes and commas.
            return f"{{{','.join('NULL' if one is None else str(one) for one in value)}}}"
        case datetime():
            return value.isoformat()
        case _:
            return str(value).translate(_ESCAPES)
