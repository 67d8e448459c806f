"""Outputs of a soak's programs, compared with their meaning: lost, duplicated, out of order."""

import base64
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.programs.check import Meaning
from tests.programs.model import Order, Output, Program
from tests.programs.values import remove_files
from tests.soak.drawn import Drawn, compare, draw, records_of
from tests.spark.harness import Count
from weir.ids import CheckpointId, OperatorId
from weir.output.output_files import CommittedName

ROWS = [("a", 0, 1), ("b", 100, 2), ("a", 200, 3), ("b", 300, 4)]
DRAWN = Drawn(
    Program((), (Output(uid="out", stream="s1", order=Order.KEY),)), Meaning({"out": ROWS})
)


def write(directory: Path, checkpoint: int, rows: list[Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    texts = [base64.b64encode(cloudpickle.dumps(row)).decode() for row in rows]
    name = CommittedName(OperatorId("out"), 0, CheckpointId(checkpoint), 0)
    pq.write_table(pa.table({"record": texts}), directory / str(name))


@pytest.mark.parametrize(
    ("rows", "counted"),
    [
        (ROWS, Count(0, 0, 0)),
        ([ROWS[1], ROWS[0], *ROWS[2:]], Count(0, 0, 0)),  # Of different keys.
        (ROWS[1:], Count(1, 0, 0)),
        ([*ROWS, ROWS[0]], Count(0, 1, 0)),
        ([ROWS[2], ROWS[1], ROWS[0], ROWS[3]], Count(0, 0, 1)),
        ([("a", 0, 1.0), *ROWS[1:]], Count(1, 1, 0)),  # Of another type.
    ],
)
def test_each_difference_is_counted(rows: list[Any], counted: Count, tmp_path: Path) -> None:
    write(tmp_path / "out", 1, rows[:2])
    write(tmp_path / "out", 2, rows[2:])
    assert records_of(tmp_path / "out") == rows
    count, told = compare(DRAWN, tmp_path)
    assert count == counted
    assert bool(told) is (counted != Count(0, 0, 0))


def test_an_output_that_was_never_written_is_lost(tmp_path: Path) -> None:
    count, told = compare(DRAWN, tmp_path)
    assert count == Count(lost=4, duplicated=0, out_of_order=0)
    assert "4 are lost" in told


def test_a_seed_is_the_same_programs() -> None:
    try:
        (drawn,) = draw(3, 1)
        assert drawn.outputs
        assert [one.program for one in draw(3, 1)] == [drawn.program]
    finally:
        remove_files()
