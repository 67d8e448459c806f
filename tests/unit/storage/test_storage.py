"""Checkpoint stores: the same behaviour in memory and in a directory."""

import errno
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from weir.errors import ConfigError, StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, SubtaskId
from weir.storage.layout import JobLayout, in_job, parse_manifest_path, state_file
from weir.storage.local import LocalStore
from weir.storage.memory import MemoryStore
from weir.storage.store import (
    CheckpointStore,
    PathNotFoundError,
    WriteRefusedError,
    checksum_of,
    store_for,
)


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "deep" / "root")


def test_what_was_put_is_read(store: CheckpointStore) -> None:
    store.put("j/chk-1/a", b"one")
    store.put("j/chk-1/a", b"two")
    assert store.read("j/chk-1/a") == b"two"
    assert store.exists("j/chk-1/a")
    assert not store.exists("j/chk-1")
    assert not store.exists("j/chk-1/b")


def test_a_range_ends_where_the_file_ends(store: CheckpointStore) -> None:
    store.put("f", b"0123456789")
    assert store.read_range("f", 2, 3) == b"234"
    assert store.read_range("f", 8, 30) == b"89"
    assert store.read_range("f", 10, 5) == b""


def test_a_missing_file_is_named(store: CheckpointStore) -> None:
    with pytest.raises(PathNotFoundError, match="j/gone"):
        store.read("j/gone")
    with pytest.raises(PathNotFoundError, match="j/gone"):
        store.read_range("j/gone", 0, 1)


def test_a_file_is_created_only_where_there_is_none(store: CheckpointStore) -> None:
    assert store.create_if_absent("j/m", b"first")
    assert not store.create_if_absent("j/m", b"second")
    assert store.read("j/m") == b"first"
    assert store.list("j") == ["j/m"]


