from dataclasses import replace
from typing import Any

import pytest

from controlplane.base import clock
from controlplane.base.errors import DriverFenced, Unauthorized
from jobs import due_jobs, job_status, services
from jobs.drivers import drivers
from jobs.models import (
    Attempt,
    DriverStatus,
    Edge,
    Job,
    JobException,
    Operator,
    Subtask,
    Worker,
)
from tests.database.jobs.builders import (
    ALWAYS_AT_ONCE,
    apply,
    attempt_started,
    changed,
    coming_up,
    driver_of,
    lose,
    pass_time,
    planned,
    reload,
    running,
    speaking,
    started,
    submitted,
    subtask,
    subtask_changed,
    worker_started,
)
from weir.bounds import COUNT_MAX
from weir.config import RestartConfig
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.driver_messages import DriverLost, JobPlanned, PipelineFailed
from weir.protocol.events import CaughtUp, CheckpointsDiscarded, Notice, Recovered, SlotChanged
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus, SubtaskStatus
from weir.protocol.messages import JobEnded, SubtaskMetrics
from weir.protocol.slot_memory import MemoryLimit, MemorySource

pytestmark = pytest.mark.django_db


def metrics(name: str, records: int, attempt: int = 1) -> SubtaskMetrics:
    return SubtaskMetrics(
        AttemptNumber(attempt), subtask(name), records, records, 0, 0, 1.0, 2.0, 3.0, None
    )


def standing(job: Job) -> dict[str, str]:
    return {f"{row.chain}-{row.index}": row.status for row in Subtask.objects.filter(job=job)}


def test_plan_becomes_rows_in_topological_order() -> None:
    job = submitted()
    speaking(job)
    job = apply(job, planned())
    assert [o.uid for o in Operator.objects.filter(job=job)] == ["source", "parse", "sink"]
    assert Operator.objects.get(job=job, uid="parse").chain == "source"
    assert [(e.source, e.target) for e in Edge.objects.filter(job=job)] == [
        ("source", "parse"),
        ("parse", "sink"),
    ]
    assert standing(job) == dict.fromkeys(("source-0", "source-1", "sink-0", "sink-1"), "deploying")
    assert (job.planned_name, job.slot_count) == ("flights of a day", 2)
    assert job.checkpoint_config["interval_ms"] == 1_000
    assert job.restart_config["kind"] is None
    assert driver_of(job).spark_application == "local-1"


def test_plan_of_a_later_driver_replaces_the_earlier_one() -> None:
    job = running()
    lose(job)
    speaking(job)
    job = apply(job, planned(parallelism=3, restart=RestartConfig(attempts_max=7)))
    assert Operator.objects.filter(job=job).count() == 3
    assert len(standing(job)) == 6
    assert job.slot_count == 3
    assert job.restart_config["attempts_max"] == 7


def test_life_of_a_job_that_finishes() -> None:
    job = running()
    began = job.started_at
    assert began is not None
    job = apply(job, changed(JobStatus.FINISHED))
    assert (job.status, job.started_at) == ("finished", began)
    assert job.ended_at is not None
    attempt = Attempt.objects.get(job=job)
    assert (attempt.end, attempt.restored_checkpoint) == ("finished", None)
    assert None not in (attempt.running_at, attempt.ended_at)
    assert driver_of(job).status == DriverStatus.ENDED


