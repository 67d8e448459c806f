"""A job's recent checkpoints as small bars: the duration of each, and those that did not complete.

All sparklines have one scale, so that bars of different jobs, pages and days compare: each tenfold
duration is one step higher, from ``FROM_MS`` at the base line to ``UP_TO_MS``. A failed checkpoint
is a cross at the base line instead, an aborted one a dash, so that their shapes tell. The server
draws three paths of an SVG; colours come from the style sheet, and a sentence says the same for
screen readers. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

from checkpoints.conditions.reasons import reason_text
from controlplane.base.formatting import duration, interval, plural
from weir.protocol.lifecycle import CheckpointStatus

SHOWN = 24
STEP = 5  # From one bar to the next, in pixels, as all lengths here.
WIDTH = SHOWN * STEP
HEIGHT = 28
FROM_MS, UP_TO_MS = 10.0, 100_000.0
_BASE = HEIGHT - 1
_LEAST = 2  # A bar of no duration can still be seen.
_CROSS_WIDTH, _CROSS_HEIGHT = 4, 7
_DASH_HEIGHT = 4  # Above the base line.

SCALE = (
    "Duration of each, the newest at the right, on one scale for all jobs: each tenfold duration "
    f"is one step higher, from {interval(FROM_MS)} at the line to {duration(UP_TO_MS)}. "
    "A cross is a failed one, a dash an aborted one."
)


@dataclass(frozen=True, slots=True)
class Point:
    """One settled checkpoint."""

    duration_ms: float | None
    status: str = CheckpointStatus.COMPLETED
    reason: str = ""  # Of its failure or its end.

    @property
    def is_failed(self) -> bool:
        """Whether the checkpoint failed."""
        return self.status == CheckpointStatus.FAILED

    @property
    def is_aborted(self) -> bool:
        """Whether the checkpoint ended before it completed, without a failure."""
        return self.status == CheckpointStatus.ABORTED

    @property
    def is_whole(self) -> bool:
        """Whether the checkpoint completed."""
        return not (self.is_failed or self.is_aborted)


def draw(points: Sequence[Point]) -> dict[str, str]:
    """The paths and the sentence of the sparkline.

    Args:
        points: Newest first, as they are read; the newest is drawn at the right.

    Shape: ``{"bars", "failed", "aborted": path data, "text": str}``; empty without checkpoints.
    """
    points = points[:SHOWN]
    if not points:
        text = "No checkpoint has completed or failed yet."
        return {"bars": "", "failed": "", "aborted": "", "text": text}
    bars, crosses, dashes = [], [], []
    for back, point in enumerate(points):
        x = WIDTH - STEP / 2 - back * STEP
        left, right = x - _CROSS_WIDTH / 2, x + _CROSS_WIDTH / 2
        if point.is_failed:
            top = _BASE - _CROSS_HEIGHT
            crosses.append(
                f"M{left:g} {top:g}L{right:g} {_BASE:g}M{left:g} {_BASE:g}L{right:g} {top:g}"
            )
        elif point.is_aborted:
            dashes.append(f"M{left:g} {_BASE - _DASH_HEIGHT:g}H{right:g}")
        else:
            bars.append(f"M{x:g} {HEIGHT}V{HEIGHT - _bar(point.duration_ms or 0.0):g}")
    return {
        "bars": "".join(bars),
        "failed": "".join(crosses),
        "aborted": "".join(dashes),
        "text": _said(points),
    }


def _bar(duration_ms: float) -> float:
    """The height of a bar."""
    share = log10(max(duration_ms, FROM_MS) / FROM_MS) / log10(UP_TO_MS / FROM_MS)
    return max(_LEAST, round(min(share, 1.0) * (HEIGHT - 2), 1))


def _said(points: Sequence[Point]) -> str:
    took = [point.duration_ms or 0.0 for point in points if point.is_whole]
    ended = _ended(points)
    if not took:
        count = plural(len(points), "checkpoint")
        return f"None of the last {count} completed: {', '.join(ended)}."
    shortest, longest = duration(min(took)), duration(max(took))
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    said = f"Durations of the last {plural(len(points), 'checkpoint')}: {span}"
    newest = points[0]
    how = "failed" if newest.is_failed else "was aborted" if newest.is_aborted else ""
    how = how or f"took {duration(newest.duration_ms)}"
    return "; ".join([said, *(ended or ["none failed"]), f"the newest {how}"]) + "."


def _ended(points: Sequence[Point]) -> list[str]:
    """The numbers of failed and aborted checkpoints, each with the reason of the newest."""
    parts = []
    for which, word in (
        ([point for point in points if point.is_failed], "failed"),
        ([point for point in points if point.is_aborted], "aborted"),
    ):
        if which:
            because = reason_text(which[0].reason)
            parts.append(f"{len(which)} {word}{f' ({because})' if because else ''}")
    return parts
