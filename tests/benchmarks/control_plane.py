"""The control plane's rate of acknowledgements: over HTTP, by the coordinator, into rows.

Real PostgreSQL (with fsync), Redis and a web process on this machine. Batches are what a driver's
gateway sends when it has much to say: up to a thousand events, gzipped JSON. They are made before
the clock starts; requests go out one after another per driver, as the gateway does it. Beside each
figure: the same rows written by COPY alone, by this process, without protocol and without HTTP.
"""

import gzip
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import urllib3

from tests.benchmarks.report import Row, limit_row
from tests.benchmarks.web_stack import web_stack
from weir.config import CheckpointConfig
from weir.ids import AttemptNumber, CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.protocol.coordinator import FIRST_ID
from weir.protocol.driver_messages import BATCH_EVENTS_MAX, DriverEvent
from weir.protocol.messages import (
    Acknowledged,
    CheckpointingStarted,
    CheckpointRequested,
    CheckpointsRestored,
    GateAlignment,
    ManifestWritten,
    OperatorAck,
    SnapshotMetrics,
)
from weir.protocol.pending import CheckpointPlan, PlannedChain, SubtaskRange
from weir.wire import batches

SUBTASKS = 1_000
CHANNELS = 4
WIDE = 200
DRIVERS = 2  # Jobs at the same time.
ACKS_PER_SECOND_MIN = 5_000.0
CHECKPOINT_MS_MAX = 1_000.0
ATTEMPT = AttemptNumber(1)
SOURCE, SINK = OperatorId("source"), OperatorId("sink")


@dataclass(frozen=True, slots=True)
class Dataflow:
    """Sources that feed sinks; each sink's gate has so many channels."""

    sources: int
    sinks: int
    channels: int

    @property
    def subtasks(self) -> int:
        """The number of subtasks."""
        return self.sources + self.sinks

    def plan(self) -> CheckpointPlan:
        """It as the coordinator sees it."""
        fed = (SubtaskRange(SOURCE, 0, self.sources - 1),)
        return CheckpointPlan(
            chains=(
                PlannedChain(SOURCE, (SOURCE,), ((),) * self.sources),
                PlannedChain(SINK, (SINK,), (fed,) * self.sinks),
            ),
            sinks=frozenset(SubtaskId(SINK, i) for i in range(self.sinks)),
        )

    def acks(self, number: int) -> list[Acknowledged]:
        """Everybody's acknowledgement of a checkpoint: a state file and measurements each.

        Sources have a gate as well where the dataflow is about channels per acknowledgement.
        """
        are_all_gated = self.channels < self.sources
        sources = [
            self._ack(number, SubtaskId(SOURCE, i), are_all_gated) for i in range(self.sources)
        ]
        return sources + [self._ack(number, SubtaskId(SINK, i), True) for i in range(self.sinks)]

    def _ack(self, number: int, subtask: SubtaskId, is_gated: bool) -> Acknowledged:
        channels = range(self.channels)
        gate = GateAlignment(
            gate_index=0,
            upstream=tuple(f"source-{c}" for c in channels),
            arrived_ms=tuple(0.173 * c for c in channels),
            blocked_ms=tuple(12.346 - 0.0171 * c for c in channels),
            bytes_during=tuple(65_536 + c for c in channels),
        )
        metrics = SnapshotMetrics(
            start_delay_ms=3.217,
            alignment_ms=12.346,
            sync_ms=0.582,
            async_ms=17.931,
            bytes_processed_during_alignment=262_144,
            state_size=1_048_576,
            written_size=1_048_576,
            records=123_456,
            gates=(gate,) if is_gated else (),
        )
        path = f"chk-{number}/1/{subtask}-counts"
        handle = StateHandle("keyed", "counts", 1_048_576, "5e" * 16, path=path)
        ack = OperatorAck(subtask, (handle,), metrics)
        return Acknowledged(ATTEMPT, CheckpointId(number), subtask, (ack,))


