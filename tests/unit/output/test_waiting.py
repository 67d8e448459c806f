"""Output that waits since a checkpoint: counted where it lies, and who commits it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.jobmaster.job_harness import JOB, PLAN, stored_checkpoint
from tests.unit.operators.connector_harness import Snapshot
from tests.unit.operators.test_parquet_sink import batch, sink
from weir.config import JobConfig
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle
from weir.jobmaster.restore_choice import RestoreChoice, choose_restore
from weir.output.waiting import Fate, WaitingOutput, sentences, waiting_output
from weir.protocol.elements import CheckpointKind
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest
from weir.storage.memory import MemoryStore
from weir.storage.store import checksum_of
from weir.storage.writer import dump_items

SINK, FORK = OperatorId("sink"), JobId("fork")


def handle(name: str, items: list[Any], mode: str = "union") -> StateHandle:
    data = dump_items(items)
    return StateHandle("operator", name, len(data), checksum_of(data), inline=data, mode=mode)  # type: ignore[arg-type]


def manifest(root: Path, *handles: StateHandle) -> Manifest:
    store = LocalStore(root / "storage")
    store.put(JobLayout(JOB).attempt(AttemptNumber(1)), b"")
    return stored_checkpoint(store, 4, *handles, kind=CheckpointKind.CHECKPOINT)


def written(root: Path) -> Snapshot:
    """Three files of one row each that wait for checkpoint 4."""
    writing = sink(root / "out", rows_per_file=1, uid="sink")
    writing.send(batch(1, 2, 3))
    return writing.barrier(4)


def looked(root: Path, snapshot: Snapshot) -> list[WaitingOutput]:
    saved = manifest(root, handle("commits", snapshot["commits"]))
    return waiting_output(saved, LocalStore(root / "storage"), JOB)


def choose(root: Path, **how: bool) -> RestoreChoice:
    request = RestoreRequest(str(root / "storage"), JOB, CheckpointId(4), **how)
    config = JobConfig(parallelism=2, allow_non_restored_state=True)
    return choose_restore(MemoryStore(), FORK, PLAN, config, request)


def test_files_are_counted_by_where_they_are(tmp_path: Path) -> None:
    snapshot, out = written(tmp_path), tmp_path / "out"
    (one,) = looked(tmp_path, snapshot)
    assert (one.uid, one.directory, one.files, one.rows) == (SINK, str(out), 3, 3)
    first, second, _ = (pending for pending, _ in snapshot["commits"][0]["commits"])
    (out / first).rename(out / Path(first).name)
    aside = out / "_withdrawn" / "job" / "1"
    aside.mkdir(parents=True)
    (out / second).rename(aside / Path(second).name)
    (one,) = looked(tmp_path, snapshot)
    assert (one.files, one.rows, one.taken_back, one.missing) == (1, 1, 1, 0)
    shutil.rmtree(out / "_pending")
    (one,) = looked(tmp_path, snapshot)
    assert (one.files, one.rows, one.taken_back, one.missing) == (0, 0, 1, 1)
    said = list(sentences(manifest(tmp_path), [one], Fate.CLAIMED, {SINK}))
    assert "were taken back" in said[0]
    assert "neither committed nor waiting" in said[1]


def test_what_all_was_committed_is_not_spoken_of(tmp_path: Path) -> None:
    writing = sink(tmp_path / "out", uid="sink")
    writing.send(batch(1))
    snapshot = writing.checkpoint(4)
    assert snapshot["commits"][0]["commits"]
    assert looked(tmp_path, snapshot) == []


def test_a_directory_out_of_reach_is_said_with_what_should_be_in_it(tmp_path: Path) -> None:
    snapshot = written(tmp_path)
    shutil.rmtree(tmp_path / "out")
    (one,) = looked(tmp_path, snapshot)
    assert (one.files, one.rows, one.missing) == (3, 3, 0)
    (said,) = sentences(manifest(tmp_path), [one], Fate.OVER, {SINK})
    assert said.startswith("3 rows in 3 files of sink sink waited, when checkpoint 4 was taken, in")
    assert "the directory cannot be read from here: No such file" in said
    assert said.endswith("as far as its sinks can reach them")


def test_snapshots_of_older_versions_lack_rows_and_directories(tmp_path: Path) -> None:
    snapshot = written(tmp_path)
    del snapshot["commits"][0]["rows"], snapshot["commits"][0]["directory"]
    assert looked(tmp_path, snapshot) == [], "nor does this manifest name the directory"
    snapshot["commits"][0]["directory"] = str(tmp_path / "out")
    (one,) = looked(tmp_path, snapshot)
    assert (one.files, one.rows) == (3, None)
    (said,) = sentences(manifest(tmp_path), [one], Fate.LEFT, {SINK})
    assert said.startswith("3 files of sink sink wait in ")


@pytest.mark.parametrize(
    "items", [[], [7], [{"job": "job"}], [{"job": "job", "commits": [["a", "b"]]}]]
)
def test_a_state_that_only_bears_the_name_is_passed_over(items: list[Any], tmp_path: Path) -> None:
    saved = manifest(tmp_path, handle("commits", items), handle("undelivered", [3], "split"))
    assert waiting_output(saved, LocalStore(tmp_path / "storage"), JOB) == []


def test_rows_that_were_not_shown_are_counted(tmp_path: Path) -> None:
    items = [
        {"job": "job", "checkpoint": 3, "rows": ["a", "b"]},  # Of an older version.
        {"job": "job", "checkpoint": 4, "rows": "pickled", "count": 5},
        {"job": "other", "checkpoint": 4, "rows": ["x"], "count": 1},
    ]
    saved = manifest(tmp_path, handle("undelivered", items, "split"))
    (one,) = waiting_output(saved, LocalStore(tmp_path / "storage"), JOB)
    assert (one.directory, one.rows) == (None, 7)
    (said,) = sentences(saved, [one], Fate.LEFT, {SINK})
    assert said.startswith("7 rows of sink sink had not been shown when checkpoint 4 was taken")


@pytest.mark.parametrize(
    ("fate", "uids", "said"),
    [
        (Fate.OVER, {SINK}, "job is over, so this job commits them there"),
        (Fate.CLAIMED, {SINK}, "the savepoint is claimed, so this job commits them"),
        (Fate.LEFT, {SINK}, "left to it"),
        (Fate.ASKED, {SINK}, "unless it claims the savepoint"),
        (Fate.ASKED_OVER, {SINK}, "any job restored from here"),
        (Fate.OWN, {SINK}, None),
        (Fate.OWN, set(), "has no sink of this uid"),
        (Fate.OVER, set(), "has no sink of this uid"),
    ],
)
def test_it_is_said_who_commits_them(
    fate: Fate, uids: set[OperatorId], said: str | None, tmp_path: Path
) -> None:
    looks = looked(tmp_path, written(tmp_path))
    told = list(sentences(manifest(tmp_path), looks, fate, uids))
    assert [said in one for one in told if said] == ([] if said is None else [True])
    assert len(told) == (said is not None)


@pytest.mark.parametrize("mark", ["over", "finished", None])
def test_a_fork_adopts_what_no_other_job_would_commit(mark: str | None, tmp_path: Path) -> None:
    manifest(tmp_path, handle("commits", written(tmp_path)["commits"]))
    store, layout = LocalStore(tmp_path / "storage"), JobLayout(JOB)
    if mark is not None:
        store.put(layout.over(AttemptNumber(1)) if mark == "over" else layout.finished, b"")
    choice = choose(tmp_path)
    assert choice.adopts == (None if mark is None else JOB)
    (note,) = choice.notes
    assert note.startswith("3 rows in 3 files of sink sink wait in ")
    assert choose(tmp_path, origin_is_over=True).adopts == JOB
    store.put(layout.attempt(AttemptNumber(2)), b"")
    store.delete(layout.finished)
    assert choose(tmp_path).adopts is None


def test_a_checkpoint_cannot_be_claimed_so_its_output_is_left(tmp_path: Path) -> None:
    manifest(tmp_path, handle("commits", written(tmp_path)["commits"]))
    assert choose(tmp_path, claims=True).adopts is None
