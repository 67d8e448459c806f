"""An operator as values of its page: the newest figures, its subtasks, its neighbours, a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from checkpoints.models import Checkpoint
from controlplane.base import clock
from controlplane.base.formatting import (
    NOTHING,
    duration,
    event_time,
    iso,
    moment,
    number,
    plural,
    size,
)
from frontend.base import status
from frontend.graph.state import rate
from frontend.operator.figures import lag, percent
from jobs.chain_series import Point
from jobs.models import Edge, Job, Operator, Subtask
from weir.protocol.elements import MAX_WATERMARK_MS

Json = dict[str, Any]

TABLE_ROWS = 24  # Points of the window, as text.
RECENT = timedelta(seconds=30)  # The newest point is older: nothing is reported now.
LAST_SECONDS = timedelta(minutes=1)  # Has the newest point, and a sample before it.
NEIGHBOURS_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Window:
    """A period until now."""

    key: str  # The value in addresses.
    text: str
    span: timedelta


WINDOWS = {
    window.key: window
    for window in (
        Window("15m", "15 min", timedelta(minutes=15)),
        Window("1h", "1 hour", timedelta(hours=1)),
        Window("6h", "6 hours", timedelta(hours=6)),
        Window("24h", "1 day", timedelta(days=1)),
    )
}
DEFAULT = WINDOWS["1h"]


def window(key: str | None) -> Window:
    """The window of an address; the default for none or an unknown one."""
    return WINDOWS.get(key or "", DEFAULT)


def operator_url(job_id: str, uid: str) -> str:
    """The address of an operator's page."""
    return reverse("operator-page", args=[job_id, uid])


def neighbours(
    job: Job, operator: Operator, operators: Sequence[Operator], edges: Sequence[Edge]
) -> list[Json]:
    """The operators of its chain, those that it reads from and those that it sends to, as links."""
    known = {row.uid for row in operators}
    chain = [(row.uid, "") for row in operators if row.chain == operator.chain]
    inputs = [(edge.source, _how(edge)) for edge in edges if edge.target == operator.uid]
    outputs = [(edge.target, _how(edge)) for edge in edges if edge.source == operator.uid]
    groups = (("Chain", chain), ("Reads from", inputs), ("Sends to", outputs))
    return [
        {
            "name": name,
            "operators": [
                {
                    "uid": uid,
                    "how": how,
                    "url": operator_url(job.pk, uid) if uid in known else "",
                    "is_this": uid == operator.uid,
                }
                for uid, how in pairs[:NEIGHBOURS_SHOWN]
            ],
            "more": f"and {len(pairs) - NEIGHBOURS_SHOWN:,} more"
            if len(pairs) > NEIGHBOURS_SHOWN
            else "",
        }
        for name, pairs in groups
        if pairs
    ]


def _how(edge: Edge) -> str:
    return (
        f"{edge.partitioning}, side output {edge.side_tag}" if edge.side_tag else edge.partitioning
    )


def tiles(
    job: Job,
    operator: Operator,
    newest: Point | None,
    state_bytes: int | None,
    checkpoint: Checkpoint | None,
    now: datetime,
) -> list[Json]:
    """The newest figures; those of the load are unknown where nothing was reported just now.

    Args:
        newest: The mean of the last seconds.
    """
    load = Point(at=now, attempt=0, running=0)
    if newest is not None and not job.is_over and now - newest.at < RECENT:
        load = newest
    return [
        _tile(
            "Records in",
            _text(load.records_in_per_s, rate),
            f"out {_text(load.records_out_per_s, rate)}",
            "Over all subtasks of the chain, mean of the last seconds.",
        ),
        _tile(
            "Busy",
            _text(load.busy, percent),
            f"busiest subtask {_text(load.busiest, percent)}, back-pressured "
            f"{_text(load.back_pressured, percent)}",
            "Shares of the time, mean of the subtasks of the chain.",
        ),
        _tile(
            "Event-time lag",
            _text(load.lag_ms, lag),
            "behind the clock" if load.lag_ms is not None else "no event time",
            "The wall clock less the lowest watermark of the subtasks.",
        ),
        _tile(
            "State",
            _text(state_bytes, size),
            f"in {plural(operator.parallelism, 'subtask')}",
            "Of this operator, in the newest completed checkpoint.",
            reverse("checkpoint-page", args=[job.pk, checkpoint.number]) if checkpoint else "",
            f"checkpoint {checkpoint.number:,}" if checkpoint else "",
        ),
    ]


def _tile(
    name: str, value: str, more: str, title: str, url: str = "", link: str = ""
) -> dict[str, str]:
    return {"name": name, "value": value, "more": more, "title": title, "url": url, "link": link}


def _text(value: float | None, text: Callable[[Any], str]) -> str:
    return NOTHING if value is None else text(value)


def subtask(
    row: Subtask, host: str, state_bytes: int | None, now: datetime, *, is_over: bool
) -> Json:
    """One subtask of the table."""
    slots_url = reverse("job-slots", args=[row.job_id])
    rates: Mapping[str, float] = {} if is_over else row.rates
    watermark_ms = row.metrics.get("watermark_ms")
    at_end = watermark_ms is not None and watermark_ms >= MAX_WATERMARK_MS
    late_ms = None if watermark_ms is None else clock.to_ms(now) - watermark_ms
    bad = row.metrics.get("bad_records", 0)
    stuck_ms = None if row.stall is None or is_over else clock.to_ms(now) - row.stall["since_ms"]
    return {
        "key": str(row.index),
        "name": f"{row.chain}-{row.index}",
        "status": status.of_subtask(row.status),
        "stuck": "" if stuck_ms is None else f"in one call for {duration(stuck_ms)}",
        "stack": row.stall["stack"] if row.stall and not is_over else "",
        "slot": f"slot {row.index:,}",
        "slot_url": f"{slots_url}?slot={row.index}#slot-{row.index}",
        "host": host,
        "records_in": _text(rates.get("records_in_per_s"), rate),
        "records_out": _text(rates.get("records_out_per_s"), rate),
        "busy": _text(rates.get("busy"), percent),
        "busy_share": round(min(max(rates.get("busy", 0.0), 0.0), 1.0), 3),
        "back_pressured": _text(rates.get("back_pressured"), percent),
        "lag": "at the end" if at_end else NOTHING if is_over else _text(late_ms, lag),
        "watermark": event_time(watermark_ms),
        "state": _text(state_bytes, size),
        "bad": number(bad) if bad else NOTHING,
    }


def point(row: Point) -> Json:
    """One row of the table of the charts' values."""
    return {
        "at": iso(row.at),
        "at_text": moment(row.at),
        "records_in": _text(row.records_in_per_s, rate),
        "records_out": _text(row.records_out_per_s, rate),
        "busy": _text(row.busy, percent),
        "busiest": _text(row.busiest, percent),
        "back_pressured": _text(row.back_pressured, percent),
        "lag": _text(row.lag_ms, lag),
        "state": _text(row.state_bytes, size),
        "attempt": number(row.attempt),
    }
