"""A job's recent checkpoints as small bars: the duration of each, and which ones failed. Pure.

The height of a bar is the checkpoint's duration relative to the longest; a failed one is a cross at
the base line instead, so that its shape tells. The server draws two paths of an SVG; colours come
from the style sheet, and a sentence says the same for screen readers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.base.formatting import duration, plural
from weir.protocol.lifecycle import CheckpointStatus

SHOWN = 24
STEP = 5  # From one bar to the next, in pixels, as all lengths here.
WIDTH = SHOWN * STEP
HEIGHT = 28
_BASE = HEIGHT - 1
_LEAST = 2  # A bar of no duration can still be seen.
_CROSS_WIDTH, _CROSS_HEIGHT = 4, 7


@dataclass(frozen=True, slots=True)
class Point:
    """One settled checkpoint."""

    duration_ms: float | None
    status: str = CheckpointStatus.COMPLETED
    reason: str = ""  # Of its failure.

    @property
    def is_failed(self) -> bool:
        """Whether the checkpoint failed."""
        return self.status == CheckpointStatus.FAILED


def draw(points: Sequence[Point]) -> dict[str, str]:
    """The paths and the sentence of the sparkline.

    Args:
        points: Newest first, as they are read; the newest is drawn at the right.

    Shape: ``{"bars": path data, "failed": path data, "text": str}``; empty without checkpoints.
    """
    points = points[:SHOWN]
    if not points:
        return {"bars": "", "failed": "", "text": "No checkpoint has completed or failed yet."}
    longest = max((point.duration_ms or 0.0 for point in points if not point.is_failed), default=0)
    bars, crosses = [], []
    for back, point in enumerate(points):
        x = WIDTH - STEP / 2 - back * STEP
        if point.is_failed:
            left, right, top = x - _CROSS_WIDTH / 2, x + _CROSS_WIDTH / 2, _BASE - _CROSS_HEIGHT
            crosses.append(
                f"M{left:g} {top:g}L{right:g} {_BASE:g}M{left:g} {_BASE:g}L{right:g} {top:g}"
            )
        else:
            share = (point.duration_ms or 0.0) / longest if longest else 0.0
            bars.append(f"M{x:g} {HEIGHT}V{HEIGHT - max(_LEAST, round(share * (HEIGHT - 2), 1)):g}")
    return {"bars": "".join(bars), "failed": "".join(crosses), "text": _said(points)}


def _said(points: Sequence[Point]) -> str:
    failed = sum(point.is_failed for point in points)
    took = [point.duration_ms or 0.0 for point in points if not point.is_failed]
    if not took:
        return (
            f"The last {plural(failed, 'checkpoint')} failed."
            if failed > 1
            else "The last checkpoint failed."
        )
    shortest, longest = duration(min(took)), duration(max(took))
    span = shortest if shortest == longest else f"{shortest} to {longest}"
    said = f"Durations of the last {plural(len(points), 'checkpoint')}: {span}"
    newest = "failed" if points[0].is_failed else f"took {duration(points[0].duration_ms)}"
    return f"{said}; {failed} failed; the newest {newest}."