def control_plane(quick: bool) -> list[Row]:
    """Acknowledgements per second over HTTP into PostgreSQL, and the time of large checkpoints."""
    rounds = 2 if quick else 9
    with web_stack() as stack:
        flow = Dataflow(SUBTASKS // 2, SUBTASKS // 2, CHANNELS)
        lines = [_Line(stack.url, flow) for _ in range(DRIVERS)]
        rates, copies = [], []
        for _ in range(rounds + 1):
            rates.append(_rate(lines))
            copies.append(flow.subtasks / _copied_s(lines[0]))
        rows = [_rate_row(rates[1:], copies[1:])]
        wide = Dataflow(WIDE, WIDE, WIDE)
        rows += [
            _checkpoint_row(f"a checkpoint of {SUBTASKS:,} subtasks", lines[0], rounds),
            _checkpoint_row(
                f"a checkpoint of {WIDE} × {WIDE} all to all", _Line(stack.url, wide), rounds
            ),
        ]
        return rows


def _rate_row(rates: Sequence[float], copies: Sequence[float]) -> Row:
    weir, baseline = median(rates), median(copies)
    return Row(
        what=f"acknowledgements with {CHANNELS} channels each, over HTTP into PostgreSQL",
        unit="1/s",
        weir=weir,
        baseline=baseline,
        ratio=weir / baseline,
        against="the same rows by COPY alone",
        target=f"≥ {ACKS_PER_SECOND_MIN:,.0f} 1/s",
        met=weir >= ACKS_PER_SECOND_MIN,
        note=f"{DRIVERS} jobs of {SUBTASKS:,} subtasks; {min(rates):,.0f} to {max(rates):,.0f}",
    )


def _checkpoint_row(what: str, line: "_Line", rounds: int) -> Row:
    taken, copied = [], []
    for _ in range(rounds + 1):
        number = line.trigger()
        posts = [*line.prepared(line.flow.acks(number)), *line.prepared([ManifestWritten(number)])]
        started = time.perf_counter()
        for post in posts:
            line.send(post)
        taken.append((time.perf_counter() - started) * 1e3)
        assert line.status(number) == "completed"
        copied.append(_copied_s(line) * 1e3)
    return limit_row(
        f"{what}: from the first acknowledgement to completed",
        "ms",
        median(taken[1:]),
        at_most=CHECKPOINT_MS_MAX,
        baseline=median(copied[1:]),
        against="the same rows by COPY alone",
        note=f"without the driver's writing of the manifest; {max(taken[1:]):.0f} ms at most",
    )


def _rate(lines: Sequence["_Line"]) -> float:
    """Acknowledgements per second of one checkpoint of each job, all at once."""
    numbers = [line.trigger() for line in lines]
    posts = [
        line.prepared(line.flow.acks(number)) for line, number in zip(lines, numbers, strict=True)
    ]

    def post_all(line: "_Line", bodies: list[bytes]) -> None:
        for body in bodies:
            line.send(body)

    with ThreadPoolExecutor(len(lines)) as pool:
        started = time.perf_counter()
        list(pool.map(post_all, lines, posts))
        seconds = time.perf_counter() - started
    for line, number in zip(lines, numbers, strict=True):
        for body in line.prepared([ManifestWritten(number)]):
            line.send(body)
        assert line.status(number) == "completed"
    return sum(line.flow.subtasks for line in lines) / seconds


def _copied_s(line: "_Line") -> float:
    """Seconds to write the rows of a checkpoint's acknowledgements and nothing else."""
    from django.db import transaction

    from checkpoints.coordinator import bulk_insert
    from controlplane.base import clock
    from jobs.models import Job
    from tests import factories

    now = clock.now()
    job = Job.objects.get(pk=line.job_id)
    row = factories.checkpoint(job, 10_000_000 + line.copies, status="failed")
    line.copies += 1
    acks = line.flow.acks(1)
    started = time.perf_counter()
    with transaction.atomic():
        bulk_insert.insert_acks(
            (row.pk, bulk_insert.Part(ack.chain, part, now))
            for ack in acks
            for part in ack.operators
        )
        bulk_insert.insert_gates(
            (row.pk, bulk_insert.Gate(part.subtask, gate))
            for ack in acks
            for part in ack.operators
            for gate in part.metrics.gates
        )
    seconds = time.perf_counter() - started
    row.delete()
    return seconds


class _Line:
    """A running job's driver, as far as the gateway can tell."""

    def __init__(self, url: str, flow: Dataflow) -> None:
        from tests.database.jobs import builders

        self.flow = flow
        self.copies = 0
        job = builders.submitted(pipeline_kind="module", pipeline_target="tests.e2e.pipeline")
        self.job_id = job.pk
        token = f"token-of-{job.pk}"
        builders.started(job, token)
        self._url = f"{url}/gateway/v1/jobs/{job.pk}/events"
        self._http = urllib3.PoolManager(retries=False)
        self._headers = {
            "Authorization": f"Bearer {token}",
            batches.VERSION_HEADER: str(batches.VERSION_MAX),
            "Content-Encoding": "gzip",
        }
        self._next = 1
        parallelism = max(flow.sources, flow.sinks)
        plan = builders.planned(interval_ms=None, parallelism=parallelism)
        started = CheckpointingStarted(ATTEMPT, flow.plan())
        restored = CheckpointsRestored((), FIRST_ID)
        assert plan.checkpoints == CheckpointConfig()
        for body in self.prepared([plan, restored, *builders.coming_up(), started]):
            self.send(body)

    def prepared(self, events: Sequence[DriverEvent]) -> list[bytes]:
        """The next events as the gateway would send them."""
        bodies = []
        for first in range(0, len(events), BATCH_EVENTS_MAX):
            part = tuple(events[first : first + BATCH_EVENTS_MAX])
            data = batches.encode_batch(self._next, map(batches.encode_event, part))
            bodies.append(gzip.compress(data, compresslevel=1))
            self._next += len(part)
        return bodies

    def send(self, body: bytes) -> None:
        """Post a batch and wait until it counts."""
        answer = self._http.request("POST", self._url, body=body, headers=self._headers)
        if answer.status != 200:
            raise RuntimeError(f"the gateway says {answer.status}: {answer.data[:2_000]!r}")

    def trigger(self) -> CheckpointId:
        """Begin a checkpoint."""
        from checkpoints.models import CoordinatorRow

        row = CoordinatorRow.objects.get(job=self.job_id)
        number = CheckpointId(row.state["next_id"])
        for body in self.prepared([CheckpointRequested(f"r{number}")]):
            self.send(body)
        return number

    def status(self, number: CheckpointId) -> str:
        """The status of a checkpoint."""
        from checkpoints.models import Checkpoint

        return Checkpoint.objects.get(job=self.job_id, number=number).status
