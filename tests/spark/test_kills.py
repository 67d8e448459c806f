"""Processes of a running job die, throw, hang: no record is lost or counted twice.

Each test compares the output with the input, and fails if its fault did not fire or nothing had to
recover.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.spark.functions import (
    Dawdling,
    Hanging,
    Numbering,
    Throwing,
    amounts,
    events,
    late_row,
    mostly_new,
    position_of,
    window_row,
)
from tests.spark.harness import (
    Count,
    Killer,
    Listening,
    Recorder,
    collect,
    count,
    environment,
    fired,
    killing_after_changes,
    numbered,
    numbers_by_position,
    once,
    tagged_union,
    wrong_numbers,
)
from weir.common import Duration, Time, WatermarkStrategy
from weir.config import CheckpointingMode
from weir.datastream import JobExecutionResult, OutputTag
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.window import TumblingEventTimeWindows
from weir.fault_points import Fault
from weir.protocol.events import Recovered
from weir.protocol.messages import Acknowledged

pytestmark = [pytest.mark.usefixtures("local")]

N = 1_500  # Records of each of both sources,
RATE = 1_000.0  # a second: some ten checkpoints.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


def run(
    tmp_path: Path, armed: list[Fault], *listeners: Callable[[Any], None]
) -> JobExecutionResult:
    env = environment(tmp_path / "checkpoints")
    with Listening(*listeners):
        return collect(numbered(tagged_union(env, N, RATE, armed)), "kills")


def check(result: JobExecutionResult, cause: str, recoveries: int = 1) -> Recovered:
    """Compare the output with the input; the one recovery, whose cause contains ``cause``."""
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    assert len(result.history.recoveries) == recoveries
    recovered: Recovered = result.history.recoveries[0]
    assert re.search(cause, recovered.cause), recovered.cause
    return recovered


def test_an_undisturbed_job_counts_every_record_once(tmp_path: Path) -> None:
    result = run(tmp_path, [])
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    assert result.history.recoveries == []
    assert result.history.completed_count >= 5


def test_a_worker_killed_during_alignment(tmp_path: Path) -> None:
    marker, heard = tmp_path / "marker", Recorder()
    # Four barriers reach a subtask: of two sources, each at two subtasks.
    result = run(tmp_path, [once("barrier.arrived", "kill", marker, after=10)], heard)
    recovered = check(result, "killed by signal 9")
    assert recovered.restored_checkpoint is not None
    where = fired(marker)["where"]
    snapshots = {(str(ack.chain), str(ack.checkpoint_id)) for ack in heard.events_of(Acknowledged)}
    assert (where["subtask"], where["id"]) not in snapshots, "its alignment was over"


def test_a_worker_killed_while_it_writes_a_snapshot(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    recovered = check(
        run(tmp_path, [once("snapshot.write", "kill", marker, after=8)]), "killed by signal 9"
    )
    assert int(fired(marker)["where"]["id"]) > (recovered.restored_checkpoint or 0)


@pytest.mark.parametrize("point", ["snapshot.before", "snapshot.frozen"])
def test_a_worker_killed_at(point: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    check(run(tmp_path, [once(point, "kill", marker, after=8)]), "killed by signal 9")
    fired(marker)


def test_a_worker_killed_while_it_recovers(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    armed = [
        once("snapshot.frozen", "raise", first, after=8),
        once("restore.before", "kill", second, attempt=2),
    ]
    recovered = check(run(tmp_path, armed), "killed by signal 9")
    assert recovered.attempt == 3
    fired(first)
    fired(second)


def test_the_python_worker_of_spark_killed(tmp_path: Path) -> None:
    killer = Killer("slot")
    check(run(tmp_path, [], killer), "slot 0 .* was lost")
    assert killer.killed is not None


def test_a_worker_process_killed_from_outside(tmp_path: Path) -> None:
    killer = Killer("worker", index=1)
    check(run(tmp_path, [], killer), f"pid {killer.killed or ''}.*killed by signal 9")
    assert killer.killed is not None


def test_a_template_killed_from_outside(tmp_path: Path) -> None:
    killer = Killer("template", index=1)
    check(run(tmp_path, [], killer), "template process of this slot died")
    assert killer.killed is not None


def test_a_function_that_throws(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    env = environment(tmp_path / "checkpoints")
    stream = tagged_union(env, N, RATE).map(Throwing(marker, N // 2)).name("thrower")
    check(collect(numbered(stream), "throws"), "(?s)thrower.*ValueError: an unexpected record")
    fired(marker)


def test_a_worker_that_hangs_in_a_c_call_is_replaced(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    env = environment(
        tmp_path / "checkpoints",
        settings={"heartbeat.interval": "200 ms", "heartbeat.timeout": "2500 ms"},
    )
    stream = tagged_union(env, N, RATE).map(Hanging(marker, N // 2))
    check(
        collect(numbered(stream), "hangs"),
        "worker process of slot . made no progress for 2500 ms and sent no heartbeat; it is "
        "frozen: .*in a call into C that keeps the interpreter lock",
    )
    fired(marker)


def test_at_least_once_loses_nothing_and_does_count_twice(tmp_path: Path) -> None:
    killer = Killer("worker")
    env = environment(tmp_path / "checkpoints", interval_ms=100)
    env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    stream = tagged_union(env, N, RATE).map(Dawdling())
    with Listening(killer):
        result = collect(numbered(stream), "at least once")
    assert killer.killed is not None
    assert len(result.history.recoveries) == 1
    counted = count(result.collected, N)
    assert counted.lost == 0
    assert counted.duplicated > 0


def incremental(tmp_path: Path) -> dict[str, str]:
    """The settings of a job whose checkpoints hold what changed."""
    return {
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.localdir": str(tmp_path / "state"),
        "execution.checkpointing.data-inline-threshold": "1 b",
    }


def test_a_worker_killed_between_incremental_checkpoints_of_state_on_disk(tmp_path: Path) -> None:
    """The output is that of an undisturbed run: two records of each position, numbered 1 and 2."""
    env = environment(tmp_path / "checkpoints", interval_ms=100, settings=incremental(tmp_path))
    stream = tagged_union(env, N, RATE).key_by(position_of).process(Numbering()).uid("numbering")
    with killing_after_changes("state.number"):
        result = collect(stream, "increments")
    assert count(result.collected, N) == EXACT
    (recovered,) = result.history.recoveries
    assert recovered.restored_checkpoint is not None
    numbers = numbers_by_position(result.collected)
    assert all(received == [1, 2] for received in numbers.values())
    assert not list((tmp_path / "checkpoints").glob("*/shared/*/*")), "the job has finished"


ROWS = 40_000


def test_a_running_aggregate_over_columns_ends_right_and_only_grows(tmp_path: Path) -> None:
    killer = Killer("worker", after_checkpoints=4)
    env = environment(tmp_path / "checkpoints", interval_ms=100)
    source = DataGeneratorSource(amounts, ROWS, ROWS / 1.5, vectorised=True)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "amounts")
    with Listening(killer):
        result = collect(stream.key_by("key").sum("amount"), "running sum")
    assert killer.killed is not None
    assert len(result.history.recoveries) == 1
    totals: dict[int, list[int]] = defaultdict(list)
    for key, total in map(tuple, result.collected):
        totals[key].append(total)
    whole = amounts(np.arange(ROWS)).to_pydict()
    expected: Counter[int] = Counter()
    for key, amount in zip(whole["key"], whole["amount"], strict=True):
        expected[key] += amount
    assert {key: sums[-1] for key, sums in totals.items()} == expected
    assert all(sums == sorted(set(sums)) for sums in totals.values())


def test_a_running_aggregate_whose_checkpoints_hold_the_rows_that_changed(tmp_path: Path) -> None:
    env = environment(tmp_path / "checkpoints", interval_ms=100, settings=incremental(tmp_path))
    source = DataGeneratorSource(mostly_new, ROWS, ROWS / 2, vectorised=True)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "amounts")
    sums = stream.key_by("key").aggregate_batches(total=("amount", "sum"), n=("*", "count"))
    with killing_after_changes("table.aggregates"):
        result = collect(sums, "increments of columns")
    assert len(result.history.recoveries) == 1
    expected: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    whole = mostly_new(np.arange(ROWS)).to_pydict()
    for key, amount in zip(whole["key"], whole["amount"], strict=True):
        expected[key][0] += amount
        expected[key][1] += 1
    assert {key: [total, n] for key, total, n in map(tuple, result.collected)} == expected


EVENTS = 6_000
LATE = OutputTag("late")


def test_windows_and_their_late_records_make_up_the_input(tmp_path: Path) -> None:
    killer = Killer("worker", after_checkpoints=4)
    env = environment(tmp_path / "checkpoints", interval_ms=100)
    timed = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_millis(500)
    ).with_timestamp_column("at_ms")
    source = DataGeneratorSource(events, EVENTS, EVENTS / 2, vectorised=True)
    windows = (
        env.from_source(source, timed, "events")
        .key_by("key")
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .side_output_late_data(LATE)
        .aggregate_batches(n=("*", "count"))
    )
    on_time = windows.map(window_row)
    late = windows.get_side_output(LATE).map(late_row)
    with Listening(killer):
        result = collect(on_time.union(late), "windows")
    assert killer.killed is not None
    assert len(result.history.recoveries) == 1
    counts: Counter[tuple[int, int]] = Counter()
    kinds: Counter[str] = Counter()
    for kind, key, start, n in result.collected:
        counts[key, start] += n
        kinds[kind] += n
    whole = events(np.arange(EVENTS)).to_pydict()
    pairs = zip(whole["key"], whole["at_ms"], strict=True)
    assert counts == Counter((key, at - at % 1_000) for key, at in pairs)
    assert kinds["late"] > 0
    fired_windows = [(key, start) for kind, key, start, _ in result.collected if kind == "window"]
    assert len(fired_windows) == len(set(fired_windows)), "a window fired twice"
