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
from checkpoints.verdict import diagnosis, queries

Json = dict[str, Any]

KEPT_MAX = 256
JUDGED_AT_ONCE = 2  # Verdicts for a diagnosis, in one update of a page.
# No second one is begun later, and none at all where a page opens: of large jobs each takes long.
JUDGING_S = 0.03
TOLD_MAX = 8_192  # The last ten of 800 jobs.
REST_SHARE = 10  # A verdict is valid for this many times as long as it took to compute.


@dataclass(frozen=True, slots=True)
class _Kept:
    verdict: Json
    state: tuple[Any, ...]
    took_s: float
    due_s: float  # Monotonic; infinite once it has settled.


# By the checkpoint's row and whether it is diagnosed, last used last.
_kept: OrderedDict[tuple[int, bool], _Kept] = OrderedDict()
# The part of verdicts that diagnoses need: of settled checkpoints, so many more and all small.
_told: OrderedDict[int, tuple[tuple[Any, ...], diagnosis.Told]] = OrderedDict()
_lock = Lock()


def cached_verdict(
    checkpoint: Checkpoint, *, is_diagnosed: bool = True, is_opening: bool = False
) -> Json:
    """The verdict on a checkpoint, from the cache while it is valid.

    Args:
        is_diagnosed: Whether the diagnosis of the last checkpoints comes with it.
        is_opening: Whether a page waits for it, whose updates will bring the rest of a diagnosis.
    """
    return _cached(checkpoint, is_diagnosed, is_opening).verdict


def _cached(checkpoint: Checkpoint, is_diagnosed: bool, is_opening: bool = False) -> _Kept:
    key, state = (checkpoint.pk, is_diagnosed), _state_of(checkpoint)
    with _lock:
        kept = _kept.get(key)
        if kept is not None and kept.state == state and time.monotonic() < kept.due_s:
            _kept.move_to_end(key)
            return kept
    begun_s = time.monotonic()
    is_final = checkpoint.settled_at is not None
    if is_diagnosed:
        own = _cached(checkpoint, is_diagnosed=False)
        diagnosed, is_whole = _diagnosed(checkpoint, own.took_s if is_opening else None)
        made = own.verdict | {"diagnosis": diagnosed}
        is_final = is_final and is_whole
    else:
        made = verdict_json(checkpoint) | {"diagnosis": None}
    now_s = time.monotonic()
    took_s = now_s - begun_s
    kept = _Kept(made, state, took_s, float("inf") if is_final else now_s + REST_SHARE * took_s)
    with _lock:
        _kept[key] = kept
        _kept.move_to_end(key)
        while len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)
    return kept


def verdict_json(checkpoint: Checkpoint) -> Json:
    """Why a checkpoint took as long as it did, as JSON for ``frontend/_verdict.html``."""
    return shown(_judged(checkpoint))


def _judged(checkpoint: Checkpoint) -> queries.Verdict:
    """The verdict, its part for diagnoses noted."""
    judged = queries.of_checkpoint(checkpoint)
    if checkpoint.settled_at is not None:
        with _lock:
            _told[checkpoint.pk] = _state_of(checkpoint), diagnosis.Told.by(judged)
            _told.move_to_end(checkpoint.pk)
            while len(_told) > TOLD_MAX:
                _told.popitem(last=False)
    return judged


def _diagnosed(checkpoint: Checkpoint, expected_s: float | None) -> tuple[Json | None, bool]:
    """The diagnosis of the last settled checkpoints up to this one; None: they are too few.

    One query, and those of a few verdicts that are not known yet: of a job that is looked at one,
    as a rule. When the page is opened more are left out at first, and judged with its updates.

    Args:
        expected_s: The time that each verdict will take; None: one is judged however long it takes.

    Returns:
        The diagnosis, and whether no checkpoint was left out.
    """
    rows = Checkpoint.objects.filter(
        job=checkpoint.job_id, number__lte=checkpoint.number, settled_at__isnull=False
    )
    told: list[diagnosis.Told] = []
    judged, ends_s = 0, time.monotonic() + JUDGING_S
    for row in rows.order_by("-number")[: diagnosis.LAST]:
        known = _known(row)
        if known is None:
            is_late = time.monotonic() + (expected_s or 0.0) > ends_s
            may_wait = judged > 0 or expected_s is not None
            if judged == JUDGED_AT_ONCE or (is_late and may_wait):
                return None, False
            judged += 1
            known = diagnosis.Told.by(_judged(row))
        told.append(known)
    made = diagnosis.diagnose(told)
    return None if made is None else asdict(made), True


def _known(checkpoint: Checkpoint) -> diagnosis.Told | None:
    with _lock:
        state, told = _told.get(checkpoint.pk, (None, None))
    return told if state == _state_of(checkpoint) else None


def _state_of(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint.job_id, checkpoint.status, checkpoint.settled_at, checkpoint.has_details


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
        _told.clear()
