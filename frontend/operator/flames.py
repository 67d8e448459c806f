"""Sampled stacks -> an icicle of where the time goes, as a Plotly figure, and as a table. Pure.

A box is a call; its width is its share of the samples that met the subtasks at work, and the boxes
below are the calls that it made. A row above the calls of an operator names it. Bars draw it, since
the small bundle of plotly.js has no icicles.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.base.formatting import number
from frontend.job.marks import plain
from frontend.operator.figures import percent
from jobs.inspections.flames import Flames
from weir.protocol.inspection import StackFrame

Figure = dict[str, Any]
Json = dict[str, Any]

ROW_PX = 22
SHARE_MIN = 0.002  # Narrower boxes are left out: a pixel or two.
TABLE_ROWS = 20
_AROUND = "var(--sunken)"  # Calls outside of the operators.
_COLORS = ("var(--busy-back)", "var(--good-back)", "var(--warn-back)", "var(--accent-faint)")


@dataclass(slots=True)
class Box:
    """A call, or an operator, with all that it calls."""

    operator: str
    frame: StackFrame | None  # None: the row that names the operator.
    count: int = 0
    inner: dict[tuple[str, StackFrame | None], "Box"] = field(default_factory=dict)

    def into(self, operator: str, frame: StackFrame | None, count: int) -> "Box":
        """The box of a call within this one, which so many more samples met."""
        key = operator, frame
        box = self.inner.get(key)
        if box is None:
            box = self.inner[key] = Box(operator, frame)
        box.count += count
        return box

    @property
    def label(self) -> str:
        """Function and line, or the operator."""
        if self.frame is None:
            return self.operator
        return f"{self.frame.function}  {place(self.frame)}"


def place(frame: StackFrame) -> str:
    """``"orders.py:41"``."""
    return f"{frame.file}:{frame.line}"


def tree(flames: Flames) -> Box:
    """All calls, outermost first; the root is what the samples at work have in common."""
    root = Box("", None, sum(count for _, count in flames.stacks))
    for frames, count in flames.stacks:
        box = root
        for frame in frames:
            if frame.operator and frame.operator != box.operator:
                box = box.into(frame.operator, None, count)
            box = box.into(frame.operator, frame, count)
    return root


@dataclass(frozen=True, slots=True)
class Placed:
    """A box and its place. Units: rows from the top; shares of the width, 0 to 1."""

    box: Box
    row: int
    left: float
    share: float


def boxes(root: Box) -> Iterator[Placed]:
    """The boxes that are wide enough to be seen; neighbours from the widest on."""
    waiting = [(root, -1, 0.0)]
    while waiting:
        box, row, left = waiting.pop()
        for inner in sorted(box.inner.values(), key=lambda one: -one.count):
            share = inner.count / root.count
            if share >= SHARE_MIN:
                yield Placed(inner, row + 1, left, share)
                waiting.append((inner, row + 1, left))
            left += share


def figure(flames: Flames) -> Figure:
    """The icicle."""
    root = tree(flames)
    placed = list(boxes(root)) if root.count else []
    colors = _colors(placed)
    rows = 1 + max((one.row for one in placed), default=0)
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "base": [round(one.left, 5) for one in placed],
                "x": [round(one.share, 5) for one in placed],
                "y": [one.row for one in placed],
                "width": 0.94,
                "meta": [one.box.label for one in placed],  # As long as each box has room for.
                "text": [plain(one.box.label) for one in placed],
                "customdata": [_told(one, flames) for one in placed],
                "hovertemplate": "%{customdata}<extra></extra>",
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "insidetextfont": {"color": "var(--text)"},
                "marker": {
                    "color": [colors[one.box.operator] for one in placed],
                    "line": {"color": "var(--line)", "width": 1},
                },
                "showlegend": False,
            }
        ],
        "layout": {
            "autosize": True,
            "height": 44 + ROW_PX * rows,
            "margin": {"l": 4, "r": 4, "t": 8, "b": 30},
            "hovermode": "closest",
            "showlegend": False,
            "uniformtext": {"minsize": 10, "mode": "hide"},
            "xaxis": {"range": [0, 1], "tickformat": ".0%", "nticks": 6, "showgrid": False},
            "yaxis": {
                "range": [rows - 0.5, -0.5],
                "visible": False,
                "fixedrange": True,
            },
        },
    }


def _colors(placed: Sequence[Placed]) -> Mapping[str, str]:
    """A colour for each operator, in the order of their boxes, from the top and the left."""
    ordered = sorted(placed, key=lambda one: (one.row, one.left))
    uids = dict.fromkeys(one.box.operator for one in ordered if one.box.operator)
    return {"": _AROUND} | {uid: _COLORS[at % len(_COLORS)] for at, uid in enumerate(uids)}


def _told(one: Placed, flames: Flames) -> str:
    box = one.box
    lines = [plain(box.operator or "around the operators")]
    if box.frame is not None:
        lines = [
            plain(box.frame.function),
            f"{plain(box.frame.file)}, line {box.frame.line}",
            f"Operator: {plain(box.operator)}" if box.operator else "Around the operators",
        ]
    of_all = box.count / flames.samples
    lines.append(f"{percent(one.share)} of the work, {percent(of_all)} of the time")
    return "<br>".join(lines)


def summary(flames: Flames) -> str:
    """The shares of the loop's time in a sentence."""
    if not flames.samples:
        return "No sample has been taken yet: the worker process has only just begun."
    seconds = f"{flames.span_ms / 1_000:.0f} seconds"
    of = "" if flames.subtasks == 1 else f" of {flames.subtasks} subtasks"
    shares = (
        ("at work", flames.work),
        ("idle, waiting for input, credit or a timer", flames.waiting),
        ("in other subtasks of the slot", flames.others),
        ("in Weir’s own loop", flames.runtime),
    )
    told = ", ".join(
        f"{percent(count / flames.samples)} {what}"
        for at, (what, count) in enumerate(shares)
        if count or at < 2
    )
    return f"{number(flames.samples)} samples of the last {seconds}{of}: {told}."


def table(flames: Flames) -> list[Json]:
    """The calls that most samples met at their innermost, with their shares of the work."""
    own: Counter[StackFrame] = Counter()
    total: Counter[StackFrame] = Counter()
    for frames, count in flames.stacks:
        if frames:
            own[frames[-1]] += count
        for frame in set(frames):
            total[frame] += count
    return [
        {
            "function": frame.function,
            "place": place(frame),
            "operator": frame.operator or "–",
            "own": percent(count / flames.work),
            "total": percent(total[frame] / flames.work),
        }
        for frame, count in own.most_common(TABLE_ROWS)
    ]
