"""Rows of one checkpoint -> Plotly figures, as plain values. Pure.

As in ``frontend.job.figures``: colours are names of the style sheet, axes are in seconds or bytes.
``layout.meta.links`` has the address behind a click on a row of the picture, by the row's label.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from checkpoints.verdict.facts import Gate
from controlplane.base.formatting import duration, plural, size
from frontend.base.alignment import Measure, gate_counts, receiver_name
from frontend.checkpoint.queries import ChainSpan, GateSpan, SubtaskPhases
from frontend.job.figures import PHASES, heat_scale
from frontend.job.marks import Figure, plain

HEAT_CELLS_MAX = 10_000  # About 300 kB, and a rectangle of a few pixels each.
HEAT_ROWS_MAX = 60
STATE_BARS_MAX = 12
STATE_SHARE_MIN = 0.01  # Of the largest bar: a smaller one cannot be seen.

_LEGEND = {"orientation": "h", "traceorder": "normal", "x": 0, "y": 1, "yanchor": "bottom"}


def _layout(height: int, links: Mapping[str, str] | None = None, **parts: Any) -> Figure:
    return {
        "autosize": True,
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 40, "b": 12},
        "hovermode": "closest",
        "legend": _LEGEND,
        "meta": {"links": dict(links or {})},
        **parts,
    }


def _time_axis(title: str = "After the trigger") -> Figure:
    return {
        "title": {"text": title},
        "automargin": True,
        "tickformat": "~s",
        "ticksuffix": "s",
        "rangemode": "tozero",
        "nticks": 8,
        "zeroline": True,
    }


def _category_axis(rows: int) -> Figure:
    return {
        "automargin": True,
        "type": "category",  # Else a label of digits would be a number.
        "range": [max(rows, 1) - 0.5, -0.5],  # The first one on top.
        "showgrid": False,
        "ticksuffix": "  ",
    }


# The timeline -------------------------------------------------------------------------------------


def timeline_of_chains(
    spans: Sequence[ChainSpan], links: Mapping[str, str], ended_ms: float | None
) -> Figure:
    """One row per chain: the phases of its slowest subtask, and the range of its subtasks' ends.

    Args:
        spans: In the order of the stream.
        links: Addresses of a chain's subtasks, by its uid.
        ended_ms: When the checkpoint settled; None: it is under way.
    """
    labels = [plain(span.chain) for span in spans]
    bars = _bars(
        labels,
        [(s.start_delay_ms, s.alignment_ms, s.sync_ms, s.async_ms) for s in spans],
        [
            [
                f"{plain(span.chain)}-{span.slowest}, the slowest of {span.count:,}"
                if span.count > 1
                else f"{plain(span.chain)}-{span.slowest}"
            ]
            for span in spans
        ],
    )
    ranges: Figure = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "First to last subtask",
        "x": [x for s in spans for x in (s.least_total_ms / 1_000, s.most_total_ms / 1_000, None)],
        "y": [y for label in labels for y in (label, label, label)],
        "customdata": [
            text
            for s in spans
            for text in (
                f"first of {s.count:,} subtasks after {duration(s.least_total_ms)}",
                f"last of {s.count:,} subtasks after {duration(s.most_total_ms)}",
                "",
            )
        ],
        "hovertemplate": "%{y}: %{customdata}<extra></extra>",
        "line": {"color": "var(--text)", "width": 1.5},
        "marker": {"color": "var(--text)", "symbol": "line-ns-open", "size": 11},
    }
    return {
        "data": [*bars, ranges],
        "layout": _layout(
            120 + 44 * max(len(spans), 1),
            {
                label: links[s.chain]
                for label, s in zip(labels, spans, strict=True)
                if s.chain in links
            },
            barmode="overlay",
            bargap=0.4,
            xaxis=_time_axis(),
            yaxis=_category_axis(len(spans)),
            **_end(ended_ms),
        ),
    }


def timeline_of_subtasks(rows: Sequence[SubtaskPhases], ended_ms: float | None) -> Figure:
    """One row per subtask: its phases one after the other, and its acknowledgement."""
    labels = [plain(f"{row.chain}-{row.index}") for row in rows]
    bars = _bars(
        labels,
        [(r.start_delay_ms, r.alignment_ms, r.sync_ms, r.async_ms) for r in rows],
        [[label] for label in labels],
    )
    marks: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": "Acknowledged",
        "x": [row.acknowledged_ms / 1_000 for row in rows],
        "y": labels,
        "customdata": [duration(row.acknowledged_ms) for row in rows],
        "hovertemplate": "%{y}: acknowledged after %{customdata}<extra></extra>",
        "marker": {
            "color": "var(--text)",
            "symbol": "line-ns-open",
            "size": 10,
            "line": {"width": 2},
        },
    }
    return {
        "data": [*bars, marks],
        "layout": _layout(
            110 + (26 if len(rows) <= 24 else 18) * max(len(rows), 2),
            barmode="overlay",
            bargap=0.3,
            xaxis=_time_axis(),
            yaxis=_category_axis(len(rows)),
            **_end(ended_ms),
        ),
    }


def overview_of_subtasks(rows: Sequence[SubtaskPhases], ended_ms: float | None) -> Figure:
    """All subtasks of a chain as one shape, the slowest first; thousands fit into it."""
    ranks = list(range(1, len(rows) + 1))
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "orientation": "h",
                "stackgroup": "phases",
                "name": name,
                "x": [round(getattr(row, column) / 1_000, 6) for row in rows],
                "y": ranks,
                "customdata": [
                    [plain(f"{row.chain}-{row.index}"), duration(getattr(row, column))]
                    for row in rows
                ],
                "hovertemplate": f"%{{customdata[0]}}<br>{name}: %{{customdata[1]}}<extra></extra>",
                "line": {"width": 0, "color": color},
                "fillcolor": color,
            }
            for column, name, color in PHASES
        ],
        "layout": _layout(
            480,
            xaxis=_time_axis(),
            yaxis={
                "title": {"text": "Subtasks, the slowest first"},
                "automargin": True,
                "autorange": "reversed",
                "tickformat": ",d",
                "showgrid": False,
                "zeroline": False,
            },
            **_end(ended_ms),
        ),
    }


def _bars(
    labels: Sequence[str],
    phases: Sequence[tuple[float, float, float, float]],
    names: Sequence[list[str]],
) -> list[Figure]:
    bars, begins = [], [0.0] * len(labels)
    for at, (_, name, color) in enumerate(PHASES):
        lengths = [row[at] for row in phases]
        bars.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": list(labels),
                "base": [begin / 1_000 for begin in begins],
                "x": [length / 1_000 for length in lengths],
                "customdata": [
                    [who[0], duration(length), duration(begin)]
                    for who, length, begin in zip(names, lengths, begins, strict=True)
                ],
                "hovertemplate": f"%{{customdata[0]}}<br>{name}: %{{customdata[1]}}, from "
                "%{customdata[2]} after the trigger<extra></extra>",
                "marker": {"color": color, "line": {"width": 0}},
            }
        )
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    return bars


def _end(ended_ms: float | None) -> Figure:
    """A line at the end of the checkpoint."""
    if ended_ms is None:
        return {}
    return {
        "shapes": [
            {
                "type": "line",
                "x0": ended_ms / 1_000,
                "x1": ended_ms / 1_000,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": "var(--quiet)", "width": 1.5, "dash": "dot"},
            }
        ],
    }


# Alignment ----------------------------------------------------------------------------------------


def pair_map(
    spans: Sequence[GateSpan],
    names: Sequence[str],
    links: Mapping[str, str],
    *,
    by: Measure,
) -> Figure:
    """Receiving × sending operator: the latest barrier, the longest blocked channel, or all data.

    Args:
        names: Names of the receiving inputs, one per span.
        links: Addresses of an input's channels, by its name.
    """
    rows = list(dict.fromkeys(names))
    columns = list(dict.fromkeys(sender_of(span.first_sender) for span in spans))
    values: dict[tuple[str, str], GateSpan] = {
        (name, sender_of(span.first_sender)): span for name, span in zip(names, spans, strict=True)
    }

    def value(span: GateSpan) -> float | None:
        match by:
            case Measure.ARRIVED:
                return _seconds(span.most_arrived_ms)
            case Measure.BLOCKED:
                return _seconds(span.most_blocked_ms)
            case Measure.IN_FLIGHT:
                return span.in_flight_bytes

    def text(span: GateSpan) -> str:
        match by:
            case Measure.ARRIVED:
                return duration(span.most_arrived_ms)
            case Measure.BLOCKED:
                return duration(span.most_blocked_ms)
            case Measure.IN_FLIGHT:
                return size(span.in_flight_bytes)

    def about(span: GateSpan) -> str:
        match by:
            case Measure.ARRIVED:
                within = duration(span.p95_arrived_ms)
            case Measure.BLOCKED:
                within = duration(span.p95_blocked_ms)
            case Measure.IN_FLIGHT:
                return f"{text(span)} on {plural(span.channels, 'channel')}"
        return f"at most {text(span)}<br>95 % of the subtasks within {within}"

    spans_by_place = [[values.get((row, column)) for column in columns] for row in rows]
    z = [[None if span is None else value(span) for span in row] for row in spans_by_place]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [plain(column) for column in columns],
                "y": [plain(row) for row in rows],
                "z": z,
                "text": [
                    ["" if span is None else text(span) for span in row] for row in spans_by_place
                ],
                "customdata": [
                    ["" if span is None else about(span) for span in row] for row in spans_by_place
                ],
                "texttemplate": "%{text}",
                "hovertemplate": "%{x} → %{y}<br>%{customdata}<extra></extra>",
                "hoverongaps": False,
                **_heat_scale(z, by),
            }
        ],
        "layout": _layout(
            150 + 38 * max(len(rows), 2),
            {plain(name): links[name] for name in rows if name in links},
            showlegend=False,
            xaxis=_heat_axis("Sending operator"),
            yaxis=_category_axis(len(rows)),
        ),
    }


def channel_map(gates: Sequence[Gate], *, by: Measure) -> Figure:
    """Receiving subtask × sending subtask: the barrier's arrival, the blocked time, or the data.

    Args:
        gates: The slowest or largest gates, these first: rows from the top.
    """
    counts = gate_counts(gates)
    # In the order of the channels, which all gates of one operator share.
    columns = list(dict.fromkeys(sender for gate in gates for sender in gate.upstream))
    rows = [plain(receiver_name(gate, counts)) for gate in gates]
    z: list[list[float | None]] = []
    others: list[list[list[float | None]]] = []
    first, *rest = (by, *(other for other in Measure if other is not by))
    for gate in gates:
        values = {measure: _values(gate, measure) for measure in Measure}
        by_sender = {
            sender: (values[first][at], [values[other][at] for other in rest], during)
            for at, (sender, during) in enumerate(
                zip(gate.upstream, gate.bytes_during, strict=True)
            )
        }
        z.append([by_sender[sender][0] if sender in by_sender else None for sender in columns])
        others.append(
            [
                [*by_sender[sender][1], by_sender[sender][2]]
                if sender in by_sender
                else [None, None, None]
                for sender in columns
            ]
        )
    lines = [
        _SAID[first].format("z"),
        *(_SAID[other].format(f"customdata[{at}]") for at, other in enumerate(rest)),
        "%{customdata[2]:.3s}B during the alignment",
    ]
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [plain(column) for column in columns],
                "y": rows,
                "z": z,
                "customdata": others,
                "hovertemplate": f"%{{x}} → %{{y}}<br>{'<br>'.join(lines)}<extra></extra>",
                "hoverongaps": False,
                "xgap": 1 if len(columns) <= 64 else 0,
                "ygap": 1 if len(rows) <= 64 else 0,
                **_heat_scale(z, by),
            }
        ],
        "layout": _layout(
            150 + (26 if len(rows) <= 16 else 15) * max(len(rows), 3),
            showlegend=False,
            xaxis=_heat_axis("Sending subtask") | {"nticks": 16},
            yaxis=_category_axis(len(rows)),
        ),
    }


_SAID = {
    Measure.ARRIVED: "barrier arrived after %{{{}:.3s}}s",
    Measure.BLOCKED: "blocked for %{{{}:.3s}}s",
    Measure.IN_FLIGHT: "%{{{}:.3s}}B persisted in flight",
}


def _values(gate: Gate, measure: Measure) -> Sequence[float | None]:
    """The values of a gate's channels, in seconds or bytes."""
    match measure:
        case Measure.ARRIVED:
            return [_seconds(ms) for ms in gate.arrived_ms]
        case Measure.BLOCKED:
            return [_seconds(ms) for ms in gate.blocked_ms]
        case Measure.IN_FLIGHT:
            return gate.in_flight or [0] * len(gate.upstream)


