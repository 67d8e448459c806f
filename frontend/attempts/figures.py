"""Attempts -> a Plotly figure, as plain values. Pure.

Above, a timeline: up and down times, attempt by attempt. Below, the parts of each takeover. Colours
are names of the style sheet, as in ``frontend.job.figures``.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from controlplane.base.formatting import duration, iso, milliseconds_between, moment
from frontend.job.outages import PLANNED, Deployment, Takeover, takeover

Figure = dict[str, Any]

_ROW = "Job"  # The row of the timeline.
_MARKS = "Events"  # The row of failures and takeovers above it.
PHASES = (
    ("delay_ms", "Detection and delay", "var(--phase-start)"),
    ("redeploy_ms", "Redeploy", "var(--phase-alignment)"),
    ("restore_ms", "Restore", "var(--phase-sync)"),
)
CATCH_UP = ("Catch up", "var(--phase-async)")
BAR_SHARE = 0.65  # Of the width per takeover.
ROOM_FOR_MIN = 8  # The width per takeover with fewer of them: a single one is a bar, not a wall.
_PHASES_BELOW = {
    "xaxis2": {
        "type": "category",
        "anchor": "y2",
        "automargin": True,
        "title": {"text": "Attempt"},
        "showgrid": False,
    },
    "yaxis2": {
        "domain": [0, 0.52],
        "automargin": True,
        "rangemode": "tozero",
        "tickformat": "~s",
        "ticksuffix": "s",
        "nticks": 5,
        "title": {"text": "Takeover and catch-up"},
    },
}


def recovery(
    deployments: Sequence[Deployment], before: Deployment | None, now: datetime, *, is_over: bool
) -> Figure:
    """The up and down times of the job, and the parts of its takeovers, if any.

    Args:
        deployments: Consecutive attempts, oldest first.
        before: The attempt before the first of them.
    """
    earlier = [before, *deployments[:-1]]
    pairs = [(it, takeover(it, last), last) for it, last in zip(deployments, earlier, strict=True)]
    tookover = [(it, took) for it, took, _ in pairs if took is not None]
    return {
        "data": [
            _up(deployments, now),
            *_down(pairs, deployments, now, is_over=is_over),
            _marks("Failed", "x", "var(--bad)", _failed(deployments)),
            _marks("Driver replaced", "diamond", "var(--busy)", _replaced(pairs)),
            *(_phases(tookover) if tookover else []),
        ],
        "layout": {
            "autosize": True,
            "margin": {"l": 12, "r": 12, "t": 44, "b": 12},
            "hovermode": "closest",
            "showlegend": True,
            "legend": {
                "orientation": "h",
                "traceorder": "normal",
                "x": 0,
                "y": 1.03,
                "xanchor": "left",
                "yanchor": "bottom",
            },
            "uirevision": "kept",
            "barmode": "stack",
            "bargap": 1 - BAR_SHARE * min(1.0, len(tookover) / ROOM_FOR_MIN),
            "xaxis": {
                "type": "date",
                "anchor": "y",
                "automargin": True,
                "showgrid": False,
                "nticks": 6,
            },
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": [_ROW, _MARKS],
                "range": [-0.5, 1.4],
                "domain": [0.74, 1] if tookover else [0, 1],
                "fixedrange": True,
                "showticklabels": False,
                "showgrid": False,
            },
            # Plotly draws a category axis without categories wrongly, and warns about it.
            **(_PHASES_BELOW if tookover else {}),
        },
    }


def _bars(
    name: str, color: str, spans: Sequence[tuple[datetime, datetime]], said: Sequence[str]
) -> Figure:
    """Spans of time in the timeline's one row."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [_ROW] * len(spans),
        "base": [iso(begins) for begins, _ in spans],
        "x": [milliseconds_between(begins, ends) for begins, ends in spans],
        "customdata": list(said),
        "hovertemplate": "%{customdata}<extra></extra>",
        # The outline keeps a short span visible beside spans of days.
        "marker": {"color": color, "line": {"color": color, "width": 1.5}},
        "width": 0.62,
    }


