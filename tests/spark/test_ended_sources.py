"""A source that ends long before the other: checkpoints go on, and it emits nothing again.

The short source's subtasks stay, take part in every checkpoint and are restored as ended.
"""

import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.spark.functions import Reading, Slowing, Tagging
from tests.spark.harness import (
    SOURCES,
    Count,
    Listening,
    Recorder,
    count,
    numbered,
    rows_of,
    to_files,
    wrong_numbers,
)
from tests.spark.modes import completed, prepare, under_way
from weir.common import WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource
from weir.ids import CheckpointId
from weir.protocol.events import (
    CheckpointSettled,
    CheckpointTriggered,
    JobEvent,
    WorkerStarted,
)
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged

pytestmark = [pytest.mark.usefixtures("local")]

SIZES = {"left": 300, "right": 4_000}  # Records of each source,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.002  # with this for each record.
PARALLELISM = 2
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


def build(env: Any, output: Path, pause_s: float) -> None:
    """Both sources, of their own sizes, numbered by key, in files."""
    left, right = (
        env.from_source(
            DataGeneratorSource(Tagging(source), SIZES[source], RATE),
            WatermarkStrategy.no_watermarks(),
            source,
        )
        .uid(source)
        .map(Reading())
        for source in SOURCES
    )
    to_files(numbered(left.union(right)).map(Slowing(pause_s)).uid("slow"), output)


@dataclass(slots=True)
class KillerAfterAnEnd:
    """Kills a worker once checkpoints completed that began after the left source had ended."""

    after: int = 2
    pids: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    begun: set[CheckpointId] = field(default_factory=set)  # Since all its subtasks had ended.
    completed: int = 0
    killed: int | None = None

    def __call__(self, event: JobEvent) -> None:
        match event:
            case WorkerStarted(_, _, slot_index, pid):
                self.pids[slot_index] = pid
            case SubtaskChanged(chain=chain, status=SubtaskStatus.ENDED):
                if chain.operator == "left":
                    self.ended.add(chain.index)
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                if len(self.ended) == PARALLELISM:
                    self.begun.add(checkpoint_id)
            case CheckpointSettled(checkpoint_id=checkpoint_id, failure=None):
                self.completed += checkpoint_id in self.begun
                if self.completed == self.after and self.killed is None:
                    self.killed = self.pids[1]
                    os.kill(self.killed, signal.SIGKILL)


def began_after_the_end(heard: Recorder) -> list[CheckpointId]:
    """The completed checkpoints that began after the right source's end in the last attempt."""
    last = max(e.attempt for e in heard.events_of(WorkerStarted))
    ended: set[int] = set()
    began = []
    for event in heard.events:
        if isinstance(event, SubtaskChanged) and event.status is SubtaskStatus.ENDED:
            if event.attempt == last and event.chain.operator == "right":
                ended.add(event.chain.index)
        elif isinstance(event, CheckpointTriggered) and len(ended) == PARALLELISM:
            began.append(event.checkpoint_id)
    return [number for number in completed(heard) if number in began]


def check(output: Path, heard: Recorder) -> None:
    """Compare the committed rows with the input; the last checkpoint committed their tail."""
    rows = rows_of(output)
    assert count(rows, SIZES) == EXACT
    assert not wrong_numbers(rows)
    assert began_after_the_end(heard), "no checkpoint confirmed the end of the input"
    pending = [path for path in (output / "_pending").rglob("*") if path.is_file()]
    assert not pending, "the tail was not committed"


@pytest.mark.parametrize("timeout_ms", [None, 0])
def test_a_worker_killed_long_after_a_source_ended(timeout_ms: int | None, tmp_path: Path) -> None:
    heard, killer = Recorder(), KillerAfterAnEnd()
    env = prepare(tmp_path, timeout_ms)
    build(env, tmp_path / "output", PAUSE_S)
    with Listening(heard, killer):
        result = env.execute("ended")
    assert killer.killed is not None, "no checkpoint completed while only one source went on"
    check(tmp_path / "output", heard)
    (recovered,) = result.history.recoveries
    assert re.search("killed by signal 9", recovered.cause), recovered.cause
    assert recovered.restored_checkpoint in killer.begun
    if timeout_ms is not None:
        assert under_way(heard)[recovered.restored_checkpoint] > 0


def test_a_job_without_periodic_checkpoints_confirms_its_end_with_one(tmp_path: Path) -> None:
    heard = Recorder()
    env = prepare(tmp_path, 0, interval_ms=3_600_000)
    build(env, tmp_path / "output", 0.0)
    with Listening(heard):
        env.execute("one")
    check(tmp_path / "output", heard)
    assert completed(heard) == began_after_the_end(heard)
    assert len(completed(heard)) == 1
