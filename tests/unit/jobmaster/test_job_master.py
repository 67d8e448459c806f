"""The job master over a world that does what the test says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import decline, line, subtask
from tests.unit.jobmaster.job_harness import (
    JOB,
    PLAN,
    VERSIONS,
    JobHarness,
    acknowledgement,
    state_file,
    stored_checkpoint,
)
from weir.config import RestartConfig, RestartStrategyKind, Retention
from weir.errors import ProtocolError, StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.job_master import EXIT_REPORT_MS
from weir.jobmaster.mailbox_poll import POLL_MS
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest
from weir.protocol.deployment import (
    Delivered,
    ReleaseSlot,
    SlotAccepted,
    SlotFailed,
    SlotHeartbeat,
    StopProcess,
    StopWorker,
    Versions,
    WorkerExited,
    WorkerHeartbeat,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    CheckpointSettled,
    JobChanged,
    Notice,
    Recovered,
    SlotChanged,
)
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import (
    CheckpointCompleted,
    SubtaskChanged,
    SubtaskMetrics,
    TriggerCheckpoint,
)
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout, in_job
from weir.storage.local import LocalStore
from weir.storage.memory import MemoryStore
from weir.storage.store import WriteRefusedError

LAYOUT = JobLayout(JOB)


def exited(slot: int, *, attempt: int = 1, code: int = -9, stderr: str = "") -> WorkerExited:
    return WorkerExited(slot, AttemptNumber(attempt), 100 + slot, code, stderr)


NO_RESTART = RestartConfig(kind=RestartStrategyKind.NONE)


def delayed(delay_ms: int = 5_000) -> RestartConfig:
    return RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=100, delay_ms=delay_ms)


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
    job.wait(0)
    job.cluster.run()
    job.ready(0, 1)
    job.cluster.run()
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


# Checkpoints and what is restored.


def test_a_failed_job_comes_back_from_its_last_checkpoint() -> None:
    job = JobHarness().running()
    assert [job.checkpointed(), job.checkpointed()] == [1, 2]
    assert job.completions == [(1, False), (2, False)]
    job.master.on_slot(exited(0))
    job.restarted()
    assert job.deploys[-1].restored_checkpoint == 2
    assert [e.restored_checkpoint for e in job.happened(AttemptStarted)] == [None, 2]
    assert job.checkpointed() == 3


def test_a_failure_while_the_manifest_is_written_restores_that_checkpoint() -> None:
    """A reader of the storage must find what the manifest's writer leaves there."""
    job = JobHarness().running()
    job.wait(1_000)
    job.acknowledge(1)
    job.master.on_slot(exited(0))  # The manifest is still to be written.
    job.wait(0)
    job.ready(0, 1)
    job.cluster.run()
    assert job.completions == []  # The old attempt commits nothing any more.
    assert job.deploys[-1].restored_checkpoint == 1


def test_replayed_records_and_catching_up_are_reported() -> None:
    def emitted(attempt: int, records: int) -> SubtaskMetrics:
        return SubtaskMetrics(
            AttemptNumber(attempt), subtask("source-0"), records, records, 0, 0, 0.0, 0.0, 0.0, None
        )

    job = JobHarness().running()
    job.checkpointed()  # At 20 records.
    job.master.on_worker(0, emitted(1, 50))
    job.master.on_slot(exited(0))
    job.restarted()
    assert job.happened(Recovered)[0].replayed_records == 30
    job.clock.ms += 40
    job.master.on_worker(0, emitted(2, 29))
    assert job.happened(CaughtUp) == []
    job.master.on_worker(0, emitted(2, 30))
    assert job.happened(CaughtUp)[0].catch_up_ms == 40


def test_a_driver_that_comes_later_goes_on_from_the_storage(tmp_path: Path) -> None:
    first = JobHarness(store=LocalStore(tmp_path)).running()
    first.checkpointed()
    second = JobHarness(store=LocalStore(tmp_path)).running()
    assert second.attempt == 2
    assert second.deploys[-1].restored_checkpoint == 1
    assert second.checkpointed() == 2


