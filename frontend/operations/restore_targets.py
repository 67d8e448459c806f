"""Checkpoints and savepoints that can be restored, as choices of a form and out of one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from checkpoints.models import Checkpoint
from controlplane.base.formatting import age, event_time, milliseconds_between, size
from frontend.base.status import SAVEPOINT_KIND

Choice = tuple[str, str]


def choices(checkpoints: Sequence[Checkpoint], now: datetime) -> list[tuple[str, list[Choice]]]:
    """Groups of choices: savepoints, checkpoints on the job's line, and those left behind.

    Args:
        checkpoints: The restorable ones, newest first, with their savepoints.
    """
    groups: dict[str, list[Choice]] = {"Savepoints": [], "Checkpoints": [], "Left behind": []}
    for row in checkpoints:
        group = (
            "Savepoints"
            if row.kind in SAVEPOINT_KIND
            else "Left behind"
            if row.abandoned_at is not None
            else "Checkpoints"
        )
        groups[group].append((value_of(row), _label(row, now)))
    return [(name, offered) for name, offered in groups.items() if offered]


def value_of(checkpoint: Checkpoint) -> str:
    """The form value of a checkpoint."""
    savepoint = getattr(checkpoint, "savepoint", None)
    return f"checkpoint:{checkpoint.number}" if savepoint is None else f"savepoint:{savepoint.pk}"


def read(value: str) -> dict[str, Any]:
    """The service argument of a form value: ``checkpoint`` or ``savepoint``, or neither."""
    kind, _, which = value.partition(":")
    if kind == "checkpoint":
        return {"checkpoint": int(which)}
    return {"savepoint": UUID(which)} if kind == "savepoint" else {}


def asked_for(parameters: Any) -> str:
    """The form value of an address: ``?checkpoint=7``, ``?savepoint=<id>``."""
    for kind in ("checkpoint", "savepoint"):
        if which := parameters.get(kind):
            return f"{kind}:{which}"
    return ""


def named(value: str) -> str:
    """The name of a form value at the beginning of a sentence."""
    kind, _, which = value.partition(":")
    return f"Checkpoint {which[:20]}" if kind == "checkpoint" else "That savepoint"


def _label(row: Checkpoint, now: datetime) -> str:
    savepoint = getattr(row, "savepoint", None)
    name = f"checkpoint {row.number:,}" if savepoint is None else savepoint.name
    parts = [age(milliseconds_between(row.triggered_at, now)), size(row.state_bytes)]
    if row.watermark_ms is not None:
        parts.append(f"event time {event_time(row.watermark_ms)}")
    return f"{name} ({', '.join(parts)})"
