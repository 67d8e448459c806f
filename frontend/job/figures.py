"""Rows -> Plotly figures, as plain values. Pure, except that rows are Django's.

Colours are names of the style sheet (``"var(--phase-sync)"``), which the page resolves, so that one
figure serves light and dark. Points in time are ISO texts, which the page shows in the viewer's
zone. Axes are in seconds or in bytes, with Plotly's SI prefixes.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from checkpoints.conditions.reasons import reason_text
from checkpoints.models import LAST_PHASES, Checkpoint
from controlplane.alerts.models import Alert
from controlplane.base.formatting import duration, iso, size
from frontend.base.alignment import (
    Aligned,
    Channel,
    channels,
    receiver_name,
)
from frontend.job.history import DownTime, drawn
from frontend.job.marks import Figure, mark_alerts, mark_exceptions, mark_takeovers, plain
from jobs.models import JobException
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus

BARS_MAX = 24  # Channels; more are shown as a heat map.
HEAT_CELLS_MAX = 3_000  # About 200 kB.
HEAT_ROWS_MAX = 32
ALIGNMENT_AXIS_S = 0.01  # Axes and colours reach at least so far: less than that is no delay.
GATES_SHOWN = max(BARS_MAX, HEAT_ROWS_MAX)  # The slowest gates that a figure may show.

# Phases in the order in which they happen: column, name in the legend, colour.
PHASES = (
    ("start_delay_ms", "Start delay", "var(--phase-start)"),
    ("alignment_ms", "Alignment", "var(--phase-alignment)"),
    ("sync_ms", "Synchronous part", "var(--phase-sync)"),
    ("async_ms", "Asynchronous part", "var(--phase-async)"),
)
_LEGEND = {
    "orientation": "h",
    "traceorder": "normal",
    "x": 0,
    "y": 1.02,
    "xanchor": "left",
    "yanchor": "bottom",
}


def _layout(**parts: Any) -> Figure:
    return {
        "autosize": True,
        "margin": {"l": 12, "r": 12, "t": 36, "b": 12},
        "hovermode": "closest",
        "legend": _LEGEND,
        "showlegend": True,
        "uirevision": "kept",  # Zoom and hidden traces survive an update.
        **parts,
    }


def heat_scale(most: float, title: str, unit: str = "s") -> Figure:
    """The colours of a heat map of seconds, or bytes (``"B"``), up to ``most``."""
    return {
        "zmin": 0,
        "zmax": max(most, ALIGNMENT_AXIS_S if unit == "s" else 1),
        "colorscale": [[0, "var(--heat-low)"], [0.5, "var(--heat-mid)"], [1, "var(--heat-high)"]],
        "colorbar": {
            "title": {"text": title},
            "tickformat": "~s",
            "ticksuffix": unit,
            "thickness": 12,
            "outlinewidth": 0,
        },
    }


def history(
    checkpoints: Sequence[Checkpoint],
    *,
    address: Callable[[int], str],
    downs: Sequence[DownTime] = (),
    exceptions: Sequence[JobException] = (),
    alerts: Sequence[Alert] = (),
    now: datetime,
) -> Figure:
    """Durations by phase over the time of the trigger, state sizes below, exceptions above.

    A bar is the phases of the subtask that was last, within the duration, which has a mark of its
    own; where they are not known it is the duration alone. Failed and aborted checkpoints are
    marked; downtime is shaded. Alerts are marked where their conditions began.

    Args:
        address: The address of a checkpoint's page by its number; its marks lead there.
        downs: Downtimes; up to ``now`` where the job is not back.
    """
    rows = drawn(checkpoints)
    whole = [row for row in rows if row.status not in UNCOMPLETED]
    width_ms = _bar_ms([row.triggered_at for row in rows])

    def about(row: Checkpoint, *texts: str) -> list[str]:
        """The values of the hover text, and last the address behind a click."""
        return [f"{row.number:,}", iso(row.triggered_at) or "", *texts, address(row.number)]

    lasts = [(row, last_subtask(row)) for row in rows]
    known = [(row, last) for row, last in lasts if last is not None]
    bars = [
        {
            "type": "bar",
            "name": name,
            "x": [iso(row.triggered_at) for row, _ in known],
            "y": [last.phases_ms[column] / 1_000 for _, last in known],
            "width": width_ms,
            "customdata": [
                about(row, duration(last.phases_ms[column]), plain(last.name))
                for row, last in known
            ],
            "hovertemplate": "checkpoint %{customdata[0]}, %{customdata[1]}<br>"
            f"{name} of %{{customdata[3]}}: %{{customdata[2]}}<extra></extra>",
            "marker": {"color": color, "line": {"width": 0}},
        }
        for column, name, color in PHASES
        if known
    ]
    unknown = [row for row, last in lasts if last is None and row.status not in UNCOMPLETED]
    if unknown:
        bars.append(
            {
                "type": "bar",
                "name": "Phases not kept",
                "x": [iso(row.triggered_at) for row in unknown],
                "y": [(row.duration_ms or 0) / 1_000 for row in unknown],
                "width": width_ms,
                "customdata": [about(row, duration(row.duration_ms)) for row in unknown],
                "hovertemplate": "checkpoint %{customdata[0]}, %{customdata[1]}<br>"
                "%{customdata[2]} in all; its phases are not kept<extra></extra>",
                "marker": {"color": "var(--idle-back)", "line": {"width": 0}},
            }
        )
    ends = {
        "type": "scatter",
        "mode": "markers",
        "name": "End to end",
        "x": [iso(row.triggered_at) for row in whole],
        "y": [(row.duration_ms or 0) / 1_000 for row in whole],
        "customdata": [about(row, duration(row.duration_ms)) for row in whole],
        "hovertemplate": "checkpoint %{customdata[0]}, %{customdata[1]}<br>"
        "end to end: %{customdata[2]}<extra></extra>",
        "marker": {
            "color": "var(--text)",
            "symbol": "line-ew-open",
            "size": 8 if len(rows) < 120 else 5,
            "line": {"width": 2},
        },
    }
    marks = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": status.value.capitalize(),
            "x": [iso(row.triggered_at) for row in ended],
            "y": [(row.duration_ms or 0) / 1_000 for row in ended],
            "customdata": [
                about(
                    row,
                    duration(row.duration_ms),
                    reason_text(row.reason),
                    f"{row.acknowledged_count:,} of {row.subtask_count:,}",
                )
                for row in ended
            ],
            "hovertemplate": "checkpoint %{customdata[0]}, %{customdata[1]}<br>"
            f"{status} after %{{customdata[2]}}: %{{customdata[3]}}<br>"
            "%{customdata[4]} acknowledged<extra></extra>",
            "marker": {"color": color, "symbol": "x", "size": 10, "line": {"width": 0}},
        }
        for status, color in (
            (CheckpointStatus.FAILED, "var(--bad)"),
            (CheckpointStatus.ABORTED, "var(--quiet)"),
        )
        if (ended := [row for row in rows if row.status == status])
    ]
    state = {
        "type": "scatter",
        "mode": "lines",
        "name": "State size",
        "x": [iso(row.triggered_at) for row in whole],
        "y": [row.state_bytes for row in whole],
        "customdata": [about(row, size(row.state_bytes), size(row.written_bytes)) for row in whole],
        "hovertemplate": "checkpoint %{customdata[0]}, %{customdata[1]}<br>state %{customdata[2]}, "
        "written %{customdata[3]}<extra></extra>",
        "line": {"color": "var(--accent)", "width": 2, "shape": "hv"},
        "fill": "tozeroy",
        "fillcolor": "var(--accent-faint)",
        "yaxis": "y2",
        "showlegend": False,
    }
    happened = [
        *mark_takeovers(downs, now),
        *([mark_exceptions(exceptions)] if exceptions else []),
        *([mark_alerts(alerts)] if alerts else []),
    ]
    top = 0.9 if happened else 1.0
    return {
        "data": [
            *bars,
            *([ends, state] if whole else []),  # Plotly cannot draw an axis without data.
            *marks,
            *happened,
        ],
        "layout": _layout(
            barmode="stack",
            shapes=[
                {
                    "type": "rect",
                    "x0": iso(down.since),
                    "x1": iso(down.until or now),
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "layer": "below",
                    "fillcolor": "var(--idle-back)" if down.is_planned else "var(--bad-back)",
                    "line": {
                        "color": "var(--quiet)" if down.is_planned else "var(--bad)",
                        "width": 1,
                        "dash": "dot",
                    },
                }
                for down in downs
            ],
            xaxis={
                "type": "date",
                "title": {"text": "Time of the trigger"},
                "automargin": True,
                "anchor": "y2" if whole else "y",
                "nticks": 10,
                "showgrid": False,
            },
            yaxis={
                "title": {"text": "Duration"},
                "automargin": True,
                "domain": [0.34 if whole else 0, top - 0.02 if happened else top],
                "rangemode": "tozero",
                "tickformat": "~s",
                "ticksuffix": "s",
                "nticks": 6,
            },
            **({"yaxis2": _STATE_AXIS} if whole else {}),
            **({"yaxis3": _HAPPENED_AXIS | {"domain": [top, 1]}} if happened else {}),
        ),
    }


class LastSubtask(NamedTuple):
    """The subtask that a checkpoint took longest for."""

    name: str
    phases_ms: dict[str, float]  # By the names of ``PHASES``, within the checkpoint's duration.


def last_subtask(row: Checkpoint) -> LastSubtask | None:
    """The last subtask with its phases, cut at the end of the checkpoint; None: it is not known.

    Clocks of hosts differ, and an unaligned snapshot is written while it aligns: the sum of its
    phases may exceed the duration.
    """
    if row.last_subtask is None:
        return None
    left = float(row.duration_ms or 0)
    phases = {}
    for name in LAST_PHASES:
        phases[name] = min(float(row.last_subtask[name]), left)
        left -= phases[name]
    return LastSubtask(row.last_subtask["subtask"], phases)


_STATE_AXIS = {
    "title": {"text": "State"},
    "automargin": True,
    "domain": [0, 0.24],
    "rangemode": "tozero",
    "tickformat": "~s",
    "ticksuffix": "B",
    "nticks": 3,
}
_HAPPENED_AXIS = {"range": [-0.6, 2.6], "visible": False, "fixedrange": True}

BAR_SHARE = 0.7  # Of the usual time between two triggers.
BARS_SIDE_BY_SIDE = 400  # A bar is at least this fraction of the time shown, to be visible.
SINGLE_BAR_MS = 1_000.0


def _bar_ms(times: Sequence[datetime]) -> float:
    """The width of bars on an axis of time, for ordered triggers. Units: milliseconds."""
    gaps = sorted((later - earlier).total_seconds() * 1_000 for earlier, later in pairwise(times))
    if not gaps or gaps[-1] <= 0:
        return SINGLE_BAR_MS
    usual = gaps[len(gaps) // 2]
    return max(usual * BAR_SHARE, sum(gaps) / BARS_SIDE_BY_SIDE)


def alignment(aligned: Aligned) -> Figure:
    """The arrival of each channel's barrier, and the time the channel was blocked after it.

    Few channels are bars, one each: the time until the barrier arrived, then the blocked time. Many
    are a heat map of arrivals, receiving subtask × channel. Both in the graph's order.

    Args:
        aligned: With the ``GATES_SHOWN`` slowest gates.
    """
    if aligned.channel_count <= BARS_MAX:
        return _bars(channels(aligned))
    return _heat_map(aligned)


def _bars(rows: Sequence[Channel]) -> Figure:
    labels = [plain(f"{channel.sender} → {channel.receiver}") for channel in rows]
    details = [
        [
            "its sender had ended" if channel.arrived_ms is None else duration(channel.arrived_ms),
            duration(channel.blocked_ms),
            size(channel.bytes_during),
        ]
        for channel in rows
    ]
    hover = (
        "%{y}<br>barrier arrived after %{customdata[0]}<br>blocked for %{customdata[1]}<br>"
        "%{customdata[2]} during the alignment<extra></extra>"
    )
    parts = (
        (
            "Until the barrier arrived",
            [(c.arrived_ms or 0) / 1_000 for c in rows],
            "var(--arrival)",
        ),
        ("Blocked", [c.blocked_ms / 1_000 for c in rows], "var(--blocked)"),
    )
    longest = max((sum(pair) for pair in zip(parts[0][1], parts[1][1], strict=True)), default=0.0)
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": values,
                "customdata": details,
                "hovertemplate": hover,
                "marker": {"color": color, "line": {"width": 0}},
            }
            for name, values, color in parts
        ],
        "layout": _layout(
            barmode="stack",
            bargap=0.35,
            height=110 + 26 * max(len(rows), 2),
            margin={"l": 8, "r": 16, "t": 36, "b": 12},
            xaxis={
                "title": {"text": "After the first barrier"},
                "automargin": True,
                "tickformat": "~s",
                "ticksuffix": "s",
                "rangemode": "tozero",
                "nticks": 7,
                # Barriers that came together are no wide bars. A range that is null would be an
                # error.
                **({} if longest > ALIGNMENT_AXIS_S else {"range": [0, ALIGNMENT_AXIS_S]}),
            },
            yaxis={
                "automargin": True,
                "autorange": "reversed",  # The first one on top.
                "showgrid": False,
                "ticksuffix": "  ",
            },
        ),
    }


def _heat_map(aligned: Aligned) -> Figure:
    gates, columns = aligned.gates, aligned.channels_max
    most = max(1, min(HEAT_ROWS_MAX, HEAT_CELLS_MAX // columns))
    kept = sorted(
        sorted(range(len(gates)), key=lambda at: -gates[at].slowest_ms)[:most], reverse=True
    )
    rows = [gates[at] for at in kept]  # In the graph's order, from the top.
    count = aligned.gate_count
    shown = f"the {len(rows)} slowest of {count:,}" if len(rows) < count else "the"
    return {
        "data": [
            {
                "type": "heatmap",
                "x": list(range(columns)),
                "y": [plain(receiver_name(gate, aligned.inputs)) for gate in rows],
                "z": [
                    [None if ms is None else ms / 1_000 for ms in gate.arrived_ms]
                    + [None] * (columns - len(gate.upstream))
                    for gate in rows
                ],
                "customdata": [
                    [
                        [plain(sender), duration(arrived), duration(blocked), size(during)]
                        for sender, arrived, blocked, during in zip(
                            gate.upstream,
                            gate.arrived_ms,
                            gate.blocked_ms,
                            gate.bytes_during,
                            strict=True,
                        )
                    ]
                    + [["", "", "", ""]] * (columns - len(gate.upstream))
                    for gate in rows
                ],
                "hovertemplate": "%{customdata[0]} → %{y}<br>barrier arrived after %{customdata[1]}"
                "<br>blocked for %{customdata[2]}<br>%{customdata[3]} during the alignment"
                "<extra></extra>",
                "hoverongaps": False,
                "xgap": 1 if columns <= 64 else 0,
                "ygap": 1,
                **heat_scale(
                    max(gate.slowest_ms for gate in rows) / 1_000, "Barrier after<br>the first"
                ),
            }
        ],
        "layout": _layout(
            height=130 + 18 * max(len(rows), 6),
            margin={"l": 8, "r": 8, "t": 28, "b": 12},
            showlegend=False,
            xaxis={
                "title": {"text": f"Channel (rows: {shown} receiving subtasks)"},
                "automargin": True,
                "showgrid": False,
                "tickformat": "d",
            },
            yaxis={
                "automargin": True,
                "showgrid": False,
                "type": "category",
                "ticksuffix": " ",
            },
        ),
    }
