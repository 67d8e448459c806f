"""Pipelines of several exchanges, some of which no barrier overtakes on, with faults and rescaling.

Slow operators stand behind the exchanges, so that unaligned checkpoints hold records under way on
them. Each record notes the subtasks that it passed: none is lost, none counted twice, and of a
source's subtask none overtakes another on the same way.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Contexts
from tests.spark.functions import Reading, Slowing, Tagging, Throwing
from tests.spark.harness import (
    SOURCES,
    Count,
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
)
from tests.spark.modes import KillerUnderWay, latest, numbers_with_gaps, prepare, under_way
from tests.spark.stations import (
    ClosingOnce,
    Passing,
    keyed_subtask,
    number_key,
    shifted,
    unnumbered,
)
from weir.common import Configuration, WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.execution import ExecutionOptions, overriding
from weir.errors import JobFailedError
from weir.protocol.events import Recovered

N = 2_500  # Records of each of both sources,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


@pytest.mark.usefixtures("local")
def test_one_fault_after_another_in_a_long_pipeline(tmp_path: Path) -> None:
    """A function throws, a snapshot does, a function does and its restore is killed, a close.

    The last comes when all is committed, and leads to no restart.
    """
    markers = [tmp_path / name for name in ("quarter", "snapshot", "three", "restore", "close")]
    quarter, snapshot, three_quarters, restore, closing = markers
    armed = [
        once(
            "snapshot.frozen", "raise", snapshot, after=8, attempt=2
        ),  # Each attempt has one fault.
        once("restore.before", "kill", restore, attempt=4),
    ]
    settings = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "8",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    heard = Recorder()
    env = prepare(tmp_path, 0, settings=settings)
    passed = (
        numbered(tagged_union(env, N, RATE, armed))
        .partition_custom(shifted, keyed_subtask)
        .map(Throwing(quarter, N // 4))
        .map(Throwing(three_quarters, 3 * N // 4))
        .map(ClosingOnce(closing, N - 1))
        .rebalance()
        .map(Passing())
        .map(Slowing(PAUSE_S))
    )
    with Listening(heard):
        result = collect(passed, "long")
    for marker in markers:
        assert marker.exists(), f"the fault {marker.name} did not fire"
    assert fired(restore)["where"]["attempt"] == "4"
    ways = [(*row[:3], (row[3], row[5])) for row in result.collected]
    assert count(ways, N) == EXACT
    assert not numbers_with_gaps(result.collected)
    recoveries: list[Recovered] = result.history.recoveries
    causes = " ".join(recovered.cause for recovered in recoveries)
    for cause in ("an unexpected record", "snapshot.frozen", "killed by signal 9"):
        assert re.search(cause, causes), causes
    restored = [recovered.restored_checkpoint for recovered in recoveries]
    assert len(restored) == 3, causes  # The attempt that was killed as it restored never ran.
    assert all(number is not None for number in restored)
    assert sum(under_way(heard)[number] > 0 for number in restored if number is not None) >= 2


STEPS = ((2, 3), (4, 1), (1, 4))  # Of most operators, and of the slow one.
RESCALED_N = 4_000  # Records of each source: they last longer than the jobs that are killed.
RESCALED_RATE = 700.0


def branches(env: Any, parallelism: tuple[int, int], output: Path) -> None:
    """Two ways to files: keys at several parallelisms; a broadcast beside a rebalanced exchange."""
    left, right = (
        env.from_source(
            DataGeneratorSource(Tagging(source), RESCALED_N, RESCALED_RATE),
            WatermarkStrategy.no_watermarks(),
            source,
        )
        .uid(source)
        .map(Reading())
        .uid(f"reading {source}")
        for source in SOURCES
    )
    keyed = (
        numbered(left.union(right))
        .rebalance()
        .map(Slowing(PAUSE_S))
        .uid("slow")
        .set_parallelism(parallelism[1])
        .key_by(number_key)
        .filter(bool)
        .uid("second keys")
    )
    to_files(keyed, output / "keyed", "keyed")
    mixed = left.broadcast().union(right.rebalance()).map(Passing()).uid("mixed")
    to_files(mixed.map(Slowing(PAUSE_S)).uid("slow too").map(unnumbered), output / "mixed", "mixed")


def test_rescaled_up_and_down_with_mixed_exchanges(contexts: Contexts, tmp_path: Path) -> None:
    """Each job is killed under way; the next one restores its unaligned checkpoint as it is."""
    contexts.at(f"local[{max(map(max, STEPS))}]")
    restore = None
    for parallelism in STEPS:
        is_last = parallelism == STEPS[-1]
        env = prepare(tmp_path, 0, parallelism[0])
        env.configure(Configuration({"restart-strategy.type": "none"}))
        branches(env, parallelism, tmp_path)
        ending = KillerUnderWay()
        with (
            Listening(*([] if is_last else [ending])),
            overriding(ExecutionOptions(restore=restore)),
        ):
            if is_last:
                env.execute("topologies")
                break
            with pytest.raises(JobFailedError, match="killed by signal 9"):
                env.execute("topologies")
        restore = latest(tmp_path)
        assert int(restore.rpartition("-")[2]) == ending.killed_at, "of no records under way"
    keyed = rows_of(tmp_path / "keyed")
    records = Counter((row[0], row[1]) for row in keyed)
    assert records == Counter({(s, i): 1 for s in SOURCES for i in range(RESCALED_N)})
    assert not numbers_with_gaps(keyed)
    check_mixed(rows_of(tmp_path / "mixed"))


def check_mixed(rows: list[tuple[Any, ...]]) -> None:
    """Each right record came to one subtask, each left one to all of those that there were."""
    writers: dict[tuple[str, int], list[int]] = defaultdict(list)
    for source, index, _, writer, _ in rows:
        writers[source, index].append(writer)
    once_each = {("right", i): 1 for i in range(RESCALED_N)}
    assert {key: len(w) for key, w in writers.items() if key[0] == "right"} == once_each
    everywhere = {tuple(range(parallelism)) for parallelism, _ in STEPS}
    copies = [tuple(sorted(writers["left", i])) for i in range(RESCALED_N)]
    assert set(copies) <= everywhere, set(copies) - everywhere
    assert len(set(copies)) >= 2, "all records came at one parallelism"
