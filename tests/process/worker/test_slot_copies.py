"""Supervisors whose workers leave copies of state files for their successors."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker.fake_master import (
    FakeMaster,
    fake_master,
    program,
    supervisor,
)
from tests.waiting import TIMEOUT_S
from weir.protocol.deployment import ReleaseSlot, SlotFailed, WorkerExited
from weir.storage.store import checksum_of


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with fake_master() as master:
        yield master


def name_of(attempt: int) -> str:
    state = f"state {attempt}".encode()
    return f"{checksum_of(state)}-{len(state)}"


def directories(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()]


def test_a_worker_finds_what_the_one_before_left_and_the_end_of_the_slot_deletes_it(
    master: FakeMaster, tmp_path: Path
) -> None:
    with supervisor(master) as process:
        slot = master.accept_slot(program(behaviour="copy"), copies_directory=tmp_path / "copies")
        for attempt in (1, 2, 3):
            worker, ready = master.start_worker(slot, attempt)
            master.deploy(worker, attempt)
            master.expect_details(left=sorted(map(name_of, range(1, attempt))))
            (directory,) = directories(tmp_path / "copies")
            assert directory.stat().st_mode & 0o777 == 0o700
            os.kill(ready.pid, signal.SIGKILL)
            master.expect(WorkerExited)
        master.send(slot, ReleaseSlot("done"))
        assert process.wait(TIMEOUT_S) == 0
    assert not list((tmp_path / "copies").iterdir())


def test_slots_of_a_machine_share_nothing_and_the_next_deletes_what_a_killed_one_left(
    master: FakeMaster, tmp_path: Path
) -> None:
    loaded = program(behaviour="copy")
    with supervisor(master, slot_index=0) as killed, supervisor(master, slot_index=1):
        for index, attempt in enumerate((1, 2)):
            slot = master.accept_slot(loaded, index, copies_directory=tmp_path)
            worker, _ = master.start_worker(slot, attempt)
            master.deploy(worker, attempt)
            master.expect_details(left=[])
        assert len(directories(tmp_path)) == 2
        killed.kill()
        killed.wait(TIMEOUT_S)
        assert len(directories(tmp_path)) == 2
        with supervisor(master, slot_index=2):
            slot = master.accept_slot(loaded, 2, copies_directory=tmp_path)
            worker, _ = master.start_worker(slot, 3)
            master.deploy(worker, 3)
            master.expect_details(left=[])
            held = [name for path in directories(tmp_path) for name in os.listdir(path)]
            assert sorted(held) == sorted([name_of(2), name_of(3)])


def test_a_directory_that_cannot_be_used_fails_the_slot_with_advice(
    master: FakeMaster, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with supervisor(master):
        slot = master.accept_slot(program(), copies_directory=tmp_path / "file")
        _, failed = master.expect(SlotFailed)
        assert "local copies of state cannot be kept in" in failed.cause
        assert "execution.checkpointing.local-backup.dirs" in failed.cause
        master.order_worker(slot, 1)
        master.expect(SlotFailed)
