"""The past of a job for its page, fetched when a revision in the live snapshot changes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.urls import reverse

from checkpoints.conditions.reasons import reason_text
from checkpoints.models import Checkpoint
from controlplane.alerts.models import Alert
from controlplane.base.formatting import (
    NOTHING,
    duration,
    iso,
    moment,
    number,
    plural,
    rough_duration,
    size,
)
from frontend.base import alignment, status
from frontend.base.texts import has_more, headline, tail
from frontend.job import history, queries, recoveries
from frontend.job.outages import Deployment, Takeover, takeover
from jobs.models import Attempt, Job, JobException
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus

CHANNELS_SHOWN = 10

Json = dict[str, Any]

# Percentiles of the durations in a window: name, share, explanation.
PERCENTILES = (
    ("p50", 0.5, "Half of the completed checkpoints took this long or less"),
    ("p95", 0.95, "95 of 100 completed checkpoints took this long or less"),
    ("p99", 0.99, "99 of 100 completed checkpoints took this long or less"),
    ("max", 1.0, "The longest completed checkpoint"),
)


_EMPTY = (
    "No checkpoint has completed or failed yet. Each one will be a bar here, with its start delay, "
    "alignment and snapshot."
)
_EMPTY_WINDOW = "No completed or failed checkpoint was triggered in this period."


def job_details(job: Job, window: history.Window) -> Json:
    """Settled checkpoints, the latest alignment, recoveries and exceptions of a job, as JSON."""
    settled = queries.settled_within(job.pk, window)
    latest = queries.latest_aligned(job.pk)
    taken_over = queries.takeovers(job.pk)
    beyond = recoveries.beyond_target(job, [row.number for row, _ in taken_over])
    return {
        "history": [_checkpoint(row) for row in settled[: queries.HISTORY_ROWS]],
        "history_summary": summary(settled),
        "history_empty": _EMPTY_WINDOW if window.count is None else _EMPTY,
        "percentiles": percentiles(settled),
        "window": window.key,
        "alignment": _alignment(latest, queries.aligned(latest, CHANNELS_SHOWN)),
        "recoveries": [
            _recovery(row, last, beyond.get(row.number, "")) for row, last in taken_over
        ],
        "exceptions": [_exception(row) for row in queries.exceptions(job.pk)],
        "firing": [_firing(row) for row in queries.firing_alerts(job.pk)],
    }


def summary(settled: Sequence[Checkpoint]) -> str:
    """The number of a window's checkpoints (newest first) and of failures, in a sentence."""
    if not settled:
        return ""
    failed = sum(row.status == CheckpointStatus.FAILED for row in settled)
    aborted = sum(row.status == CheckpointStatus.ABORTED for row in settled)
    span_ms = (settled[0].triggered_at - settled[-1].triggered_at).total_seconds() * 1_000
    text = f"{plural(len(settled), 'checkpoint')}, {failed or 'none'} failed"
    if aborted:
        text += f", {aborted:,} aborted"
    if len(settled) == queries.HISTORY_MAX:
        text += "; there are more in this window"
    return f"{text}, within {rough_duration(span_ms)}." if span_ms >= 1_000 else f"{text}."


def percentiles(settled: Sequence[Checkpoint]) -> list[Json]:
    """The percentiles of the durations of a window; empty where none completed."""
    durations = sorted(history.durations_ms(settled))
    if not durations:
        return []
    return [
        {"name": name, "text": duration(history.percentile(durations, share)), "help": words}
        for name, share, words in PERCENTILES
    ]


def _checkpoint(row: Checkpoint) -> Json:
    is_whole = row.status not in UNCOMPLETED
    why = reason_text(row.reason)
    cause = headline(row.cause)
    return {
        "number": number(row.number),
        "url": reverse("checkpoint-page", args=[row.job_id, row.number]),
        "kind": _tag(row),
        "status": status.of_checkpoint(row.status),
        "at": iso(row.triggered_at),
        "at_text": moment(row.triggered_at),
        "duration": duration(row.duration_ms),
        "start_delay": duration(row.start_delay_ms),
        "alignment": duration(row.alignment_ms),
        "sync": duration(row.sync_ms),
        "async": duration(row.async_ms),
        "state": size(row.state_bytes) if is_whole else NOTHING,
        "written": size(row.written_bytes) if is_whole else NOTHING,
        "acknowledged": f"{row.acknowledged_count:,}/{row.subtask_count:,}",
        "why": f"{why}: {cause}" if cause else why,
    }


