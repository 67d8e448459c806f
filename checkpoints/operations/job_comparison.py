"""Two jobs side by side: progress, lag behind the clock, and size of state."""

from typing import Any

from checkpoints.models import Checkpoint
from controlplane.base import clock
from jobs.models import Job, Subtask
from weir.protocol.lifecycle import CheckpointStatus


def compare(job: Job, other: Job) -> dict[str, Any]:
    """The figures of both jobs, and a sentence on each.

    Units: ``event_time_lag_ms`` the clock less the event time that all sinks have come to;
    ``state_bytes`` and ``duration_ms`` of the newest checkpoint or savepoint. None: not known.
    """
    left, right = _figures(job), _figures(other)
    return {"jobs": [left, right], "sentences": [_said(left), _said(right)]}


def _figures(job: Job) -> dict[str, Any]:
    sources = set(job.operators.filter(is_source=True).values_list("chain", flat=True))
    sinks = set(job.operators.filter(is_sink=True).values_list("chain", flat=True))
    emitted, marks = 0, list[int | None]()
    for chain, metrics in Subtask.objects.filter(job=job).values_list("chain", "metrics"):
        if chain in sources:
            emitted += int(metrics.get("records_in", 0))
        if chain in sinks:
            marks.append(metrics.get("watermark_ms"))
    known = [mark for mark in marks if mark is not None]
    reached = min(known) if known and len(known) == len(marks) else None
    completed = Checkpoint.objects.filter(job=job, status=CheckpointStatus.COMPLETED)
    checkpoint = completed.order_by("-number").first()
    return {
        "job": job.pk,
        "name": job.name,
        "status": job.status,
        "records": emitted,
        "watermark_ms": reached,
        "event_time_lag_ms": None if reached is None else max(0, clock.now_ms() - reached),
        "checkpoint": None if checkpoint is None else checkpoint.number,
        "state_bytes": None if checkpoint is None else checkpoint.state_bytes,
        "duration_ms": None if checkpoint is None else checkpoint.duration_ms,
    }


def _said(figures: dict[str, Any]) -> str:
    parts = [f"{figures['job']} is {figures['status']}, {figures['records']:,} records read"]
    if figures["event_time_lag_ms"] is not None:
        parts.append(f"event time {figures['event_time_lag_ms'] / 1_000:,.1f} s behind the clock")
    if figures["state_bytes"] is not None:
        taken = "" if figures["duration_ms"] is None else f", taken in {figures['duration_ms']} ms"
        parts.append(
            f"state of {figures['state_bytes']:,} bytes at checkpoint "
            f"{figures['checkpoint']}{taken}"
        )
    return "; ".join(parts)
