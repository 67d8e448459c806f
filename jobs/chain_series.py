"""A chain's load over time, from samples of its counters.

A point is the mean of the time since the point before: its growth of records, divided by that time;
its growth of busy time as a share of the growth of busy, idle and back-pressured time, which is the
subtasks' own time. Means over longer times need no other samples, only fewer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Value

from controlplane.base import clock
from jobs.models import ChainSample
from weir.protocol.elements import MAX_WATERMARK_MS

FINE = timedelta(hours=1)  # A longer span is read from one sample a minute.
POINTS_MAX = 480


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The load of a chain from the point before until ``at``; None: not known.

    Units: records per second, summed over the subtasks; shares between 0 and 1; milliseconds;
    bytes of one operator.
    """

    at: datetime
    attempt: int
    running: int  # Subtasks, at the end.
    records_in_per_s: float | None = None
    records_out_per_s: float | None = None
    busy: float | None = None  # The mean of the subtasks.
    busiest: float | None = None  # The busiest subtask; in the last seconds before a sample.
    back_pressured: float | None = None  # The mean of the subtasks.
    lag_ms: float | None = None  # The wall clock less the lowest watermark.
    state_bytes: int | None = None  # In the newest completed checkpoint then.


def read(job_id: str, chain: str, span: timedelta) -> list[ChainSample]:
    """The samples of a chain in the last ``span``, oldest first. One query."""
    since = clock.DatabaseNow() - Value(span)
    rows = ChainSample.objects.filter(job=job_id, chain=chain, at__gt=since)
    if span > FINE:
        rows = rows.filter(is_first_of_minute=True)
    return list(rows.order_by("at"))


def points(samples: Sequence[ChainSample], operator: str, most: int = POINTS_MAX) -> list[Point]:
    """At most ``most`` points, oldest first, or one for each attempt where those are more.

    The first point of each attempt has no rates: there is none before it. ``operator`` is the
    operator of the chain whose state is meant.
    """
    step = max(1, math.ceil(len(samples) / most))
    made: list[Point] = []
    before: ChainSample | None = None
    group: list[ChainSample] = []
    for at, row in enumerate(samples):
        if before is None or row.attempt != before.attempt:
            if before is not None and group:
                made.append(_point(before, group, operator))
            made.append(_point(None, [row], operator))
            before, group = row, []
            continue
        group.append(row)
        if len(group) == step or at == len(samples) - 1:
            made.append(_point(before, group, operator))
            before, group = row, []
    return made


def _point(before: ChainSample | None, group: Sequence[ChainSample], operator: str) -> Point:
    """The point at the end of ``group``; ``before`` is the sample at which its time begins."""
    last = group[-1]
    state = last.state_bytes.get(operator)
    grown = {} if before is None else _growth(before, last)
    return Point(
        at=last.at,
        attempt=last.attempt,
        running=last.running,
        busiest=_largest(row.busiest for row in group),
        lag_ms=_largest(_lag_ms(row) for row in group),
        state_bytes=state if isinstance(state, int) else None,
        **grown,
    )


def _growth(before: ChainSample, last: ChainSample) -> dict[str, float | None]:
    span_s = (last.at - before.at).total_seconds()
    times = ("busy_ms", "idle_ms", "back_pressured_ms")
    own = {name: getattr(last, name) - getattr(before, name) for name in times}
    own_ms = sum(own.values())
    return {
        "records_in_per_s": _ratio(last.records_in - before.records_in, span_s),
        "records_out_per_s": _ratio(last.records_out - before.records_out, span_s),
        "busy": _share(own["busy_ms"], own_ms),
        "back_pressured": _share(own["back_pressured_ms"], own_ms),
    }


def _ratio(grown: float, by: float) -> float | None:
    """None where the counters went back, or no time passed."""
    if grown < 0 or by <= 0:
        return None
    ratio = grown / by
    return ratio if math.isfinite(ratio) else None


def _share(part: float, whole: float) -> float | None:
    ratio = _ratio(part, whole)
    return None if ratio is None else min(1.0, ratio)


def _lag_ms(row: ChainSample) -> float | None:
    """None without event time, and at the end of the input, where nothing is late."""
    if row.watermark_ms is None or row.watermark_ms >= MAX_WATERMARK_MS:
        return None
    return clock.to_ms(row.at) - row.watermark_ms


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
