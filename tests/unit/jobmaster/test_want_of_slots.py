"""Slots that do not come, or cannot serve: at the job's begin, and when it has run."""

from pathlib import Path

import pytest

from tests.unit.jobmaster.job_harness import VERSIONS, JobHarness, delayed, stored_checkpoint
from tests.unit.jobmaster.managed_harness import Managed
from weir.config import RestartConfig, RestartStrategyKind
from weir.ids import CheckpointId, JobId
from weir.jobmaster.restorer import JobProgress
from weir.protocol.deployment import ReleaseSlot, SlotFailed, StartWorker, Versions
from weir.protocol.events import JobChanged, Notice
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.storage.catalog import RestoreRequest
from weir.storage.local import LocalStore
from weir.storage.memory import MemoryStore

OTHERS = Versions("2", "3.11", "20")
MISFIT = (
    "slot 1 on host-1 runs Weir 2, Python 3.11, pyarrow 20, the driver Weir 1, Python 3.11, "
    "pyarrow 20; install the same versions on every executor"
)
WANT = "1 of 2 slots registered within 60000 ms; the cluster has 4 cores"


def a_minute_with_one_slot(job: JobHarness) -> None:
    """The job begins, and the second slot does not come."""
    job.master.start()
    job.cluster.run()
    job.register(0)
    job.cluster.run()
    for _ in range(6):
        job.alive()
        job.wait(10_000)


def test_a_job_whose_cluster_takes_long_to_replace_an_executor_comes_back() -> None:
    job = JobHarness(slots_timeout_ms=60_000, restart=delayed(10_000)).running()
    job.master.on_slot_lost(1, 0)
    for _ in range(30):  # Five minutes.
        job.alive()
        job.wait(10_000)
    causes = [e.cause for e in job.events if isinstance(e, JobChanged) and e.cause]
    assert causes[0] == "slot 1 on host-1 was lost"
    assert set(causes[1:]) == {
        f"{WANT}. There were enough before: look in the cluster for the executor that it has lost "
        "and not replaced"
    }
    assert 2 <= len(causes[1:]) <= 5
    assert job.started[2:] == []
    job.register(1, spark_attempt=5)
    while job.status is JobStatus.RESTARTING:
        job.alive()
        job.wait(10_000)
    job.cluster.run()
    job.ready(0, 1)
    job.subtasks(SubtaskStatus.RUNNING)
    assert job.status is JobStatus.RUNNING


def test_a_lost_executor_that_is_not_replaced_fails_a_job_that_is_not_restarted_any_more() -> None:
    once = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1, delay_ms=0)
    job = JobHarness(slots_timeout_ms=60_000, restart=once).running()
    job.master.on_slot_lost(1, 0)
    for _ in range(8):
        job.alive()
        job.wait(10_000)
    assert job.status is JobStatus.FAILED
    assert "1 of 2 slots registered within 60000 ms" in job.master.cause
    assert "There were enough before" in job.master.cause


def test_slots_whose_tasks_fail_are_told_apart_from_a_cluster_that_is_too_small() -> None:
    job = JobHarness(slots_timeout_ms=60_000)
    job.cluster.failure = "on host-1: OSError: no space"
    a_minute_with_one_slot(job)
    told = "The newest of their Spark tasks to fail did so on host-1: OSError: no space"
    assert job.master.cause == f"{WANT}. {told}"


def test_the_next_driver_of_a_job_that_had_its_slots_waits_for_the_cluster() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    job = Managed(store=store, slots_timeout_ms=60_000, restart=delayed(10_000))
    a_minute_with_one_slot(job)
    assert job.status is JobStatus.RESTARTING
    job.register(1)
    job.alive()
    job.restarted(10_000)
    assert job.status is JobStatus.RUNNING


def test_the_next_driver_fails_a_job_that_had_fewer_slots_at_once() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1, parallelism=1)
    job = Managed(store=store, slots_timeout_ms=60_000)
    a_minute_with_one_slot(job)
    assert (job.status, WANT in job.master.cause) == (JobStatus.FAILED, True)
    assert "Lower the parallelism" in job.master.cause


def test_slots_that_another_job_had_say_nothing_of_this_one(tmp_path: Path) -> None:
    stored_checkpoint(LocalStore(tmp_path), 7, job=JobId("other"))
    request = RestoreRequest(str(tmp_path), JobId("other"), CheckpointId(7))
    job = Managed(restore_from=request, slots_timeout_ms=60_000)
    a_minute_with_one_slot(job)
    assert job.status is JobStatus.FAILED


def test_a_new_run_on_another_cluster_fails_at_once_where_its_slots_do_not_come() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    job = JobHarness(store=store, slots_timeout_ms=60_000)
    a_minute_with_one_slot(job)
    assert (job.status, WANT in job.master.cause) == (JobStatus.FAILED, True)


def test_a_slot_that_cannot_load_a_pipeline_that_ran_leaves_it_to_the_restart_strategy() -> None:
    job = JobHarness(restart=delayed(5_000)).running()
    job.master.on_slot_lost(1, 0)
    job.wait(5_000)
    job.register(1, spark_attempt=1)
    job.master.on_slot(SlotFailed(1, "No module named 'x'"))
    assert job.status is JobStatus.RESTARTING
    failing = [e.cause for e in job.events if isinstance(e, JobChanged) and e.cause]
    assert failing[-1] == "slot 1 cannot run the pipeline: No module named 'x'"
    job.restarted(5_000)
    assert job.status is JobStatus.RUNNING


