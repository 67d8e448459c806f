"""Slots that do not come, or cannot serve: at the job's begin, and when it has run."""

from pathlib import Path

from tests.unit.jobmaster.job_harness import JobHarness, delayed, stored_checkpoint
from tests.unit.jobmaster.managed_harness import Managed
from weir.config import RestartConfig, RestartStrategyKind
from weir.ids import CheckpointId, JobId
from weir.protocol.deployment import SlotFailed
from weir.protocol.events import JobChanged, Notice
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.storage.catalog import RestoreRequest
from weir.storage.local import LocalStore
from weir.storage.memory import MemoryStore

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
