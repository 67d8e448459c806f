"""The answers that pages show, made by what makes them: previews and comparisons of real state.

Each is a document as an operation keeps it: out of JSON, and small. They are built where they are
used, so that a page which no longer understands its document fails.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.unit.tools.test_comparison import Output
from tests.unit.tools.test_preview import (
    DOUBLE,
    INT,
    LARGE,
    LONG,
    SMALL,
    STRING,
    Keyed,
    Program,
    checkpoint,
    previewed,
)
from tests.unit.tools.test_rollback_preview import Job
from weir.cli.compare import document
from weir.protocol.wire import to_wire
from weir.storage.memory import MemoryStore
from weir.tools.output_comparison import compare

Document = dict[str, Any]

BEFORE = Program(
    {
        "hourly": Keyed({"kept": ("value", LONG), "wider": ("list", INT), "row": ("map", SMALL)}),
        "late": Keyed({"count": ("value", LONG)}, parallelism=2),
        "totals": Keyed({"sum": ("value", LONG), "mean": ("value", LONG)}, parallelism=2),
    },
    source_parallelism=3,
)
AFTER = {
    "hourly": Keyed(
        {
            "kept": ("value", LONG),
            "wider": ("list", DOUBLE),
            "row": ("map", LARGE),
            "added": ("value", STRING),
        }
    ),
    "totals": Keyed({"sum": ("value", LONG)}, parallelism=3),
    "fresh": Keyed({"x": ("value", LONG)}),
}


def restore(directory: Path) -> Document:
    """Of a restore that works, with operators and states kept, converted, new and dropped."""
    checkpoint(BEFORE, directory)
    return _stored(to_wire(previewed(Program(AFTER, source_parallelism=2, allow=True), directory)))


def refused_restore(directory: Path) -> Document:
    """Of a restore that is refused: state of an operator would be lost, another's has no map."""
    checkpoint(BEFORE, directory)
    totals = Keyed({"sum": ("value", LONG), "mean": ("value", STRING)}, parallelism=3)
    return _stored(to_wire(previewed(Program({**AFTER, "totals": totals}), directory)))


def rollback(output: Path, to: int = 4, **changes: Any) -> Document:
    """Of a rollback from checkpoint 8, whose attempt had gone on from 4, with files of output."""
    job = Job(MemoryStore(), output)
    for number in (3, 4, 7, 8):
        job.file(number, size=310_000 * number)
    for number in (5, 6):
        job.file(number, 280_000, directory="_withdrawn/job-1")
    return _stored(to_wire(job.preview(to, **changes)))


def comparison(directory: Path, *, is_equal: bool, operator: str = "hourly-sink") -> Document:
    """Of one output of two jobs; the fork has begun two windows later and is one behind."""
    carriers = ["AA", "DL", "UA", "WN"]
    start = datetime(2025, 1, 1, tzinfo=UTC)

    def output(name: str, windows: range, scale: float = 1.0) -> Output:
        made = Output(directory / name / operator)
        rows = [
            (start + timedelta(hours=hour), carrier) for hour in windows for carrier in carriers
        ]
        columns = {
            "window_start": pa.array([at for at, _ in rows], pa.timestamp("ms", "UTC")),
            "carrier": [carrier for _, carrier in rows],
            "flights": [len(carrier) * at.hour + 3 for at, carrier in rows],
            "mean_delay_min": [
                round(at.hour * 1.5 * (scale if (carrier, at.hour) == ("UA", 9) else 1.0), 2)
                for at, carrier in rows
            ],
        }
        return made.commit(columns)

    left = output("flights", range(24))
    right = output("trial", range(2, 23), 1.0 if is_equal else 1.2)
    if not is_equal:
        right.commit(
            {
                "window_start": pa.array([start + timedelta(hours=5)], pa.timestamp("ms", "UTC")),
                "carrier": ["B6"],
                "flights": [2],
                "mean_delay_min": [None],
            }
        )
    compared = document(compare(left.path, right.path, key=["carrier"], window=["window_start"]))
    return _stored({"operator": operator, **compared})


def _stored(value: Any) -> Document:
    """As PostgreSQL gives it back: keys in an order of its own."""

    def sorted_by_length(pairs: list[tuple[str, Any]]) -> Document:
        return dict(sorted(pairs, key=lambda pair: (len(pair[0]), pair[0])))

    as_stored: Document = json.loads(json.dumps(value), object_pairs_hook=sorted_by_length)
    return as_stored