def test_of_two_drivers_the_older_one_stops_and_deletes_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retention": Retention.NO_EXTERNALIZED_CHECKPOINTS}
    first = JobHarness(store=LocalStore(tmp_path), checkpoints=settings).running()
    first.checkpointed()
    second = JobHarness(store=LocalStore(tmp_path), checkpoints=settings).running()
    first.checkpointed()
    assert first.status is JobStatus.FAILED
    assert "another driver runs job now" in first.master.cause
    assert first.completions == [(1, False)]
    assert first.statuses[-2:] == ["failing", "failed"]
    assert LocalStore(tmp_path).exists(LAYOUT.manifest(CheckpointId(1)))
    assert second.checkpointed() == 2
    assert second.completions == [(2, False)]


def test_a_driver_that_lost_the_race_for_an_attempt_stops(tmp_path: Path) -> None:
    first, second = (JobHarness(store=LocalStore(tmp_path)) for _ in range(2))
    for job in (first, second):
        job.master.start()
        job.cluster.run(1)  # Both see no attempt.
    for job in (first, second):
        job.cluster.run()
    assert first.status is JobStatus.INITIALIZING
    assert second.status is JobStatus.FAILED


def test_a_driver_that_was_replaced_while_it_looked_for_a_checkpoint_deploys_nothing(
    tmp_path: Path,
) -> None:
    """Its sinks would take back what those of its successor have committed meanwhile."""
    first = JobHarness(store=LocalStore(tmp_path))
    first.master.start()
    first.register(0, 1)
    first.ready(0, 1)
    first.cluster.run(2)  # It has seen no attempt, and claimed the first.
    second = JobHarness(store=LocalStore(tmp_path)).running()
    assert second.checkpointed() == 1
    first.cluster.run()
    assert "another driver runs job now" in first.master.cause
    assert first.deploys == []
    assert second.checkpointed() == 2


def test_a_fork_that_fails_before_its_own_checkpoint_starts_from_the_fork_again(
    tmp_path: Path,
) -> None:
    other = JobId("other")
    handle = state_file(MemoryStore())
    LocalStore(tmp_path).put("other/chk-1/1/sink-0-x", b"state")
    stored_checkpoint(LocalStore(tmp_path), 7, handle, job=other)
    request = RestoreRequest(str(tmp_path), other, CheckpointId(7))
    job = JobHarness(restore_from=request, restart=delayed(0)).running()
    assert (job.deploys[-1].restored_directory, job.deploys[-1].restored_checkpoint) == ("other", 7)
    job.master.on_slot(exited(0))
    job.restarted()
    assert (job.deploys[-1].restored_directory, job.deploys[-1].restored_checkpoint) == ("other", 7)
    assert job.checkpointed() == 8, "output is named by numbers, and 7 is the fork's"
    job.master.on_slot(exited(0, attempt=2))
    job.restarted()
    assert (job.deploys[-1].restored_directory, job.deploys[-1].restored_checkpoint) == (JOB, 8)


def test_a_first_checkpoint_written_during_the_failure_replaces_the_one_asked_for(
    tmp_path: Path,
) -> None:
    stored_checkpoint(LocalStore(tmp_path), 7, job=JobId("other"))
    request = RestoreRequest(str(tmp_path), JobId("other"), CheckpointId(7))
    job = JobHarness(restore_from=request).running()
    job.wait(1_000)
    job.acknowledge(8)
    job.master.on_slot(exited(0))
    job.wait(0)
    job.ready(0, 1)
    job.cluster.run()
    assert job.deploys[-1].restored_directory == JOB


