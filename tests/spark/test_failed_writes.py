"""Records under way that cannot be written fail their checkpoint, and nothing else."""

from pathlib import Path

import pytest

from tests.spark.functions import Slowing
from tests.spark.harness import (
    Count,
    Listening,
    Recorder,
    collect,
    count,
    fired,
    numbered,
    once,
    tagged_union,
    wrong_numbers,
)
from tests.spark.modes import completed, prepare, under_way
from weir.protocol.events import CheckpointSettled
from weir.protocol.lifecycle import FailureReason

pytestmark = [pytest.mark.usefixtures("local")]

N = 2_500  # Records of each of both sources,
RATE = 1_500.0  # a second, which is more than the slow operator takes
PAUSE_S = 0.001  # with this for each record.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


def test_a_tolerated_checkpoint_fails_and_the_next_one_completes(tmp_path: Path) -> None:
    marker, heard = tmp_path / "marker", Recorder()
    env = prepare(tmp_path, 0)
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(1)
    armed = [once("channels.write", "raise", marker, after=6)]
    stream = numbered(tagged_union(env, N, RATE, armed)).map(Slowing(PAUSE_S))
    with Listening(heard):
        result = collect(stream, "refused")
    where = fired(marker)["where"]
    print(
        "SETTLED",
        [(e.checkpoint_id, e.failure, e.cause[-300:]) for e in heard.events_of(CheckpointSettled)],
    )
    settled = [e for e in heard.events_of(CheckpointSettled) if e.failure is not None]
    failed, *aborted = settled  # The job's end may have aborted one.
    assert {e.failure for e in aborted} <= {FailureReason.JOB_FINISHED}
    assert failed.checkpoint_id == int(where["id"])
    assert failed.failure is FailureReason.CHECKPOINT_ASYNC_EXCEPTION
    assert "RuntimeError: fault at channels.write" in failed.cause
    assert where["subtask"] in failed.cause
    ids = completed(heard)
    assert failed.checkpoint_id + 1 in ids
    assert under_way(heard)[failed.checkpoint_id + 1] > 0
    assert result.history.recoveries == []
    assert count(result.collected, N) == EXACT
    assert not wrong_numbers(result.collected)
    left = list((tmp_path / "checkpoints").glob(f"*/chk-{failed.checkpoint_id}/**/*"))
    assert not [path for path in left if path.is_file()], "files of the failed checkpoint are left"
