"""Processes of a running job die whose slots keep copies of their state files on this machine.

The successor reads them, which its recovery tells, and the output is that of an undisturbed run:
two records of each position, numbered 1 and 2.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.functions import Numbering, position_of
from tests.spark.harness import (
    Count,
    Killer,
    Listening,
    Recorder,
    collect,
    count,
    environment,
    killing_after_changes,
    numbers_by_position,
    tagged_union,
)
from weir.datastream import JobExecutionResult
from weir.protocol.events import CheckpointSettled, JobEvent, Notice, Recovered

pytestmark = [pytest.mark.usefixtures("local")]

N = 1_500  # Records of each of both sources,
RATE = 1_000.0  # a second: some ten checkpoints.
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


def run(
    tmp_path: Path,
    *listeners: Callable[[JobEvent], None],
    backend: str = "hashmap",
    incremental: bool = False,
) -> JobExecutionResult:
    settings = {
        "state.backend.type": backend,
        "execution.checkpointing.incremental": str(incremental).lower(),
        "state.backend.rocksdb.localdir": str(tmp_path / "state"),
        "state.backend.local-recovery": "true",
        "execution.checkpointing.local-backup.dirs": str(tmp_path / "copies"),
        "execution.checkpointing.data-inline-threshold": "1 b",
    }
    env = environment(tmp_path / "checkpoints", interval_ms=100, settings=settings)
    stream = tagged_union(env, N, RATE).key_by(position_of).process(Numbering()).uid("numbering")
    with Listening(*listeners):
        return collect(stream, "local copies")


def check(tmp_path: Path, result: JobExecutionResult) -> Recovered:
    """Compare the output with the input; the one recovery."""
    assert count(result.collected, N) == EXACT
    numbers = numbers_by_position(result.collected)
    assert all(received == [1, 2] for received in numbers.values())
    assert not list((tmp_path / "copies").iterdir()), "the job has ended"
    (recovered,) = result.history.recoveries
    assert isinstance(recovered, Recovered)
    assert recovered.restored_checkpoint is not None
    return recovered


def check_local(recovered: Recovered) -> None:
    """Nothing was read from the storage but the other slot's watermarks, which each slot gets."""
    assert recovered.restored_local_bytes is not None
    stored = recovered.restored_bytes - recovered.restored_local_bytes
    assert 0 < stored < 500 < recovered.restored_local_bytes


def copies(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "copies").glob("*/*") if path.is_file()]


class Watching:
    """Kills, and before that looks at the copies, or does something to them."""

    def __init__(self, tmp_path: Path, killer: Killer, act: Callable[[Path], None]) -> None:
        self.killer = killer
        self.seen = 0
        self._tmp_path = tmp_path
        self._act = act

    def __call__(self, event: JobEvent) -> None:
        due = self.killer.completed == self.killer.after_checkpoints - 1
        if isinstance(event, CheckpointSettled) and event.failure is None and due:
            for copy in copies(self._tmp_path):
                self.seen += 1
                self._act(copy)
        self.killer(event)


def damage(copy: Path) -> None:
    """Cut a copy short, without a moment in which it is not there."""
    os.truncate(copy, copy.stat().st_size // 2)


def check_taken_over(tmp_path: Path, killer: Killer) -> None:
    """Kill what holds a slot: its successor on this machine reads the copies that it left."""
    watching = Watching(tmp_path, killer, lambda copy: None)
    recovered = check(tmp_path, run(tmp_path, watching))
    assert killer.killed is not None
    assert watching.seen > 0
    check_local(recovered)


def test_a_restart_after_a_kill_reads_local_copies(tmp_path: Path) -> None:
    killer = Watching(tmp_path, Killer("worker", index=1, after_checkpoints=4), lambda copy: None)
    recovered = check(tmp_path, run(tmp_path, killer))
    assert killer.killer.killed is not None
    assert killer.seen > 0
    check_local(recovered)


def test_a_restart_reads_the_stored_files_where_copies_are_damaged(tmp_path: Path) -> None:
    killer = Watching(tmp_path, Killer("worker", index=1, after_checkpoints=4), damage)
    heard = Recorder()
    recovered = check(tmp_path, run(tmp_path, heard, killer))
    assert killer.killer.killed is not None
    assert killer.seen > 0
    assert recovered.restored_local_bytes is not None
    assert recovered.restored_local_bytes < recovered.restored_bytes
    told = [notice.text for notice in heard.events_of(Notice)]
    assert any("damaged, and read from the storage instead" in text for text in told), told
    assert any("bytes instead of" in text for text in told)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_local_copies_of_incremental_checkpoints_are_those_of_the_whole_chain(
    tmp_path: Path, backend: str
) -> None:
    with killing_after_changes("state.number"):
        result = run(tmp_path, backend=backend, incremental=True)
    recovered = check(tmp_path, result)
    check_local(recovered)


def test_the_copies_of_a_slot_that_is_lost_are_taken_over(tmp_path: Path) -> None:
    check_taken_over(tmp_path, Killer("slot", index=1, after_checkpoints=4))
