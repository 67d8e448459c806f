"""The walks of an acknowledgement and of a trigger through the driver: each object once.

An object that is entered again on the way, by a call back from one further down, has two parts that
know of each other; the walks are written down in the architecture's page, and held here.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.builders import subtask
from tests.unit.jobmaster.job_harness import FakeCluster, JobHarness, acknowledgement
from tests.unit.jobmaster.managed_harness import Distant, Managed, managed
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.job_master import JobMaster
from weir.jobmaster.remote_coordination import RemoteCoordination
from weir.jobmaster.workers import Workers
from weir.protocol.events import CheckpointSettled, CheckpointTriggered, JobChanged
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import Acknowledged, TriggerCheckpoint

OBJECTS = (
    CheckpointRunner,
    Distant,  # In the place of the gateway's client.
    FakeCluster,
    JobMaster,
    LocalCoordination,
    RemoteCoordination,
    Workers,
)


def walk(action: Callable[[], None]) -> list[type]:
    """The objects of the driver in the order in which one calls the next."""
    entered: list[type] = []
    stack: list[Any] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            around = next((owner for owner in reversed(stack) if owner is not None), None)
            owner = frame.f_locals.get("self")
            owner = owner if isinstance(owner, OBJECTS) else None
            if owner is not None and owner is not around:
                entered.append(type(owner))
            stack.append(owner)
        elif event == "return" and stack:
            stack.pop()

    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
    return entered


def acknowledges(job: JobHarness) -> None:
    chain = subtask("sink-0")
    job.master.on_worker(0, acknowledgement(chain))


def test_an_acknowledgement_goes_down_to_the_coordinator_in_this_process() -> None:
    job = JobHarness().running()
    job.alive()
    job.wait(1_000)
    assert job.told(TriggerCheckpoint)
    assert walk(lambda: acknowledges(job)) == [JobMaster, CheckpointRunner, LocalCoordination]


def test_an_acknowledgement_leaves_the_driver_by_one_path() -> None:
    job = managed()
    job.triggered()
    seen = walk(lambda: acknowledges(job))
    assert seen == [JobMaster, CheckpointRunner, RemoteCoordination, Distant]
    assert [type(event) for event in job.control.told].count(Acknowledged) == 1
    assert len(job.happened(Acknowledged)) == 1, "readers in this process see it as well"


def test_a_trigger_goes_down_to_the_workers() -> None:
    job = managed()
    job.go_up()
    command = job.barrier(1)
    slots = [FakeCluster] * 2
    seen = walk(lambda: job.master.on_command(command))
    assert seen == [JobMaster, CheckpointRunner, RemoteCoordination, Workers, *slots]
    assert [t.barrier.checkpoint_id for t in job.told(TriggerCheckpoint)] == [1]


def test_what_the_coordinator_knows_by_itself_is_not_posted_to_it() -> None:
    job = managed()
    job.acknowledge(job.triggered())
    job.settle()
    assert job.happened(CheckpointTriggered)
    assert job.happened(CheckpointSettled)
    posted = {type(event) for event in job.control.told}
    assert JobChanged in posted
    assert not posted & {CheckpointTriggered, CheckpointSettled}


def test_the_jobs_end_is_left_to_the_owner_of_the_driver() -> None:
    """It is the driver's last event, and follows once no manifest is being written."""
    job: Managed = managed()
    job.master.cancel()
    assert job.status is JobStatus.CANCELED
    assert job.master.end is not None
    assert job.master.end.status is JobStatus.CANCELED
    told = [event.status for event in job.control.told if isinstance(event, JobChanged)]
    assert told == [JobStatus.INITIALIZING, JobStatus.RUNNING, JobStatus.CANCELLING]