def test_of_many_who_create_at_once_exactly_one_succeeds(store: CheckpointStore) -> None:
    barrier = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        barrier.wait()
        if store.create_if_absent("j/chk-1/manifest", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("j/chk-1/manifest") == b"%d" % won[0]
    assert store.list() == ["j/chk-1/manifest"]


def test_a_directory_is_listed_and_deleted_up_to_its_slash(store: CheckpointStore) -> None:
    for path in ("j/chk-1/a", "j/chk-1/2/b", "j/chk-10/a", "k/x"):
        store.put(path, b"")
    assert store.list("j/chk-1") == ["j/chk-1/2/b", "j/chk-1/a"]
    assert store.list("j/chk-1/") == ["j/chk-1/2/b", "j/chk-1/a"]
    assert store.list("j/chk") == []
    store.delete_prefix("j/chk-1")
    store.delete_prefix("j/never")
    assert store.list() == ["j/chk-10/a", "k/x"]
    store.delete("k/x")
    store.delete("k/x")
    assert store.list() == ["j/chk-10/a"]


def test_only_a_place_without_files_is_deleted_as_empty(store: CheckpointStore) -> None:
    store.put("j/chk-1/a", b"")
    store.put("j/chk-1/deep/b", b"")
    store.delete_if_empty()
    assert store.list() == ["j/chk-1/a", "j/chk-1/deep/b"]
    for path in store.list():
        store.delete(path)
    for _ in range(2):
        store.delete_if_empty()
    assert not (isinstance(store, LocalStore) and store.root.exists())


def test_what_another_process_deletes_meanwhile_stops_no_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, unlink, vanished = LocalStore(tmp_path / "root"), os.unlink, []
    for name in ("a/1", "a/2", "b/1", "b/2", "3", "4"):
        store.put(f"chk-1/{name}", b"")

    def late(path: Any, **where: Any) -> None:
        unlink(path, **where)
        if len(vanished) < 3:
            vanished.append(path)
            unlink(path, **where)  # A quicker process has deleted it.

    monkeypatch.setattr(os, "unlink", late)
    store.delete_prefix("chk-1")
    assert len(vanished) == 3
    assert store.list() == []
    assert not (store.root / "chk-1").exists()


def test_what_cannot_be_deleted_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("chk-1/a", b"")

    def refuse(path: Any, **where: Any) -> None:
        raise PermissionError(errno.EACCES, "no", str(path))

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageError, match="cannot delete"):
        store.delete_prefix("chk-1")


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_directory_that_vanishes_while_it_is_listed_is_passed_over(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, scan, vanished = LocalStore(tmp_path / "root"), os.scandir, []
    for name in ("a/1", "b/1", "c/1"):
        store.put(name, b"")

    def scandir(path: Any) -> Any:
        if str(path).endswith("/b"):
            vanished.append(path)
            raise OSError(code, "gone", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert store.list() == ["a/1", "c/1"]
    assert vanished


@pytest.mark.parametrize("error", [FileExistsError, OSError])
def test_a_link_whose_answer_was_lost_is_known_as_ones_own(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS the client sends the request again, and that one meets the first one's link."""
    store, link, sent = LocalStore(tmp_path), os.link, []

    def answers_lost(source: Any, target: Any, **where: Any) -> None:
        sent.append(target)
        with suppress(FileExistsError):
            link(source, target, **where)
        raise error(errno.EEXIST if error is FileExistsError else errno.EIO, "again", str(target))

    monkeypatch.setattr(os, "link", answers_lost)
    assert store.create_if_absent("a", b"mine")
    assert store.read("a") == b"mine"
    if error is FileExistsError:
        assert not store.create_if_absent("a", b"another's")
    else:
        with pytest.raises(StorageError, match="cannot create"):
            store.create_if_absent("a", b"another's")
    assert len(sent) == 2
    assert os.listdir(tmp_path) == ["a"]
    assert store.read("a") == b"mine"


def test_a_streamed_file_exists_once_it_is_closed(store: CheckpointStore) -> None:
    with store.open_writer("j/big") as writer:
        writer.write(b"ab" * 1000)
        writer.write(memoryview(b"xyz"))
        assert store.list() == []
        written = writer.close()
    assert store.read("j/big") == b"ab" * 1000 + b"xyz"
    assert (written.size, written.checksum) == (2003, checksum_of(store.read("j/big")))


def test_a_streamed_file_that_is_not_closed_leaves_nothing(
    store: CheckpointStore, tmp_path: Path
) -> None:
    with store.open_writer("j/big") as writer:
        writer.write(b"half")
    assert store.list() == []
    assert not [name for _, _, names in os.walk(tmp_path) for name in names]
    with pytest.raises(StorageError, match="closed"):
        writer.close()


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\0b", "a\\b"]
)
def test_a_path_that_leaves_the_store_is_refused(store: CheckpointStore, path: str) -> None:
    for use in (store.read, store.exists, store.delete, store.open_writer):
        with pytest.raises(StorageError, match="inside"):
            use(path)
    with pytest.raises(StorageError, match="inside"):
        store.put(path, b"")
    with pytest.raises(StorageError, match="inside"):
        store.delete_prefix(path or "..")


def test_a_temporary_file_that_a_crash_left_is_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = store.open_writer("j/a")
    writer.write(b"half")
    assert len(list((tmp_path / "j").iterdir())) == 1
    assert store.list() == []
    writer.abort()
    assert list((tmp_path / "j").iterdir()) == []


def test_an_unwritable_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = LocalStore(tmp_path / "file")
    with pytest.raises(StorageError, match="choose an empty directory"):
        store.put("a", b"")


@pytest.mark.parametrize("write", ["put", "create_if_absent"])
@pytest.mark.parametrize("linked", ["j", "j/chk-1"])
def test_nothing_is_written_through_a_link_in_the_place_of_a_directory(
    write: str, linked: str, tmp_path: Path
) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    store = LocalStore(root)
    store.put("j/chk-1/a", b"")
    shutil.rmtree(root / linked)
    (elsewhere / "chk-1").mkdir(parents=True)
    (root / linked).symlink_to(elsewhere)
    with pytest.raises(WriteRefusedError, match="is a symbolic link"):
        getattr(store, write)("j/chk-1/manifest", b"")
    assert [path.name for path in elsewhere.rglob("*")] == ["chk-1"]
    (root / linked).unlink()
    store.put("j/chk-1/manifest", b"")  # The directories are made again.
    assert store.list() == ["j/chk-1/manifest"]


def test_writers_leave_no_descriptor_open(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    store.put("a/b", b"")
    assert not store.create_if_absent("a/b", b"")
    assert store.create_if_absent("a/c", b"")
    with store.open_writer("a/d") as writer:
        writer.abort()
    with pytest.raises(StorageError):
        store.put("a/b/c", b"")
    assert len(os.listdir("/proc/self/fd")) == before


def test_missing_permission_names_user_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, whom no permission stops, so the refusal is made."""

    opened = os.open

    def refuse(path: Any, flags: int, *args: Any, **where: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *args, **where)

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=rf"runs as .*{tmp_path}.* write access"):
        store.put("a", b"")


def test_a_full_disk_says_what_to_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="free some space"):
        store.put("a", b"data")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_relative_root_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("here")
    monkeypatch.chdir("/")
    store.put("a", b"")
    assert (tmp_path / "here" / "a").exists()


def test_a_setting_finds_its_store(tmp_path: Path) -> None:
    assert isinstance(store_for(None), MemoryStore)
    for uri in (str(tmp_path), f"file://{tmp_path}", f"file://localhost{tmp_path}"):
        opened = store_for(uri)
        assert isinstance(opened, LocalStore)
        assert opened.root == tmp_path
    spaced = store_for("file:///tmp/with%20space")
    assert isinstance(spaced, LocalStore)
    assert spaced.root == Path("/tmp/with space")


@pytest.mark.parametrize("uri", ["s3://bucket/x", "file://other-host/x", "hdfs://n/x"])
def test_storage_of_an_unknown_kind_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="file:///path"):
        store_for(uri)


JOB = JobId("flights/../2013 ä")
LAYOUT = JobLayout(JOB)


def test_names_of_users_cannot_leave_their_place() -> None:
    assert LAYOUT.manifest(CheckpointId(7)) == f"{LAYOUT.directory}/chk-7/manifest"
    assert "/" not in LAYOUT.directory
    assert ".." not in LAYOUT.directory
    assert JobLayout(JobId("..")).directory == "%2E%2E"


def test_a_manifest_is_known_by_its_path() -> None:
    assert parse_manifest_path(LAYOUT.manifest(CheckpointId(12))) == (JOB, 12)
    state = state_file(CheckpointId(1), AttemptNumber(1), SubtaskId(OperatorId("m"), 0), "manifest")
    assert parse_manifest_path(in_job(JOB, state)) is None


def test_an_attempt_is_known_by_its_file() -> None:
    path = LAYOUT.attempt(AttemptNumber(3))
    assert path.startswith(f"{LAYOUT.attempts}/")
    assert LAYOUT.attempt_of(path) == 3


def test_state_files_of_different_states_never_share_a_path() -> None:
    def path(operator: str, index: int, name: str) -> str:
        subtask = SubtaskId(OperatorId(operator), index)
        return state_file(CheckpointId(1), AttemptNumber(2), subtask, name)

    named = [("a", 1, "2-x"), ("a-1", 2, "x"), ("a", 1, "2%2Dx"), ("a-1-2", 0, "x")]
    long = [("a" * 300, 0, "x"), ("a" * 301, 0, "x"), ("a" * 300, 1, "x")]
    paths = [path(*each) for each in named + long]
    assert len(set(paths)) == len(paths)
    assert all(len(file.rpartition("/")[2]) <= 200 for file in paths)
    assert path("map-1", 3, "keyed/sums") == "chk-1/2/map-1-3-keyed%2Fsums"
