"""Local copies of state files: what is taken, what is noticed, how much space they take."""

import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.state.snapshots import JOB
from weir.errors import ConfigError, CorruptStateError
from weir.ids import AttemptNumber, CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.storage.layout import in_job
from weir.storage.local_copies import LocalCopies, StateReader, open_copies
from weir.storage.memory import MemoryStore
from weir.storage.store import TEMPORARY
from weir.storage.writer import StoredSnapshotWriter

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
LARGE = b"state" * 1_000
PLENTY = 1 << 30


class CountingStore(MemoryStore):
    """Counts how often a file is read."""

    reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        return super().read(path)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "copies"
    made.mkdir(mode=0o700)
    return made


def writer(
    store: MemoryStore,
    copies: LocalCopies | None,
    checkpoint: CheckpointId = ONE,
    *,
    is_savepoint: bool = False,
) -> StoredSnapshotWriter:
    return StoredSnapshotWriter(
        store, JOB, AttemptNumber(1), checkpoint, SubtaskId(OperatorId("op"), 0),
        inline_max=10, cancelled=lambda: False, is_savepoint=is_savepoint, copies=copies,
    )  # fmt: skip


def written(
    store: MemoryStore,
    copies: LocalCopies | None,
    data: bytes = LARGE,
    checkpoint: CheckpointId = ONE,
) -> StateHandle:
    """State that was put in one piece, and belongs to the checkpoint."""
    one = writer(store, copies, checkpoint)
    handle = one.put("operator", f"n{len(data)}", data, mode="split")
    one.note([handle])
    return handle


def read(store: MemoryStore, directory: Path, handle: StateHandle) -> tuple[bytes, int]:
    """The bytes that the next worker of the slot reads, and how many came from a copy."""
    reader = StateReader(store, JOB, LocalCopies(directory, PLENTY))
    return reader.read(handle), reader.local_size


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def name_of(*handles: StateHandle) -> set[str]:
    return {f"{handle.checksum}-{handle.size}" for handle in handles}


# Reading.


def test_the_next_worker_reads_a_whole_copy_and_not_the_stored_file(
    store: CountingStore, directory: Path
) -> None:
    handle = written(store, LocalCopies(directory, PLENTY))
    assert read(store, directory, handle) == (LARGE, len(LARGE))
    assert store.reads == 0


def test_a_file_that_is_written_in_pieces_has_a_copy_once_it_is_whole(
    store: CountingStore, directory: Path
) -> None:
    one = writer(store, LocalCopies(directory, PLENTY))
    path = one.path("big")
    with one.open(path) as file:
        assert file.write(LARGE) == len(LARGE)
        file.write(memoryview(b"and more"))
        assert all(name.startswith(TEMPORARY) for name in names(directory))
        whole = file.close()
    handle = StateHandle("keyed", "big", whole.size, whole.checksum, path)
    assert names(directory) == name_of(handle)
    assert read(store, directory, handle) == (LARGE + b"and more", len(LARGE) + 8)


