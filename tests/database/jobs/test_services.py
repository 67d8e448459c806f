from functools import partial

import pytest
from django.db import transaction

from checkpoints import job_hooks
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base.errors import Busy, Invalid, KeyReused, NotFound, WrongState
from jobs import due_jobs, operations, services
from jobs.drivers import drivers
from jobs.models import Driver, DriverStatus, Job, OperationKind, OutboxCommand
from tests import factories
from tests.database.jobs.builders import (
    apply,
    at_once,
    changed,
    coming_up,
    driver_of,
    hook_calls,
    lose,
    pass_time,
    planned,
    reload,
    running,
    speaking,
    started,
    statuses,
    submission,
    submitted,
)
from weir.protocol import wire
from weir.protocol.driver_messages import CancelJob, PipelineFailed
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db


def test_submit_creates_a_job_with_a_requested_driver(operator: User) -> None:
    operation = services.submit(
        operator, submission(name="Flights & more", options={"parallelism": 4})
    )
    job = operation.job
    assert job.pk.startswith("flights-more-")
    assert (job.status, job.desired, job.created_by) == ("created", "running", operator)
    assert job.options == {"parallelism": 4}
    assert (operation.kind, operation.status) == ("submit", "pending")
    driver = driver_of(job)
    assert (driver.number, driver.status) == (1, DriverStatus.REQUESTED)
    entry = AuditEntry.objects.get(action="job.submit")
    assert (entry.actor, entry.target) == (operator, f"job/{job.pk}")
    assert entry.after["options"] == {"parallelism": 4}


def test_submit_succeeds_once_the_job_runs(operator: User) -> None:
    job = submitted(operator)
    speaking(job)
    apply(job, planned(), changed(JobStatus.INITIALIZING))
    assert statuses(job) == [("submit", "pending")]
    apply(job, *coming_up())
    assert statuses(job) == [("submit", "succeeded")]


def test_submit_fails_when_the_pipeline_does(operator: User) -> None:
    job = submitted(operator)
    speaking(job)
    job = apply(job, PipelineFailed(0, "Traceback\nZeroDivisionError: division by zero"))
    assert (job.status, job.cause.splitlines()[-1]) == (
        "failed",
        "ZeroDivisionError: division by zero",
    )
    operation = job.operations.get()
    assert operation.status == "failed"
    assert "ZeroDivisionError" in operation.error
    assert driver_of(job).status == DriverStatus.ENDED


def test_same_key_submits_once(operator: User) -> None:
    first = services.submit(operator, submission(), key="k1")
    again = services.submit(operator, submission(), key="k1")
    assert again.pk == first.pk
    assert Job.objects.count() == 1
    with pytest.raises(KeyReused):
        services.submit(operator, submission(name="another"), key="k1")
    assert Job.objects.count() == 1


def test_key_belongs_to_its_user(operator: User) -> None:
    other = factories.user()
    first = services.submit(operator, submission(), key="k1")
    second = services.submit(other, submission(), key="k1")
    assert first.pk != second.pk


@pytest.mark.django_db(transaction=True)
def test_same_key_at_the_same_time_submits_once(operator: User) -> None:
    """Neither request sees the other's row; the constraint decides, and both get the same one."""
    results = at_once(*[lambda: services.submit(operator, submission(), key="k1")] * 4)
    assert len({operation.pk for operation in results}) == 1
    assert Job.objects.count() == Driver.objects.count() == 1


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb"])
def test_keys_are_checked(operator: User, key: str) -> None:
    with pytest.raises(Invalid):
        services.submit(operator, submission(), key=key)