def test_restart_within_a_driver() -> None:
    """As the job master tells it: a worker process is killed, its slot brings up another."""
    job = running()
    apply(
        job,
        subtask_changed("source-0", SubtaskStatus.RUNNING),
        subtask_changed("sink-1", SubtaskStatus.RUNNING),
    )
    job = apply(job, changed(JobStatus.FAILING, "sink-1 failed\nTraceback\nValueError: 7"))
    assert (job.status, job.cause.splitlines()[-1]) == ("failing", "ValueError: 7")
    assert standing(job)["source-0"] == "canceled"
    job = apply(
        job,
        changed(JobStatus.RESTARTING),
        changed(JobStatus.INITIALIZING),
        SlotChanged(0, 1, "worker-7", 99, True),
        worker_started(2, slot=1, pid=100),
        attempt_started(2, checkpoint=5),
        changed(JobStatus.RUNNING),
        Recovered(
            0, AttemptNumber(2), "sink-1 failed", CheckpointId(5), 0.0, 12.0, 34.0, 56, 78, 40
        ),
        CaughtUp(0, AttemptNumber(2), 90.0),
    )
    assert (job.status, job.cause) == ("running", "")
    first, second = Attempt.objects.filter(job=job).order_by("number")
    assert (first.end, first.cause.splitlines()[0]) == ("failed", "sink-1 failed")
    assert (second.restored_checkpoint, second.restore_ms, second.catch_up_ms) == (5, 34.0, 90.0)
    assert (second.replayed_records, second.restored_bytes) == (78, 56)
    assert second.restored_local_bytes == 40
    worker = Worker.objects.get(attempt=second)
    assert (worker.slot_index, worker.host, worker.pid) == (1, "worker-7", 100)
    exception = JobException.objects.get(job=job)
    assert (exception.kind, exception.attempt_number, exception.subtask) == (
        "attempt",
        1,
        "sink-1",
    )
    assert "ValueError: 7" in exception.text
    assert driver_of(job).status == DriverStatus.RUNNING
    assert {row.attempt for row in Subtask.objects.filter(job=job)} == {2}


def test_job_that_gives_up_names_its_cause_once() -> None:
    job = running()
    job = apply(job, changed(JobStatus.FAILING, "boom"), changed(JobStatus.FAILED, "boom"))
    assert (job.status, job.cause) == ("failed", "boom")
    assert [e.text for e in JobException.objects.filter(job=job)] == ["boom"]


def test_only_the_attempt_with_which_a_job_failed_for_good_is_marked_so() -> None:
    job = running()
    apply(job, changed(JobStatus.FAILING, "boom"), changed(JobStatus.RESTARTING), *coming_up(2))
    assert not Attempt.objects.filter(job=job, gave_up=True).exists()
    apply(job, changed(JobStatus.FAILING, "boom"), changed(JobStatus.FAILED, "boom"))
    assert list(Attempt.objects.filter(job=job, gave_up=True).values_list("number", "end")) == [
        (2, "failed")
    ]


def test_second_failing_subtask_is_kept_with_its_traceback() -> None:
    job = running()
    apply(
        job,
        subtask_changed("sink-0", SubtaskStatus.FAILED, cause="first"),
        changed(JobStatus.FAILING, "sink-0 failed\nfirst"),
        changed(JobStatus.RESTARTING),
        subtask_changed("sink-1", SubtaskStatus.FAILED, cause="second"),
        subtask_changed("source-0", SubtaskStatus.FAILED, details={"lost_peer": "sink-0"}),
    )
    exceptions = JobException.objects.filter(job=job).order_by("id")
    assert [(e.kind, e.subtask, e.text) for e in exceptions] == [
        ("attempt", "sink-0", "sink-0 failed\nfirst"),
        ("subtask", "sink-1", "sink-1 failed\nsecond"),
    ]


def test_counters_of_a_batch_are_written_once(
    django_assert_max_num_queries: pytest.FixtureRequest,
) -> None:
    job = running()
    driver = driver_of(job)
    many = [metrics(name, count) for count in range(200) for name in standing(job)]
    from jobs.events import driver_events

    now = clock.now()
    with django_assert_max_num_queries(2):  # The rows and one write, no exceptions.
        driver_events.apply(job, driver, many, now)
    assert {row.metrics["records_in"] for row in Subtask.objects.filter(job=job)} == {199}
    assert "chain" not in Subtask.objects.filter(job=job)[0].metrics


def memory_of(job: Job) -> dict[tuple[int, int], int | None]:
    rows = Worker.objects.filter(attempt__job=job)
    known = rows.values_list("attempt__number", "slot_index", "memory_bytes")
    return {(number, slot): size for number, slot, size in known}


