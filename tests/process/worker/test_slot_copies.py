"""Supervisors whose workers leave copies of state files for their successors."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.process.worker.fake_master import (
    FakeMaster,
    fake_master,
    program,
    supervisor,
)
from tests.waiting import TIMEOUT_S
from weir.graph.logical import JobGraph, Operator
from weir.ids import OperatorId
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


def test_a_later_slot_of_the_job_finds_what_one_left_that_lost_its_driver(
    master: FakeMaster, tmp_path: Path
) -> None:
    for attempt in (1, 2):
        with supervisor(master) as process:
            slot = master.accept_slot(program(behaviour="copy"), copies_directory=tmp_path)
            worker, _ = master.start_worker(slot, attempt)
            master.deploy(worker, attempt)
            master.expect_details(left=[name_of(1)] if attempt == 2 else [])
            if attempt == 1:
                for peer in (slot, worker):
                    master.peers.remove(peer)
                    peer.close()
                assert process.wait(TIMEOUT_S) == 1, "Spark starts no task again that returns"
                (directory,) = directories(tmp_path)
                assert os.listdir(directory) == [name_of(1)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_spare", [False, True])
def test_a_slot_takes_over_what_one_left_that_was_killed_in_its_place(
    master: FakeMaster, tmp_path: Path, is_spare: bool
) -> None:
    """A slot that Spark started anew, or one that was a spare before; others share nothing."""
    source = Operator(OperatorId("a"), "a", 2, factory=None, is_source=True)
    loaded = program(JobGraph("apart", (source,), ()), behaviour="copy")
    with ExitStack() as others:
        if is_spare:
            others.enter_context(supervisor(master, slot_index=2))
            spare = master.accept_slot(loaded, 2, copies_directory=tmp_path)
        others.enter_context(supervisor(master, slot_index=1))
        with supervisor(master, slot_index=0) as killed:
            for place in (0, 1):
                slot = master.accept_slot(loaded, place, copies_directory=tmp_path)
                worker, _ = master.start_worker(slot, place + 1, place)
                master.deploy(worker, place + 1)
                master.expect_details(left=[])
            killed.kill()
            killed.wait(TIMEOUT_S)
        if not is_spare:
            others.enter_context(supervisor(master, slot_index=2))
            spare = master.accept_slot(loaded, 2, copies_directory=tmp_path)
        worker, _ = master.start_worker(spare, 3, plan_slot=0)
        assert len(directories(tmp_path)) == 2
        master.deploy(worker, 3)
        master.expect_details(left=[name_of(1)])
        held = [name for path in directories(tmp_path) for name in os.listdir(path)]
        assert sorted(held) == sorted([name_of(1), name_of(2), name_of(3)])
    assert not list(tmp_path.iterdir())


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
