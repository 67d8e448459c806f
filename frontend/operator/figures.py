"""A series of points -> a Plotly figure, as plain values. Pure.

Panels over one axis of time: records, shares of the time, lag of event time, state. A panel without
a value is left out, since Plotly draws no axis without data. Colours are names of the style sheet,
as in ``frontend.job.figures``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from controlplane.base.formatting import NOTHING, duration, iso, size
from frontend.graph.state import rate
from jobs.chain_series import Point

Figure = dict[str, Any]

PANEL_PX = 170
HEAD_PX = 70
GAP = 0.07  # Between two panels, of the height of all.
# The largest value of an axis that is read in a unit, the unit's length in seconds, and its name.
_UNITS = ((120, 1, "s"), (7_200, 60, " min"), (172_800, 3_600, " h"), (float("inf"), 86_400, " d"))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel."""

    name: str
    color: str
    value: Callable[[Point], float | None]
    text: Callable[[float], str]
    dash: str = "solid"
    is_mean: bool = True  # Of the time since the point before: drawn as a step.
    is_filled: bool = False

    def has_any(self, points: Sequence[Point]) -> bool:
        """Whether a point has a value of it."""
        return any(self.value(point) is not None for point in points)


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one axis of values."""

    title: str
    lines: tuple[Line, ...]
    axis: Figure

    def has_any(self, points: Sequence[Point]) -> bool:
        """Whether a point has a value in it."""
        return any(line.has_any(points) for line in self.lines)


def percent(share: float) -> str:
    """``"31 %"``, on one line."""
    return f"{share * 100:.0f}\u00a0%"


def series(points: Sequence[Point]) -> Figure:
    """The figure of an operator's load; without panels where no point has a value."""
    panels = [panel for panel in _panels(points) if panel.has_any(points)]
    height = (1 - GAP * max(len(panels) - 1, 0)) / max(len(panels), 1)
    data: list[Figure] = []
    layout: Figure = {
        "autosize": True,
        "height": HEAD_PX + PANEL_PX * len(panels),
        "margin": {"l": 12, "r": 12, "t": 56, "b": 12},
        "hovermode": "closest",
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.06,
            "xanchor": "left",
            "yanchor": "bottom",
        },
        "uirevision": "kept",
        "annotations": [],
        "xaxis": {
            "type": "date",
            "automargin": True,
            "nticks": 8,
            "showgrid": False,
            "anchor": f"y{len(panels)}" if len(panels) > 1 else "y",
        },
        "shapes": [_attempt_mark(point) for point in _begun(points)],
    }
    for at, panel in enumerate(panels, 1):
        axis = "y" if at == 1 else f"y{at}"
        top = 1 - (at - 1) * (height + GAP)
        # The title of a panel names its only line.
        named = {"showlegend": len(panel.lines) > 1}
        data += [_trace(line, points, axis) | named for line in panel.lines if line.has_any(points)]
        layout[f"yaxis{'' if at == 1 else at}"] = {
            "automargin": True,
            "domain": [max(top - height, 0), top],
            "nticks": 4,
            **panel.axis,
        }
        layout["annotations"].append(
            {
                "text": panel.title,
                "showarrow": False,
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": top,
                "yref": "paper",
                "yanchor": "bottom",
            }
        )
    return {"data": data, "layout": layout}


def _panels(points: Sequence[Point]) -> tuple[Panel, ...]:
    lags = [abs(point.lag_ms) / 1_000 for point in points if point.lag_ms is not None]
    longest = max(lags, default=0.0)
    seconds, unit = next((s, unit) for most, s, unit in _UNITS if longest <= most)
    return (
        Panel(
            "Records per second",
            (
                Line("Records in", "var(--accent)", lambda point: point.records_in_per_s, rate),
                Line(
                    "Records out",
                    "var(--phase-alignment)",
                    lambda point: point.records_out_per_s,
                    rate,
                    dash="dash",
                ),
            ),
            {"rangemode": "tozero", "tickformat": "~s"},
        ),
        Panel(
            "Shares of the time",
            (
                Line("Busy", "var(--busy)", lambda point: point.busy, percent),
                Line(
                    "Busiest subtask",
                    "var(--busy)",
                    lambda point: point.busiest,
                    percent,
                    dash="dot",
                    is_mean=False,
                ),
                Line(
                    "Back-pressured",
                    "var(--warn)",
                    lambda point: point.back_pressured,
                    percent,
                    dash="dash",
                ),
            ),
            {"range": [0, 1.02], "tickformat": ".0%"},
        ),
        Panel(
            "Event-time lag",
            (
                Line(
                    "Event-time lag",
                    "var(--phase-sync)",
                    lambda point: None if point.lag_ms is None else point.lag_ms / 1_000 / seconds,
                    lambda value: lag(value * seconds * 1_000),
                    is_mean=False,
                ),
            ),
            {
                "rangemode": "tozero",
                "tickformat": "~s" if seconds == 1 else "~g",
                "ticksuffix": unit,
            },
        ),
        Panel(
            "State",
            (
                Line(
                    "State",
                    "var(--phase-async)",
                    lambda point: point.state_bytes,
                    size,
                    is_mean=False,
                    is_filled=True,
                ),
            ),
            {"rangemode": "tozero", "tickformat": "~s", "ticksuffix": "B"},
        ),
    )


def lag(milliseconds: float) -> str:
    """A lag of event time in words; a watermark may be ahead of the clock."""
    return duration(milliseconds) if milliseconds >= 0 else f"{duration(-milliseconds)} ahead"


def _trace(line: Line, points: Sequence[Point], axis: str) -> Figure:
    drawn = _steps(line, points) if line.is_mean else [(p, line.value(p)) for p in points]
    trace: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": [iso(point.at) for point, _ in drawn],
        "y": [value for _, value in drawn],
        "customdata": [NOTHING if value is None else line.text(value) for _, value in drawn],
        "hovertemplate": f"%{{x|%Y-%m-%d %H:%M:%S}}<br>{line.name}: %{{customdata}}<extra></extra>",
        "line": {
            "color": line.color,
            "width": 2,
            "dash": line.dash,
            "shape": "vh" if line.is_mean else "linear",
        },
        "xaxis": "x",
        "yaxis": axis,
    }
    if line.is_filled:
        trace |= {"fill": "tozeroy", "fillcolor": "var(--accent-faint)"}
    return trace


def _steps(line: Line, points: Sequence[Point]) -> list[tuple[Point, float | None]]:
    """The corners of a line of means, each of which reaches back to the point before it.

    Where there is no mean the line ends, and begins again with the next one at this point.
    """
    corners: list[tuple[Point, float | None]] = []
    for at, point in enumerate(points):
        value = line.value(point)
        corners.append((point, value))
        if value is None and at + 1 < len(points):
            corners.append((point, line.value(points[at + 1])))
    return corners


def _begun(points: Sequence[Point]) -> list[Point]:
    """The first points of attempts, but for the first of all."""
    return [point for before, point in pairwise(points) if point.attempt != before.attempt]


def _attempt_mark(point: Point) -> Figure:
    return {
        "type": "line",
        "x0": iso(point.at),
        "x1": iso(point.at),
        "xref": "x",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"color": "var(--quiet)", "width": 1, "dash": "dot"},
    }