def _up(deployments: Sequence[Deployment], now: datetime) -> Figure:
    ran = [it for it in deployments if it.running_at is not None]
    spans = [(it.running_at, it.ended_at or now) for it in ran if it.running_at is not None]
    said = [
        f"attempt {it.number:,} on driver {it.driver:,}<br>ran from {moment(it.running_at)}<br>"
        f"for {duration(milliseconds_between(it.running_at, it.ended_at or now))}"
        for it in ran
    ]
    return _bars("Up", "var(--good)", spans, said)


def _down(
    pairs: Sequence[tuple[Deployment, Takeover | None, Deployment | None]],
    deployments: Sequence[Deployment],
    now: datetime,
    *,
    is_over: bool,
) -> list[Figure]:
    """The times between attempts, those that were asked for apart from the others."""
    periods: list[tuple[Deployment, datetime, datetime, str]] = []
    for it, took, last in pairs:
        if took is None or took.was_over or last is None or last.ended_at is None:
            continue
        until = it.running_at or it.ended_at or (None if is_over else now)
        if until is not None and until >= last.ended_at:
            why = "as requested" if took.is_planned else f"after attempt {last.number:,}"
            took_ms = milliseconds_between(last.ended_at, until)
            said = f"down {why}<br>from {moment(last.ended_at)}<br>for {duration(took_ms)}"
            periods.append((last, last.ended_at, until, said))
    newest = deployments[-1] if deployments else None
    if newest is not None and newest.ended_at is not None and not is_over:
        periods.append((newest, newest.ended_at, now, f"down since {moment(newest.ended_at)}"))
    traces = []
    for name, color, is_planned in (
        ("Down", "var(--warn)", False),
        ("Down as requested", "var(--idle)", True),
    ):
        its = [one for one in periods if (one[0].end in PLANNED) is is_planned]
        if its:
            spans = [(begins, ends) for _, begins, ends, _ in its]
            traces.append(_bars(name, color, spans, [said for *_, said in its]))
    return traces


def _failed(deployments: Sequence[Deployment]) -> list[tuple[datetime, str]]:
    return [
        (it.ended_at, f"attempt {it.number:,} failed<br>{moment(it.ended_at)}")
        for it in deployments
        if it.end == "failed" and it.ended_at is not None
    ]


def _replaced(
    pairs: Sequence[tuple[Deployment, Takeover | None, Deployment | None]],
) -> list[tuple[datetime, str]]:
    return [
        (
            it.started_at,
            f"driver {it.driver:,} took over with attempt {it.number:,}<br>{moment(it.started_at)}",
        )
        for it, took, _ in pairs
        if took is not None and took.is_driver_new
    ]


def _marks(name: str, symbol: str, color: str, events: Sequence[tuple[datetime, str]]) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [iso(at) for at, _ in events],
        "y": [_MARKS] * len(events),
        "customdata": [said for _, said in events],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "symbol": symbol,
            "color": color,
            "size": 11,
            "line": {"color": "var(--card)", "width": 1.5},
        },
        "visible": True if events else "legendonly",
        "showlegend": bool(events),
    }


def _phases(tookover: Sequence[tuple[Deployment, Takeover]]) -> list[Figure]:
    numbers = [str(it.number) for it, _ in tookover]
    parts = [
        (name, color, [getattr(took, column) for _, took in tookover])
        for column, name, color in PHASES
    ]
    parts.append((*CATCH_UP, [it.catch_up_ms for it, _ in tookover]))
    return [
        {
            "type": "bar",
            "name": name,
            "x": numbers,
            "y": [None if value is None else value / 1_000 for value in values],
            "customdata": [duration(value) for value in values],
            "hovertemplate": f"attempt %{{x}}<br>{name}: %{{customdata}}<extra></extra>",
            "marker": {"color": color, "line": {"width": 0}},
            "xaxis": "x2",
            "yaxis": "y2",
        }
        for name, color, values in parts
    ]
