import fcntl
from pathlib import Path

import pytest

from weir.storage import local_directory
from weir.storage.local_directory import ROCKSDB, LocalDirectory


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