def test_a_damaged_checkpoint_is_told_of_once_however_often_the_job_restarts() -> None:
    job = JobHarness(restart=delayed(0))
    stored_checkpoint(job.store, 1)
    job.store.put(LAYOUT.manifest(CheckpointId(2)), b"half")
    job.running()
    for attempt in (1, 2):
        job.master.on_slot(exited(0, attempt=attempt))
        job.restarted()
    assert len([note for note in job.notices if "checkpoint 2 is passed over" in note]) == 1
    assert job.deploys[-1].restored_checkpoint == 1
    assert job.checkpointed() == 3


def test_a_damaged_checkpoint_is_told_of_although_the_attempt_fails_while_it_chooses() -> None:
    """The next attempt goes on from the base of that one, and never looks at the damaged one."""
    job = JobHarness(restart=delayed(0))
    stored_checkpoint(job.store, 1)
    job.running()
    damaged = state_file(job.store, "chk-2/1/sink-0-x")
    stored_checkpoint(job.store, 2, damaged)
    job.store.delete(in_job(JOB, "chk-2/1/sink-0-x"))
    job.master.on_slot(exited(0))
    job.wait(0)
    base = LAYOUT.base(AttemptNumber(2), CheckpointId(1))
    while not job.store.exists(base):
        work, done = job.cluster.waiting.popleft()
        outcome = work()
        if job.store.exists(base):
            job.master.on_slot(exited(0, attempt=2))
        done(outcome)
    job.restarted()
    assert (job.deploys[-1].attempt, job.deploys[-1].restored_checkpoint) == (3, 1)
    assert len([note for note in job.notices if "checkpoint 2 is passed over" in note]) == 1


def with_damaged_file(restart: RestartConfig = NO_RESTART) -> JobHarness:
    """The newest checkpoint has a file of the right size and other bytes."""
    job = JobHarness(restart=restart)
    stored_checkpoint(job.store, 1)
    stored_checkpoint(job.store, 2, state_file(job.store, "chk-2/1/sink-0-x"))
    state_file(job.store, "chk-2/1/sink-0-x", b"other")
    return job


def test_a_damaged_file_that_a_worker_meets_first_is_no_failure_to_the_restart_strategy() -> None:
    job = with_damaged_file().deployed()
    assert job.deploys[-1].restored_checkpoint == 2
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="its checksum", damaged_state=True)
    assert job.status is JobStatus.RESTARTING
    job.restarted()
    assert (job.deploys[-1].attempt, job.deploys[-1].restored_checkpoint) == (2, 1)
    assert job.status is JobStatus.RUNNING
    assert len([note for note in job.notices if "checkpoint 2 is passed over" in note]) == 1
    assert job.happened(Recovered)[0].cause == "sink-0 failed\nits checksum"


def test_damage_that_is_met_once_more_is_a_failure_like_any_other() -> None:
    """The files were read meanwhile and are whole, so another attempt would end the same way."""
    job = with_damaged_file().deployed()
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="cannot be read", damaged_state=True)
    job.wait(0)
    job.cluster.run()
    job.ready(0, 1)
    job.cluster.run()
    assert job.deploys[-1].attempt == 2
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="cannot be read", damaged_state=True)
    assert job.status is JobStatus.FAILED
    assert job.master.cause == "sink-0 failed\ncannot be read"


def test_damage_that_is_met_by_a_running_attempt_is_a_failure_like_any_other() -> None:
    job = with_damaged_file().running()
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="cannot be read", damaged_state=True)
    assert job.status is JobStatus.FAILED


def test_all_files_are_read_behind_an_attempt_that_did_not_run() -> None:
    job = with_damaged_file(delayed(0)).deployed()
    job.master.on_slot(exited(0))
    job.restarted()
    assert (job.deploys[-1].attempt, job.deploys[-1].restored_checkpoint) == (2, 1)


def test_nothing_whole_to_restore_fails_the_job() -> None:
    job = JobHarness()
    job.store.put(LAYOUT.manifest(CheckpointId(1)), b"half")
    job.deployed()
    assert job.status is JobStatus.FAILED
    assert job.master.cause.startswith("cannot restore: ")


