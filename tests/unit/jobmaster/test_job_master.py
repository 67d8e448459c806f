"""The job master brings a job up and restarts it, over a world that does what the test says."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import subtask
from tests.unit.jobmaster.job_harness import (
    LAYOUT,
    PLAN,
    JobHarness,
    acknowledgement,
    delayed,
    exited,
)
from weir.config import RestartConfig, RestartStrategyKind
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.job_master import EXIT_REPORT_MS
from weir.protocol.deployment import (
    Delivered,
    ReleaseSlot,
    SlotAccepted,
    SlotFailed,
    SlotHeartbeat,
    StopWorker,
    Versions,
    WorkerExited,
    WorkerHeartbeat,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointSettled, JobChanged, Notice, Recovered, SlotChanged
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import CheckpointCompleted, SubtaskChanged, TriggerCheckpoint

# Bringing a job up.


def test_a_job_comes_up_in_order() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0)
    assert job.started == []
    job.register(1)
    assert job.started == [(0, 1, 0), (1, 1, 1)]
    assert [slot for slot, _ in job.asked(SlotAccepted)] == [0, 1]
    job.cluster.run()
    job.ready(0)
    assert job.deploys == []
    job.ready(1)
    (deploy,) = job.deploys
    assert [address.port for address in deploy.slot_addresses] == [0, 1]
    assert deploy.restored_checkpoint is None
    job.subtasks(SubtaskStatus.RUNNING, "source-0", "source-1", "sink-0")
    assert job.status is JobStatus.INITIALIZING
    job.subtasks(SubtaskStatus.RUNNING, "sink-1")
    assert job.statuses == ["initializing", "running"]


def test_slots_may_be_there_before_the_storage_has_answered() -> None:
    job = JobHarness()
    job.master.start()
    job.register(0, 1)
    assert job.started == []
    job.cluster.run(1)
    assert len(job.started) == 2
    job.ready(0, 1)
    assert job.deploys == []  # The attempt is not claimed yet.
    job.cluster.run()
    assert len(job.deploys) == 1


def test_an_attempt_is_numbered_after_every_earlier_one() -> None:
    job = JobHarness()
    for number in (1, 2, 10):
        job.store.put(LAYOUT.attempt(AttemptNumber(number)), b"")
    job.running()
    assert job.attempt == 11
    assert job.store.exists(LAYOUT.attempt(AttemptNumber(11)))


def test_too_few_slots_say_how_many_came_and_what_to_do() -> None:
    job = JobHarness(slots_timeout_ms=60_000)
    job.master.start()
    job.cluster.run()
    job.register(0)
    assert job.master.next_due_ms() is not None
    for _ in range(6):
        job.alive()
        job.wait(10_000)
    assert job.status is JobStatus.FAILED
    assert "1 of 2 slots registered within 60000 ms; the cluster has 4 cores" in job.master.cause
    assert "local[2]" in job.master.cause
    assert job.asked(ReleaseSlot) == [(0, ReleaseSlot("failed"))]


def test_other_versions_on_an_executor_are_refused_by_name_and_released() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0, versions=Versions("1", "3.11", "19"))
    assert job.status is JobStatus.FAILED
    assert "slot 0 on host-0 runs" in job.master.cause
    assert "pyarrow 19" in job.master.cause
    assert [slot for slot, _ in job.asked(ReleaseSlot)] == [0]


def test_a_pipeline_that_cannot_be_loaded_fails_the_job_at_once() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0)
    job.master.on_slot(SlotFailed(0, "No module named 'x'"))
    assert "slot 0 cannot run the pipeline: No module named 'x'" in job.master.cause


def test_a_slot_lost_while_others_are_awaited_may_simply_come_again() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0)
    job.master.on_slot_lost(0, 0)
    job.register(0, 1, spark_attempt=5)
    assert job.statuses == ["initializing"]
    assert len(job.started) == 2
    changes = [(e.slot_index, e.registered) for e in job.happened(SlotChanged)]
    assert changes == [(0, True), (0, False), (0, True), (1, True)]


def test_workers_that_never_come_up_fail_the_attempt() -> None:
    job = JobHarness(slots_timeout_ms=50_000)
    job.master.start()
    job.cluster.run()
    job.register(0, 1)
    job.ready(0)
    for _ in range(5):
        job.alive()
        job.wait(10_000)
    assert "restarting" in job.statuses
    assert job.attempt == 2


def test_a_worker_that_dies_before_it_is_deployed_fails_the_attempt() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0, 1)
    job.master.on_slot(exited(0, code=1, stderr="out of memory"))
    assert job.statuses[-1] == "restarting"


def test_a_worker_whose_template_was_killed_while_it_loaded_is_told_as_not_started() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0, 1)
    job.master.on_slot(WorkerExited(0, AttemptNumber(1), 0, -9, "while it loaded the pipeline\n"))
    assert job.statuses[-1] == "restarting"
    failing = next(e for e in job.events if isinstance(e, JobChanged) and e.cause)
    assert failing.cause == (
        "the worker process of slot 0 did not start: killed by signal 9\nwhile it loaded the "
        "pipeline"
    )


# Failing and coming back.


def test_a_killed_worker_is_replaced_at_once_and_the_cause_is_kept() -> None:
    job = JobHarness().running()
    job.master.on_slot(exited(1, stderr="Traceback ...\n"))
    assert job.statuses[-2:] == ["failing", "restarting"]
    job.restarted()
    assert job.status is JobStatus.RUNNING
    assert job.started[2:] == [(0, 2, 0), (1, 2, 1)]
    (recovered,) = job.happened(Recovered)
    assert "worker process of slot 1 (pid 101) ended: killed by signal 9" in recovered.cause
    assert "Traceback" in recovered.cause
    assert (recovered.attempt, recovered.backoff_ms) == (2, 0)


def test_a_recovery_tells_how_much_came_from_local_copies_and_which_were_damaged() -> None:
    job = JobHarness().running()
    job.master.on_slot(exited(1))
    job.redeployed()
    for chain, damaged in (("source-0", 0), ("source-1", 1), ("sink-0", 1), ("sink-1", 2)):
        texts = [f"copy {n} was not taken" for n in range(damaged)]
        job.subtasks(
            SubtaskStatus.RUNNING,
            chain,
            restored_bytes=100,
            restored_local_bytes=100 - 30 * damaged,
            damaged_copies=texts,
        )
    (recovered,) = job.happened(Recovered)
    assert (recovered.restored_bytes, recovered.restored_local_bytes) == (400, 280)
    assert [notice.text for notice in job.happened(Notice)] == [
        "4 local copies of state were damaged, and read from the storage instead: source-1: copy 0 "
        "was not taken; sink-0: copy 0 was not taken; sink-1: copy 0 was not taken; and 1 more"
    ]


def test_a_recovery_without_local_copies_says_nothing_of_them() -> None:
    job = JobHarness().running()
    job.master.on_slot(exited(1))
    job.restarted()
    (recovered,) = job.happened(Recovered)
    assert recovered.restored_local_bytes is None
    assert not job.happened(Notice)


def test_one_failure_that_brings_others_is_one_failure() -> None:
    job = JobHarness().running()
    job.master.on_slot(exited(0))
    job.master.on_slot_lost(1, 0)
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="lost", lost_peer="slot 1")
    job.master.on_slot(exited(1))
    assert job.statuses.count("failing") == 1


def test_a_subtask_that_raises_fails_the_attempt_with_its_traceback() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.FAILED, "sink-1", cause="ValueError: boom\n")
    job.restarted()
    assert job.happened(Recovered)[0].cause == "sink-1 failed\nValueError: boom"


def test_a_lost_peer_waits_for_the_one_who_knows_why() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.FAILED, "sink-1", cause="lost slot 0", lost_peer="slot 0")
    assert job.status is JobStatus.RUNNING
    job.master.on_slot(exited(0))
    job.restarted()
    assert "killed by signal 9" in job.happened(Recovered)[0].cause


def test_a_lost_peer_without_explanation_fails_the_attempt_all_the_same() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.FAILED, "sink-1", cause="lost slot 0", lost_peer="slot 0")
    job.alive()
    job.wait(EXIT_REPORT_MS)
    assert "sink-1 failed\nlost slot 0" in [e.cause for e in job.events if hasattr(e, "cause")]


def test_a_worker_whose_connection_is_lost_waits_for_its_supervisors_word() -> None:
    job = JobHarness().running()
    job.master.on_worker_lost(0, AttemptNumber(1))
    assert job.status is JobStatus.RUNNING
    job.alive()
    job.wait(EXIT_REPORT_MS)
    job.restarted()
    assert job.happened(Recovered)[0].cause == "the worker process of slot 0 is gone"


def test_a_worker_whose_loop_stands_still_is_replaced() -> None:
    job = JobHarness(heartbeat_timeout_ms=3_000).running()
    for _ in range(2):
        job.alive(rounds=7)
        job.wait(1_000)
    assert job.status is JobStatus.RUNNING
    job.alive(rounds=7)
    job.wait(1_000)
    job.restarted()
    assert job.happened(Recovered)[0].cause == (
        "the worker process of slot 0 made no progress for 3000 ms; it hangs in user code, and is "
        "replaced"
    )


def test_a_worker_that_sends_no_heartbeat_either_is_frozen() -> None:
    job = JobHarness(heartbeat_timeout_ms=3_000).running()
    job.alive(rounds=7)
    for _ in range(3):
        for slot in (0, 1):
            job.master.on_slot(SlotHeartbeat(slot))
        job.wait(1_000)
    job.restarted()
    cause = job.happened(Recovered)[0].cause
    assert "slot 0 made no progress for 3000 ms and sent no heartbeat; it is frozen" in cause


def test_a_worker_that_counts_as_gone_is_waited_for_no_more() -> None:
    job = JobHarness(
        heartbeat_timeout_ms=3_000,
        restart=RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, delay_ms=60_000),
    ).running()
    for _ in range(3):
        job.alive(rounds=7)
        job.wait(1_000)
    assert job.status is JobStatus.RESTARTING
    due = job.master.next_due_ms()
    assert due is not None
    assert due > job.clock.ms, "a deadline that has passed would be looked at without a pause"


def test_a_stop_that_a_cancellation_overtakes_is_answered_with_its_savepoint(
    tmp_path: Path,
) -> None:
    """Its manifest is being written when the job ends."""
    job = JobHarness().running()
    done: list[str] = []
    failed: list[str] = []
    target = str(tmp_path / "stop")
    kind = CheckpointKind.STOP_SUSPEND
    job.master.savepoint("r", kind, target, done=done.append, failed=failed.append)
    job.cluster.run()
    job.acknowledge(job.told(TriggerCheckpoint)[-1].barrier.checkpoint_id)
    job.master.cancel()
    job.cluster.run()
    assert done == []
    assert failed == [f"the job is canceled; the savepoint was taken and is kept: {target}"]
    assert job.cluster.replaced == []


def test_a_slot_that_is_silent_is_replaced_by_the_cluster() -> None:
    job = JobHarness(heartbeat_timeout_ms=3_000, slots_timeout_ms=60_000).running()
    for _ in range(3):
        job.clock.ms += 1_000
        for slot in (0, 1):
            beat = WorkerHeartbeat(job.attempt, slot, job.clock.ms)
            job.master.on_worker(slot, beat)
    job.master.tick()
    assert job.cluster.replaced == [0, 1]
    assert "silent for 3000 ms" in "".join(e.cause for e in job.events if hasattr(e, "cause"))
    job.wait(0)
    job.cluster.run()
    assert job.started[2:] == []  # They have to register again first.
    job.register(0, 1, spark_attempt=9)
    assert job.started[2:] == [(0, 2, 0), (1, 2, 1)]


def test_a_slot_whose_worker_is_silent_before_it_is_cut_off_with_it() -> None:
    """Their last heartbeats came one after the other: one loss, no second attempt for it."""
    job = JobHarness(heartbeat_timeout_ms=3_000, slots_timeout_ms=60_000).running()
    job.alive(rounds=7)
    job.wait(400)
    for slot in (0, 1):
        job.master.on_slot(SlotHeartbeat(slot))
    job.wait(2_600)
    assert job.cluster.replaced == [0, 1]
    job.cluster.run()
    job.register(0, 1, spark_attempt=9)
    job.restarted()
    assert [event.cause for event in job.happened(Recovered)] == [
        "slot 0 was silent for 2600 ms: its process is frozen or cut off, and is replaced"
    ]


def test_a_spare_slot_takes_the_place_of_a_lost_one() -> None:
    job = JobHarness(spare_slots=1)
    job.master.start()
    job.cluster.run()
    job.register(2, 1, 0)
    assert {slot for slot, *_ in job.started} == {1, 2}  # The first two to come.
    job.cluster.run()
    job.ready(0, 1)
    job.subtasks(SubtaskStatus.RUNNING)
    job.master.on_slot_lost(2, 0)
    job.restarted()
    assert job.started[2:] == [(0, 2, 0), (1, 2, 1)]
    assert job.status is JobStatus.RUNNING


def test_a_slot_keeps_the_place_where_the_copies_of_its_state_are() -> None:
    job = JobHarness(spare_slots=1, restart=delayed(0)).running()
    job.register(2)
    job.master.on_slot_lost(0, 0)
    job.restarted()
    assert job.started[2:] == [(2, 2, 0), (1, 2, 1)]
    job.register(0, spark_attempt=1)  # It comes too late, and is the spare now.
    job.subtasks(SubtaskStatus.FAILED, "source-0", cause="an error")
    job.restarted()
    assert job.started[4:] == [(2, 3, 0), (1, 3, 1)]
    assert job.status is JobStatus.RUNNING


def test_a_spare_slot_takes_the_place_of_one_that_cannot_run_the_pipeline() -> None:
    job = JobHarness(spare_slots=1, restart=delayed(0)).running()
    job.register(2)
    job.master.on_slot(SlotFailed(0, "No module named 'x'"))
    job.restarted()
    assert job.started[2:] == [(2, 2, 0), (1, 2, 1)]
    job.master.on_slot_lost(2, 0)
    job.restarted()  # The cause may be gone by now, and there is no other.
    assert job.started[4:] == [(0, 3, 0), (1, 3, 1)]
    assert job.status is JobStatus.RUNNING


def test_a_spare_slot_that_cannot_run_the_pipeline_takes_a_place_last() -> None:
    job = JobHarness(spare_slots=2, restart=delayed(0)).running()
    job.register(2, 3)
    job.master.on_slot(SlotFailed(2, "No module named 'x'"))
    job.master.on_slot_lost(0, 0)
    job.restarted()
    assert job.started[2:] == [(3, 2, 0), (1, 2, 1)]


def test_an_idle_spare_may_go_unnoticed() -> None:
    job = JobHarness(spare_slots=1).running()
    job.register(2)
    job.master.on_slot_lost(2, 0)
    assert job.status is JobStatus.RUNNING


def test_a_task_that_spark_restarted_ends_the_attempt_and_serves_the_next() -> None:
    job = JobHarness().running()
    job.register(1, spark_attempt=4)
    assert job.statuses[-1] == "restarting"
    job.restarted()
    assert job.status is JobStatus.RUNNING


def test_an_older_task_of_a_slot_changes_nothing() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0, 1, spark_attempt=5)
    job.register(0, spark_attempt=3)
    job.master.on_slot_lost(0, 3)
    assert job.statuses == ["initializing"]
    assert len(job.started) == 2


def test_a_task_that_registers_twice_changes_nothing() -> None:
    """It does after its connection broke, since it cannot know that the first one arrived."""
    job = JobHarness().running()
    before = list(job.statuses)
    job.register(1)
    assert job.statuses == before
    assert job.status is JobStatus.RUNNING


def test_reports_of_an_older_attempt_are_refused() -> None:
    job = JobHarness().running()
    old = job.attempt
    job.master.on_slot(exited(0))
    job.restarted()
    before = list(job.events)
    failed = SubtaskChanged(old, subtask("sink-0"), SubtaskStatus.FAILED, "zombie")
    job.master.on_worker(0, failed)
    job.master.on_worker(0, acknowledgement(subtask("sink-0"), 1, old))
    job.master.on_worker(0, Delivered(old, subtask("sink-0"), CheckpointId(1), b"zombie"))
    job.master.on_worker_lost(0, old)
    job.master.on_slot(exited(0, attempt=old))
    assert job.events == before
    assert job.delivered == []
    assert not job.master.is_running(old)
    assert job.master.is_running(job.attempt)


def test_acknowledgements_that_come_together_count_as_one_after_another() -> None:
    """One of them twice, one of an older attempt, and another report between them."""
    alone, together = JobHarness().running(), JobHarness().running()
    for job in (alone, together):
        job.alive()
        job.wait(1_000)
    first, *others = (acknowledgement(chain, 1, alone.attempt) for chain in PLAN.chain_subtasks)
    old = replace(first, attempt=AttemptNumber(alone.attempt - 1))
    beat = WorkerHeartbeat(alone.attempt, 0, 7)
    reports = [old, first, first, beat, *others, first]
    for report in reports:
        alone.master.on_worker(0, report)
    together.master.on_worker(0, *reports)
    for job in (alone, together):
        job.cluster.run()
    assert [settled.failure for settled in alone.happened(CheckpointSettled)] == [None]
    assert together.events == alone.events
    assert together.told(CheckpointCompleted) == alone.told(CheckpointCompleted)


def test_a_wrong_acknowledgement_is_refused_with_those_that_came_with_it() -> None:
    job = JobHarness().running()
    job.alive()
    job.wait(1_000)
    first, *others = (acknowledgement(chain, 1, job.attempt) for chain in PLAN.chain_subtasks)
    with pytest.raises(ProtocolError, match="acknowledged checkpoint 1 for nothing"):
        job.master.on_worker(0, *others, replace(first, operators=()))
    job.master.on_worker(0, first)
    job.cluster.run()
    assert not job.happened(CheckpointSettled)
    job.master.on_worker(0, *others)
    job.cluster.run()
    assert len(job.happened(CheckpointSettled)) == 1


def test_the_dataflow_is_stopped_while_a_delay_or_a_slot_is_awaited() -> None:
    waiting = JobHarness(restart=delayed()).running()
    waiting.master.on_slot(exited(0))
    assert [slot for slot, _ in waiting.asked(StopWorker)] == [0, 1]
    lacking = JobHarness().running()
    lacking.master.on_slot_lost(1, 0)
    assert [slot for slot, _ in lacking.asked(StopWorker)] == [0]
    quick = JobHarness().running()
    quick.master.on_slot(exited(0))
    assert quick.asked(StopWorker) == []  # The next attempt's worker takes its place at once.


def test_a_restart_waits_for_its_delay() -> None:
    job = JobHarness(restart=delayed(5_000)).running()
    job.master.on_slot(exited(0))
    job.wait(4_999)
    assert job.status is JobStatus.RESTARTING
    job.wait(1)
    assert (job.status, job.attempt) == (JobStatus.INITIALIZING, 2)


def test_a_strategy_that_gives_up_fails_the_job_with_the_last_cause() -> None:
    once = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1, delay_ms=0)
    job = JobHarness(restart=once).running()
    job.master.on_slot(exited(0))
    job.restarted()
    job.master.on_slot(exited(1, attempt=2))
    assert job.status is JobStatus.FAILED
    assert "slot 1" in job.master.cause
    assert len(job.asked(ReleaseSlot)) == 2


PLACE = "'map' fails on the record 7 with KeyError"
POSITION = "from position 5 up to 9 in the split {'rows': 20}"


def failing_at(job: JobHarness, place: str | None = PLACE, *, after_ms: int = 0) -> None:
    """A subtask fails at a place; unless that ends the job, the next attempt comes up."""
    job.wait(after_ms)
    details = {} if place is None else {"place": place, "position": POSITION}
    job.subtasks(SubtaskStatus.FAILED, "sink-1", cause="KeyError: 7", **details)
    if job.status is JobStatus.RESTARTING:
        job.restarted()
        job.alive()


def test_an_error_of_the_program_that_comes_back_ends_the_job() -> None:
    job = JobHarness(restart=delayed(0)).running()
    failing_at(job)
    failing_at(job, after_ms=30_000)
    assert job.status is JobStatus.RUNNING
    failing_at(job, after_ms=30_000)
    assert job.status is JobStatus.FAILED
    assert job.master.cause.splitlines() == [
        f"{PLACE}, {POSITION}: 3 times in 60 s, without a completed checkpoint between. "
        "No restart helps; repair the function, or see .on_error() for bad records",
        "sink-1 failed",
        "KeyError: 7",
    ]


def test_an_error_that_comes_back_within_a_minute_is_tried_again() -> None:
    job = JobHarness(restart=delayed(0)).running()
    for _ in range(10):
        failing_at(job, after_ms=5_000)
    assert (job.status, job.attempt) == (JobStatus.RUNNING, 11)


@pytest.mark.parametrize("progress", ["a checkpoint", "another place"])
def test_a_job_that_gets_on_is_restarted_for_ever(progress: str) -> None:
    job = JobHarness(restart=delayed(0)).running()
    for number in range(10):
        failing_at(job, after_ms=40_000)
        if progress == "a checkpoint":
            job.checkpointed()
            assert len(job.completions) == number + 1
        else:
            failing_at(job, "'map' fails on the record 8 with KeyError")
    assert job.status is JobStatus.RUNNING
    assert job.attempt >= 11


def test_other_failures_between_prove_nothing() -> None:
    job = JobHarness(restart=delayed(0)).running()
    for number in range(2):
        failing_at(job)
        failing_at(job, None, after_ms=20_000)
        job.master.on_slot(exited(0, attempt=2 * number + 3))
        job.restarted()
        job.alive()
    failing_at(job, after_ms=20_000)
    assert job.status is JobStatus.FAILED
    assert "3 times" in job.master.cause


def test_one_failure_that_brings_others_at_its_place_counts_once() -> None:
    job = JobHarness(restart=delayed(5_000)).running()
    failing_at(job)
    failing_at(job, after_ms=0)  # The same attempt's: it is over.
    assert job.status is JobStatus.RESTARTING
    job.wait(5_000)
    job.restarted()
    failing_at(job, after_ms=40_000)
    job.wait(5_000)
    job.restarted()
    assert (job.status, job.attempt) == (JobStatus.RUNNING, 3)
    failing_at(job, after_ms=20_000)
    assert "3 times in 70 s" in job.master.cause


def test_failures_that_name_no_place_are_restarted_for_ever() -> None:
    job = JobHarness(restart=delayed(0)).running()
    for _ in range(10):
        failing_at(job, None, after_ms=40_000)
    assert (job.status, job.attempt) == (JobStatus.RUNNING, 11)


def test_a_setting_restarts_after_the_same_error_for_ever() -> None:
    job = JobHarness(restart=replace(delayed(0), ends_on_repeated_error=False)).running()
    for _ in range(10):
        failing_at(job, after_ms=40_000)
    assert (job.status, job.attempt) == (JobStatus.RUNNING, 11)


def test_without_checkpoints_a_failure_is_final_unless_a_strategy_is_set() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    job.master.on_slot(exited(0))
    assert job.status is JobStatus.FAILED
    asked = JobHarness(checkpoints={"interval_ms": None}, restart=delayed(0)).running()
    asked.master.on_slot(exited(0))
    asked.restarted()
    assert asked.status is JobStatus.RUNNING
    assert asked.deploys[-1].restored_checkpoint is None
