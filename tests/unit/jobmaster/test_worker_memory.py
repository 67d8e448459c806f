"""The limit of each worker process's memory, and the text of one that the kernel killed."""

from typing import Any

from tests.unit.jobmaster.job_harness import VERSIONS, JobHarness
from weir.config import SLOT_MEMORY_BYTES_MIN, RestartConfig, RestartStrategyKind
from weir.ids import AttemptNumber
from weir.protocol.deployment import SlotRegistered, StartWorker, WorkerExited
from weir.protocol.events import JobChanged, WorkerStarted
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.slot_memory import CgroupMemory, MemoryLimit, MemorySource

GB = 1_000_000_000


def started(job: JobHarness, *memory: CgroupMemory | None) -> list[Any]:
    """The limits that the workers are started with, of slots on one host."""
    job.master.start()
    job.cluster.run()
    for index, its in enumerate(memory):
        job.master.on_slot(SlotRegistered(index, 1, "host", 1, VERSIONS, its))
    return [command.memory for _, command in job.asked(StartWorker)]


def test_the_setting_comes_before_the_cgroup_and_is_told_with_the_worker() -> None:
    job = JobHarness(slot_memory_bytes=GB)
    limit = MemoryLimit(GB, MemorySource.SETTING)
    assert started(job, CgroupMemory("0:1", 9 * GB, 0), None) == [limit, limit]
    job.ready(0)
    (event,) = [event for event in job.events if isinstance(event, WorkerStarted)]
    assert event.memory_limit == limit


def test_without_a_setting_slots_share_the_limit_of_their_cgroup() -> None:
    cgroup = CgroupMemory("0:1", 3 * GB, GB)
    limit = MemoryLimit(GB, MemorySource.CGROUP)
    assert started(JobHarness(), cgroup, cgroup) == [limit, limit]


def test_without_either_there_is_no_limit() -> None:
    assert started(JobHarness(), None, None) == [None, None]


def test_a_kill_by_the_kernel_is_told_from_one_by_hand() -> None:
    causes = []
    for is_out_of_memory in (False, True):
        job = JobHarness(slot_memory_bytes=SLOT_MEMORY_BYTES_MIN)
        job.running()
        exited = WorkerExited(0, AttemptNumber(1), 100, -9, "bye\n", is_out_of_memory)
        job.master.on_slot(exited)
        failing = next(e for e in job.events if isinstance(e, JobChanged) and e.cause)
        causes.append(failing.cause)
    assert causes == [
        "the worker process of slot 0 (pid 100) ended: killed by signal 9\nbye",
        "the worker process of slot 0 (pid 100) ended: killed by signal 9, by the kernel, for the "
        "memory of its cgroup ran out\nbye",
    ]


def test_a_value_larger_than_the_limit_ends_the_job_after_a_minute_of_tries() -> None:
    """Each try says why; the last one also that no restart helps, and what does."""
    details = {"place": "the memory of slot 0", "remedy": "raise the limit"}
    restart = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=100, delay_ms=31_000)
    job = JobHarness(slot_memory_bytes=GB, restart=restart)
    job.running()
    for attempt in (1, 2, 3):
        assert (job.attempt, job.status) == (attempt, JobStatus.RUNNING)
        job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="too much", **details)
        if attempt < 3:
            for _ in range(31):
                job.alive()
                job.wait(1_000)
            job.restarted()
    assert job.status is JobStatus.FAILED
    assert job.master.cause == (
        "the memory of slot 0: 3 times in 62 s, without a completed checkpoint between. No restart "
        "helps; raise the limit\nsink-0 failed\ntoo much"
    )