class AwayStore(MemoryStore):
    """Raises ``error`` instead of claiming an attempt, while there is one."""

    error: Exception | None = None

    def create_if_absent(self, path: str, data: bytes) -> bool:
        if self.error is not None and "/attempts/" in path:
            raise self.error
        return super().create_if_absent(path, data)


@pytest.mark.parametrize(
    "error",
    [StorageError("stale handle"), WriteRefusedError("cannot write /x: Read-only file system")],
    ids=["away", "refuses"],
)
def test_a_storage_that_took_an_attempt_and_does_not_take_the_next_delays_the_job(
    error: StorageError,
) -> None:
    """It may be away, mounted read-only, or changing hands, for some seconds."""
    store = AwayStore()
    job = JobHarness(store=store).running()
    store.error = error
    job.master.on_slot(exited(0))
    job.wait(0)
    job.cluster.run()
    assert job.statuses[-1] == "restarting"
    store.error = None
    job.alive()
    job.wait(2_000)
    job.cluster.run()
    job.ready(0, 1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.RUNNING)
    assert job.status is JobStatus.RUNNING


class UnreadableStore(MemoryStore):
    """Raises ``error`` instead of listing, while there is one."""

    error: Exception | None = None

    def list(self, directory: str = "") -> list[str]:
        if self.error is not None:
            raise self.error
        return super().list(directory)


def test_a_driver_that_cannot_read_the_storage_at_its_start_tries_again() -> None:
    """An earlier driver had attempts: none of their numbers may be used again."""
    store = UnreadableStore()
    before = JobHarness(store=store).running()
    assert before.attempt == 1
    store.error = StorageError("cannot list /x: Stale file handle")
    job = JobHarness(store=store)
    job.master.start()
    job.cluster.run()
    assert job.statuses[-1] == "restarting"
    causes = [event.cause for event in job.happened(JobChanged)]
    assert "checkpoint storage: cannot list /x: Stale file handle" in causes
    store.error = None
    job.register(0, 1)
    job.alive()
    job.wait(2_000)
    job.cluster.run()
    job.ready(0, 1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.RUNNING)
    assert job.status is JobStatus.RUNNING
    assert job.attempt == 2


def test_a_storage_that_may_not_be_read_ends_the_job_with_its_advice() -> None:
    store = UnreadableStore()
    store.error = WriteRefusedError("cannot list /x: Permission denied; give that user access")
    job = JobHarness(store=store)
    job.master.start()
    job.cluster.run()
    assert job.status is JobStatus.FAILED
    assert "give that user access" in job.master.cause


def test_a_storage_that_refuses_ends_the_job_with_its_advice() -> None:
    store = AwayStore()
    store.error = WriteRefusedError(
        "cannot write /x: Permission denied; give that user write access"
    )
    job = JobHarness(store=store)
    job.master.start()
    job.cluster.run()
    assert job.status is JobStatus.FAILED
    assert "give that user write access" in job.master.cause


# Output.


def test_what_a_restore_delivers_again_is_dropped() -> None:
    job = JobHarness().running()

    def deliver(attempt: int, name: str, checkpoint_id: int, payload: bytes) -> None:
        delivered = Delivered(
            AttemptNumber(attempt), subtask(name), CheckpointId(checkpoint_id), payload
        )
        job.master.on_worker(0, delivered)

    deliver(1, "sink-0", 1, b"a")
    deliver(1, "sink-1", 1, b"b")
    job.master.on_slot(exited(0))
    deliver(1, "sink-0", 2, b"c")  # Committed before it died, still on its way.
    job.restarted()
    for checkpoint_id, payload in ((1, b"a"), (2, b"c"), (3, b"d")):
        deliver(2, "sink-0", checkpoint_id, payload)
    expected = [("sink-0", b"a"), ("sink-1", b"b"), ("sink-0", b"c"), ("sink-0", b"d")]
    assert job.delivered == expected


