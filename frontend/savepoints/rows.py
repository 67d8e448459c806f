"""Savepoints and lineage of a job as values of their page."""

from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.urls import reverse

from checkpoints.models import Checkpoint, Savepoint
from controlplane.base.formatting import (
    age,
    duration,
    event_time,
    iso,
    milliseconds_between,
    moment,
    number,
    size,
)
from frontend.base import status
from frontend.base.texts import headline
from frontend.job.queries import PageColumns
from frontend.operations.steps import Acknowledged
from jobs.models import Job
from jobs.redaction import without_credentials
from weir.protocol.lifecycle import CheckpointStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

Json = dict[str, Any]


def savepoint_row(row: Savepoint, now: datetime) -> Json:
    """One savepoint, with the addresses of its operations: empty where impossible."""
    checkpoint = row.checkpoint
    is_there = (
        row.deleted_at is None
        and checkpoint is not None
        and checkpoint.status == CheckpointStatus.COMPLETED
    )
    which = f"?savepoint={row.pk}"
    return {
        "id": str(row.pk),
        "name": row.name,
        "kind": "" if checkpoint is None else status.SAVEPOINT_KIND.get(checkpoint.kind, ""),
        "status": status.of_savepoint(
            checkpoint.status if checkpoint else None, is_deleted=row.deleted_at is not None
        ),
        "at": iso(row.created_at),
        "at_ago": age(milliseconds_between(row.created_at, now)),
        "at_text": moment(row.created_at),
        "by": row.created_by.get_username() if row.created_by else "the control plane",
        "facts": _facts(checkpoint, is_there=is_there),
        "progress": _progress(checkpoint),
        "note": row.note,
        "labels": ", ".join(f"{name}: {text}" for name, text in sorted(row.labels.items())),
        "location": row.location,
        "problem": headline(checkpoint.discard_error)
        if checkpoint is not None and row.deleted_at is not None
        else "",
        "restore": reverse("job-rollback", args=[row.job_id]) + which if is_there else "",
        "fork": reverse("job-fork", args=[row.job_id]) + which if is_there else "",
        "preview": reverse("job-preview", args=[row.job_id]) + which if is_there else "",
        "describe": reverse("savepoint-describe", args=[row.job_id, row.pk])
        if row.deleted_at is None
        else "",
        "delete": reverse("savepoint-delete", args=[row.job_id, row.pk]) if is_there else "",
    }


def in_full(row: Savepoint, now: datetime) -> Json:
    """One savepoint with each fact by itself, for the page of savepoints."""
    value, checkpoint = savepoint_row(row, now), row.checkpoint
    is_there = bool(value["delete"])
    return value | {
        "checkpoint": "" if checkpoint is None else f"checkpoint {number(checkpoint.number)}",
        "checkpoint_url": ""
        if checkpoint is None
        else reverse("checkpoint-page", args=[row.job_id, checkpoint.number]),
        "size": size(checkpoint.state_bytes) if checkpoint and is_there else "",
        "took": duration(checkpoint.duration_ms) if checkpoint and is_there else "",
        "event_time": event_time(checkpoint.watermark_ms)
        if checkpoint and checkpoint.watermark_ms is not None
        else "",
        "label_list": [
            {"text": f"{name}: {text}", "url": _labelled(row.job_id, name, text)}
            for name, text in sorted(row.labels.items())
        ],
    }


def _labelled(job_id: str, name: str, text: str) -> str:
    """The address of the savepoints with a label."""
    return f"{reverse('job-savepoints', args=[job_id])}?{urlencode({'wanted': f'{name}: {text}'})}"


def _progress(checkpoint: Checkpoint | None) -> Json | None:
    """The acknowledgements of a savepoint being taken; None before its trigger and once settled."""
    if checkpoint is None or checkpoint.settled_at is not None:
        return None
    return Acknowledged(checkpoint.acknowledged_count, checkpoint.subtask_count).as_json()


def _facts(checkpoint: Checkpoint | None, *, is_there: bool) -> str:
    """The facts of a savepoint: its checkpoint's number, its size and its event time."""
    if checkpoint is None:
        return ""
    facts = [f"checkpoint {number(checkpoint.number)}"]
    if is_there:
        facts.append(f"state {size(checkpoint.state_bytes)}")
    if checkpoint.watermark_ms is not None:
        facts.append(f"event time {event_time(checkpoint.watermark_ms)}")
    return ", ".join(facts)


def lineage(job: "WithAnnotations[Job, PageColumns]") -> Json:
    """The origin of a job, its forks, and the checkpoint that it restores next."""
    return {
        "origin": job.origin_id or "",
        "origin_url": reverse("job-page", args=[job.origin_id]) if job.origin_id else "",
        "origin_uri": without_credentials(job.origin_uri),
        "next": without_credentials(job.restore_uri),
        "forks": [
            {
                "id": fork["id"],
                "name": fork["name"],
                "url": reverse("job-page", args=[fork["id"]]),
                "of": fork["uri"].rstrip("/").rpartition("/")[2],
                "status": status.of_job(fork["status"]),
            }
            for fork in job.fork_list
        ],
    }
