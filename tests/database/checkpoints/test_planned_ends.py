"""Planned ends of checkpoints: aborted with their reason, and a failure nowhere.

Each way of ending a job or its driver on request, once while a checkpoint waits for subtasks and
once while its manifest is being written by a driver that is gone before it could say so.
"""

from collections.abc import Callable

import pytest

from checkpoints.api import summaries
from checkpoints.conditions.reasons import reason_text
from checkpoints.models import Checkpoint
from checkpoints.operations import requests
from checkpoints.retention import finalization
from checkpoints.verdict import queries
from controlplane.accounts.models import User
from jobs import due_jobs, job_events, services
from jobs.models import Job, JobEventKind
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import CheckpointGivenUp, CheckpointRequested, JobEnded

pytestmark = pytest.mark.django_db

End = Callable[[Line, User], None]


def restarted(line: Line, operator: User) -> None:
    services.restart(operator, line.job_id)


def rescaled(line: Line, operator: User) -> None:
    """Its own checkpoint completes, and so the driver is replaced."""
    operation = requests.rescale(operator, line.job_id, parallelism=1)
    newest = max(line.statuses())
    line.complete(newest)
    assert operation.kind == "rescale"


def rolled_back(line: Line, operator: User) -> None:
    requests.rollback(operator, line.job_id, checkpoint=1)


def cancelled(line: Line, operator: User) -> None:
    services.cancel(operator, line.job_id)
    line.post(jobs.changed(JobStatus.CANCELLING), jobs.changed(JobStatus.CANCELED))
    line.post(JobEnded(JobStatus.CANCELED))


def cancelled_by_force(line: Line, operator: User) -> None:
    """The driver does not obey."""
    services.cancel(operator, line.job_id)
    jobs.pass_time(line.job, 3_600, "cancel_due_at")
    assert due_jobs.cancel_due() == 1


def lost_while_cancelled(line: Line, operator: User) -> None:
    services.cancel(operator, line.job_id)
    jobs.lose(line.job)


def finished(line: Line, operator: User) -> None:
    line.post(jobs.changed(JobStatus.FINISHED), JobEnded(JobStatus.FINISHED))


def control_plane_stopped(line: Line, operator: User) -> None:
    assert services.suspend_all("the control plane was stopped") == 1


ENDS: dict[str, tuple[End, str]] = {
    "restarted": (restarted, "job_restarted"),
    "rolled back": (rolled_back, "job_rolled_back"),
    "cancelled": (cancelled, "job_canceled"),
    "cancelled by force": (cancelled_by_force, "job_canceled"),
    "lost while cancelled": (lost_while_cancelled, "job_canceled"),
    "finished": (finished, "job_finished"),
    "control plane stopped": (control_plane_stopped, "control_plane_stopped"),
}


def check_aborted(line: Line, number: int, reason: str) -> None:
    """The checkpoint was aborted for this reason, and nothing counts it as a failure."""
    row = line.checkpoint(number)
    assert (row.status, row.reason) == ("aborted", reason)
    verdict = queries.of_checkpoint(row)
    assert verdict.tone == "idle"
    assert "fail" not in verdict.headline.lower()
    (event,) = [
        e for e in job_events.after(0, job_id=line.job_id) if e.facts.get("checkpoint") == number
    ]
    assert (event.kind, event.reason, event.planned) == (
        JobEventKind.CHECKPOINT_ABORTED,
        reason,
        True,
    )
    job = summaries.with_checkpoints(Job.objects.filter(pk=line.job_id)).get()
    assert job.failures_since_last == 0
    assert line.state.failures.in_a_row == 0
    assert not Checkpoint.objects.filter(job=line.job_id, status="failed").exists()


def with_one(line: Line) -> Line:
    """Checkpoint 1 is complete, and can be gone back to."""
    line.post(CheckpointRequested("first"))
    line.complete(1)
    return line


