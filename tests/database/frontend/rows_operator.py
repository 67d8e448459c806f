"""Samples of chains as drivers' reports make them, for pages and pictures of operators."""

import math
from datetime import datetime, timedelta

from controlplane.base import clock
from jobs.inspections import store
from jobs.models import ChainSample, Job
from tests import factories
from weir.ids import AttemptNumber
from weir.protocol.inspection import (
    Inspected,
    SampledStack,
    SampledStacks,
    StackFrame,
    TappedRecord,
    TappedRecords,
)

EVERY = timedelta(seconds=10)
STACKS_ID = "5b1c3f0e-2a6d-4c53-9f0e-6f6c8f0f9a11"


def series(
    job: Job,
    span: timedelta,
    *,
    restarted: timedelta | None = None,
    chains: tuple[str, ...] = factories.CHAINS,
    until: datetime | None = None,
) -> list[ChainSample]:
    """A load that rises and falls, of two subtasks; ``restarted`` ago the second attempt began."""
    until = until or clock.now()
    count = round(span / EVERY)
    rows = []
    for chain in chains:
        records, busy_ms, pressed_ms, attempt = 0.0, 0.0, 0.0, 1
        for n in range(count + 1):
            at = until - EVERY * (count - n)
            if attempt == 1 and restarted is not None and until - at < restarted:
                records, busy_ms, pressed_ms, attempt = 0.0, 0.0, 0.0, 2
            wave = 1 + 0.6 * math.sin(n / 22) + 0.15 * math.sin(n / 3)
            rows.append(
                ChainSample(
                    job=job,
                    chain=chain,
                    at=at,
                    is_first_of_minute=n % 6 == 0,
                    attempt=attempt,
                    running=factories.PARALLELISM,
                    records_in=records,
                    records_out=records / 4,
                    busy_ms=busy_ms,
                    idle_ms=20_000 * n - busy_ms - pressed_ms,
                    back_pressured_ms=pressed_ms,
                    busiest=min(0.36 * wave + 0.1, 1),
                    watermark_ms=clock.to_ms(at) - round(900 + 2_400 * wave),
                    state_bytes={chain: 180_000 + 1_100 * n},
                )
            )
            records += 182_000 * wave
            busy_ms += 20_000 * 0.36 * wave
            pressed_ms += 20_000 * 0.05 * wave
    return ChainSample.objects.bulk_create(rows)


def workers(job: Job) -> None:
    """The worker processes of the newest attempt: the last waits for a processor, and is large."""
    attempt = job.attempts.order_by("-number").first()
    assert attempt is not None
    for slot in range(factories.PARALLELISM):
        host, memory = f"node-{slot + 3}.cluster", 412_000_000 + 96_000_000 * slot
        limit = {"memory_limit_bytes": 536_870_912, "memory_limit_source": "cgroup"} if slot else {}
        factories.worker(attempt, slot, host=host, memory_bytes=memory, **limit)
    load = {"window_ms": 10_000.0, "ran_ms": 2_400.0, "waited_ms": 180.0, "stood_ms": 0.0}
    job.drivers.update(load=load)
    for row in job.subtasks.all():
        wait = 0.38 if row.index else 0.01
        row.rates = {**row.rates, "cpu_wait": wait, "cpu_pressure": wait + 0.1}
        row.save(update_fields=["rates"])


def stacks(operator: str = "hourly", behind: str = "mean-delay") -> SampledStacks:
    """A chain whose second operator parses, while a third of the time goes to a library."""
    frames = (
        StackFrame(operator, "WindowOperator.on_batch", "windows/operator.py", 141),
        StackFrame(operator, "_add", "windows/operator.py", 202),
        StackFrame(behind, "MapBatches.on_batch", "operators/map.py", 77),
        StackFrame(behind, "mean_delay", "jobs/flights.py", 58),
        StackFrame(behind, "mean_delay.<locals>.<lambda>", "jobs/flights.py", 61),
        StackFrame(behind, "loads", "json/__init__.py", 346),
        StackFrame("", "OutputGate.emit", "worker/gates.py", 231),
    )
    counts = {(0, 1): 96, (0, 2, 3): 60, (0, 2, 3, 4): 31, (0, 2, 3, 4, 5): 148, (6,): 12}
    return SampledStacks(
        59_400.0,
        frames,
        tuple(SampledStack(stack, count) for stack, count in counts.items()),
        others=88,
        runtime=41,
        waiting=704,
    )


def records() -> TappedRecords:
    """Hours of flights, one with a long name."""
    rows = [("JFK", "2013-01-01T05:00:00", "14", "8.25"), ("LGA & <b>Newark</b>", "…", "2", "null")]
    return TappedRecords(
        ("origin", "window_start", "n", "mean_delay"),
        tuple(TappedRecord(values, 1_357_016_400_000) for values in rows),
        is_cut=True,
    )


def sampled(job: Job, operator: str) -> None:
    """An inspection of stacks that has been answered."""
    asked = store.Inspection(
        STACKS_ID, job.pk, operator, "stacks", [0], 0, clock.now_ms(), asked_by=None
    )
    store.keep(asked)
    store.answer(job.pk, [Inspected(AttemptNumber(1), STACKS_ID, 0, stacks=stacks(operator))])
