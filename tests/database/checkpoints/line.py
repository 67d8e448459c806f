"""A driver's line to the gateway, without HTTP: numbered events out, commands in."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from checkpoints import driver_protocol
from checkpoints.coordinator.shell import state_of
from checkpoints.models import Checkpoint
from jobs.models import Driver, Job
from tests import builders as protocol
from tests.database.checkpoints.job_copies import JobRows, token_of
from tests.database.checkpoints.storage import claim
from tests.database.jobs import builders as jobs
from weir.config import CheckpointConfig
from weir.protocol import wire
from weir.protocol.coordinator import CoordinatorState
from weir.protocol.driver_messages import (
    DriverCommand,
    DriverEvent,
    DriverLoad,
    EventBatch,
    JobPlanned,
)
from weir.protocol.lineage import UNKNOWN, Lineage
from weir.protocol.messages import (
    CheckpointsRestored,
    ManifestWritten,
    TriggerCheckpoint,
)


def planned(**checkpoints: Any) -> JobPlanned:
    """The plan of ``tests.builders``' dataflow; settings of its checkpoints by name."""
    checkpoints.setdefault("interval_ms", None)
    restart = jobs.ALWAYS_AT_ONCE
    return replace(jobs.planned(restart=restart), checkpoints=CheckpointConfig(**checkpoints))


@dataclass
class Line:
    """The events that one driver of a job sends, and the commands it gets."""

    job_id: str
    token: str
    number: int = 1  # Of its next event.
    taken: int = 0
    batches: list[EventBatch] = field(default_factory=list)

    @classmethod
    def for_job(cls, job: Job) -> "Line":
        """The line of the job's requested driver, as if a launcher had started it."""
        token = token_of(job.pk, jobs.driver_of(job).number)
        jobs.started(job, token)
        return cls(job.pk, token)

    @classmethod
    def running(cls, attempt: int = 1, **checkpoints: Any) -> "Line":
        """A new job's driver, which has brought the job up.

        What the job's first driver says before checkpoints start is said once: other jobs begin
        with copies of the rows that it led to.
        """
        key = (attempt, *_settings())
        if cls is Line and key in _BEGUN:
            line = cls._copied(*_BEGUN[key], **checkpoints)
        else:
            line = cls.begun(attempt, **checkpoints)
            if cls is Line:
                _BEGUN[key] = JobRows.read(line.job_id), line.batches[0]
        line.start_checkpoints(attempt, **checkpoints)
        return line

    @classmethod
    def _copied(cls, rows: JobRows, batch: EventBatch, **checkpoints: Any) -> "Line":
        plan = planned(**checkpoints)
        job_id = rows.insert(plan.checkpoints)
        said = replace(batch, events=(plan, *batch.events[1:]))
        return cls(job_id, token_of(job_id, 1), 1 + len(said.events), batches=[said])

    @classmethod
    def begun(cls, attempt: int = 1, **checkpoints: Any) -> "Line":
        """A new job's driver, whose job runs without checkpoints so far; no copy of another."""
        line = cls.for_job(jobs.submitted())
        line.begin(attempt, **checkpoints)
        return line

    @property
    def job(self) -> Job:
        return Job.objects.get(pk=self.job_id)

    @property
    def driver(self) -> Driver:
        return Driver.objects.get(token_digest=driver_protocol.drivers.digest_of(self.token))

    @property
    def state(self) -> CoordinatorState:
        return state_of(self.job)

    def checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint.objects.get(job=self.job_id, number=number)

    def statuses(self) -> dict[int, str]:
        """Number and status of the job's checkpoints."""
        rows = Checkpoint.objects.filter(job=self.job_id).order_by("number")
        return dict(rows.values_list("number", "status"))

    def come_up(
        self,
        attempt: int = 1,
        *,
        restored: int | None = None,
        lineage: Lineage = UNKNOWN,
        **checkpoints: Any,
    ) -> None:
        """From the driver's first word until its job runs."""
        self.begin(attempt, **checkpoints)
        self.start_checkpoints(attempt, restored=restored, lineage=lineage, **checkpoints)

    def begin(self, attempt: int = 1, **checkpoints: Any) -> None:
        """From the driver's first word until its attempt runs."""
        state = self.state
        report = CheckpointsRestored(state.completed, state.next_id)
        self.post(planned(**checkpoints), report, *jobs.coming_up(attempt))

    def start_checkpoints(
        self,
        attempt: int = 1,
        *,
        restored: int | None = None,
        lineage: Lineage = UNKNOWN,
        **checkpoints: Any,
    ) -> None:
        """Have the coordinator begin with the attempt."""
        claim(self.job, attempt)
        start = protocol.started(
            attempt,
            restored_from=restored,
            lineage=lineage,
            config=CheckpointConfig(**checkpoints),
        )
        self.post(start)

    def post(
        self,
        *events: DriverEvent,
        away_ms: int = 0,
        load: DriverLoad | None = None,
        sent_at_ms: int | None = None,
    ) -> int:
        """Send the next events; gives the number up to which they count."""
        batch = EventBatch(self.number, events, away_ms, load, sent_at_ms)
        self.number += len(events)
        self.batches.append(batch)
        return self.send(batch)

    def send(self, batch: EventBatch) -> int:
        """Send a batch as it is."""
        answer = driver_protocol.receive(self.job_id, self.token, body(batch))
        return int(json.loads(answer)["up_to"])

    def poll(self) -> list[DriverCommand]:
        """The commands since the last poll."""
        batch = driver_protocol.take_commands(self.job_id, self.token, self.taken)
        if batch.commands:
            self.taken = batch.commands[-1].number
        return [numbered.command for numbered in batch.commands]

    def complete(self, number: int, attempt: int = 1) -> None:
        """Everybody acknowledges a checkpoint, and its manifest is written."""
        self.post(*protocol.acks(number, attempt=attempt))
        self.post(ManifestWritten(number))  # type: ignore[arg-type]

    def triggered(self) -> list[int]:
        """The checkpoints that new commands begin."""
        commands = self.poll()
        return [c.barrier.checkpoint_id for c in commands if isinstance(c, TriggerCheckpoint)]


def body(batch: EventBatch) -> bytes:
    """The batch as it is posted."""
    return json.dumps(wire.to_wire(batch)).encode()


# The rows of jobs that were begun, with the batch that began them, by what else they depend on.
_BEGUN: dict[tuple[object, ...], tuple[JobRows, EventBatch]] = {}
_DIRECTORIES = frozenset(
    {"WEIR_CHECKPOINT_ROOT", "WEIR_DRIVERS", "WEIR_SCRIPT_ROOTS", "WEIR_UPLOADS"}
)  # Of each test its own.


def _settings() -> list[tuple[str, str]]:
    """Weir's settings but for the directories."""
    names = {name for name in dir(settings) if name.startswith("WEIR_")}
    return [(name, repr(getattr(settings, name))) for name in sorted(names - _DIRECTORIES)]
