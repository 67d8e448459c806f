"""Rows for the pictures of the README: a checkpoint that waits, one that waited, and savepoints.

Four subtasks of each chain. In the first job the barrier of ``flights-2``, which reads far more
records than its siblings, is missing. In the second the channel ``flights-2 -> hourly-1`` was late,
because ``hourly-1`` gets most of the keys.
"""

import itertools
import random
from datetime import timedelta

from checkpoints.models import Checkpoint, CoordinatorRow
from checkpoints.verdict import evidence
from controlplane.accounts.models import User
from controlplane.base import clock
from jobs.models import Job
from tests import factories
from tests.database.frontend import flights, rows_graph

PARALLELISM = 4
COMPLETED = 60
LATE_MS = 5_100.0
LATE_BYTES = 4_210_000
SLOW = ("hourly", 1)  # The receiver,
SENDER = 2  # and whose barrier it took last.


def under_way(by: User) -> Job:
    """A job with a past, whose newest checkpoint waits for one of its sources."""
    job = _job("flights", by)
    now = clock.now()
    flights.history(job, COMPLETED, until=now - timedelta(seconds=4))
    _measure(job)
    rows_graph.measured(job, "flights", busy=0.97, records_per_s=61_400, index=SENDER)
    triggered = now - timedelta(seconds=4)
    checkpoint = factories.checkpoint(
        job,
        COMPLETED + 1,
        status="pending",
        triggered_at=triggered,
        subtask_count=len(factories.FLIGHTS) * PARALLELISM,
    )
    for index in set(range(PARALLELISM)) - {SENDER}:
        factories.acknowledge_chain(checkpoint, "flights", index)
    arrived = [None if sender == SENDER else 2.0 * sender for sender in range(PARALLELISM)]
    for chain, index in itertools.product(("hourly", "totals"), range(PARALLELISM)):
        rows_graph.aligning(job, chain, index, checkpoint.number, arrived, waited_ms=3_800.0)
    return job


def late(by: User) -> Checkpoint:
    """A completed checkpoint that one channel held up."""
    job = _job("flights", by)
    now = clock.now()
    flights.history(job, COMPLETED, until=now - timedelta(seconds=6))
    _measure(job)
    rows_graph.measured(job, SLOW[0], busy=0.97, records_per_s=48_900, index=SLOW[1])
    checkpoint = factories.checkpoint(
        job,
        COMPLETED + 1,
        triggered_at=now - timedelta(seconds=6),
        duration_ms=int(LATE_MS) + 120,
        subtask_count=len(factories.FLIGHTS) * PARALLELISM,
        alignment_ms=LATE_MS,
        start_delay_ms=9.0,
        sync_ms=4.0,
        async_ms=74.0,
    )
    _acknowledge(checkpoint)
    checkpoint.evidence = evidence.take(
        evidence.rows_of(job.pk, aligning=()),
        number=checkpoint.number,
        attempt=1,
        now_ms=clock.to_ms(now),
    )
    checkpoint.save()
    return checkpoint


def with_savepoints(by: User) -> Job:
    """A job with two savepoints; another job was started from the first."""
    job = _job("flights", by)
    now = clock.now()
    flights.history(job, COMPLETED, until=now - timedelta(seconds=2))
    note, labels = "Last one with hourly windows only.", {"release": "0.4"}
    before = factories.savepoint(
        job, "before-new-windows", COMPLETED + 1, by=by, note=note, labels=labels
    )
    factories.savepoint(job, "nightly", COMPLETED + 2, by=by)
    fork = factories.job("flights-trial", origin=job, origin_uri=before.location)
    factories.attempt(factories.driver(fork), restored_checkpoint=COMPLETED + 1)
    factories.checkpoint(fork, 1)
    return job


def _job(name: str, by: User) -> Job:
    job = flights.running(name, parallelism=PARALLELISM, created_by=by)
    # No process drives its coordinator, and it is not late either.
    CoordinatorRow.objects.filter(job=job).update(due_at=clock.now() + timedelta(hours=1))
    return job


def _measure(job: Job) -> None:
    for chain, busy, per_s in (("flights", 0.31, 18_200), ("hourly", 0.22, 8_400)):
        rows_graph.measured(job, chain, busy=busy, records_per_s=per_s)
    rows_graph.measured(job, "totals", busy=0.12, records_per_s=1_900)


def _acknowledge(checkpoint: Checkpoint) -> None:
    """All subtasks, each with durations of its own; the late one with its late channel."""
    chance = random.Random(11)
    acks, state_bytes = [], 0
    for chain, index in itertools.product(factories.CHAINS, range(PARALLELISM)):
        arrived = [round(chance.uniform(0, 46), 1) for _ in range(PARALLELISM)]
        arrived[chance.randrange(PARALLELISM)] = 0.0
        if (chain, index) == SLOW:
            arrived = [0.0, 21.0, LATE_MS, 38.0]
        aligned = 0.0 if chain == "flights" else max(arrived)
        phases = {
            "start_delay_ms": chance.uniform(3, 9),
            "alignment_ms": aligned,
            "sync_ms": chance.uniform(1, 4),
            "async_ms": chance.uniform(40, 74),
        }
        at = checkpoint.triggered_at + timedelta(milliseconds=sum(phases.values()) + 6)
        size = int(chance.uniform(60_000, 90_000)) * (9 if (chain, index) == SLOW else 1)
        for uid in [uid for uid, _, head, *_ in factories.FLIGHTS if head == chain]:
            kept = size if uid in ("hourly", "totals", "totals-combine") else 640
            state_bytes += kept
            acks.append(
                factories.ack(
                    checkpoint,
                    uid,
                    index,
                    chain=chain,
                    acknowledged_at=at,
                    bytes_during_alignment=LATE_BYTES if (chain, index) == SLOW else 0,
                    state_bytes=kept,
                    written_bytes=kept,
                    records=118_400 if (chain, index) == SLOW else int(chance.uniform(8e3, 11e3)),
                    **phases,
                )
            )
        if chain != "flights":
            during = [LATE_BYTES if ms == LATE_MS else int(ms * 900) for ms in arrived]
            factories.gate_alignment(checkpoint, chain, index, arrived, bytes_during=during)
    checkpoint.state_bytes = checkpoint.written_bytes = state_bytes
    factories.acknowledge_all(checkpoint, acks)
