"""The verdict on a checkpoint, as pages show it."""

from dataclasses import asdict
from typing import Any

from checkpoints.models import Checkpoint
from checkpoints.verdict import queries

Json = dict[str, Any]


def of(checkpoint: Checkpoint) -> Json:
    """Why a checkpoint took as long as it did, as JSON for ``frontend/_verdict.html``."""
    return shown(queries.of_checkpoint(checkpoint))


def shown(verdict: queries.Verdict) -> Json:
    """A verdict as JSON: lists, not tuples, so that equal ones compare equal after a journey."""
    value = asdict(verdict)
    for key in ("because", "advice", "path", "culprits"):
        value[key] = list(value[key])
    return value
