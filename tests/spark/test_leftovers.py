"""A job on Spark that lost workers in the midst of checkpoints leaves no file without a use."""

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
)
from weir.storage.local import LocalStore
from weir.storage.manifest import Tombstone, load

pytestmark = [pytest.mark.usefixtures("local")]

N = 3_000
RATE = 1_000.0
INLINE_NOTHING = {"execution.checkpointing.data-inline-threshold": "1"}


@pytest.mark.parametrize(("point", "hit"), [("snapshot.write", 9), ("sink.before_close", 3)])
def test_after_kills_a_finished_job_has_records_and_committed_files_only(
    point: str, hit: int, tmp_path: Path
) -> None:
    marker, output, storage = tmp_path / "marker", tmp_path / "output", tmp_path / "checkpoints"
    env = environment(storage, settings=INLINE_NOTHING)
    to_files(numbered(tagged_union(env, N, RATE, [once(point, "kill", marker, after=hit)])), output)
    killer = Killer("worker", after_checkpoints=4, index=1)
    with Listening(killer):
        result = env.execute("leftovers")
    fired(marker)
    assert killer.killed
    assert len(result.history.recoveries) == 2
    assert count(rows_of(output), N) == Count(lost=0, duplicated=0, out_of_order=0)
    assert [path.name for path in output.iterdir() if path.is_dir()] == []
    store = LocalStore(storage)
    left = {path.partition("/")[2] for path in store.list()}
    given_up = {path for path in left if path.startswith("chk-")}
    assert {path.partition("/")[0] for path in left - given_up} == {
        "attempts", "restored", "finished", "outputs",
    }  # fmt: skip
    for path in store.list():
        if path.partition("/")[2] in given_up:
            assert isinstance(load(store.read(path), path), Tombstone)
    assert store.list_temporary() == []