def test_cancel_of_a_job_without_driver_process_is_immediate(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(operator)
    ended = hook_calls(monkeypatch, "job_ended")
    operation = services.cancel(operator, job.pk)
    job = reload(job)
    assert (job.status, job.desired, operation.status) == ("canceled", "canceled", "succeeded")
    assert statuses(job) == [("submit", "cancelled"), ("cancel", "succeeded")]
    assert ended == [("canceled",)]
    driver = driver_of(job)
    assert driver.status == DriverStatus.ENDED
    assert driver.stopped_at is not None  # Nothing ran that a launcher would have to end.
    entry = AuditEntry.objects.get(action="job.cancel")
    assert (entry.before["status"], entry.after["status"]) == ("created", "canceled")


def test_cancel_of_a_starting_driver_has_it_ended(operator: User) -> None:
    job = submitted(operator)
    started(job)
    services.cancel(operator, job.pk)
    driver = driver_of(job)
    assert reload(job).status == "canceled"
    assert driver.stop_requested_at is not None
    assert driver.stopped_at is None


def test_cancel_asks_a_running_driver(operator: User) -> None:
    job = running(operator)
    operation = services.cancel(operator, job.pk)
    assert operation.status == "running"
    commands = [wire.decode(row.message) for row in OutboxCommand.objects.filter(job=job)]
    assert commands == [CancelJob("cancelled by olga")]
    apply(job, changed(JobStatus.CANCELLING))
    job = apply(job, changed(JobStatus.CANCELED))
    assert reload(operation).status == "succeeded"
    assert (job.status, job.cancel_due_at) == ("canceled", None)
    assert driver_of(job).status == DriverStatus.ENDED


def test_cancel_that_is_not_obeyed_kills_the_driver(operator: User) -> None:
    job = running(operator)
    operation = services.cancel(operator, job.pk)
    assert due_jobs.cancel_due() == 0
    pass_time(job, 60, "cancel_due_at")
    assert due_jobs.cancel_due() == 1
    driver = driver_of(job)
    assert reload(job).status == "canceled"
    assert reload(operation).status == "succeeded"
    assert driver.status == DriverStatus.ENDED
    assert driver.stop_requested_at is not None
    assert not OutboxCommand.objects.exists()
    assert AuditEntry.objects.filter(action="job.kill", actor=None).count() == 1


def test_cancel_of_a_job_that_is_over_is_refused_and_says_what_is(operator: User) -> None:
    job = running(operator)
    apply(job, changed(JobStatus.FINISHED))
    with pytest.raises(WrongState) as refused:
        services.cancel(operator, job.pk)
    assert refused.value.extra["state"] == "finished"
    assert "running" in refused.value.extra["allowed"]
    assert "finished" not in refused.value.extra["allowed"]


def test_second_cancel_is_told_of_the_first(operator: User) -> None:
    job = running(operator)
    first = services.cancel(operator, job.pk)
    with pytest.raises(Busy) as refused:
        services.cancel(operator, job.pk)
    assert refused.value.extra["operation"] == str(first.pk)


def test_repeated_cancel_with_its_key_gives_the_operation_also_after_the_end(
    operator: User,
) -> None:
    job = submitted(operator)
    first = services.cancel(operator, job.pk, key="c")
    assert services.cancel(operator, job.pk, key="c").pk == first.pk
    with pytest.raises(KeyReused):
        services.cancel(operator, submitted(operator).pk, key="c")


def test_job_that_finishes_first_fails_its_cancellation(operator: User) -> None:
    job = running(operator)
    operation = services.cancel(operator, job.pk)
    apply(job, changed(JobStatus.FINISHED))
    assert reload(operation).status == "failed"
    assert "finished" in reload(operation).error


def test_unknown_job_is_not_found(operator: User) -> None:
    for service in (services.cancel, services.restart):
        with pytest.raises(NotFound):
            service(operator, "no-such-job")


def test_restart_of_a_running_job_replaces_its_driver(operator: User) -> None:
    job = running(operator)
    before = driver_of(job)
    operation = services.restart(operator, job.pk)
    job, before, after = reload(job), reload(before), driver_of(job)
    assert (before.status, after.number, after.status) == ("ended", 2, "requested")
    assert before.stop_requested_at is not None
    assert (job.status, job.restart_state, job.restart_at) == ("restarting", None, None)
    attempt = job.attempts.get()
    assert (attempt.end, attempt.cause) == ("canceled", "restarted by olga")
    started(job)
    apply(job, planned(), *coming_up(attempt=2))
    assert reload(operation).status == "succeeded"


@pytest.mark.parametrize("end", [JobStatus.FAILED, JobStatus.CANCELED])
def test_restart_of_a_job_that_ended_reopens_it(
    operator: User, end: JobStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running(operator)
    way = JobStatus.FAILING if end is JobStatus.FAILED else JobStatus.CANCELLING
    apply(job, changed(way, "boom" if end is JobStatus.FAILED else ""), changed(end))
    reopened = hook_calls(monkeypatch, "job_reopened")
    operation = services.restart(operator, job.pk)
    assert reopened == [(end.value,)]
    job = reload(job)
    assert (job.status, job.desired, job.ended_at) == ("restarting", "running", None)
    speaking(job)
    job = apply(job, planned(), *coming_up(attempt=2))
    assert (job.status, job.cause) == ("running", "")
    assert reload(operation).status == "succeeded"


def test_restart_of_a_finished_job_is_refused(operator: User) -> None:
    job = running(operator)
    apply(job, changed(JobStatus.FINISHED))
    with pytest.raises(WrongState) as refused:
        services.restart(operator, job.pk)
    assert refused.value.extra["state"] == "finished"
    assert "failed" in refused.value.extra["allowed"]


def test_restart_of_a_job_being_cancelled_is_refused(operator: User) -> None:
    job = running(operator)
    services.cancel(operator, job.pk)
    with pytest.raises(WrongState):
        services.restart(operator, job.pk)


def test_restart_waits_until_it_may_launch(operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    job = running(operator)
    monkeypatch.setattr(job_hooks, "may_launch", lambda _: False)
    services.restart(operator, job.pk)
    assert drivers.live(job) is None
    assert due_jobs.relaunch_due() == 0
    monkeypatch.setattr(job_hooks, "may_launch", lambda _: True)
    assert due_jobs.relaunch_due() == 1
    assert driver_of(job).status == DriverStatus.REQUESTED
    assert reload(job).restart_at is None


def test_cancel_overtakes_restart(operator: User) -> None:
    job = running(operator)
    services.restart(operator, job.pk)
    services.cancel(operator, job.pk)
    assert statuses(job) == [
        ("submit", "succeeded"),
        ("restart", "cancelled"),
        ("cancel", "succeeded"),
    ]


@pytest.mark.django_db(transaction=True)
def test_cancel_racing_with_recovery_leaves_no_driver(operator: User) -> None:
    """The driver is found dead, its successor is due, and an operator cancels, all at once."""
    for _ in range(25):
        job = running(operator)
        results = at_once(
            partial(lose, job),
            partial(services.cancel, operator, job.pk),
            due_jobs.relaunch_due,
        )
        assert not [result for result in results if isinstance(result, Exception)]
        due_jobs.relaunch_due()
        job = reload(job)
        assert job.status == "canceled"
        assert drivers.live(job) is None
        assert statuses(job)[-1] == ("cancel", "succeeded")


@pytest.mark.django_db(transaction=True)
def test_restarts_at_once_make_one_driver(operator: User) -> None:
    job = running(operator)
    results = at_once(*[lambda: services.restart(operator, job.pk)] * 4)
    assert sum(isinstance(result, Busy) for result in results) == 3
    assert driver_of(job).number == 2


def test_a_service_that_is_refused_changes_nothing(operator: User) -> None:
    job = running(operator)
    services.cancel(operator, job.pk)
    before = (AuditEntry.objects.count(), OutboxCommand.objects.count(), statuses(job))
    with pytest.raises(Busy):
        services.cancel(operator, job.pk)
    assert before == (AuditEntry.objects.count(), OutboxCommand.objects.count(), statuses(job))


def test_the_control_plane_cancels_under_its_own_name() -> None:
    job = running()
    services.cancel(None, job.pk)
    assert AuditEntry.objects.get(action="job.cancel").actor_name == "control plane"


def test_begin_takes_a_checkpoint_beside_a_checkpoint_but_not_beside_a_cancel(
    operator: User,
) -> None:
    job = running(operator)
    with transaction.atomic():
        locked = services.locked(job.pk)
        for number in range(2):
            operations.begin(
                locked, OperationKind.CHECKPOINT, operator, {}, key=f"checkpoint-{number}"
            )
    services.cancel(operator, job.pk)
    assert statuses(job)[1:] == [
        ("checkpoint", "cancelled"),
        ("checkpoint", "cancelled"),
        ("cancel", "running"),
    ]
    with transaction.atomic(), pytest.raises(Busy):
        operations.begin(services.locked(job.pk), OperationKind.CHECKPOINT, operator, {}, key=None)
