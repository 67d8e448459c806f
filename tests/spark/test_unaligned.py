"""Checkpoints whose barriers overtake records, of a job under full back pressure, with kills.

The keyed operator is slower than its sources, so that records always wait in its channels. Each
test compares the output with the input, and demands that records under way were stored, and that
those which were restored had some.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Contexts
from tests.spark.functions import Slowing
from tests.spark.harness import (
    Count,
    Killer,
    Listening,
    Recorder,
    collect,
    count,
    fired,
    numbered,
    once,
    rows_of,
    tagged_union,
    to_files,
    wrong_numbers,
)
from tests.spark.modes import latest, prepare, under_way
from weir.common import Configuration
from weir.datastream import JobExecutionResult
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import JobFailedError
from weir.fault_points import Fault
from weir.protocol.events import CheckpointSettled, Recovered

N = 4_000  # Records of each of both sources,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record.
TIMEOUT_MS = 200
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


def slowed(env: Any, per_source: int, armed: list[Fault]) -> Any:
    """The union of the sources, numbered by key, by slow subtasks."""
    return numbered(tagged_union(env, per_source, RATE, armed)).map(Slowing(PAUSE_S)).uid("slow")


def run(
    root: Path, timeout_ms: int | None, armed: list[Fault], *listeners: Callable[[Any], None]
) -> JobExecutionResult:
    with Listening(*listeners):
        return collect(slowed(prepare(root, timeout_ms), N, armed), "unaligned")


def check(result: JobExecutionResult, heard: Recorder, cause: str) -> Recovered:
    """Compare the output with the input; the only recovery, which restored records under way."""
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    (recovered,) = result.history.recoveries
    assert re.search(cause, recovered.cause), recovered.cause
    assert recovered.restored_checkpoint is not None
    assert under_way(heard)[recovered.restored_checkpoint] > 0
    return recovered


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("timeout_ms", [0, 60])
def test_an_undisturbed_job_counts_every_record_once(timeout_ms: int, tmp_path: Path) -> None:
    heard = Recorder()
    result = run(tmp_path, timeout_ms, [], heard)
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    assert result.history.recoveries == []
    assert sum(size > 0 for size in under_way(heard).values()) >= 3


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("timeout_ms", [0, 60])
@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("barrier.arrived", 30),
        ("snapshot.before", 20),
        ("snapshot.frozen", 20),
        ("snapshot.write", 20),
        ("channels.write", 8),
    ],
)
def test_a_worker_killed_at(point: str, after: int, timeout_ms: int, tmp_path: Path) -> None:
    marker, heard = tmp_path / "marker", Recorder()
    result = run(tmp_path, timeout_ms, [once(point, "kill", marker, after=after)], heard)
    check(result, heard, "killed by signal 9")
    fired(marker)


@pytest.mark.usefixtures("local")
def test_a_worker_killed_while_it_restores_records_under_way(tmp_path: Path) -> None:
    first, second, heard = tmp_path / "first", tmp_path / "second", Recorder()
    armed = [
        once("channels.write", "raise", first, after=8),
        once("snapshot.frozen", "raise", first, after=25),
        once("restore.before", "kill", second, attempt=2),
    ]
    recovered = check(run(tmp_path, 0, armed, heard), heard, "killed by signal 9")
    assert recovered.attempt == 3
    fired(second)


@pytest.mark.usefixtures("local")
def test_a_worker_killed_from_outside_again_and_again(tmp_path: Path) -> None:
    heard, killers = (
        Recorder(),
        [Killer("worker", after_checkpoints=n, index=n % 2) for n in (3, 7)],
    )
    result = run(tmp_path, 0, [], heard, *killers)
    assert all(killer.killed is not None for killer in killers)
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    restored = [r.restored_checkpoint for r in result.history.recoveries]
    assert len(restored) == 2
    assert all(under_way(heard)[number] > 0 for number in restored)


STEPS = (2, 4, 1, 3)


def test_from_two_to_four_to_one_to_three_subtasks(contexts: Contexts, tmp_path: Path) -> None:
    """Each job is killed under way; the next one restores its unaligned checkpoint as it is."""
    contexts.at(f"local[{max(STEPS)}]")
    restore = None
    for step, parallelism in enumerate(STEPS):
        is_last = step == len(STEPS) - 1
        env = prepare(tmp_path, 0, parallelism)
        env.configure(Configuration({"restart-strategy.type": "none"}))
        to_files(slowed(env, N, []), tmp_path / "numbers")
        heard, ending = Recorder(), Killer("worker", after_checkpoints=4)
        listeners = [heard] if is_last else [heard, ending]
        with Listening(*listeners), overriding(ExecutionOptions(restore=restore)):
            if is_last:
                env.execute("rescaled")
                break
            with pytest.raises(JobFailedError, match="killed by signal 9"):
                env.execute("rescaled")
        restore = latest(tmp_path)
        number = int(restore.rpartition("-")[2])
        assert under_way(heard)[number] > 0, "nothing was under way at the checkpoint to restore"
    rows = rows_of(tmp_path / "numbers")
    positions = Counter((row[0], row[1]) for row in rows)
    assert positions == Counter({(s, i): 1 for s in ("left", "right") for i in range(N)})
    assert not wrong_numbers(rows)


@pytest.mark.usefixtures("local")
def test_a_barrier_overtakes_once_its_time_out_is_over_and_not_before(tmp_path: Path) -> None:
    heard = Recorder()
    result = run(tmp_path, TIMEOUT_MS, [], heard)
    assert count(result.collected, N) == EXACT
    stored = under_way(heard)
    took = {
        settled.checkpoint_id: settled.duration_ms
        for settled in heard.events_of(CheckpointSettled)
        if settled.failure is None
    }
    overtook = [took[number] for number, size in stored.items() if size > 0]
    assert overtook, took
    assert min(overtook) >= TIMEOUT_MS - 1, "times are rounded to milliseconds"
