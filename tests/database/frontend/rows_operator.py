"""Samples of chains as drivers' reports make them, for pages and pictures of operators."""

import math
from datetime import datetime, timedelta

from controlplane.base import clock
from jobs.models import ChainSample, Job
from tests import factories

EVERY = timedelta(seconds=10)


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
    """The worker processes of the newest attempt, the last of which waits for a processor."""
    attempt = job.attempts.order_by("-number").first()
    assert attempt is not None
    for slot in range(factories.PARALLELISM):
        host, memory = f"node-{slot + 3}.cluster", 412_000_000 + 96_000_000 * slot
        factories.worker(attempt, slot, host=host, memory_bytes=memory)
    load = {"window_ms": 10_000.0, "ran_ms": 2_400.0, "waited_ms": 180.0, "stood_ms": 0.0}
    job.drivers.update(load=load)
    for row in job.subtasks.all():
        wait = 0.38 if row.index else 0.01
        row.rates = {**row.rates, "cpu_wait": wait, "cpu_pressure": wait + 0.1}
        row.save(update_fields=["rates"])
