"""The storage section of a checkpoint's page, and its text when the storage cannot be read."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint
from controlplane.base.threads import FileThreads
from frontend.checkpoint import manifest as storage
from frontend.checkpoint.positions import position_words, split_words
from jobs.models import Job
from tests import factories
from tests.database.frontend import flights, rows_checkpoint
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.storage.manifest import Tombstone, dump

PARQUET = rows_checkpoint.PARQUET


@pytest.mark.parametrize(
    ("split", "position", "split_said", "position_said"),
    [
        (
            PARQUET,
            [3, 12_400],
            "/data/flights-2024-01.parquet, row group 3",
            "next is row 12,400 of row group 3",
        ),
        (
            PARQUET | {"row_groups": [0, 1, 2]},
            None,
            "/data/flights-2024-01.parquet, 3 row groups",
            "not begun",
        ),
        ({"next": 0, "end": 1_000}, 250, "numbers 0 to 999", "next is 250 (25% read)"),
        (
            {"first": 1, "stride": 4, "count": None},
            4_001,
            "generated records without end: every 4th from 1 on",
            "next is record 4,001",
        ),
        (
            {"first": 0, "stride": 1, "count": 10},
            5,
            "generated records of 10",
            "next is record 5 (50% read)",
        ),
        ({"rows": 40}, 10, "a collection of 40 records", "next is record 10 (25% read)"),
        ({"topic": "a", "p": 1}, {"at": 7}, '{"p": 1, "topic": "a"}', 'next is at {"at": 7}'),
        ("shard-1", "x", '"shard-1"', 'next is at "x"'),
    ],
)
def test_positions_are_said_in_plain_words(
    split: Any, position: Any, split_said: str, position_said: str
) -> None:
    assert split_words(split) == split_said
    assert position_words(split, position) == position_said


def test_a_long_split_of_another_source_is_cut() -> None:
    assert len(split_words({"a": "x" * 10_000})) == 160


@pytest.fixture
def job(db: None, tmp_path: Path) -> Job:
    return rows_checkpoint.keep_in(flights.running(), tmp_path)


@pytest.fixture
def checkpoint(job: Job) -> Checkpoint:
    return factories.checkpoint(job, 7)


SPLITS = {
    0: [{"split": PARQUET | {"row_groups": [4]}, "position": None}],
    1: [{"split": PARQUET, "position": [3, 5]}],
}


@pytest.mark.parametrize("in_files", [False, True])
def test_splits_that_are_begun_come_first(job: Job, checkpoint: Checkpoint, in_files: bool) -> None:
    rows_checkpoint.stored(job, checkpoint, SPLITS, in_files=in_files)
    contents = storage.read(job, checkpoint)
    (source,) = contents.sources
    assert (source.uid, source.records) == ("flights", 38_200)
    assert (source.begun, source.waiting, source.left_out) == (1, 1, 0)
    assert [split.subtask for split in source.splits] == ["flights-1", "flights-0"]
    assert source.splits[0].position == "next is row 5 of row group 3"
    assert contents.pieces == 2
    assert contents.inline_pieces == (0 if in_files else 2)
    assert contents.path == f"{job.storage}/{job.pk}/chk-7/manifest"


def test_a_savepoint_is_read_where_it_lies(job: Job, tmp_path: Path) -> None:
    place = str(tmp_path / "kept" / "here")
    row = factories.checkpoint(job, 8, kind="savepoint", location=place)
    rows_checkpoint.stored(job, row, SPLITS, in_files=True)
    contents = storage.read(job, row)
    assert contents.path == f"{place}/manifest"
    assert contents.sources[0].begun == 1


def test_a_source_with_nothing_left_has_no_splits(job: Job, checkpoint: Checkpoint) -> None:
    rows_checkpoint.stored(job, checkpoint, {0: []}, records=None)
    (source,) = storage.read(job, checkpoint).sources
    assert (source.begun, source.waiting, source.records, source.problem) == (0, 0, None, "")


def test_many_splits_are_counted_and_the_first_shown(job: Job, checkpoint: Checkpoint) -> None:
    splits = [{"split": PARQUET | {"row_groups": [at]}, "position": None} for at in range(120)]
    rows_checkpoint.stored(job, checkpoint, {0: splits})
    (source,) = storage.read(job, checkpoint).sources
    assert (source.waiting, len(source.splits), source.left_out) == (120, 50, 70)


@pytest.mark.parametrize("state", [b"[1, 2]", b'[{"offset": 4}]'])
def test_a_source_that_keeps_something_else_is_said_to(
    job: Job, checkpoint: Checkpoint, state: bytes
) -> None:
    rows_checkpoint.stored(job, checkpoint, state=state)
    (source,) = storage.read(job, checkpoint).sources
    assert source.problem == "The source’s state is not splits and positions."


def test_a_missing_manifest_is_said_to_be_missing(job: Job, checkpoint: Checkpoint) -> None:
    with pytest.raises(storage.NotReadable, match=r"no file .*chk-7/manifest"):
        storage.read(job, checkpoint)


def test_a_damaged_manifest_is_said_to_be_damaged(job: Job, checkpoint: Checkpoint) -> None:
    rows_checkpoint.stored(job, checkpoint, SPLITS)
    path = locations.layout_of(job).manifest(CheckpointId(7))
    store = locations.store_of(job)
    store.put(path, store.read(path).replace(b"flights", b"flightz"))
    with pytest.raises(storage.NotReadable, match="checksum does not match"):
        storage.read(job, checkpoint)


def test_a_missing_position_file_leaves_the_rest(job: Job, checkpoint: Checkpoint) -> None:
    rows_checkpoint.stored(job, checkpoint, SPLITS, in_files=True)
    locations.store_of(job).delete(f"{job.pk}/chk-7/1/flights-1-splits")
    (source,) = storage.read(job, checkpoint).sources
    assert "is missing" in source.problem
    assert source.splits == ()


def test_a_tombstone_is_no_manifest(job: Job, checkpoint: Checkpoint) -> None:
    stone = Tombstone(
        job_id=JobId(job.pk),
        checkpoint_id=CheckpointId(7),
        attempt=AttemptNumber(1),
        given_up_ms=1,
        reason="expired",
    )
    locations.store_of(job).put(locations.layout_of(job).manifest(CheckpointId(7)), dump(stone))
    with pytest.raises(storage.NotReadable, match="aborted: expired"):
        storage.read(job, checkpoint)


def test_a_manifest_that_is_too_large_is_not_read(
    job: Job, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_checkpoint.stored(job, checkpoint, SPLITS)
    monkeypatch.setattr(storage, "MANIFEST_BYTES_MAX", 100)
    with pytest.raises(storage.NotReadable, match="larger than"):
        storage.read(job, checkpoint)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A storage that answers once the event is set."""
    answers = threading.Event()

    def hang(*_: object) -> None:
        assert answers.wait(20)
        raise OSError("it was away")

    monkeypatch.setattr(storage, "_readers", FileThreads(2, "hung"))
    monkeypatch.setattr(storage, "_read", hang)
    yield answers
    answers.set()
    storage._readers.close()


def test_a_storage_that_hangs_holds_no_request_for_long(
    job: Job, checkpoint: Checkpoint, hung: threading.Event
) -> None:
    """Its threads are held, never the pages: those that find no thread free are told so at once."""
    for _ in range(2):
        with pytest.raises(storage.NotReadable, match=r"did not answer within 0\.01 s"):
            storage.read(job, checkpoint, wait_s=0.01)
    with pytest.raises(storage.NotReadable, match=r"does not answer\. Try again soon"):
        storage.read(job, checkpoint, wait_s=20)


def test_threads_are_free_again_once_the_storage_answers(
    job: Job, checkpoint: Checkpoint, hung: threading.Event
) -> None:
    hung.set()
    for _ in range(5):
        with pytest.raises(storage.NotReadable, match="it was away"):
            storage.read(job, checkpoint, wait_s=20)
