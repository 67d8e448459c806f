"""Files that user code may have replaced: no link is followed, and nothing blocks or is endless."""

import os
import socket
import threading
from pathlib import Path

import pytest

from weir import untrusted_files
from weir.errors import StorageError
from weir.storage.local import READ_BYTES_MAX, LocalStore
from weir.untrusted_files import UntrustedFileError, open_regular, read, read_whole

SECRET = b"SECRET_KEY=abc"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that user code can write."""
    directory = tmp_path / "root"
    (directory / "job").mkdir(parents=True)
    return directory


def contents(path: Path, root: Path) -> bytes:
    return read_whole(path, below=root, bytes_max=1 << 20)


def test_plain_file_is_read_in_parts(root: Path) -> None:
    path = root / "job" / "log"
    path.write_bytes(b"0123456789")
    assert contents(path, root) == b"0123456789"
    with open_regular(path, below=root) as file:
        assert (read(file, 4), read(file, 2, offset=8), read(file, 9, offset=20)) == (
            *(b"0123", b"89"),
            b"",
        )


def test_link_is_not_followed(root: Path, secret: Path) -> None:
    path = root / "job" / "log"
    path.symlink_to(secret)
    assert path.read_bytes() == SECRET  # As a careless reader would.
    with pytest.raises(UntrustedFileError, match="it is a symbolic link"):
        contents(path, root)


def test_link_in_place_of_a_directory_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "log").write_bytes(SECRET)
    (root / "other").symlink_to(tmp_path / "elsewhere")
    assert (root / "other" / "log").read_bytes() == SECRET
    with pytest.raises(UntrustedFileError, match="other is a symbolic link"):
        contents(root / "other" / "log", root)


def test_trusted_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (root / "job" / "log").write_bytes(b"a")
    (tmp_path / "mounted").symlink_to(root)
    assert contents(tmp_path / "mounted" / "job" / "log", tmp_path / "mounted") == b"a"


def test_second_name_of_a_file_is_not_read(root: Path, secret: Path) -> None:
    path = root / "job" / "log"
    os.link(secret, path)
    with pytest.raises(UntrustedFileError, match="another file's second name"):
        contents(path, root)


def test_fifo_and_socket_are_refused_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a FIFO for reading blocks until a writer comes, which is never."""
    os.mkfifo(root / "job" / "fifo")
    monkeypatch.chdir(root / "job")  # A socket's path is short.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for name in ("fifo", "socket"):
            refused: list[str] = []
            reader = threading.Thread(
                target=lambda name=name, into=refused: into.append(
                    refusal(root / "job" / name, root)
                ),
                daemon=True,
            )
            reader.start()
            reader.join(20)
            assert not reader.is_alive()
            assert name.upper() in refused[0].upper()


def refusal(path: Path, root: Path) -> str:
    with pytest.raises(UntrustedFileError) as raised:
        contents(path, root)
    return str(raised.value)


def test_file_swapped_for_a_link_after_the_look_is_refused(
    root: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race between look and open: the open itself follows no link."""
    path = root / "job" / "log"
    path.write_bytes(b"a")
    swapped = False
    look = untrusted_files._check

    def swap(status: os.stat_result, *rest: object) -> None:
        nonlocal swapped
        look(status, *rest)  # type: ignore[arg-type]
        if not swapped:
            swapped = True
            path.unlink()
            path.symlink_to(secret)

    monkeypatch.setattr(untrusted_files, "_check", swap)
    with pytest.raises(UntrustedFileError, match="replaced meanwhile"):
        contents(path, root)
    assert swapped


def test_file_larger_than_its_bound_is_refused(root: Path) -> None:
    path = root / "job" / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UntrustedFileError, match="more than 1,048,576 bytes"):
        contents(path, root)


def test_slow_read_ends_at_its_deadline(root: Path) -> None:
    path = root / "job" / "log"
    path.write_bytes(bytes(3 * untrusted_files.PIECE_BYTES))
    with open_regular(path, below=root) as file, pytest.raises(TimeoutError, match="longer than 0"):
        read(file, 1 << 30, deadline_s=0)


def test_paths_lie_below_the_root(root: Path, secret: Path) -> None:
    for path in (secret, root / ".." / "secret", root / "job" / ".." / ".." / "secret"):
        with pytest.raises(ValueError, match="root"):
            contents(path, root)


def test_missing_file_is_missing(root: Path) -> None:
    for path in (root / "job" / "log", root / "none" / "log"):
        with pytest.raises(FileNotFoundError):
            contents(path, root)


# Checkpoint storage, which the control plane reads and cleans up
# -----------------------------------


def test_store_reads_and_deletes_through_no_link(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest").write_bytes(SECRET)
    (root / "job" / "chk-1").symlink_to(outside)
    (root / "job" / "manifest").symlink_to(outside / "manifest")
    store = LocalStore(root)
    for path in ("job/chk-1/manifest", "job/manifest"):
        with pytest.raises(StorageError, match="symbolic link"):
            store.read(path)
        with pytest.raises(StorageError, match="symbolic link"):
            store.read_range(path, 0, 10)
    with pytest.raises(StorageError, match="symbolic link"):
        store.delete("job/chk-1/manifest")
    assert (outside / "manifest").read_bytes() == SECRET
    (outside / "chk-2").mkdir()
    (root / "other").symlink_to(outside)
    for directory in ("other/chk-2", "other"):
        with pytest.raises(StorageError, match="symbolic link"):
            store.delete_prefix(directory)
    assert (outside / "chk-2").is_dir()
    store.delete_prefix("none/chk-1")
    store.delete("job/manifest")  # The link, not its target.
    assert (outside / "manifest").read_bytes() == SECRET


def test_store_is_not_held_up_by_a_fifo_nor_by_a_sparse_file(root: Path) -> None:
    os.mkfifo(root / "job" / "fifo")
    with (root / "job" / "sparse").open("wb") as file:
        file.truncate(READ_BYTES_MAX + 1)
    store = LocalStore(root)
    with pytest.raises(StorageError, match="FIFO"):
        store.read("job/fifo")
    with pytest.raises(StorageError, match="more than"):
        store.read("job/sparse")
    assert store.read_range("job/sparse", 5, 3) == bytes(3)