def _tag(row: Checkpoint) -> str:
    if row.kind != CheckpointKind.CHECKPOINT:
        return "savepoint"
    return "left behind" if row.abandoned_at is not None else ""


def _alignment(checkpoint: Checkpoint | None, aligned: alignment.Aligned) -> Json | None:
    if checkpoint is None:
        return None
    total = aligned.channel_count
    channels = alignment.slowest(aligned, CHANNELS_SHOWN)
    caption = f"Checkpoint {checkpoint.number:,}: "
    if total > CHANNELS_SHOWN:
        caption += f"the slowest {CHANNELS_SHOWN} of {total:,} channels"
    else:
        caption += plural(total, "channel")
    return {
        "number": number(checkpoint.number),
        "sentence": alignment.sentence(aligned),
        "caption": caption,
        "channels": [_channel(channel) for channel in channels],
    }


def _channel(channel: alignment.Channel) -> Json:
    return asdict(channel) | {
        "key": f"{channel.receiver}/{channel.position}",
        "arrived_ms": "its sender had ended"
        if channel.arrived_ms is None
        else duration(channel.arrived_ms),
        "blocked_ms": duration(channel.blocked_ms),
        "bytes_during": size(channel.bytes_during),
        "in_flight_bytes": size(channel.in_flight_bytes),
    }


_RECOVERED = status.Label("Recovery", "warn", "The attempt before it failed.")
_PLANNED = status.Label("Planned", "idle", "It was asked for: a restart, rescale or rollback.")
_RESUMED = status.Label("Resumed", "idle", "The job had finished or been cancelled before.")


def _recovery(attempt: Attempt, last: Attempt, beyond: str) -> Json:
    """An attempt and how it took over from the one before it, as the page of attempts has it."""
    it = Deployment.from_attempt(attempt)
    took = takeover(it, Deployment.from_attempt(last))
    assert took is not None  # There is one before it.
    if attempt.restored_checkpoint is None:
        restored = "the beginning"
    else:
        restored = f"checkpoint {attempt.restored_checkpoint:,}"
    is_failure = not (took.is_planned or took.was_over)
    cause = attempt.recovery_cause or last.cause if is_failure else ""
    label = _RECOVERED if is_failure else _RESUMED if took.was_over else _PLANNED
    return {
        "number": number(attempt.number),
        "driver": number(attempt.driver.number),
        "kind": {"text": label.text, "tone": label.tone, "help": label.help},
        "at": iso(attempt.started_at),
        "at_text": moment(attempt.started_at),
        "cause": headline(cause) or recoveries.why(attempt, last, took),
        "text": tail(cause),
        "has_more": has_more(cause),
        "restored": restored,
        "downtime": _downtime(took),
        "parts": recoveries.down_parts(took),
        "beyond": beyond,
        "catch_up": duration(attempt.catch_up_ms),
        "replayed": number(attempt.replayed_records),
        "restored_bytes": recoveries.read_bytes(attempt),
    }


def _downtime(took: Takeover) -> str:
    if took.was_over:
        return "The job was over, not down"
    if took.down_ms is None:
        return "Not running yet"
    return f"Down for {duration(took.down_ms)}"


def _exception(row: JobException) -> Json:
    where = []
    if row.driver_number is not None:
        where.append(f"driver {row.driver_number}")
    if row.attempt_number is not None:
        where.append(f"attempt {row.attempt_number}")
    if row.subtask:
        where.append(row.subtask)
    return {
        "id": row.pk,
        "kind": history.EXCEPTION_KINDS.get(row.kind, row.kind),
        "tone": "idle" if row.kind == "notice" else "bad",
        "at": iso(row.at),
        "at_text": moment(row.at),
        "where": ", ".join(where),
        "attempt_url": _attempt_url(row),
        "headline": headline(row.text),
        "text": tail(row.text),
        "has_more": has_more(row.text),
    }


def _firing(alert: Alert) -> Json:
    """An alert that fires, as a note above the job."""
    return {
        "id": str(alert.pk),
        "tone": status.SEVERITY[alert.severity],
        "rule": alert.rule_name,
        "text": alert.summary,
        "url": reverse("alert-page", args=[alert.pk]),
        "by": f"{alert.acknowledged_by_name} looks after it." if alert.acknowledged_at else "",
    }


def _attempt_url(row: JobException) -> str:
    """The address of an exception's attempt; empty without one."""
    number = row.attempt_number
    if number is None:
        return ""
    return f"{reverse('job-recovery', args=[row.job_id])}?attempt={number}#attempt-{number}"
