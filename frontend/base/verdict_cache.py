"""Cached verdicts for pages that are rendered several times a second.

The verdict on a settled checkpoint changes only with its details and is computed once. The verdict
on one under way changes with every acknowledgement and with time, and reads more rows the larger
the job is: computing it anew takes a tenth of the time at most.
"""

import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any

from checkpoints.models import Checkpoint
from checkpoints.verdict import queries

Json = dict[str, Any]

KEPT_MAX = 256
REST_SHARE = 10  # A verdict is valid for this many times as long as it took to compute.


@dataclass(frozen=True, slots=True)
class _Kept:
    verdict: Json
    state: tuple[Any, ...]
    due_s: float  # Monotonic; infinite once it has settled.


_kept: OrderedDict[int, _Kept] = OrderedDict()  # By the checkpoint's row, last used last.
_lock = Lock()


def cached_verdict(checkpoint: Checkpoint) -> Json:
    """The verdict on a checkpoint, from the cache while it is valid."""
    state = (checkpoint.job_id, checkpoint.status, checkpoint.settled_at, checkpoint.has_details)
    with _lock:
        kept = _kept.get(checkpoint.pk)
        if kept is not None and kept.state == state and time.monotonic() < kept.due_s:
            _kept.move_to_end(checkpoint.pk)
            return kept.verdict
    begun_s = time.monotonic()
    made = verdict_json(checkpoint)
    now_s = time.monotonic()
    is_final = checkpoint.settled_at is not None
    due_s = float("inf") if is_final else now_s + REST_SHARE * (now_s - begun_s)
    with _lock:
        _kept[checkpoint.pk] = _Kept(made, state, due_s)
        _kept.move_to_end(checkpoint.pk)
        while len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)
    return made


def verdict_json(checkpoint: Checkpoint) -> Json:
    """Why a checkpoint took as long as it did, as JSON for ``frontend/_verdict.html``."""
    return shown(queries.of_checkpoint(checkpoint))


def shown(verdict: queries.Verdict) -> Json:
    """A verdict as JSON, with lists instead of tuples, so that it equals its decoded copy."""
    value = asdict(verdict)
    for key in ("because", "advice", "path", "culprits"):
        value[key] = list(value[key])
    return value


def forget() -> None:
    """Drop all cached verdicts: other rows now have the same ids."""
    with _lock:
        _kept.clear()