def test_memory_is_the_worker_processs_and_outlives_it() -> None:
    job = running()
    apply(job, worker_started(1, 0), worker_started(1, 1))
    assert memory_of(job) == {(1, 0): None, (1, 1): None}
    measured = [replace(metrics(f"{name}-0", 1), memory_bytes=1_000) for name in ("source", "sink")]
    apply(job, *measured, metrics("sink-1", 1))  # A worker that knows none says 0.
    assert memory_of(job) == {(1, 0): 1_000, (1, 1): None}
    assert "memory_bytes" not in Subtask.objects.get(job=job, chain="sink", index=0).metrics

    apply(job, replace(metrics("sink-0", 2), memory_bytes=1_010))  # Not worth a write.
    assert memory_of(job)[1, 0] == 1_000
    apply(job, replace(metrics("sink-0", 3), memory_bytes=1_011))
    assert memory_of(job)[1, 0] == 1_011
    apply(job, replace(metrics("sink-0", 4), memory_bytes=7))
    assert memory_of(job)[1, 0] == 7

    apply(job, attempt_started(2), worker_started(2, 0))
    apply(job, replace(metrics("sink-0", 1, attempt=2), memory_bytes=1 << 33))
    assert memory_of(job) == {(1, 0): 7, (1, 1): None, (2, 0): 1 << 33}


def test_a_worker_is_kept_with_the_limit_of_its_memory_and_its_origin() -> None:
    job = running()
    limit = MemoryLimit(400_000_000, MemorySource.SETTING)
    apply(job, worker_started(1, 0, limit=limit), worker_started(1, 1))
    columns = ("slot_index", "memory_limit_bytes", "memory_limit_source")
    known = Worker.objects.filter(attempt__job=job).order_by("slot_index")
    assert list(known.values_list(*columns)) == [(0, 400_000_000, "setting"), (1, None, "")]


def test_new_attempt_begins_its_counters_afresh() -> None:
    job = running()
    apply(job, metrics("sink-0", 5), attempt_started(2), metrics("sink-1", 1, attempt=2))
    counters = {f"{s.chain}-{s.index}": s.metrics for s in Subtask.objects.filter(job=job)}
    assert counters["sink-0"] == {}
    assert counters["sink-1"]["records_in"] == 1


def test_worker_may_be_heard_of_before_its_attempt() -> None:
    job = submitted()
    speaking(job)
    apply(job, planned(), changed(JobStatus.INITIALIZING), worker_started(1), attempt_started(1, 3))
    attempt = Attempt.objects.get(job=job)
    assert (attempt.number, attempt.restored_checkpoint, attempt.workers.count()) == (1, 3, 1)


def restored(name: str, attempt: int, **details: object) -> Any:
    return subtask_changed(name, SubtaskStatus.RUNNING, attempt, details=details)


def bytes_of(job: Job, attempt: int) -> tuple[int | None, int | None]:
    row = Attempt.objects.get(job=job, number=attempt)
    return row.restored_bytes, row.restored_local_bytes


def test_first_attempt_of_a_new_driver_has_the_bytes_that_its_subtasks_restored() -> None:
    job = running()
    lose(job)
    speaking(job)
    job = apply(
        job,
        planned(),
        changed(JobStatus.INITIALIZING),
        attempt_started(2, checkpoint=5),
        restored("source-0", 2, restored_bytes=100, restored_local_bytes=0),
        restored("source-1", 2, restored_bytes=50),
    )
    assert bytes_of(job, 2) == (150, 0)
    job = apply(
        job,
        restored("sink-0", 2, restored_bytes=7, restored_local_bytes=6),
        subtask_changed("sink-0", SubtaskStatus.FAILED, 2, details={"restored_bytes": 900}),
        changed(JobStatus.RUNNING),
    )
    assert bytes_of(job, 2) == (157, 6)
    assert bytes_of(job, 1) == (None, None)
    assert Attempt.objects.get(job=job, number=2).recovery_cause == ""