def test_without_checkpoints_everything_is_delivered_at_once() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    for payload in (b"a", b"b"):
        job.master.on_worker(0, Delivered(job.attempt, subtask("sink-0"), CheckpointId(0), payload))
    assert [payload for _, payload in job.delivered] == [b"a", b"b"]


# The end.


def test_ended_subtasks_take_a_final_checkpoint_and_then_the_job_is_finished() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.ENDED, "source-0", "source-1", "sink-0")
    assert job.told(TriggerCheckpoint) == []
    job.subtasks(SubtaskStatus.ENDED, "sink-1")
    assert len(job.told(TriggerCheckpoint)) == 1
    job.acknowledge(1)
    job.cluster.run()
    assert job.completions == [(1, True)]
    job.subtasks(SubtaskStatus.FINISHED)
    assert job.status is JobStatus.FINISHED
    assert job.told(StopProcess, slot=1) != []
    assert [slot for slot, _ in job.asked(ReleaseSlot)] == [0, 1]
    job.cluster.run()
    assert job.master.is_over


def test_a_final_checkpoint_waits_for_the_one_under_way() -> None:
    job = JobHarness().running()
    job.wait(1_000)
    job.subtasks(SubtaskStatus.ENDED)
    assert len(job.told(TriggerCheckpoint)) == 1
    job.acknowledge(1)
    job.cluster.run()
    assert job.completions == [(1, False)]
    job.acknowledge(2)
    job.cluster.run()
    assert job.completions == [(1, False), (2, True)]


def test_a_failure_after_the_final_checkpoint_restores_it_and_ends_again() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.FINISHED, "source-0")
    job.master.on_slot(exited(1))
    job.restarted()
    assert job.deploys[-1].restored_checkpoint == 1
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(2)
    job.cluster.run()
    job.subtasks(SubtaskStatus.FINISHED)
    assert job.status is JobStatus.FINISHED


def test_a_job_is_not_over_while_its_checkpoints_are_being_deleted() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.FINISHED)
    assert not job.master.is_over
    assert job.master.next_due_ms() is None  # Nothing to tick for meanwhile.
    job.cluster.run()
    assert job.master.is_over
    assert not [path for path in job.store.list() if "chk-" in path]


def test_a_checkpoint_in_flight_at_the_end_settles_before_the_job_is_over() -> None:
    job = JobHarness().running()
    job.wait(1_000)
    job.acknowledge(1)
    job.master.cancel()
    assert job.status is JobStatus.CANCELED
    assert not job.master.is_over
    job.cluster.run()
    assert job.master.is_over
    assert job.store.exists(LAYOUT.manifest(CheckpointId(1)))


def test_without_checkpoints_the_job_is_finished_when_all_subtasks_are() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    job.subtasks(SubtaskStatus.FINISHED)
    assert job.status is JobStatus.FINISHED


def test_workers_that_lose_each_other_at_the_end_fail_nothing() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    job.subtasks(SubtaskStatus.FINISHED)
    before = list(job.events)
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="lost", lost_peer="slot 1")
    job.master.on_slot(exited(1, code=0))
    job.master.on_slot_lost(0, 0)
    job.wait(100_000)
    assert [e for e in job.events if e not in before and not isinstance(e, SlotChanged)] == []
    assert job.status is JobStatus.FINISHED


def test_a_slot_that_registers_after_the_end_is_released() -> None:
    job = JobHarness(spare_slots=1).running()
    job.master.cancel()
    job.register(2)
    assert job.asked(ReleaseSlot, 2) == [(2, ReleaseSlot("canceled"))]


