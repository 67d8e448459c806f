"""Rows of what subtasks do, as drivers report it: rates, alignments in progress, stalled calls."""

from collections.abc import Sequence
from datetime import timedelta

from controlplane.base import clock
from jobs.models import Job, Subtask


def measured(
    of: Job,
    chain: str,
    *,
    busy: float = 0.5,
    back_pressured: float = 0.0,
    cpu_wait: float = 0.0,
    records_per_s: float = 10_000.0,
    watermark_ms: int | None = 1_735_700_400_000,
    index: int | None = None,
) -> None:
    """The latest measurement of a chain's subtasks, or of one of them."""
    subtasks = Subtask.objects.filter(job=of, chain=chain)
    if index is not None:
        subtasks = subtasks.filter(index=index)
    subtasks.update(
        metrics={"records_in": 1_000_000, "watermark_ms": watermark_ms},
        rates={
            "window_ms": 2_000.0,
            "records_in_per_s": records_per_s,
            "records_out_per_s": records_per_s / 10,
            "bytes_in_per_s": records_per_s * 80,
            "bytes_out_per_s": records_per_s * 8,
            "busy": busy,
            "back_pressured": back_pressured,
            "idle": 1.0 - busy - back_pressured,
            "cpu_wait": cpu_wait,
        },
        updated_at=clock.now(),
    )


def aligning(
    of: Job,
    chain: str,
    index: int,
    checkpoint: int,
    arrived_ms: Sequence[float | None],
    *,
    waited_ms: float = 4_000.0,
    upstream: str = "flights",
    ended: Sequence[bool] | None = None,
) -> None:
    """A subtask waits for the barriers that are None; the first of them came ``waited_ms`` ago."""
    since = clock.now() - timedelta(milliseconds=waited_ms)
    gate = {
        "gate": 0,
        "upstream": [f"{upstream}-{sender}" for sender in range(len(arrived_ms))],
        "arrived_ms": list(arrived_ms),
        "blocked_ms": [0.0 if ms is None else waited_ms - ms for ms in arrived_ms],
        "bytes_during": [20_000 if ms is None else 0 for ms in arrived_ms],
        "ended": list(ended or [False] * len(arrived_ms)),
    }
    Subtask.objects.filter(job=of, chain=chain, index=index).update(
        aligning={
            "checkpoint": checkpoint,
            "since_ms": since.timestamp() * 1_000,
            "waited_ms": waited_ms,
            "gates": [gate],
        }
    )


def stalled(of: Job, chain: str, index: int, *, stalled_ms: float = 5_000.0) -> None:
    """The loop of a subtask's slot is in one call."""
    since = clock.now() - timedelta(milliseconds=stalled_ms)
    Subtask.objects.filter(job=of, chain=chain, index=index).update(
        stall={
            "since_ms": since.timestamp() * 1_000,
            "stalled_ms": stalled_ms,
            "stack": '  File "job.py", line 3, in enrich\n    time.sleep(60)',
        }
    )
