"""Events of jobs in words, with a tone and a link each. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from checkpoints.conditions.reasons import reason_text
from frontend.base import status
from jobs.models import AttemptEnd, JobEvent, JobEventKind, OperationKind, OperationStatus
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus

_ENDS: Mapping[AttemptEnd, str] = {
    AttemptEnd.FAILED: "failed",
    AttemptEnd.FINISHED: "finished",
    AttemptEnd.CANCELED: "ended as requested",
    AttemptEnd.SUSPENDED: "ended with the control plane, which takes it up again",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One event as the page shows it."""

    at: datetime
    job_id: str
    job_name: str
    tone: str  # As in ``frontend.base.status``.
    text: str
    about: str  # The cause, or a figure; empty: none.
    url: str


@dataclass(frozen=True, slots=True)
class _Said:
    tone: str
    text: str
    about: str = ""
    url: str = ""


def activity_row(event: JobEvent, job_name: str) -> Row:
    """The event in words."""
    said = _SAY[JobEventKind(event.kind)](event)
    url = said.url or reverse("job-page", args=[event.job_id])
    return Row(event.at, event.job_id, job_name, said.tone, said.text, said.about, url)


def _checkpoint(event: JobEvent) -> _Said:
    facts, reason = event.facts, reason_text(event.reason)
    number = facts.get("checkpoint", 0)
    is_savepoint = facts.get("kind", CheckpointKind.CHECKPOINT) != CheckpointKind.CHECKPOINT
    name = f"{'Savepoint' if is_savepoint else 'Checkpoint'} {number}"
    tone, verb = {
        JobEventKind.CHECKPOINT_COMPLETED: ("good", "completed"),
        JobEventKind.CHECKPOINT_ABORTED: ("idle", "was aborted"),
        JobEventKind.CHECKPOINT_EXPIRED: ("bad", "timed out"),
    }.get(JobEventKind(event.kind), ("bad", "failed"))
    if event.kind == JobEventKind.CHECKPOINT_EXPIRED:
        reason = ""
    return _Said(
        tone,
        f"{name} {verb}{reason and f': {reason}'}",
        _cause(facts),
        reverse("checkpoint-page", args=[event.job_id, number]),
    )


def _attempt_began(event: JobEvent) -> _Said:
    facts = event.facts
    return _Said("busy", f"Attempt {facts.get('attempt')} began", f"driver {facts.get('driver')}")


def _attempt_ended(event: JobEvent) -> _Said:
    end = AttemptEnd(event.reason)
    tone = "bad" if end is AttemptEnd.FAILED and not event.planned else "idle"
    text = f"Attempt {event.facts.get('attempt')} {_ENDS[end]}"
    return _Said(tone, text, _cause(event.facts), reverse("job-recovery", args=[event.job_id]))


def _job_changed(event: JobEvent) -> _Said:
    label = status.of_job(event.reason, is_planned=event.planned)
    before = event.facts.get("before")
    text = f"Job is {label['text'].lower()}"
    if before:
        text += f", was {status.JOB[JobStatus(before)].text.lower()}"
    return _Said(label["tone"], text, _cause(event.facts))


def _operation_ended(event: JobEvent) -> _Said:
    facts, label = event.facts, status.OPERATION[OperationStatus(event.reason)]
    kind = status.OPERATION_KIND[OperationKind(facts["kind"])]
    url = reverse("job-operation", args=[event.job_id, facts["operation"]])
    return _Said(label.tone, f"{kind}: {label.text.lower()}", str(facts.get("error", "")), url)


def _driver_lost(event: JobEvent) -> _Said:
    tone = "idle" if event.planned else "bad"
    text = f"Driver {event.facts.get('driver')} was lost"
    return _Said(tone, text, _cause(event.facts), reverse("job-recovery", args=[event.job_id]))


def _cause(facts: Mapping[str, Any]) -> str:
    return str(facts.get("cause", ""))


_SAY: Mapping[JobEventKind, Callable[[JobEvent], _Said]] = {
    JobEventKind.CHECKPOINT_COMPLETED: _checkpoint,
    JobEventKind.CHECKPOINT_FAILED: _checkpoint,
    JobEventKind.CHECKPOINT_EXPIRED: _checkpoint,
    JobEventKind.CHECKPOINT_ABORTED: _checkpoint,
    JobEventKind.ATTEMPT_BEGAN: _attempt_began,
    JobEventKind.ATTEMPT_ENDED: _attempt_ended,
    JobEventKind.JOB_CHANGED: _job_changed,
    JobEventKind.OPERATION_ENDED: _operation_ended,
    JobEventKind.DRIVER_LOST: _driver_lost,
}
