"""Each act of a driver whose successor has the job, and what comes of it without its fence.

A scenario has the successor claim its attempt at the worst moment for one act, and says what must
not happen then. It must say so, too, of a driver in which just that look at the fence is missing;
without the successor the act is done, so the occasion arises.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.unit.jobmaster import test_checkpoints
from tests.unit.jobmaster.job_harness import JOB, JobHarness, stored_checkpoint
from tests.unit.jobmaster.test_checkpoints import LAYOUT, FailingStore, Runner, claimed
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.fence import Act, Fence
from weir.protocol.deployment import Deploy
from weir.protocol.messages import CheckpointCompleted
from weir.storage.manifest import Tombstone

Scenario: TypeAlias = Callable[[Path, bool], bool]


def writes_a_manifest(_: Path, is_taken: bool) -> bool:
    job = Runner()
    job.trigger()
    job.acknowledge()
    if is_taken:
        job.taken_over()
    job.queue.run()
    return job.stored() is not None


def counts_its_manifest(_: Path, is_taken: bool) -> bool:
    store = FailingStore()
    job = Runner(store)
    job.trigger()
    store.after_manifest = job.taken_over if is_taken else None
    job.acknowledge()
    job.queue.run()
    assert job.stored() is not None
    return bool(job.events_of(CheckpointCompleted))


def counts_a_late_manifest(_: Path, is_taken: bool) -> bool:
    """Writing fails after the manifest is there; the tombstone meets it."""
    store = FailingStore()
    job = Runner(store)
    job.trigger()
    store.writes_first, store.failing = True, ["create"]
    reads = store.read

    def read(path: str) -> bytes:
        if is_taken and path.endswith("/manifest"):
            job.taken_over()
        return reads(path)

    store.read = read  # type: ignore[method-assign]
    job.acknowledge()
    job.queue.run()
    return bool(job.events_of(CheckpointCompleted))


def gives_a_checkpoint_up(_: Path, is_taken: bool) -> bool:
    store = FailingStore()
    job = Runner(store, tolerable_failures=1)
    job.trigger()
    store.failing = ["create"]
    job.acknowledge()
    job.queue.run(1)  # Writing the manifest has failed.
    if is_taken:
        job.taken_over()
    job.queue.run()
    return isinstance(job.stored(), Tombstone)


def discards_a_checkpoint(_: Path, is_taken: bool) -> bool:
    job = Runner(retained_max=1)
    job.checkpoint()
    job.trigger()
    job.acknowledge(2)
    job.queue.run(1)  # The second one has completed; the first is to go.
    if is_taken:
        job.taken_over()
    job.queue.run()
    return job.stored() is None


def sweeps(output: Path, is_taken: bool) -> bool:
    test = test_checkpoints.TestWithdrawnOutput()
    job = test.went_back(output)
    deletes = job.store.delete_prefix

    def delete(directory: str) -> None:
        deletes(directory)
        if is_taken and directory == LAYOUT.checkpoint(CheckpointId(4)):
            job.taken_over()  # Both checkpoints are discarded, their output is not.

    job.store.delete_prefix = delete  # type: ignore[method-assign]
    job.trigger()
    job.queue.run()
    return "part-sink-0-4-0.parquet" not in test.left(output)


def deletes_the_savepoint_it_claimed(_: Path, is_taken: bool) -> bool:
    job, own = claimed()
    job.checkpoint()
    job.trigger()
    job.acknowledge(3)
    job.queue.run(1)  # It has enough checkpoints of its own.
    if is_taken:
        job.taken_over()
    job.queue.run()
    return not own.exists("manifest")


def restores_a_checkpoint(_: Path, is_taken: bool) -> bool:
    """The successor claims its attempt after this driver has chosen, and before it deploys."""
    job = JobHarness()
    stored_checkpoint(job.store, 1)
    puts = job.store.put

    def put(path: str, data: bytes) -> None:
        puts(path, data)
        if is_taken and path.startswith(LAYOUT.bases):
            job.store.create_if_absent(LAYOUT.attempt(AttemptNumber(2)), b"")

    job.store.put = put  # type: ignore[method-assign]
    job.deployed()
    assert job.store.list(LAYOUT.bases), f"the base of {JOB} was noted"
    return bool(job.told(Deploy))


SCENARIOS: dict[Act, Scenario] = {
    Act.RESTORE: restores_a_checkpoint,
    Act.WRITE_MANIFEST: writes_a_manifest,
    Act.COUNT_MANIFEST: counts_its_manifest,
    Act.COUNT_LATE_MANIFEST: counts_a_late_manifest,
    Act.WRITE_TOMBSTONE: gives_a_checkpoint_up,
    Act.DISCARD: discards_a_checkpoint,
    Act.SWEEP: sweeps,
    Act.DELETE_CLAIMED: deletes_the_savepoint_it_claimed,
}


@pytest.mark.parametrize("act", Act)
def test_a_driver_acts_while_the_job_is_its_own(act: Act, tmp_path: Path) -> None:
    assert SCENARIOS[act](tmp_path, False)


@pytest.mark.parametrize("act", Act)
def test_a_driver_that_was_replaced_does_not_act(act: Act, tmp_path: Path) -> None:
    assert not SCENARIOS[act](tmp_path, True)


@pytest.mark.parametrize("act", Act)
def test_each_fence_left_out_alone_is_caught(
    act: Act, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    production = Fence.check

    def check(fence: Fence, looked: Act) -> None:
        if looked is not act:
            production(fence, looked)

    monkeypatch.setattr(Fence, "check", check)
    assert SCENARIOS[act](tmp_path, True), f"it may {act}, and the scenario does not show it"
