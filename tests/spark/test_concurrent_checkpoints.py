"""Several checkpoints under way at once, and the pause between one and the next, by their events.

A slow operator keeps its channels full, so that barriers take far longer to pass than the interval.
"""

import os
import re
import signal
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.spark.functions import Slowing
from tests.spark.harness import (
    Count,
    Listening,
    Recorder,
    collect,
    count,
    numbered,
    tagged_union,
    wrong_numbers,
)
from tests.spark.modes import completed, most_at_a_time, prepare
from weir.ids import CheckpointId
from weir.protocol.events import CheckpointSettled, CheckpointTriggered, JobEvent, WorkerStarted
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged

pytestmark = [pytest.mark.usefixtures("local")]

N = 2_500  # Records of each of both sources,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record.
AT_A_TIME = 3
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


@dataclass(slots=True)
class KillerAmidCheckpoints:
    """Kills a worker as soon as so many checkpoints are under way and some completed before."""

    pids: dict[int, int] = field(default_factory=dict)
    completed: int = 0
    pending: set[CheckpointId] = field(default_factory=set)
    amid: frozenset[CheckpointId] = frozenset()  # Under way when it was killed.

    def __call__(self, event: JobEvent) -> None:
        match event:
            case WorkerStarted(_, _, slot_index, pid):
                self.pids[slot_index] = pid
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                self.pending.add(checkpoint_id)
                if len(self.pending) == AT_A_TIME and self.completed >= 2 and not self.amid:
                    self.amid = frozenset(self.pending)
                    os.kill(self.pids[1], signal.SIGKILL)
            case CheckpointSettled(checkpoint_id=checkpoint_id, failure=failure):
                self.pending.discard(checkpoint_id)
                self.completed += failure is None


@dataclass(slots=True)
class ManifestTimes:
    """Notes when the file of each completed checkpoint's manifest was written."""

    storage: Path
    written_ms: dict[CheckpointId, int] = field(default_factory=dict)

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, CheckpointSettled) and event.failure is None:
            (manifest,) = self.storage.glob(f"*/chk-{event.checkpoint_id}/manifest")
            self.written_ms[event.checkpoint_id] = manifest.stat().st_mtime_ns // 1_000_000


def test_a_worker_killed_while_three_checkpoints_are_under_way(tmp_path: Path) -> None:
    heard, killer = Recorder(), KillerAmidCheckpoints()
    env = prepare(tmp_path, None, interval_ms=50)
    env.get_checkpoint_config().set_max_concurrent_checkpoints(AT_A_TIME)
    stream = numbered(tagged_union(env, N, RATE)).map(Slowing(PAUSE_S))
    with Listening(heard, killer):
        result = collect(stream, "concurrent")
    assert len(killer.amid) == AT_A_TIME, "there were never so many checkpoints under way"
    assert most_at_a_time(heard) == AT_A_TIME
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    (recovered,) = result.history.recoveries
    assert re.search("killed by signal 9", recovered.cause), recovered.cause
    ids = completed(heard)
    # The last acknowledgement of the oldest may have been on its way when the worker was killed.
    failed = killer.amid.difference(ids)
    assert len(failed) >= AT_A_TIME - 1, "the kill met fewer checkpoints than it was to meet"
    assert recovered.restored_checkpoint == max(one for one in ids if one < min(failed))
    assert max(ids) > max(killer.amid), "none completed after the recovery"


def test_no_periodic_checkpoint_begins_within_the_pause_of_a_completion(tmp_path: Path) -> None:
    """The time of a manifest's file is never later than that of the completion it leads to."""
    heard, pause_ms = Recorder(), 300
    env = prepare(tmp_path, None, interval_ms=50)
    env.get_checkpoint_config().set_min_pause_between_checkpoints(pause_ms)
    manifests = ManifestTimes(tmp_path / "checkpoints")
    stream = numbered(tagged_union(env, N, RATE / 2)).map(Slowing(PAUSE_S))
    with Listening(heard, manifests):
        result = collect(stream, "pause")
    assert count(result.collected, N) == EXACT
    assert most_at_a_time(heard) == 1
    periodic = [e for e in heard.events[: end_of_work(heard)] if isinstance(e, CheckpointTriggered)]
    assert len(periodic) >= 3
    pairs = list(pairwise(periodic))
    # Else a trigger every 300 ms would keep the pause as well.
    assert any(manifests.written_ms[one.checkpoint_id] > one.at_ms for one, _ in pairs)
    pauses = [following.at_ms - manifests.written_ms[one.checkpoint_id] for one, following in pairs]
    assert min(pauses) >= pause_ms, pauses


def end_of_work(heard: Recorder) -> int:
    """The event behind which only the checkpoint follows that confirms the end of the input."""
    return max(
        index
        for index, event in enumerate(heard.events)
        if isinstance(event, SubtaskChanged) and event.status is SubtaskStatus.ENDED
    )