def heat_rows(columns: int) -> int:
    """The most rows of a heat map with this number of columns."""
    return max(1, min(HEAT_ROWS_MAX, HEAT_CELLS_MAX // max(columns, 1)))


def sender_of(subtask: str) -> str:
    """The operator in the name of a subtask."""
    return subtask.rpartition("-")[0] or subtask


def input_name(receiver: str, gate: int, inputs: int) -> str:
    """The name of a receiving operator, with the input's number where it has several."""
    return receiver if inputs == 1 else f"{receiver} input {gate + 1}"


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms / 1_000, 6)


def _heat_scale(z: Sequence[Sequence[float | None]], by: Measure) -> Figure:
    most = max((value for row in z for value in row if value is not None), default=0.0)
    match by:
        case Measure.ARRIVED:
            return heat_scale(most, "Barrier after<br>the first")
        case Measure.BLOCKED:
            return heat_scale(most, "Blocked")
        case Measure.IN_FLIGHT:
            return heat_scale(most, "In flight", unit="B")


def _heat_axis(title: str) -> Figure:
    return {
        "title": {"text": title},
        "automargin": True,
        "type": "category",
        "showgrid": False,
    }


# State --------------------------------------------------------------------------------------------


def state_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The state sizes of the operators with the largest state, here and in the checkpoint before.

    Args:
        rows: The result of ``details.states``.
    """
    sizes = {row["uid"]: max(row["state_bytes"], row["before_bytes"] or 0) for row in rows}
    least = STATE_SHARE_MIN * max(sizes.values(), default=0)
    largest = sorted(
        (row for row in rows if sizes[row["uid"]] and sizes[row["uid"]] >= least),
        key=lambda row: -sizes[row["uid"]],
    )[:STATE_BARS_MAX]
    labels = [plain(row["uid"]) for row in largest]
    series = [("This checkpoint", "state_bytes", "var(--accent)")]
    if any(row["before_bytes"] is not None for row in largest):
        series.append(("Checkpoint before", "before_bytes", "var(--blocked)"))
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": [row[column] for row in largest],
                "customdata": [size(row[column]) for row in largest],
                "hovertemplate": f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
                "marker": {"color": color, "line": {"width": 0}},
            }
            for name, column, color in series
        ],
        "layout": _layout(
            110 + 34 * max(len(largest), 1),
            barmode="group",
            bargap=0.35,
            bargroupgap=0.1,
            xaxis={
                "title": {"text": "State size"},
                "automargin": True,
                "tickformat": "~s",
                "ticksuffix": "B",
                "rangemode": "tozero",
                "nticks": 6,
            },
            yaxis=_category_axis(len(largest)),
        ),
    }