@pytest.mark.parametrize("name", ENDS)
def test_a_checkpoint_under_way_is_aborted(line: Line, operator: User, name: str) -> None:
    end, reason = ENDS[name]
    with_one(line).post(CheckpointRequested("under way"), protocol.ack("source-0", 2))
    assert line.statuses()[2] == "pending"
    end(line, operator)
    check_aborted(line, 2, reason)
    said = queries.of_checkpoint(line.checkpoint(2)).headline.lower()
    assert reason_text(reason).partition(" with")[0] in said


@pytest.mark.parametrize("name", ENDS)
def test_a_manifest_that_no_driver_writes_any_more_is_settled_as_aborted(
    line: Line, operator: User, name: str
) -> None:
    end, reason = ENDS[name]
    with_one(line).post(CheckpointRequested("written"), *protocol.acks(2))
    end(line, operator)
    assert line.statuses()[2] == "finalizing"
    jobs.pass_time(line.driver, 3_600, "heard_at")  # One that ended its job winds up for a while.
    assert finalization.settle_driverless() == 1
    check_aborted(line, 2, reason)


def test_what_a_rescale_interrupts_is_aborted(operator: User) -> None:
    line = with_one(Line.running(concurrent_max=2))
    line.post(CheckpointRequested("own", protocol.CheckpointKind.SAVEPOINT))
    rescaled(line, operator)
    check_aborted(line, 2, "job_rescaled")


def test_what_a_stop_overtakes_is_aborted(operator: User) -> None:
    line = with_one(Line.running(concurrent_max=2))
    line.post(CheckpointRequested("under way"))
    requests.stop(operator, line.job_id, drain=False)
    line.complete(3)
    check_aborted(line, 2, "job_stopped")
    assert line.state.plan is not None, "its driver ends it, and reads why"
    line.poll()


def test_a_driver_lost_after_the_savepoint_of_a_stop_fails_no_checkpoint(operator: User) -> None:
    line = with_one(Line.running())
    line.post(CheckpointRequested("own", protocol.CheckpointKind.SAVEPOINT))
    requests.stop(operator, line.job_id, drain=False)
    line.complete(3)
    assert line.statuses()[2] == "pending"
    jobs.lose(line.job)
    check_aborted(line, 2, "job_stopped")


def test_what_the_driver_gave_up_without_the_control_plane_is_aborted(line: Line) -> None:
    with_one(line).post(CheckpointRequested("under way"))
    given_up = protocol.given_up(2)
    assert isinstance(given_up, CheckpointGivenUp)
    line.post(given_up)
    row = line.checkpoint(2)
    assert (row.status, row.reason) == ("aborted", "control_plane_away")
    assert queries.of_checkpoint(row).tone == "idle"


@pytest.mark.parametrize("is_written", [False, True])
def test_a_lost_driver_fails_what_it_had_under_way(line: Line, is_written: bool) -> None:
    with_one(line).post(CheckpointRequested("a"), *(protocol.acks(2) if is_written else ()))
    jobs.lose(line.job)
    finalization.settle_driverless()
    row = line.checkpoint(2)
    reason = "finalize_checkpoint_failure" if is_written else "job_failover"
    assert (row.status, row.reason) == ("failed", reason)
    assert queries.of_checkpoint(row).tone == "bad"
    events = [e for e in job_events.after(0, job_id=line.job_id) if e.kind.startswith("check")]
    assert [(e.kind, e.planned) for e in events] == [
        (JobEventKind.CHECKPOINT_COMPLETED, False),
        (JobEventKind.CHECKPOINT_FAILED, False),
    ]


def test_a_completed_one_tells_its_numbers(line: Line) -> None:
    with_one(line)
    (event,) = [e for e in job_events.after(0, job_id=line.job_id) if "checkpoint" in e.facts]
    row = line.checkpoint(1)
    assert event.at == row.settled_at
    assert event.facts == {
        "checkpoint": 1,
        "kind": "checkpoint",
        "attempt": 1,
        "duration_ms": row.duration_ms,
        "alignment_ms": round(row.alignment_ms),
        "state_bytes": row.state_bytes,
    }
