"""Deletion by the driver, where several checkpoints name one file."""

from weir.common.clock import SystemClock
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle
from weir.jobmaster.checkpoint_files import CheckpointFiles
from weir.jobmaster.counted_io import CountedIo
from weir.jobmaster.fence import Fence
from weir.storage.memory import MemoryStore

JOB = JobId("job")
OLD, NEW = "shared/1-1/op-0-x", "shared/1-2/op-0-x"


def files_of(store: MemoryStore) -> CheckpointFiles:
    return CheckpointFiles(
        store, JOB, fence=Fence(store, JOB), io=CountedIo(lambda work, done: done(work())),
        clock=SystemClock(), open_store=lambda uri: store, output=(), note=lambda text: None,
    )  # fmt: skip


def stored(*paths: str) -> MemoryStore:
    store = MemoryStore()
    for path in paths:
        store.put(f"job/{path}", b"state")
    return store


def test_a_late_acknowledgement_takes_no_file_of_others_with_it() -> None:
    store = stored(OLD, NEW, "chk-2/1/op-0-y")
    handles = [
        StateHandle("keyed", "x", 5, "0", path=path) for path in (OLD, NEW, "chk-2/1/op-0-y")
    ]
    files_of(store).discard_handles(handles, lambda number: None)
    assert store.list() == [f"job/{OLD}", f"job/{NEW}"]


def test_a_checkpoint_that_came_to_nothing_takes_its_own_shared_files_with_it() -> None:
    store = stored(OLD, NEW, "shared/2-2/op-0-x")
    files_of(store).discard_pending(CheckpointId(2), AttemptNumber(1), None)
    assert store.list() == [f"job/{OLD}", "job/shared/2-2/op-0-x"]
