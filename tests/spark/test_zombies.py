"""A slot is stopped until its successor runs, then goes on: it is fenced and ends."""

from pathlib import Path

import pytest

from tests.spark.harness import (
    Count,
    Freezer,
    Killer,
    Listening,
    assert_missed,
    count,
    environment,
    numbered,
    rows_of,
    tagged_union,
    to_files,
    wait_until_gone,
    wrong_numbers,
)

pytestmark = [pytest.mark.usefixtures("local")]

N = 3_000
RATE = 1_000.0
EXACT = Count(lost=0, duplicated=0, out_of_order=0)
# A busy machine stands still for less than the timeout.
HEARTBEATS = {"heartbeat.interval": "200 ms", "heartbeat.timeout": "8 s"}


def test_a_stopped_supervisor_and_worker_are_replaced_and_fenced(tmp_path: Path) -> None:
    freezer, output = Freezer(), tmp_path / "output"
    env = environment(tmp_path / "checkpoints", settings=HEARTBEATS)
    to_files(numbered(tagged_union(env, N, RATE)), output)
    with Listening(freezer):
        result = env.execute("stopped")
    assert len(freezer.frozen) == 3, "supervisor, template and worker"
    assert len(result.history.recoveries) == 1
    assert_missed(result.history.recoveries[0].cause, "slot 0")
    wait_until_gone(lambda: [p for p in freezer.frozen if p.is_running()])
    rows = rows_of(output)
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)


def test_a_stopped_worker_is_replaced_and_fenced(tmp_path: Path) -> None:
    import signal

    stopper, output = Killer("worker", signal.SIGSTOP), tmp_path / "output"
    env = environment(tmp_path / "checkpoints", settings=HEARTBEATS)
    to_files(numbered(tagged_union(env, N, RATE)), output)
    with Listening(stopper):
        result = env.execute("stopped")
    assert stopper.killed is not None
    assert len(result.history.recoveries) == 1
    assert "made no progress for 8000 ms" in result.history.recoveries[0].cause
    rows = rows_of(output)
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)
