"""Jobs that run the flights example: their coordinator, their checkpoints and their past."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from checkpoints.coordinator.shell import pump
from checkpoints.models import Checkpoint
from controlplane.base import clock, wakeups
from jobs import services
from jobs.models import Job
from tests import factories
from tests.factories import CHAINS, FLIGHTS, PARALLELISM
from weir.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskId
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.messages import (
    Acknowledged,
    CheckpointingStarted,
    CoordinatorEvent,
    GateAlignment,
    ManifestWritten,
    OperatorAck,
    SnapshotMetrics,
    Switch,
)
from weir.protocol.pending import CheckpointPlan, PlannedChain, SubtaskRange


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
        GateAlignment(
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


def overtaken(
    acknowledged: Acknowledged, switched: Switch | None = None, switched_ms: float | None = None
) -> Acknowledged:
    """The same report of a snapshot whose barriers overtook records.

    Those of the head: 90,000 bytes of its first channel, and 10,000 at its outputs.
    """
    parts = []
    for part in acknowledged.operators:
        metrics = replace(part.metrics, unaligned=True, switched=switched, switched_ms=switched_ms)
        if part.subtask == acknowledged.chain:
            gates = tuple(
                replace(gate, in_flight=(90_000, *(0 for _ in gate.upstream[1:])))
                for gate in metrics.gates
            )
            metrics = replace(
                metrics,
                gates=gates,
                bytes_persisted_in_flight=10_000 + 90_000 * len(gates),
                bytes_persisted_at_outputs=10_000,
            )
        parts.append(replace(part, metrics=metrics))
    return replace(acknowledged, operators=tuple(parts))


def running(
    name: str = "flights",
    *,
    parallelism: int = PARALLELISM,
    interval_ms: int | None = 1_000,
    **columns: Any,
) -> Job:
    """A job that runs, without a checkpoint so far; its coordinator waits for the first."""
    of = factories.job(name, **columns)
    factories.graph(of, parallelism, interval_ms)
    factories.subtasks(of, parallelism=parallelism)
    factories.attempt(factories.driver(of))
    started = CheckpointingStarted(AttemptNumber(1), plan(parallelism), interval_ms or 0)
    drive(of, started)
    return of


def complete_unaligned(of: Job, number: int, timed_out_ms: float | None = None) -> None:
    """The checkpoint that was triggered last is unaligned, from the start or after a time-out.

    The source switches at its output, one receiver at its input, the others by what they get.
    """
    events = []
    for chain in CHAINS:
        for index in range(PARALLELISM):
            ack = chain_acknowledged(
                number, chain, index, arrived_ms=() if chain == "flights" else (30.0, 0.0)
            )
            switched, after_ms = None, None
            if timed_out_ms is not None:
                is_first = (chain, index) == ("hourly", 0)
                switched = Switch.INPUT if is_first else Switch.UPSTREAM
                switched = Switch.OUTPUT if chain == "flights" else switched
                after_ms = timed_out_ms + (0 if is_first else 2.5)
            events.append(overtaken(ack, switched, after_ms))
    drive(of, *events, ManifestWritten(CheckpointId(number)))


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
                factories.checkpoint(
                    of,
                    number,
                    status=CheckpointStatus.FAILED,
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
            factories.checkpoint(
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
            factories.gate_alignment(rows[-1], operator, index, [chance.uniform(18, 41), 0.0])
    return rows
