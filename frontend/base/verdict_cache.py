"""Verdicts for pages that are made anew several times a second.

That of a settled checkpoint changes only with its details, and is made once. That of one under way
changes with every acknowledgement and as time goes by, and takes more rows the larger the job is:
making it again and again takes a tenth of the time at the most.
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
REST_SHARE = 10  # A verdict is as good as new for this many times as long as it took to make.


@dataclass(frozen=True, slots=True)
class _Kept:
    verdict: Json
    state: tuple[Any, ...]
    due_s: float  # Monotonic; infinite once it has settled.


_kept: OrderedDict[int, _Kept] = OrderedDict()  # By the checkpoint's row, last used last.
_lock = Lock()


def cached_verdict(checkpoint: Checkpoint) -> Json:
    """The verdict, perhaps the one that was made a moment ago."""
    state = (checkpoint.job_id, checkpoint.status, checkpoint.settled_at, checkpoint.has_details)
    with _lock:
        found = _kept.get(checkpoint.pk)
        if found is not None and found.state == state and time.monotonic() < found.due_s:
            _kept.move_to_end(checkpoint.pk)
            return found.verdict
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
    """A verdict as JSON: lists, not tuples, so that equal ones compare equal after a journey."""
    value = asdict(verdict)
    for key in ("because", "advice", "path", "culprits"):
        value[key] = list(value[key])
    return value


def forget() -> None:
    """Make every verdict anew: rows of others have come under the same ids."""
    with _lock:
        _kept.clear()
