"""Directories of processes that are gone: deleted, or taken over."""

import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_S
from weir.storage import local_directory
from weir.storage.local_directory import COPIES, ROCKSDB, LocalDirectory


def test_a_directory_is_not_deleted_by_a_process_that_looks_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots of one machine begin at the same moment, each with a look for abandoned directories."""
    flock, looks = fcntl.flock, []

    def flock_behind_a_look(fd: int, operation: int) -> None:
        if not looks:
            looks.append(sorted(path.name for path in tmp_path.iterdir()))
            local_directory._delete_abandoned(tmp_path, ROCKSDB)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock_behind_a_look)
    made = LocalDirectory(str(tmp_path))
    assert looks[0], "nothing was there to be deleted"
    assert made.path.is_dir()
    local_directory._delete_abandoned(tmp_path, ROCKSDB)
    assert made.path.is_dir()
    made.close()
    assert not list(tmp_path.iterdir())


def labelled(tmp_path: Path, label: str, file: str, owner: str = "job") -> LocalDirectory:
    """A directory with this label and one file, of its own name."""
    made = LocalDirectory(str(tmp_path), COPIES, owner)
    assert made.take_over(label) == 0
    (made.path / file).write_text(file)
    return made


def test_files_under_the_same_label_are_taken_over_once_their_process_is_gone(
    tmp_path: Path,
) -> None:
    lost, alive, other = (labelled(tmp_path, *of) for of in (("1", "a"), ("1", "b"), ("2", "c")))
    (lost.path / "inner").mkdir()
    heir = LocalDirectory(str(tmp_path), COPIES, "job")
    lost.abandon()
    other.abandon()
    assert heir.take_over("1") == 1
    assert os.listdir(heir.path) == ["a"]
    assert not lost.path.exists()
    assert os.listdir(alive.path) == ["b"]
    assert os.listdir(other.path) == ["c"]
    assert heir.take_over("1") == 0
    assert heir.take_over("2") == 1  # It serves in another place now, and keeps what it has.
    assert sorted(os.listdir(heir.path)) == ["a", "c"]
    heir.abandon()
    last = LocalDirectory(str(tmp_path), COPIES, "job")
    assert last.take_over("1") == 0, "the label of before is no longer the heir's"
    assert last.take_over("2") == 2
    alive.close()
    last.close()
    assert not list(tmp_path.iterdir())


def test_abandoned_directories_stay_for_their_owner_until_it_closes_one(tmp_path: Path) -> None:
    lost = labelled(tmp_path, "1", "a")
    alive = labelled(tmp_path, "2", "b")
    lost.abandon()
    beside = LocalDirectory(str(tmp_path), COPIES, "job")
    assert lost.path.exists()
    beside.close()
    assert not lost.path.exists()
    assert alive.path.exists()
    alive.close()
    assert not list(tmp_path.iterdir())


def test_abandoned_directories_are_deleted_by_one_without_an_owner(tmp_path: Path) -> None:
    lost = labelled(tmp_path, "1", "a")
    lost.abandon()
    other = LocalDirectory(str(tmp_path), COPIES)
    assert not lost.path.exists()
    other.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("owner", ["jo", "job2", "job 1"])
def test_other_owners_leave_abandoned_directories_for_an_hour(tmp_path: Path, owner: str) -> None:
    lost = labelled(tmp_path, "1", "a")
    lost.abandon()
    LocalDirectory(str(tmp_path), COPIES, owner).close()
    assert os.listdir(lost.path) == ["a"]
    long_ago = time.time() - local_directory._SPARED_S - 1
    os.utime(lost.path, (long_ago, long_ago))
    other = LocalDirectory(str(tmp_path), COPIES, owner)
    assert not lost.path.exists()
    other.close()
    assert not list(tmp_path.iterdir())


def test_a_look_of_another_process_hides_no_directory(tmp_path: Path) -> None:
    lost = labelled(tmp_path, "1", "a")
    heir = LocalDirectory(str(tmp_path), COPIES, "job")
    lost.abandon()
    looks = local_directory._abandoned(tmp_path, COPIES)
    directory, _, _ = next(looks)
    assert directory == lost.path
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(heir.take_over, "1")
        with pytest.raises(TimeoutError):
            taken.result(0.2)
        looks.close()
        assert taken.result(TIMEOUT_S) == 1
    heir.close()
    assert not list(tmp_path.iterdir())


def test_what_was_abandoned_before_it_had_a_label_is_deleted(tmp_path: Path) -> None:
    lost = LocalDirectory(str(tmp_path), COPIES, "job")
    lost.abandon()
    LocalDirectory(str(tmp_path), COPIES, "job").close()
    assert not list(tmp_path.iterdir())


def test_no_link_in_the_place_of_a_directory_is_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    lost = labelled(tmp_path, "1", "a")
    (lost.path / "a").unlink()
    lost.path.rmdir()
    lost.path.symlink_to(elsewhere)
    lost.abandon()
    heir = LocalDirectory(str(tmp_path), COPIES, "job")
    assert heir.take_over("1") == 0
    assert os.listdir(elsewhere) == ["file"]
    heir.close()