@pytest.mark.parametrize("moment", ["created", "initializing", "running", "restarting"])
def test_a_job_can_be_cancelled_at_any_time(moment: str) -> None:
    job = JobHarness(restart=delayed())
    if moment == "initializing":
        job.master.start()
    elif moment != "created":
        job.running()
    if moment == "restarting":
        job.master.on_slot(exited(0))
    assert job.status.value == moment
    job.master.cancel()
    job.cluster.run()
    assert job.status is JobStatus.CANCELED
    assert job.attempt == (0 if moment in ("created", "initializing") else 1)
    job.master.cancel()
    assert job.statuses.count("canceled") == 1


@pytest.mark.parametrize("moment", ["initializing", "running", "restarting"])
def test_a_cluster_that_ends_its_slots_fails_the_job_at_any_time(moment: str) -> None:
    job = JobHarness(restart=delayed())
    if moment == "initializing":
        job.master.start()
    else:
        job.running()
    if moment == "restarting":
        job.master.on_slot(exited(0))
    job.master.slots_ended("Job aborted")
    assert job.status is JobStatus.FAILED
    assert job.master.cause == "Job aborted"


@pytest.mark.parametrize("moment", ["initializing", "running", "restarting", "failed"])
def test_a_slot_may_be_lost_in_every_status(moment: str) -> None:
    job = JobHarness(restart=delayed())
    if moment == "initializing":
        job.deployed()
    else:
        job.running()
    if moment == "restarting":
        job.master.on_slot(exited(0))
    elif moment == "failed":
        job.master.slots_ended("gone")
    job.master.on_slot_lost(1, 0)
    job.master.on_slot_lost(1, 0)
    assert job.status is (JobStatus.FAILED if moment == "failed" else JobStatus.RESTARTING)


def test_versions_are_compared_whole() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0, versions=VERSIONS)
    assert job.status is JobStatus.INITIALIZING


# Savepoints and stops.

SAVEPOINT, STOP = CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND


class Saving(JobHarness):
    """A running job whose storage is a directory, and what those who ask for savepoints hear."""

    def __init__(self, root: Path, **settings: Any) -> None:
        storage = str(root / "storage")
        settings["checkpoints"] = {"storage": storage, **settings.get("checkpoints", {})}
        super().__init__(store=LocalStore(storage), **settings)
        self.root = root
        self.target = str(root / "one")
        self.heard: list[str] = []

    def ask(self, kind: CheckpointKind = SAVEPOINT, target: str | None = None) -> None:
        self.master.savepoint(
            f"r{len(self.heard)}", kind, target or self.target,
            done=lambda uri: self.heard.append(f"done: {uri}"),
            failed=lambda error: self.heard.append(f"failed: {error}"),
        )  # fmt: skip
        self.cluster.run()

    def save(self, kind: CheckpointKind = SAVEPOINT) -> None:
        """Ask, and everybody acknowledges."""
        self.ask(kind)
        self.acknowledge(self.told(TriggerCheckpoint)[-1].barrier.checkpoint_id)
        self.cluster.run()

    def exists(self, checkpoint_id: int) -> bool:
        return self.store.exists(LAYOUT.manifest(CheckpointId(checkpoint_id)))

    @property
    def abandoned(self) -> list[int]:
        coordination = self.master._checkpoints._coordination
        assert isinstance(coordination, LocalCoordination)
        completed = coordination.state.completed
        return [c.checkpoint_id for c in completed if c.abandoned_at_ms is not None]

    def next_attempt(self) -> None:
        self.wait(0)
        self.cluster.run()
        self.ready(0, 1)
        self.cluster.run()