def test_bytes_of_subtasks_are_not_counted_again_where_the_driver_tells_their_sum() -> None:
    job = running()
    recovered = Recovered(0, AttemptNumber(2), "x", CheckpointId(5), 0.0, 1.0, 2.0, 30, 0, 20)
    job = apply(
        job,
        changed(JobStatus.FAILING, "x"),
        changed(JobStatus.RESTARTING),
        changed(JobStatus.INITIALIZING),
        attempt_started(2, checkpoint=5),
        restored("source-0", 2, restored_bytes=10, restored_local_bytes=10),
    )
    assert bytes_of(job, 2) == (10, 10)
    job = apply(
        job,
        restored("sink-0", 2, restored_bytes=20, restored_local_bytes=10),
        changed(JobStatus.RUNNING),
        recovered,
    )
    assert bytes_of(job, 2) == (30, 20)


def test_an_attempt_from_the_beginning_restored_nothing() -> None:
    job = running()
    job = apply(job, restored("source-0", 1, restored_bytes=0, restored_local_bytes=0))
    assert bytes_of(job, 1) == (None, None)


@pytest.mark.parametrize("told", ["100", -1, 1.5, None, [3], COUNT_MAX + 1, 10**30])
def test_details_that_are_no_number_of_bytes_are_passed_over(told: object) -> None:
    job = running()
    job = apply(
        job,
        attempt_started(2, checkpoint=5),
        restored("source-0", 2, restored_bytes=told, restored_local_bytes=told),
        restored("source-1", 2, restored_bytes=COUNT_MAX, restored_local_bytes=3),
        restored("sink-0", 2, restored_bytes=COUNT_MAX),
    )
    assert bytes_of(job, 2) == (COUNT_MAX, 3)


def test_attempt_number_of_a_driver_that_never_claimed_it_is_taken_over() -> None:
    """A driver dies after it named an attempt and before the storage knew: its successor does."""
    job = running()
    lose(job)
    second = speaking(job)
    apply(job, planned(), *coming_up(attempt=1))
    assert Attempt.objects.get(job=job).driver == second


def test_notices_are_kept() -> None:
    job = running()
    apply(job, Notice(0, "checkpoint 4 is damaged"))
    exception = JobException.objects.get(job=job)
    assert (exception.kind, exception.text) == ("notice", "checkpoint 4 is damaged")


def test_pipeline_that_fails_shows_its_traceback() -> None:
    job = submitted()
    driver = speaking(job)
    job = apply(job, PipelineFailed(0, "Traceback …\nGraphError: no sink"))
    assert (job.status, job.cause) == ("failed", "Traceback …\nGraphError: no sink")
    assert JobException.objects.get(job=job).kind == "pipeline"
    assert reload(driver).status == DriverStatus.ENDED


def test_pipeline_that_fails_while_cancelled_is_cancelled() -> None:
    job = submitted()
    speaking(job)
    services.cancel(None, job.pk)
    assert apply(job, PipelineFailed(0, "boom")).status == "canceled"


def test_driver_that_says_it_ends_is_lost() -> None:
    job = running(plan=planned(restart=ALWAYS_AT_ONCE))
    driver = driver_of(job)
    job = apply(job, metrics("sink-0", 7), DriverLost(0, "all executors are gone"))
    assert reload(driver).status == DriverStatus.LOST
    assert job.status == "restarting"
    assert driver_of(job).number == 2
    assert standing(job)["sink-0"] == "canceled"


def test_coordinator_events_are_passed_over() -> None:
    job = running()
    before = job.status
    job = apply(job, CheckpointsDiscarded(0, (CheckpointId(1),)), JobEnded(JobStatus.FAILED))
    assert job.status == before


def test_final_status_is_never_left_by_a_driver() -> None:
    job = running()
    job = apply(job, changed(JobStatus.FINISHED))
    ended = job.ended_at
    job = apply(job, changed(JobStatus.FAILING, "late"), changed(JobStatus.RUNNING))
    assert (job.status, job.ended_at, job.cause) == ("finished", ended, "")


