"""Whether plotly.js could draw a figure."""

import json
import re
from typing import Any

import plotly.graph_objects as go

# Of the small bundle, as its index lists them.
CARTESIAN = {
    "bar", "box", "contour", "heatmap", "histogram", "histogram2d", "histogram2dcontour", "image",
    "pie", "scatter", "scatterternary", "violin",
}  # fmt: skip


def is_valid(figure: dict[str, Any]) -> bool:
    """Whether the small bundle has all its traces.

    Raises where it is no JSON, or Plotly does not know a property or refuses a value.
    """
    coloured = re.sub(r'"var\(--[\w-]+\)"', '"#123456"', json.dumps(figure, allow_nan=False))
    go.Figure(json.loads(coloured))
    return {trace["type"] for trace in figure["data"]} <= CARTESIAN