def test_a_savepoint_is_taken_and_the_job_goes_on(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save()
    assert job.heard == [f"done: {job.target}"]
    assert job.status is JobStatus.RUNNING
    assert job.checkpointed() == 2


def test_savepoints_and_stops_are_taken_though_nothing_is_checkpointed_by_the_clock(
    tmp_path: Path,
) -> None:
    job = Saving(tmp_path, checkpoints={"interval_ms": None})
    job.running()
    job.save()
    assert job.heard == [f"done: {job.target}"]
    job.target = str(tmp_path / "two")
    job.save(STOP)
    assert job.completions == [(2, True)]
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.heard[1:] == [f"done: {job.target}"]
    assert job.status is JobStatus.FINISHED


def test_a_savepoint_needs_a_place_that_is_free_and_can_be_written(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save()
    job.ask(CheckpointKind.STOP_DRAIN)
    (tmp_path / "file").touch()
    job.ask(target=str(tmp_path / "file"))
    assert "holds a savepoint already" in job.heard[1]
    assert "a file stands where a directory is needed" in job.heard[2]
    assert len(job.told(TriggerCheckpoint)) == 1, "the job has noticed nothing of it"


def test_where_checkpoints_are_kept_in_memory_a_savepoint_needs_a_directory(
    tmp_path: Path,
) -> None:
    job = JobHarness().running()
    heard: list[str] = []
    job.master.savepoint("r", SAVEPOINT, None, done=heard.append, failed=heard.append)
    assert "keeps its checkpoints in memory, so a savepoint needs a directory" in heard[0]
    target = str(tmp_path / "one")
    job.master.savepoint("s", SAVEPOINT, target, done=heard.append, failed=heard.append)
    job.cluster.run()
    job.acknowledge(1)
    job.cluster.run()
    assert heard[1:] == [target]


def test_a_savepoint_without_a_name_is_named_after_its_request(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.master.savepoint("r", SAVEPOINT, None, done=job.heard.append, failed=job.heard.append)
    job.cluster.run()
    job.acknowledge(1)
    job.cluster.run()
    assert job.heard == [f"{tmp_path}/storage/savepoints/{JOB}/r"]


def test_a_savepoint_that_is_declined_leaves_the_job_running(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.ask(STOP)
    job.master.on_worker(0, decline("sink-0", 1, cause="disk full"))
    job.cluster.run()
    assert "disk full" in job.heard[0]
    assert job.status is JobStatus.RUNNING


def test_a_stop_ends_the_job_once_everybody_committed(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save(STOP)
    assert job.completions == [(1, True)]
    assert job.heard == [], "the job has not ended"
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.heard == [f"done: {job.target}"]
    assert job.status is JobStatus.FINISHED
    assert job.store.exists(LAYOUT.finished)
    assert job.store.exists(LAYOUT.manifest(CheckpointId(1))), "a savepoint is not the job's"


def test_a_stop_whose_attempt_failed_is_completed_by_the_next_one(tmp_path: Path) -> None:
    job = Saving(tmp_path, restart=delayed(0))
    job.running()
    job.checkpointed()
    job.save(STOP)
    job.master.on_slot(exited(0))
    job.next_attempt()
    deploy = job.deploys[-1]
    assert (deploy.restored_checkpoint, deploy.completes_stop) == (2, True)
    assert (deploy.restored_storage, deploy.restored_directory) == (job.target, "")
    job.subtasks(SubtaskStatus.RUNNING)
    job.wait(5_000)
    assert len(job.told(TriggerCheckpoint)) == 2, "there is nothing left to take a checkpoint of"
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.heard == [f"done: {job.target}"]
    assert job.statuses[-1] == "finished"


def test_a_stop_whose_job_failed_names_the_savepoint_that_is_kept(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save(STOP)
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="boom", restarts_help=False)
    job.cluster.run()
    (heard,) = job.heard
    assert heard.startswith("failed: the job is failed: sink-0 failed")
    assert heard.endswith(f"the savepoint was taken and is kept: {job.target}")


def test_a_drain_that_fails_brings_the_job_back_from_its_newest_checkpoint(
    tmp_path: Path,
) -> None:
    job = Saving(tmp_path, restart=delayed(0))
    job.running()
    job.checkpointed()
    job.ask(CheckpointKind.STOP_DRAIN)
    job.master.on_worker(0, decline("sink-0", 2, cause="disk full"))
    job.next_attempt()
    assert "disk full" in job.heard[0]
    deploy = job.deploys[-1]
    assert (deploy.restored_checkpoint, deploy.completes_stop) == (1, False)


def test_going_back_tells_workers_and_coordinator_the_line(tmp_path: Path) -> None:
    first = Saving(tmp_path)
    first.running()
    for _ in range(3):
        first.checkpointed()
    request = RestoreRequest(f"{tmp_path}/storage", JOB, CheckpointId(1), rewinds_output=False)
    job = Saving(tmp_path, restore_from=request, restart=delayed(0))
    job.running()
    assert (job.deploys[-1].lineage, job.deploys[-1].rewinds_output) == (line((1, 1, 1)), False)
    assert job.abandoned == [2, 3]
    assert job.checkpointed() == 4
    job.master.on_slot(exited(0, attempt=2))
    job.restarted()
    deploy = job.deploys[-1]
    assert (deploy.lineage, deploy.rewinds_output) == (line((2, 4, 4), (1, 1, 1)), True)
    forward = RestoreRequest(f"{tmp_path}/storage", JOB, CheckpointId(3))
    back = Saving(tmp_path, restore_from=forward)
    back.running()
    assert back.abandoned == [4]
    assert back.checkpointed() == 5


def test_what_was_abandoned_goes_when_its_time_is_over(tmp_path: Path) -> None:
    first = Saving(tmp_path)
    first.running()
    for _ in range(3):
        first.checkpointed()
    request = RestoreRequest(f"{tmp_path}/storage", JOB, CheckpointId(1))
    settings = {"abandoned_ttl_ms": 1_500, "retained_max": 1}
    job = Saving(tmp_path, restore_from=request, checkpoints=settings)
    job.running()
    job.checkpointed()
    assert [n for n in (1, 2, 3, 4) if job.exists(n)] == [2, 3, 4]
    job.wait(500)
    job.cluster.run()
    assert [n for n in (1, 2, 3, 4) if job.exists(n)] == [4]


def posted(job: Saving, kind: CheckpointKind = SAVEPOINT, *, name: str = "m") -> Mailbox:
    mailbox = Mailbox(job.store, JOB)
    mailbox.post(SavepointRequest(name, kind, job.target, job.clock.ms + 60_000))
    return mailbox


def test_a_request_in_the_mailbox_is_carried_out_and_answered(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    mailbox = posted(job)
    due = job.master.next_due_ms()
    assert due is not None
    assert due <= job.clock.ms + POLL_MS
    job.alive()
    job.wait(POLL_MS)
    job.cluster.run()
    assert mailbox.await_answer("m") is None
    for trigger in job.told(TriggerCheckpoint):
        job.acknowledge(trigger.barrier.checkpoint_id)
        job.cluster.run()
    assert mailbox.await_answer("m") == Answer("m", ok=True, uri=job.target)


def test_requests_wait_while_the_job_does_not_run(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.deployed()
    mailbox = posted(job)
    job.alive()
    job.wait(POLL_MS)
    job.cluster.run()
    assert not mailbox.was_taken("m")
    job.subtasks(SubtaskStatus.RUNNING)
    job.wait(0)
    job.cluster.run()
    assert mailbox.was_taken("m")


def test_a_request_to_a_job_that_ends_is_answered_before_the_driver_goes(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.wait(0)
    job.cluster.run()
    early = posted(job)
    job.master.cancel()
    assert not job.master.is_over
    job.cluster.run()
    assert job.master.is_over
    assert early.await_answer("m") == Answer("m", ok=False, error="the job is canceled")


def test_a_driver_that_was_replaced_leaves_the_mailbox_to_its_successor(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    mailbox = posted(job)
    job.store.create_if_absent(LAYOUT.attempt(AttemptNumber(2)), b"")
    job.wait(1_000)
    job.acknowledge(1)
    job.cluster.run()
    assert job.status is JobStatus.FAILED
    assert mailbox.await_answer("m") is None
