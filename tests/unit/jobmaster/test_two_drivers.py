"""Two drivers of one job, the older of which the control plane has given up, or another's."""

import pytest

from tests.unit.jobmaster.job_harness import JOB
from tests.unit.jobmaster.managed_harness import URL, Managed, managed, wait
from weir.ids import AttemptNumber
from weir.jobmaster.fence import Fence
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.storage.attempt_claims import ManagedClaim
from weir.storage.memory import MemoryStore


def test_the_newest_driver_begins_although_the_older_one_takes_another_number() -> None:
    """The older one restarts its attempt between the newest one's look and its claim."""
    store = MemoryStore()
    older = managed(store=store)
    newest = Managed(store=store)
    newest.master.start()
    newest.cluster.run(1)  # It has seen attempt 1, and is about to claim the next.
    older.fail()
    older.restarted()
    assert older.attempt == 2
    newest.cluster.run()
    newest.register(0, 1)
    newest.ready(0, 1)
    newest.cluster.run()
    newest.subtasks(SubtaskStatus.RUNNING)
    assert (newest.attempt, newest.status) == (3, JobStatus.RUNNING)
    older.fail()
    wait(older, 5_000)  # The restart's delay.
    older.cluster.run()
    assert older.master.left is not None
    assert "another driver runs" in older.master.left
    assert older.status is not JobStatus.FAILED


def test_an_older_driver_finds_out_at_its_next_manifest() -> None:
    store = MemoryStore()
    older = managed(store=store)
    older.acknowledge(older.triggered())
    newest = managed(store=store)
    older.settle()
    assert older.stored() is None
    assert older.completions == []
    assert older.master.left is not None
    assert newest.master.left is None


@pytest.mark.parametrize(
    ("url", "named"),
    [
        (URL, "another driver runs job now"),
        ("https://copy.example", "a driver of the control plane at https://copy.example runs job"),
    ],
)
def test_a_driver_that_another_control_plane_launched_is_named(url: str, named: str) -> None:
    store = MemoryStore()
    older = managed(store=store)
    older.acknowledge(older.triggered())
    managed(store=store, claim=ManagedClaim(url, "1" * 16).dump())
    older.settle()
    assert older.master.left is not None
    assert older.master.left.startswith(named)
    assert ("stop the one that is the copy" in older.master.left) == (url != URL)


def test_a_driver_that_loses_the_race_for_an_attempt_names_the_control_plane() -> None:
    store = MemoryStore()
    older = managed(store=store)
    older.fail()
    other = ManagedClaim("https://copy.example", "1" * 16).dump()
    assert Fence(store, JOB, other).claim(AttemptNumber(2))
    wait(older, 5_000)  # The restart's delay.
    older.cluster.run()
    assert older.master.left is not None
    assert "https://copy.example" in older.master.left