def test_a_spare_slot_that_cannot_load_the_pipeline_disturbs_no_job_that_runs() -> None:
    job = JobHarness(spare_slots=1).running()
    job.register(2)
    job.master.on_slot(SlotFailed(2, "No module named 'x'"))
    assert job.status is JobStatus.RUNNING
    (note,) = job.happened(Notice)
    assert note.text == "slot 2 cannot run the pipeline: No module named 'x'"


def test_a_pipeline_that_never_ran_fails_where_a_slot_cannot_load_it() -> None:
    job = JobHarness().deployed()
    job.master.on_slot(SlotFailed(1, "No module named 'x'"))
    assert job.status is JobStatus.FAILED


UNFIT = "the workers' Python cannot load Weir"


@pytest.mark.parametrize("kind", [JobHarness, Managed])
def test_a_job_that_never_ran_fails_where_no_slot_can_start(kind: type[JobHarness]) -> None:
    job = kind()
    job.master.start()
    job.cluster.run()
    job.master.slots_cannot_start(UNFIT)
    assert (job.status, job.master.cause, job.master.left) == (JobStatus.FAILED, UNFIT, None)


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_job_that_ran_waits_for_an_executor_that_can_start_a_slot(checkpoint: int) -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    job = Managed(store=store, progress=JobProgress(attempt=1, checkpoint=checkpoint))
    if checkpoint:  # Under an earlier driver; else under this one.
        job.master.start()
        job.cluster.run()
    else:
        job.running()
    before = job.status
    for _ in range(3):
        job.master.slots_cannot_start(UNFIT)
    assert (job.status, job.notices) == (before, [UNFIT])


# Other versions -----------------------------------------------------------------------------------


def come_back_with_others(job: JobHarness) -> None:
    """Slot 1 is lost and registers anew, on an executor with other versions."""
    job.master.on_slot_lost(1, 0)
    job.register(1, spark_attempt=1, versions=OTHERS)


def test_an_executor_of_other_versions_that_comes_later_is_tried_again_and_named_once() -> None:
    job = JobHarness(slots_timeout_ms=60_000, restart=delayed(0)).running()
    come_back_with_others(job)
    job.redeployed()
    for spark_attempt in (2, 3):
        for pause_ms in (15_000, 14_999):
            job.alive()
            job.wait(pause_ms)
        assert len(job.cluster.replaced_executors) == spark_attempt - 2
        job.wait(1)
        assert job.cluster.replaced_executors == [1] * (spark_attempt - 1)
        job.register(1, spark_attempt=spark_attempt, versions=OTHERS)
    assert job.notices == [MISFIT]
    assert not [slot for slot, started in job.asked(StartWorker) if started.attempt == 2]
    job.register(1, spark_attempt=4, versions=VERSIONS)
    job.restarted()
    assert job.status is JobStatus.RUNNING
    for _ in range(3):
        job.alive()
        job.wait(10_000)
    assert job.cluster.replaced_executors == [1, 1], "that of a slot that serves was replaced"


def test_a_spare_slot_of_other_versions_disturbs_no_job_that_runs() -> None:
    job = JobHarness(spare_slots=1).running()
    job.register(2, versions=OTHERS)
    for _ in range(3):
        job.alive()
        job.wait(10_000)
    assert job.status is JobStatus.RUNNING
    assert [note.startswith("slot 2 on host-2 runs Weir 2") for note in job.notices] == [True]
    assert job.cluster.replaced_executors == [], "it may be that of slots that the job uses"
    assert (job.master.next_due_ms() or 0) > job.clock.ms, "the driver has nothing to do"
    job.master.cancel()
    assert (2, ReleaseSlot("canceled")) in job.asked(ReleaseSlot)


def test_a_slot_restarted_with_other_versions_ends_the_attempt_that_used_it() -> None:
    """Though its loss is not noticed before it is there again."""
    job = JobHarness(restart=delayed()).running()
    job.register(1, spark_attempt=1, versions=OTHERS)
    assert job.status is JobStatus.RESTARTING
    assert job.notices == [MISFIT]


def test_a_job_that_gets_other_versions_only_fails_with_their_names() -> None:
    once = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1, delay_ms=0)
    job = JobHarness(slots_timeout_ms=60_000, restart=once).running()
    come_back_with_others(job)
    for _ in range(7):
        job.alive()
        job.wait(10_000)
    assert job.status is JobStatus.FAILED
    assert job.master.cause == f"{WANT}; {MISFIT}"


def test_a_driver_that_gets_other_versions_only_leaves_the_job_to_the_next() -> None:
    """Which the control plane may start with the versions that the cluster has now."""
    job = Managed(slots_timeout_ms=60_000, restart=delayed(0))
    job.running()
    come_back_with_others(job)
    for _ in range(7):
        job.alive()
        job.wait(10_000)
    assert job.master.left == f"{WANT}; {MISFIT}"
    assert job.status is not JobStatus.FAILED


def test_the_next_driver_of_a_job_that_had_checkpoints_waits_for_its_own_versions() -> None:
    store = MemoryStore()
    stored_checkpoint(store, 1)
    job = Managed(store=store, progress=JobProgress(attempt=1, checkpoint=1))
    job.master.start()
    job.cluster.run()
    job.register(0)
    job.register(1, versions=OTHERS)
    assert (job.status, job.notices) == (JobStatus.INITIALIZING, [MISFIT])
    job.register(1, spark_attempt=1)
    job.ready(0, 1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.RUNNING)
    assert job.status is JobStatus.RUNNING
