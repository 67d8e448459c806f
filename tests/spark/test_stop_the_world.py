"""Checkpoints that stop the world, of a job whose operators keep records waiting, with kills."""

import re
from pathlib import Path

import pytest

from tests.spark.functions import Slowing
from tests.spark.harness import (
    Count,
    Listening,
    Recorder,
    collect,
    count,
    environment,
    fired,
    numbered,
    once,
    tagged_union,
    wrong_numbers,
)
from weir.datastream import CheckpointingMode
from weir.protocol.events import CheckpointSettled, Recovered

pytestmark = [pytest.mark.usefixtures("local")]

N = 2_000  # Records of each of both sources,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.0005  # with this for each record.


@pytest.mark.parametrize(
    ("point", "action", "cause"),
    [
        ("barrier.arrived", "kill", "killed by signal 9"),
        ("snapshot.write", "kill", "killed by signal 9"),
        ("snapshot.frozen", "raise", "snapshot.frozen"),
    ],
)
def test_a_worker_that_fails_while_the_world_stands_still(
    point: str, action: str, cause: str, tmp_path: Path
) -> None:
    marker, heard = tmp_path / "marker", Recorder()
    env = environment(tmp_path / "checkpoints", interval_ms=150)
    env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.STOP_THE_WORLD)
    armed = [once(point, action, marker, after=14)]
    slowed = numbered(tagged_union(env, N, RATE, armed)).map(Slowing(PAUSE_S)).uid("slow")
    with Listening(heard):
        result = collect(slowed, "stopping")
    fired(marker)
    assert count(result.collected, N) == Count(lost=0, duplicated=0, out_of_order=0)
    assert not wrong_numbers(result.collected)
    (recovered,) = heard.events_of(Recovered)
    assert re.search(cause, recovered.cause), recovered.cause
    assert recovered.restored_checkpoint is not None
    settled = [e for e in heard.events_of(CheckpointSettled) if e.failure is None]
    assert max(e.checkpoint_id for e in settled) > recovered.restored_checkpoint