def test_status_that_cannot_follow_is_taken_and_noted() -> None:
    """The rows show what the driver is in, or every later report would be refused as well."""
    job = submitted()
    speaking(job)
    job = apply(job, changed(JobStatus.RUNNING))
    assert job.status == "running"
    assert JobException.objects.get(job=job).kind == "internal"


def test_a_driver_begins_wherever_its_predecessor_was_lost() -> None:
    for status in JobStatus:
        begins = job_status.may_follow(status, JobStatus.INITIALIZING)
        assert begins == (status in job_status.BEGINNINGS)
    for status, following in JOB_TRANSITIONS.items():
        for after in JobStatus:
            if after is not JobStatus.INITIALIZING:
                assert job_status.may_follow(status, after) == (after in following)


def test_only_the_newest_driver_may_speak() -> None:
    job = submitted()
    started(job, token="first")
    assert drivers.authenticate(job, "first").number == 1
    lose(job)
    job = reload(job)
    with pytest.raises(DriverFenced, match="lost"):
        drivers.authenticate(job, "first")
    drivers.relaunch(job, "test")
    with pytest.raises(DriverFenced, match="driver 2 runs"):
        drivers.authenticate(job, "first")
    started(job, token="second")
    assert drivers.authenticate(job, "second").number == 2


def test_unknown_tokens_and_those_of_other_jobs_are_refused() -> None:
    job, other = submitted(), submitted()
    started(other, token="theirs")
    for token in ("", "made up", "theirs"):
        with pytest.raises(Unauthorized):
            drivers.authenticate(job, token)


def test_driver_delivers_the_rest_after_its_job_ended_but_not_after_it_was_told_to_go() -> None:
    job = running()
    apply(job, changed(JobStatus.FINISHED))
    token = f"token-{job.pk}-1"
    assert drivers.authenticate(job, token).number == 1
    other = running()
    services.restart(None, other.pk)
    with pytest.raises(DriverFenced):
        drivers.authenticate(other, f"token-{other.pk}-1")


def test_text_that_no_database_takes_is_kept_as_far_as_it_can_be() -> None:
    """A traceback may quote any data; the batch must not be refused for ever."""
    job = running()
    awkward = "sink-0 failed\nValueError: \0 \ud800 é"
    job = apply(job, Notice(0, awkward), changed(JobStatus.FAILING, awkward))
    assert job.cause == "sink-0 failed\nValueError: \ufffd ? é"
    job = lose(job, "\0")
    assert driver_of(job).number == 2


# Output directories -----------------------------------------------------------------------------


def writing_to(directory: str | None) -> JobPlanned:
    plan = planned()
    sink, *others = plan.operators
    return replace(plan, operators=(replace(sink, files=directory), *others))


def test_output_directory_of_another_job_is_refused_and_the_driver_ended() -> None:
    first = running(plan=writing_to("/data/out"))
    second = submitted()
    driver = speaking(second)
    job = apply(second, writing_to("/data/./out/"), *coming_up())
    assert job.status == JobStatus.FAILED
    assert job.cause.startswith(f"{first.pk} (flights) is running and commits files to /data/out")
    driver = reload(driver)
    assert (driver.status, driver.stop_requested_at is None) == ("ended", False)
    assert [o.status for o in job.operations.all()] == ["failed"]
    assert reload(first).status == JobStatus.RUNNING


def test_output_directory_is_free_again_after_a_jobs_end() -> None:
    first = running(plan=writing_to("/data/out"))
    apply(first, changed(JobStatus.FINISHED))
    assert running(plan=writing_to("/data/out")).status == JobStatus.RUNNING


def test_jobs_next_driver_keeps_its_own_output_directory() -> None:
    job = running(plan=writing_to("/data/out"))
    assert [o.files for o in job.operators.filter(is_sink=True)] == ["/data/out"]
    pass_time(lose(job), 10, "restart_at")
    due_jobs.relaunch_due()
    speaking(job)
    assert apply(job, writing_to("/data/out"), *coming_up(2)).status == JobStatus.RUNNING
