"""The comparison of modes as one HTML file with charts, which needs no network.

plotly.js lies inside, as the Python package ``plotly`` carries it: 4.8 MB. The package is not
imported, and only this page needs it.
"""

import html
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weir.errors import ConfigError

Figure = dict[str, Any]

_SOURCE, _SINK, _LOST = "#3b76af", "#e08a2e", "#b3403a"
_STEPS = (("median", "median", "#3b76af"), ("p95", "p95", "#e0a030"), ("p99", "p99", "#b3403a"))

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; }}
body {{ padding: 0 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
.chart {{ height: 24rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{setting}</p>
{table}
<p>Rates leave out the first fifth of each run and are medians of the rounds. A checkpoint that was
under way when a run ended is a triangle: it would have taken longer than that. <em>Barrier to
sinks</em> is the time from the trigger until a sink's subtask had its last barrier: where barriers
are aligned a record takes as long; unaligned barriers overtake the records, whose latency is then
not measured.</p>
{charts}
<script>{bundle}</script>
<script>
const figures = {figures};
figures.forEach((figure, index) =>
  Plotly.newPlot("chart-" + index, figure.data, figure.layout,
    {{responsive: true, displaylogo: false}}));
</script>
</body>
</html>
"""


def plotly_bundle() -> Path:
    """The file of plotly.js in the Python package ``plotly``.

    Raises:
        ConfigError: The package is not installed.
    """
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise ConfigError(
            "--html needs plotly.js, which comes with the package plotly: pip install 'plotly>=6'"
        )
    return Path(package.origin).with_name("package_data") / "plotly.min.js"


def write_page(
    file: Path, bundle: Path, comparison: dict[str, Any], rows: Sequence[Sequence[str]]
) -> None:
    """Write the page.

    Args:
        bundle: The file of plotly.js.
        comparison: The comparison as its JSON document.
        rows: The table, its first row with the titles of the modes.

    Raises:
        ConfigError: The file cannot be written.
    """
    figures = make_figures(comparison, rows[0][1:])
    page = _PAGE.format(
        title=html.escape(f"Modes of checkpoints: {comparison['job']}"),
        setting=html.escape(_setting(comparison)),
        table=_table(rows),
        charts="\n".join(
            f'<div class="chart" id="chart-{index}" role="img" '
            f'aria-label="{html.escape(figure["layout"]["title"]["text"])}"></div>'
            for index, figure in enumerate(figures)
        ),
        bundle=bundle.read_text(encoding="utf-8"),
        # The text </script> within a name would end the script.
        figures=json.dumps(figures).replace("</", "<\\/"),
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html: {file} cannot be written: {error.strerror or error}") from error


def make_figures(comparison: dict[str, Any], titles: Sequence[str]) -> list[Figure]:
    """The charts as plain values; ``titles`` are those of the modes, in order."""
    modes = comparison["modes"]
    return [
        _throughput(modes, titles),
        _durations(modes, titles),
        _travel(modes, titles),
        _sizes(modes, titles),
    ]


def _setting(comparison: dict[str, Any]) -> str:
    return (
        f"{comparison['pipeline']} on {comparison['master']}, parallelism "
        f"{comparison['parallelism']}; a checkpoint every {comparison['interval_ms']:,} ms; "
        f"rounds: {comparison['rounds']}, each mode at most {comparison['seconds_max']} s in each."
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ([html.escape(cell) for cell in row] for row in rows)
    lines = ["<table><thead><tr>", *(f"<th>{cell}</th>" for cell in head), "</tr></thead><tbody>"]
    for row in body:
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return "".join([*lines, "</tbody></table>"])


def _layout(title: str, axis: str, **parts: Any) -> Figure:
    return {
        "title": {"text": title},
        "yaxis": {"title": {"text": axis}, "automargin": True, "rangemode": "tozero"},
        "xaxis": {"type": "category", "automargin": True},
        "margin": {"l": 12, "r": 12, "t": 48, "b": 12},
        "legend": {"orientation": "h", "y": -0.15},
        **parts,
    }


def _throughput(modes: Sequence[dict[str, Any]], titles: Sequence[str]) -> Figure:
    def bars(name: str, key: str, color: str) -> Figure:
        rates = [mode[key] for mode in modes]
        return {
            "type": "bar",
            "name": name,
            "x": list(titles),
            "y": [rate and rate["median"] for rate in rates],
            "error_y": {
                "type": "data",
                "array": [rate["most"] - rate["median"] if rate else 0 for rate in rates],
                "arrayminus": [rate["median"] - rate["least"] if rate else 0 for rate in rates],
            },
            "marker": {"color": color},
        }

    return {
        "data": [
            bars("out of sources", "source_records_per_s", _SOURCE),
            bars("into the chains of sinks", "sink_records_per_s", _SINK),
        ],
        "layout": _layout("Throughput", "records per second", barmode="group"),
    }


def _durations(modes: Sequence[dict[str, Any]], titles: Sequence[str]) -> Figure:
    data: list[Figure] = [
        {
            "type": "box",
            "name": title,
            "x": [title] * len(mode["durations_ms"]),
            "y": list(mode["durations_ms"]),
            "boxpoints": "all",
            "jitter": 0.4,
            "pointpos": 0,
            "marker": {"color": _SOURCE, "size": 5},
            "showlegend": False,
        }
        for mode, title in zip(modes, titles, strict=True)
    ]
    lost = [
        (title, mode["cut_off_longest_ms"])
        for mode, title in zip(modes, titles, strict=True)
        if mode["cut_off_longest_ms"] is not None
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "cut off by the end of a run, after",
            "x": [title for title, _ in lost],
            "y": [ms for _, ms in lost],
            "marker": {"symbol": "triangle-up-open", "size": 12, "color": _LOST},
        }
    )
    layout = _layout("Duration of checkpoints", "milliseconds, logarithmic")
    layout["yaxis"] |= {"type": "log"}
    layout["xaxis"] |= {"categoryorder": "array", "categoryarray": list(titles)}
    return {"data": data, "layout": layout}


def _travel(modes: Sequence[dict[str, Any]], titles: Sequence[str]) -> Figure:
    travels = [mode["barrier_to_sinks_ms"] for mode in modes]
    data = [
        {
            "type": "bar",
            "name": name,
            "x": list(titles),
            "y": [travel and travel[key] for travel in travels],
            "marker": {"color": color},
        }
        for key, name, color in _STEPS
    ]
    return {"data": data, "layout": _layout("Barrier to sinks", "milliseconds", barmode="group")}


def _sizes(modes: Sequence[dict[str, Any]], titles: Sequence[str]) -> Figure:
    parts = (("state", "state_bytes", _SOURCE), ("in flight", "in_flight_bytes", _SINK))
    data = [
        {
            "type": "bar",
            "name": name,
            "x": list(titles),
            "y": [mode[key] and mode[key]["median"] for mode in modes],
            "marker": {"color": color},
        }
        for name, key, color in parts
    ]
    return {
        "data": data,
        "layout": _layout("Size of a checkpoint, median", "bytes", barmode="group"),
    }
