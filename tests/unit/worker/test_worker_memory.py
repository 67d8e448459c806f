"""The memory of a worker: its operators' tables share one budget, and it gives back on demand."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.builders import edge, graph, node
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.subtask_harness import ATTEMPT, Counting, FakeTransport, Passing, Reports
from tests.unit.worker.subtask_harness import SnapshotQueue as Snapshots
from weir.common import Types
from weir.config import SLOT_MEMORY_BYTES_MIN, JobConfig, StateConfig
from weir.graph.logical import Partitioning
from weir.ids import JobId, OperatorId
from weir.operators.base import OperatorContext
from weir.protocol.deployment import Address, Deploy
from weir.state.backends.budget import MemoryBudget
from weir.state.descriptors import ValueStateDescriptor
from weir.worker.ports import CommandArrived
from weir.worker.worker import Worker

ROOM = 64 << 20
NAMES = ("one", "other")


class Keeping(Passing):
    """Has one value in keyed state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self.state = ctx.state.keyed.get_state(ValueStateDescriptor("kept", Types.STRING()))
        ctx.state.keyed.set_current_key(7)
        self.state.update("x" * self.size)


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    """A worker with a source and two keyed operators, whose state is in RocksDB."""
    snapshots = Snapshots()
    job = graph(
        [
            node("source", factory=partial(Counting, 0)),
            *(
                node(name, factory=partial(Keeping, size), keyed=True)
                for name, size in zip(NAMES, (1_000, 9_000), strict=True)
            ),
        ],
        [edge("source", name, Partitioning.HASH, selector=abs) for name in NAMES],
    )
    made = Worker(
        job, JobConfig(state=StateConfig(backend="rocksdb", directory=str(tmp_path))),
        ATTEMPT, JobId("job"), 0,
        inbox=snapshots, transport=FakeTransport(), reporter=Reports(), snapshot_thread=snapshots,
        clock=ManualClock(), memory_limit_bytes=SLOT_MEMORY_BYTES_MIN + ROOM,
    )  # fmt: skip
    deploy = Deploy(
        attempt=ATTEMPT, job_id=JobId("job"), slot_addresses=(Address("here", 1),), storage=None,
        restored_checkpoint=None, restored_storage=None, restored_directory="", restores=(),
        max_parallelism=tuple((OperatorId(name), 128) for name in ("source", *NAMES)),
    )  # fmt: skip
    made.handle(CommandArrived(deploy))
    yield made
    made.close()


def test_keyed_operators_of_a_worker_share_a_budget_of_its_limit(worker: Worker) -> None:
    tables = [
        chained.state.keyed.tables
        for subtask in worker.subtasks
        for chained in subtask.operators
        if chained.state.is_keyed
    ]
    first, second = (its.budget for its in tables)  # type: ignore[attr-defined]
    assert first is second
    assert first.cache_bytes == ROOM // 4
    assert first.fresh_bytes == ROOM // 16 // len(NAMES)
    assert first.cache_bytes != MemoryBudget().cache_bytes


def test_holders_are_named_by_operator_until_they_are_given_back(worker: Worker) -> None:
    held = [(str(each.operator), each.state, each.held.entries) for each in worker.holders()]
    assert held == [("other-0", "kept", 1), ("one-0", "kept", 1)]  # The largest first.
    assert [each.held.bytes // 1_000 for each in worker.holders()] == [9, 1]
    worker.give_back()
    assert worker.holders() == []


FREED = """
import random
from weir.worker.memory.give_back import give_back
from weir.worker.memory.held import HeldMemory
held_bytes = HeldMemory()
kept = {key: b"%d" % key * 400 for key in range(50_000)}
full = held_bytes()
kept = {key: value for key, value in kept.items() if random.random() < 0.1}
before = held_bytes()
give_back()
print(full, before, held_bytes())
"""


def test_memory_that_malloc_keeps_between_values_in_use_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    full, before, after = map(int, done.stdout.split())
    assert before > 0.9 * full, "nothing is kept by itself"
    assert after < before - 50_000_000


HELD = """
import mmap, os, sys, tempfile
from weir.worker.memory.held import HeldMemory

held_bytes = HeldMemory()
figures = []
for directory in (sys.argv[1], "/dev/shm", None):
    before = held_bytes()
    if directory is None:
        kept = b"x" * (100 << 20)
    else:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, 100 << 20)
            kept = mmap.mmap(file.fileno(), 100 << 20)
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
    status = open("/proc/self/status").read()
    resident = int(status.partition("VmRSS:")[2].split()[0]) << 10
    figures += [held_bytes() - before >> 20, resident - before >> 20]
    del kept
print(*figures)
"""


def test_pages_of_files_that_are_mapped_later_do_not_count(disk: Path) -> None:
    """Those of a directory in memory do, for they have no other place."""
    done = subprocess.run(
        [sys.executable, "-c", HELD, str(disk)], capture_output=True, text=True, check=True
    )
    on_disk, resident, in_memory, _, anonymous, _ = map(int, done.stdout.split())
    assert resident > 95, "the pages were resident, and could leave"
    assert on_disk < 10
    assert 95 < in_memory < 110
    assert 95 < anonymous < 110