def test_a_file_that_is_not_finished_leaves_no_copy(store: CountingStore, directory: Path) -> None:
    copies = LocalCopies(directory, PLENTY)
    one = writer(store, copies)
    with one.open(one.path("big")) as file:
        file.write(LARGE)
        assert copies.size == len(LARGE)
    assert (names(directory), copies.size) == (set(), 0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (LARGE[:-1], "has 4999 bytes instead of 5000"),
        (b"", "has 0 bytes instead of 5000"),
        (LARGE + b"x", "has 5001 bytes instead of 5000"),
        (b"S" + LARGE[1:], "its checksum does not match"),
    ],
)
def test_a_damaged_copy_is_noticed_and_the_stored_file_read(
    data: bytes,
    problem: str,
    store: CountingStore,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle = written(store, LocalCopies(directory, PLENTY))
    (copy,) = directory.iterdir()
    copy.write_bytes(data)
    copies = LocalCopies(directory, PLENTY)
    reader = StateReader(store, JOB, copies)
    assert (reader.read(handle), store.reads) == (LARGE, 1)
    assert (names(directory), copies.size) == (set(), 0)
    told = reader.details()
    assert told["restored_local_bytes"] == 0
    assert problem in str(told["damaged_copies"])
    assert f"{problem}; the stored file is read instead" in caplog.text


@pytest.mark.parametrize("other", ["link", "pipe", "directory"])
def test_what_is_no_file_is_not_read_as_one(
    other: str, store: CountingStore, directory: Path, tmp_path: Path
) -> None:
    handle = written(store, LocalCopies(directory, PLENTY))
    (copy,) = directory.iterdir()
    copy.unlink()
    if other == "link":
        (tmp_path / "elsewhere").write_bytes(LARGE)
        copy.symlink_to(tmp_path / "elsewhere")
    elif other == "pipe":
        os.mkfifo(copy)
    else:
        copy.mkdir()
    assert read(store, directory, handle) == (LARGE, 0)
    assert store.reads == 1


def test_a_copy_that_is_missing_is_no_damage(store: CountingStore, directory: Path) -> None:
    handle = written(store, LocalCopies(directory, PLENTY))
    copies = LocalCopies(directory, PLENTY)
    (copy,) = directory.iterdir()
    copy.unlink()  # As a cleaner of old temporary files does.
    reader = StateReader(store, JOB, copies)
    assert reader.read(handle) == LARGE
    assert reader.details() == {"restored_local_bytes": 0, "damaged_copies": []}
    assert copies.size == 0


def test_a_stored_file_that_is_missing_is_an_error_although_there_is_a_copy(
    store: CountingStore, directory: Path
) -> None:
    handle = written(store, LocalCopies(directory, PLENTY))
    store.delete(in_job(JOB, handle.path or ""))
    with pytest.raises(CorruptStateError, match="it is missing"):
        read(store, directory, handle)
    assert names(directory) == name_of(handle)


def test_state_inside_the_manifest_and_without_copies_is_read_as_ever(
    store: CountingStore, directory: Path
) -> None:
    copies = LocalCopies(directory, PLENTY)
    small = writer(store, copies).put("operator", "small", b"x", mode="split")
    assert names(directory) == set()
    reader = StateReader(store, JOB, copies)
    assert (reader.read(small), reader.local_size) == (b"x", 0)
    large = written(store, None)
    without = StateReader(store, JOB)
    assert (without.read(large), without.details()) == (LARGE, {})


def test_damage_is_told_by_the_subtask_that_met_it(store: CountingStore, directory: Path) -> None:
    before = LocalCopies(directory, PLENTY)
    handles = [written(store, before, LARGE + end) for end in (b"1", b"22")]
    for copy in directory.iterdir():
        copy.write_bytes(b"?")
    copies = LocalCopies(directory, PLENTY)
    for handle in handles:
        reader = StateReader(store, JOB, copies)
        reader.read(handle)
        told = reader.details()["damaged_copies"]
        assert isinstance(told, list)
        assert len(told) == 1
        assert str(handle.path) in told[0]


# Space.


def test_a_completed_checkpoint_deletes_what_neither_it_nor_a_later_one_names(
    store: CountingStore, directory: Path
) -> None:
    copies = LocalCopies(directory, PLENTY)
    old, shared = (written(store, copies, LARGE + end) for end in (b"old", b"shared"))
    new = written(store, copies, LARGE + b"new", TWO)
    copies.name(TWO, [shared])
    next_one = written(store, copies, LARGE + b"next one", THREE)
    assert names(directory) == name_of(old, shared, new, next_one)
    copies.completed(TWO)
    assert names(directory) == name_of(shared, new, next_one)
    assert copies.size == shared.size + new.size + next_one.size


def test_a_copy_of_a_checkpoint_under_way_outlives_the_completion_of_the_one_before(
    store: CountingStore, directory: Path
) -> None:
    """Its subtask has written one file of several, and not said yet which it consists of."""
    copies = LocalCopies(directory, PLENTY)
    first = written(store, copies)
    under_way = writer(store, copies, TWO).put("operator", "n", LARGE + b"2", mode="split")
    copies.completed(ONE)
    assert names(directory) == name_of(first, under_way)


def test_a_completed_savepoint_deletes_nothing(store: CountingStore, directory: Path) -> None:
    copies = LocalCopies(directory, PLENTY)
    old = written(store, copies)
    saved = writer(store, copies, TWO, is_savepoint=True)
    saved.note([saved.put("operator", "n", LARGE + b"2", mode="split")])
    copies.completed(TWO)
    assert names(directory) == name_of(old)


def test_an_aborted_checkpoint_deletes_what_it_alone_names(
    store: CountingStore, directory: Path
) -> None:
    copies = LocalCopies(directory, PLENTY)
    kept = written(store, copies)
    written(store, copies, LARGE + b"alone", TWO)
    copies.name(TWO, [kept])
    copies.aborted(TWO)
    assert names(directory) == name_of(kept)
    assert copies.size == kept.size


def test_what_the_worker_before_left_stays_until_a_checkpoint_completes(
    store: CountingStore, directory: Path
) -> None:
    left = written(store, LocalCopies(directory, PLENTY))
    (directory / f"{TEMPORARY}cut-off").write_bytes(b"half")
    copies = LocalCopies(directory, PLENTY)
    assert (names(directory), copies.size) == (name_of(left), left.size)
    copies.name(TWO, [left])  # Written anew, or shared.
    copies.aborted(TWO)
    assert names(directory) == name_of(left)
    new = written(store, copies, LARGE + b"new", THREE)
    copies.completed(THREE)
    assert (names(directory), copies.size) == (name_of(new), new.size)


def test_of_more_copies_than_there_is_room_for_the_newest_stay(
    store: CountingStore, directory: Path
) -> None:
    """A slot may take over those of several that were lost."""
    before = LocalCopies(directory, PLENTY)
    handles = [written(store, before, LARGE + bytes([n])) for n in range(4)]
    for handle, written_s in zip(handles, (3, 1, 4, 2), strict=True):
        (name,) = name_of(handle)
        os.utime(directory / name, (0, written_s))
    copies = LocalCopies(directory, 2 * handles[0].size)
    assert names(directory) == name_of(handles[0], handles[2])
    assert copies.size == copies.bytes_max
    for handle in (handles[0], handles[2]):
        assert read(store, directory, handle)[1] == handle.size


def test_a_file_that_is_written_anew_in_another_form_leaves_no_copy(
    store: CountingStore, directory: Path
) -> None:
    copies = LocalCopies(directory, PLENTY)
    one = writer(store, copies)
    handle = one.put("operator", "n", LARGE, mode="split")
    assert names(directory) == name_of(handle)
    one.withdraw(handle)
    assert (names(directory), copies.size) == (set(), 0)


def test_copies_stay_below_their_bound_and_files_are_stored_without(
    store: CountingStore, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = LocalCopies(directory, 2 * len(LARGE))
    first = written(store, copies)
    beyond = [written(store, copies, LARGE + bytes([n]) * n, TWO) for n in (1, 2)]
    last = written(store, copies, LARGE[:-1], TWO)  # For this one there is room.
    assert names(directory) == name_of(first, last)
    assert copies.size == first.size + last.size <= copies.bytes_max
    assert [read(store, directory, handle)[1] for handle in beyond] == [0, 0]
    assert caplog.text.count("weir.local-backup.max-size") == 1
    copies.completed(TWO)
    again = written(store, copies, LARGE + b"!", THREE)  # It just fits.
    assert names(directory) == name_of(last, again)


def test_the_same_content_written_twice_counts_once(store: CountingStore, directory: Path) -> None:
    copies = LocalCopies(directory, PLENTY)
    handle = written(store, copies)
    written(store, copies, LARGE, TWO)
    assert (names(directory), copies.size) == (name_of(handle), handle.size)


def test_a_copy_that_cannot_be_deleted_still_counts(
    store: CountingStore, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = LocalCopies(directory, PLENTY)
    handle = written(store, copies)
    (copy,) = directory.iterdir()
    copy.unlink()
    copy.mkdir()
    new = written(store, copies, b"x" * 10, TWO)
    copies.completed(TWO)
    assert names(directory) == name_of(handle, new)
    assert copies.size == handle.size + new.size
    assert "a local copy of state cannot be deleted" in caplog.text


# Writing where it does not work.


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel writes no file beyond this size, as where a disk is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_drops_copies_and_no_checkpoint(
    store: CountingStore, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies, huge = LocalCopies(directory, PLENTY), LARGE * 1_000
    caplog.set_level(logging.WARNING)
    with file_size_limit(3 << 20):
        first = written(store, copies, huge)
        one = writer(store, copies)
        with one.open(path := one.path("big")) as file:
            for _ in range(1_000):
                file.write(LARGE)
            whole = file.close()
    second = StateHandle("keyed", "big", whole.size, whole.checksum, path)
    assert (names(directory), copies.size) == (set(), 0)
    assert caplog.text.count("a state file gets no local copy: File too large") == 1
    for handle in (first, second):
        assert read(store, directory, handle) == (huge, 0)
    kept = written(store, copies)  # There is room again.
    assert names(directory) == name_of(kept)


def test_a_directory_that_goes_away_drops_copies_and_no_checkpoint(
    store: CountingStore, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copies = LocalCopies(directory, PLENTY)
    directory.rmdir()
    handle = written(store, copies)
    assert StateReader(store, JOB, copies).read(handle) == LARGE
    assert copies.size == 0
    assert "a state file gets no local copy: No such file or directory" in caplog.text
    assert open_copies(str(directory), PLENTY) is None
    assert "state gets no local copies" in caplog.text


def test_the_directory_of_another_account_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(ConfigError, match=rf"belongs to user id .* runs as user id {other}"):
        open_copies(str(directory), PLENTY)


def test_copies_are_readable_by_their_account_alone(store: CountingStore, directory: Path) -> None:
    written(store, LocalCopies(directory, PLENTY))
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600]


def test_a_link_in_the_place_of_the_directory_is_not_followed(
    directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(directory)
    assert open_copies(str(tmp_path / "link"), PLENTY) is None
    assert open_copies(str(directory), PLENTY) is not None
    assert open_copies(None, PLENTY) is None
