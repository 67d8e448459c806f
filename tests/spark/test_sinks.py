"""The Parquet sink's files after kills in every phase of a commit: each record in them once."""

from pathlib import Path

import pytest

from tests.spark.harness import (
    Count,
    Killer,
    Listening,
    count,
    environment,
    fired,
    numbered,
    once,
    rows_of,
    tagged_union,
    to_files,
    wrong_numbers,
)

pytestmark = [pytest.mark.usefixtures("local")]

N = 1_500
RATE = 1_000.0


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("sink.before_close", "kill"),
        ("sink.before_close", "raise"),
        ("sink.before_commit", "kill"),
        ("sink.before_commit", "raise"),
        ("sink.after_rename", "kill"),
        ("sink.after_rename", "raise"),
    ],
)
def test_files_hold_every_record_once_after_a_fault_at(
    point: str, action: str, tmp_path: Path
) -> None:
    marker, output = tmp_path / "marker", tmp_path / "output"
    armed = [once(point, action, marker, after=5)]
    env = environment(tmp_path / "checkpoints")
    to_files(numbered(tagged_union(env, N, RATE, armed)), output)
    result = env.execute("sink")
    fired(marker)
    assert len(result.history.recoveries) == 1
    rows = rows_of(output)
    assert count(rows, N) == Count(lost=0, duplicated=0, out_of_order=0)
    assert not wrong_numbers(rows)
    assert not list(output.rglob("_pending/**/*.parquet")), "a pending file is left"


def test_files_hold_every_record_once_after_two_processes_died(tmp_path: Path) -> None:
    output = tmp_path / "output"
    killers = Killer("worker"), Killer("slot", after_checkpoints=6, index=1)
    env = environment(tmp_path / "checkpoints")
    to_files(numbered(tagged_union(env, N, RATE)), output)
    with Listening(*killers):
        result = env.execute("sink")
    assert all(killer.killed for killer in killers)
    assert len(result.history.recoveries) == 2
    rows = rows_of(output)
    assert count(rows, N) == Count(lost=0, duplicated=0, out_of_order=0)
    assert not wrong_numbers(rows)
