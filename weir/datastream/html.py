"""Streams and results as a notebook shows them: one line, or one small table."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.datastream.execution import JobExecutionResult
    from weir.datastream.transformation import End, Transformation

NOTES_MAX = 5  # Of a job's notices, the newest.


def stream_html(kind: str, ends: Sequence["End"]) -> str:
    """The operators that lead to a stream, from the source on, by their first inputs."""
    lines = [" → ".join(escape(t.label) for t in _way_to(end.of)) for end in ends]
    return f"<code>{escape(kind)}</code> {'<br>'.join(dict.fromkeys(lines))}"


def result_html(result: "JobExecutionResult") -> str:
    """A job that has finished: its id, its time, its checkpoints and its recoveries."""
    rows = [("job", result.job_id), ("ran", f"{result.net_runtime_ms / 1_000:.1f} s")]
    history = result.history
    if history is not None:
        failed = f", {history.failed_count} failed" if history.failed_count else ""
        rows.append(("checkpoints", f"{history.completed_count} completed{failed}"))
        rows.append(("recoveries", str(len(history.recoveries))))
    if result.collected:
        rows.append(("collected", f"{len(result.collected)} records"))
    if history is not None:
        rows.extend(("note", notice.text) for notice in history.notices[-NOTES_MAX:])
    return table_html(result.name, rows)


def table_html(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


def _way_to(last: "Transformation") -> list["Transformation"]:
    way = [last]
    while way[0].inputs:
        way.insert(0, way[0].inputs[0].of)
    return [t for t in way if t.companion_of is None]
