from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from controlplane.accounts.models import User
from controlplane.base.errors import Busy, KeyReused, WrongState
from jobs import due_jobs, operations, services, set_aside
from jobs.models import (
    OPEN_OPERATIONS,
    Job,
    Operation,
    OperationKind,
    OperationStatus,
    SetAsideStep,
)
from tests.database.jobs.builders import (
    apply,
    at_once,
    changed,
    coming_up,
    driver_of,
    lose,
    pass_time,
    planned,
    reload,
    running,
    speaking,
    submitted,
)
from tests.seeds import share
from weir.protocol.lifecycle import JobStatus


def checkpoint_of(job: Job, actor: User | None = None, key: str | None = None) -> Operation:
    with transaction.atomic():
        return operations.begin(
            services.locked(job.pk), OperationKind.CHECKPOINT, actor, {}, key=key
        )


@pytest.mark.django_db
def test_an_end_is_final() -> None:
    operation = checkpoint_of(running())
    stale = reload(operation)
    assert operations.start(operation)
    assert operations.succeed(operation, {"checkpoint": 7})
    for change in (
        lambda: operations.start(stale),
        lambda: operations.succeed(stale, {"checkpoint": 8}),
        lambda: operations.fail(stale, "late"),
        lambda: operations.cancel(stale, "late"),
    ):
        assert not change()
    after = reload(operation)
    assert (after.status, after.result, after.error) == ("succeeded", {"checkpoint": 7}, "")
    assert stale.status == "succeeded"  # Who lost the race is shown what won it.


@pytest.mark.django_db
def test_nothing_is_noted_of_what_has_ended() -> None:
    operation = checkpoint_of(running())
    operations.note(operation, {"path": "/c"})
    operations.fail(operation, "late")
    operations.note(operation, {"checkpoint": 7})
    assert reload(operation).result is None


def test_what_has_to_end_first_is_named() -> None:
    saving, checkpoint = (Operation(kind=kind) for kind in ("savepoint", "checkpoint"))
    under_way = [checkpoint, saving]
    assert operations.blocking(OperationKind.ROLLBACK, under_way) is saving
    assert operations.blocking(OperationKind.CHECKPOINT, under_way) is None
    assert operations.blocking(OperationKind.PREVIEW, under_way) is None


@pytest.mark.django_db
def test_deadline_ends_an_open_operation_and_says_so_once() -> None:
    job = running()
    operation, later = checkpoint_of(job), checkpoint_of(job)
    assert operations.expire_due() == 0
    pass_time(operation, 3_600, "deadline_at")
    assert operations.expire_due() == 1
    ended_at = reload(operation).ended_at
    assert operations.expire_due() == 0
    assert reload(operation).ended_at == ended_at is not None
    assert reload(operation).status == "expired"
    assert "deadline" in reload(operation).error
    assert reload(later).status == "pending"


@pytest.mark.django_db(transaction=True)
def test_one_operation_that_cannot_be_expired_holds_up_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = checkpoint_of(running()), checkpoint_of(running())
    for operation in (first, second):
        pass_time(operation, 3_600, "deadline_at")

    give_up = operations.give_up

    def refuse(operation: Operation, status: OperationStatus, why: str) -> bool:
        is_ended = give_up(operation, status, why)
        if operation.pk == first.pk:
            raise RuntimeError("boom")
        return is_ended

    with monkeypatch.context() as patch:
        patch.setattr(operations, "give_up", refuse)
        assert operations.expire_due() == 1
    assert reload(first).status == "pending"
    assert reload(second).status == "expired"
    assert "the step expire failed and is set aside" in caplog.text
    assert operations.expire_due() == 0
    pass_time(SetAsideStep.objects.get(), set_aside.BACKOFF_MAX_S, "retry_at")
    assert operations.expire_due() == 1


@pytest.mark.django_db(transaction=True)
def test_an_operation_ends_once_however_many_end_it() -> None:
    operation = checkpoint_of(running())
    pass_time(operation, 3_600, "deadline_at")

    def succeed() -> bool:
        with transaction.atomic():
            services.locked(operation.job_id)
            return operations.succeed(reload(operation), {})

    results = at_once(succeed, operations.expire_due, operations.expire_due, succeed)
    assert sum(map(bool, results)) == 1
    assert reload(operation).ended_at is not None


@pytest.mark.django_db
def test_begin_knows_a_repeated_key(operator: User) -> None:
    job = running(operator)
    first = checkpoint_of(job, operator, "k")
    assert checkpoint_of(job, operator, "k").pk == first.pk
    with pytest.raises(KeyReused):
        checkpoint_of(running(operator), operator, "k")


STEPS = ("cancel", "restart", "checkpoint", "speak", "up", "fail", "finish", "lose", "tick", "late")


class TestAnyHistory(TestCase):
    """Any history of a job: its operations end, and its rows stay legal."""

    @settings(max_examples=share(60, block=12))
    @given(st.lists(st.sampled_from(STEPS), max_size=14))
    def test_every_operation_reaches_one_end(self, steps: list[str]) -> None:
        job = submitted()
        ended: dict[object, str] = {}
        for attempt, step in enumerate(steps, start=1):
            job = Job.objects.get(pk=job.pk)
            self._take(step, job, attempt)
            for operation in Operation.objects.exclude(status__in=OPEN_OPERATIONS):
                assert ended.setdefault(operation.pk, operation.status) == operation.status
        job = Job.objects.get(pk=job.pk)
        if job.is_over:  # Nothing waits for a job that is over, save a checkpoint for its reason.
            left = Operation.objects.filter(status__in=OPEN_OPERATIONS)
            assert set(left.values_list("kind", flat=True)) <= {"checkpoint"}
        Operation.objects.update(deadline_at=job.created_at - timedelta(hours=1))
        operations.expire_due()
        assert not Operation.objects.filter(status__in=OPEN_OPERATIONS).exists()

    def _take(self, step: str, job: Job, attempt: int) -> None:
        driver = driver_of(job)
        speaks = driver.status == "running" and not job.is_over
        match step:
            case "cancel" | "restart":
                try:
                    with transaction.atomic():
                        getattr(services, step)(None, job.pk)
                except (Busy, WrongState):
                    return
            case "checkpoint" if not job.is_over:
                try:
                    checkpoint_of(job)
                except Busy:
                    return
            case "speak" if driver.status == "requested":
                speaking(job)
            case "up" if speaks and job.status in ("created", "restarting"):
                apply(job, planned(), *coming_up(attempt))
            case "fail" if speaks and job.status == "running":
                apply(job, changed(JobStatus.FAILING, "boom"), changed(JobStatus.FAILED, "boom"))
            case "finish" if speaks and job.status == "running":
                apply(job, changed(JobStatus.FINISHED))
            case "lose":
                lose(job)
            case "tick":
                due_jobs.tick()
            case "late" if job.cancel_due_at is not None:
                pass_time(job, 3_600, "cancel_due_at")
                due_jobs.cancel_due()


@pytest.mark.django_db
def test_statuses_of_the_model_are_those_of_the_machine() -> None:
    assert set(OPEN_OPERATIONS) | {
        OperationStatus.SUCCEEDED,
        OperationStatus.FAILED,
        OperationStatus.CANCELLED,
        OperationStatus.EXPIRED,
    } == set(OperationStatus)
