"""Services for jobs: submit, cancel, restart. Each is one transaction that locks the job first.

``actor`` None is the control plane itself. Every change leaves an audit entry.
"""

import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock, logs, wakeups
from controlplane.base.errors import Invalid, WrongState, existing
from jobs import hooks, operations
from jobs.drivers import drivers, outbox
from jobs.models import (
    FINAL_JOB_STATUSES,
    Artifact,
    Attempt,
    AttemptEnd,
    DesiredState,
    Driver,
    DriverStatus,
    Job,
    Operation,
    OperationKind,
)
from jobs.submissions import Checked, Submission, check, check_recovery_target
from weir.protocol.driver_messages import CancelJob
from weir.protocol.lifecycle import FailureReason, JobStatus

__all__ = [
    "Asked",
    "Beginning",
    "Submission",
    "asking",
    "begin_with",
    "cancel",
    "has_begun",
    "locked",
    "name_of",
    "parameters_of",
    "relaunch",
    "restart",
    "set_recovery_target",
    "submit",
    "submit_fork",
    "suspend_all",
]

logger = logging.getLogger(__name__)

_SLUG_LENGTH_MAX = 60
BEGINNING_FIELDS = (
    "restore_uri",
    "restore_job",
    "restore_number",
    "restore_driver",
    "restore_rewinds",
    "restore_claims",
)
_CANCELLABLE = tuple(s.value for s in JobStatus if s.value not in FINAL_JOB_STATUSES)
_RESTARTABLE = tuple(
    s.value for s in JobStatus if s not in (JobStatus.FINISHED, JobStatus.CANCELLING)
)


def locked(job_id: str) -> Job:
    """The job's row, locked until the transaction ends.

    Raises:
        NotFound: There is no such job.
    """
    rows = Job.objects.select_for_update(of=("self",))
    # PostgreSQL refuses NUL in text.
    rows = rows.none() if "\0" in job_id else rows.filter(pk=job_id)
    return existing(rows, f"there is no job {job_id!r}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request about a job, within the transaction that carries it out."""

    job: Job  # Locked.
    mark: str  # The request's fingerprint.
    repeated: (
        Operation | None
    )  # The operation of an equal, earlier request: the answer to this one.


@contextmanager
def asking(
    actor: User | None,
    job_id: str,
    kind: OperationKind,
    parameters: Mapping[str, Any],
    key: str | None,
) -> Iterator[Asked]:
    """The transaction of a request about a job; a repeated request is known by its key.

    Raises:
        Invalid: The key is malformed.
        NotFound: There is no such job.
        KeyReused: The key was used with another request.
    """
    check_key(key)
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        mark = operations.fingerprint(kind, parameters, job.pk)
        yield Asked(job, mark, operations.earlier(actor, key, mark))


class _Repeated(Exception):
    """An equal request won the race; the changes of this one are rolled back."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.operation = operation


def submit(actor: User | None, submission: Submission, *, key: str | None = None) -> Operation:
    """Create a job and ask for its first driver; the operation ends once the job runs.

    Raises:
        Invalid: The submission is incomplete or wrong.
        KeyReused: The idempotency key was used with another request.
    """
    check_key(key)
    parameters = parameters_of(submission)
    mark = operations.fingerprint(OperationKind.SUBMIT, parameters)
    if (repeated := operations.earlier(actor, key, mark)) is not None:
        return repeated
    checked = check(submission)
    try:
        with transaction.atomic():
            job = _created(actor, checked, _beginning(checked))
            operation = operations.begin(
                job, OperationKind.SUBMIT, actor, parameters, key=key, mark=mark
            )
            if operation.job_id != job.pk:
                raise _Repeated(operation)
            drivers.request(job)
            record(
                actor, "job.submit", f"job/{job.pk}", after={**parameters, "storage": job.storage}
            )
    except _Repeated as race:
        return race.operation
    with logs.about(job=job.pk):
        logger.info("%s was submitted", job.pk)
    return operation


@dataclass(frozen=True, slots=True)
class Beginning:
    """The checkpoint or savepoint that a job starts from, with its job and number if known."""

    uri: str
    job: Job | None = None
    number: int | None = None
    rewinds_output: bool = True
    claims: bool = False


def submit_fork(
    actor: User | None, origin: Job, submission: Submission, beginning: Beginning
) -> Operation:
    """Create a job that starts from a checkpoint of another; return its SUBMIT operation.

    The caller holds the origin's lock, so that the checkpoint is not deleted meanwhile.

    Raises:
        Invalid: The submission is incomplete or wrong.
    """
    job = _created(actor, check(submission), beginning, origin=origin)
    operation = operations.begin(
        job, OperationKind.SUBMIT, actor, parameters_of(submission), key=None
    )
    drivers.request(job)
    record(
        actor,
        "job.submit",
        f"job/{job.pk}",
        after={**operation.parameters, "origin": origin.pk, "restore": beginning.uri},
    )
    with logs.about(job=job.pk):
        logger.info("%s was forked from %s", job.pk, origin.pk)
    return operation


def _created(
    actor: User | None,
    checked: Checked,
    beginning: Beginning | None,
    *,
    origin: Job | None = None,
) -> Job:
    if checked.artifact is not None:
        _hold(checked.artifact)
    now = clock.now()
    job = Job(
        id=_new_id(checked.name),
        name=checked.name,
        pipeline_kind=checked.pipeline_kind,
        pipeline_target=checked.pipeline_target,
        artifact=checked.artifact,
        options=checked.options,
        spark_master=checked.spark_master,
        spark_conf=checked.spark_conf,
        storage=checked.storage,
        recovery_target_s=checked.recovery_target_s,
        labels=checked.labels,
        created_by=actor,
        created_at=now,
        status_changed_at=now,
    )
    if beginning is not None:
        begin_with(job, beginning)
        job.origin, job.origin_uri = origin or beginning.job, beginning.uri
    job.save(force_insert=True)
    hooks.checkpoints.job_created(job)
    return job


def _hold(artifact: Artifact) -> None:
    """Lock an upload until the transaction ends, so that retention does not remove it meanwhile.

    Raises:
        Invalid: It was removed since the submission was checked.
    """
    rows = Artifact.objects.select_for_update(no_key=True)
    if rows.filter(pk=artifact.pk).first() is None:
        raise Invalid(
            f"the upload {artifact.pk} has just been removed; upload the script again",
            errors={"artifact_digest": ["It has just been removed; upload the script again."]},
        )


def _beginning(checked: Checked) -> Beginning | None:
    """The checkpoint or savepoint that a submission starts from, if it names one."""
    if checked.restore is None:
        return None
    job, number = hooks.checkpoints.restored(checked.restore) or (None, None)
    return Beginning(checked.restore, job, number, claims=checked.claims)


def has_begun(job: Job, attempt: int) -> None:
    """Note that an attempt completed a checkpoint of its own; the caller holds the job's lock.

    From now on the job's drivers restore its newest checkpoint, unless the attempt's driver is
    older than the request to restore another one.
    """
    if not job.restore_uri:
        return
    ours = Attempt.objects.filter(job=job, number=attempt)
    driver = ours.values_list("driver__number", flat=True).first()
    if driver is None or driver < (job.restore_driver or 1):
        return
    job.restore_uri, job.restore_job, job.restore_number = "", None, None
    job.restore_driver = None
    job.save(update_fields=BEGINNING_FIELDS)


def begin_with(job: Job, beginning: Beginning) -> None:
    """Have the job's next driver restore ``beginning``; the caller saves the job."""
    last = None if job._state.adding else drivers.newest(job)
    job.restore_uri = beginning.uri
    job.restore_job, job.restore_number = beginning.job, beginning.number
    job.restore_rewinds, job.restore_claims = beginning.rewinds_output, beginning.claims
    job.restore_driver = 1 if last is None else last.number + 1


def cancel(actor: User | None, job_id: str, *, key: str | None = None) -> Operation:
    """End a job without a savepoint; the operation succeeds once it is CANCELED.

    A running driver gets a command; a driver that has sent no request yet is ended at once.

    Raises:
        NotFound: There is no such job.
        WrongState: The job is over.
        Busy: The job is being cancelled already.
    """
    with asking(actor, job_id, OperationKind.CANCEL, {}, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        if job.is_over:
            raise WrongState(
                f"the job is {job.status} already", state=job.status, allowed=list(_CANCELLABLE)
            )
        operation = operations.begin(job, OperationKind.CANCEL, actor, {}, key=key)
        operations.start(operation)
        before = {"desired": job.desired, "status": job.status}
        driver = drivers.live(job)
        job.desired, job.restart_at = DesiredState.CANCELED, None
        is_asked = driver is not None and driver.status == DriverStatus.RUNNING
        if is_asked:
            job.cancel_due_at = clock.now() + clock.milliseconds(settings.WEIR_CANCEL_GRACE_MS)
        job.save(update_fields=["desired", "restart_at", "cancel_due_at"])
        if is_asked:
            outbox.enqueue(job, [CancelJob(f"cancelled by {name_of(actor)}")], clock.now())
        else:
            _end_driver(job, driver, "the job was cancelled", FailureReason.JOB_CANCELED)
            drivers.conclude(job, JobStatus.CANCELED)
            operation.refresh_from_db()
        record(
            actor,
            "job.cancel",
            f"job/{job.pk}",
            before=before,
            after={"desired": job.desired, "status": job.status},
        )
        logger.info("cancelling %s", job.pk)
    return operation


def restart(actor: User | None, job_id: str, *, key: str | None = None) -> Operation:
    """Run a job with a new driver, from its newest completed checkpoint.

    A running job is interrupted, which does not count against its restart strategy; a failed or
    cancelled job is started again. The operation succeeds once the job runs.

    Raises:
        NotFound: There is no such job.
        WrongState: The job has finished, or is being cancelled.
        Busy: Another operation has to end first.
    """
    with asking(actor, job_id, OperationKind.RESTART, {}, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        is_cancelling = job.desired == DesiredState.CANCELED and not job.is_over
        if job.status not in _RESTARTABLE or is_cancelling:
            state = JobStatus.CANCELLING.value if is_cancelling else job.status
            raise WrongState(
                f"the job is {state}; it cannot be restarted",
                state=state,
                allowed=list(_RESTARTABLE),
            )
        operation = operations.begin(job, OperationKind.RESTART, actor, {}, key=key)
        before = {"desired": job.desired, "status": job.status}
        relaunch(job, f"restarted by {name_of(actor)}", FailureReason.JOB_RESTARTED)
        record(
            actor,
            "job.restart",
            f"job/{job.pk}",
            before=before,
            after={"desired": job.desired, "status": job.status},
        )
        logger.info("restarting %s", job.pk)
    return operation


def set_recovery_target(actor: User | None, job_id: str, seconds: float | None) -> Job:
    """Set a job's recovery target, or with None remove it; the job itself is not affected.

    Raises:
        NotFound: There is no such job.
        Invalid: The target is out of its bounds.
    """
    try:
        seconds = None if seconds is None else check_recovery_target(seconds)
    except ValueError as error:
        raise Invalid(
            "the recovery target cannot be set", errors={"recovery_target_s": [str(error)]}
        ) from error
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        before = {"recovery_target_s": job.recovery_target_s}
        after = {"recovery_target_s": seconds}
        if after != before:
            job.recovery_target_s = seconds
            job.save(update_fields=["recovery_target_s"])
            record(actor, "job.set_recovery_target", f"job/{job.pk}", before=before, after=after)
            wakeups.on_commit(wakeups.job(job.pk))
    return job


def relaunch(job: Job, why: str, reason: FailureReason) -> None:
    """End the job's driver, if it has one, and request the next; the caller holds the job's lock.

    A job that is over is reopened.

    Args:
        reason: That of the checkpoints that are under way.

    Raises:
        WrongState: The job's end is still being settled.
    """
    if job.is_over:
        hooks.checkpoints.job_reopened(job)
        job.restart_state = None  # Earlier losses no longer count: a user asked for this start.
    job.desired, job.archived_at = DesiredState.RUNNING, None
    job.restart_at = clock.now()
    job.save(update_fields=["desired", "archived_at", "restart_at", "restart_state"])
    _end_driver(job, drivers.live(job), why, reason)
    drivers.await_driver(job, why, is_planned=True)
    drivers.relaunch(job, why)  # Where refused, the next tick tries again.


def _end_driver(
    job: Job,
    driver: Driver | None,
    cause: str,
    reason: FailureReason,
    attempt_end: AttemptEnd = AttemptEnd.CANCELED,
) -> None:
    """Fence the job's driver, if there is one; a launcher ends its process."""
    if driver is None:
        return
    drivers.end(driver, cause)
    drivers.replaced(job, driver, cause, attempt_end, reason)


def suspend_all(why: str) -> int:
    """End the driver of each job as planned; the jobs go on once a launcher runs again.

    For a control plane that stops and ends the drivers' processes itself: no tick and no launcher
    runs any more. Drivers that no launcher has taken yet keep waiting for one.

    Returns:
        The number of drivers that were ended.
    """
    launched = Driver.objects.filter(status__in=(DriverStatus.STARTING, DriverStatus.RUNNING))
    ids = list(launched.order_by("job").values_list("job", flat=True))
    return sum(_suspend(job_id, why) for job_id in ids)


def _suspend(job_id: str, why: str) -> bool:
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        driver = drivers.live(job)
        if driver is None or driver.status == DriverStatus.REQUESTED:
            return False
        if job.desired == DesiredState.CANCELED:
            _end_driver(job, driver, why, FailureReason.JOB_CANCELED)
            drivers.conclude(job, JobStatus.CANCELED)
        else:
            reason = FailureReason.CONTROL_PLANE_STOPPED
            _end_driver(job, driver, why, reason, AttemptEnd.SUSPENDED)
            job.restart_at = clock.now()
            job.save(update_fields=["restart_at"])
            drivers.await_driver(job, why, is_planned=True)
        record(
            None,
            "driver.suspend",
            f"job/{job.pk}",
            after={"job": job.status, "number": driver.number, "cause": why},
        )
    return True


def parameters_of(submission: Submission) -> dict[str, Any]:
    """The submission as given, for its operation and its audit entry."""
    return {
        "name": submission.name,
        "pipeline_kind": submission.pipeline_kind,
        "pipeline_target": submission.pipeline_target,
        "artifact_digest": submission.artifact_digest,
        "options": dict(submission.options),
        "spark_master": submission.spark_master,
        "spark_conf": dict(submission.spark_conf),
        "storage": submission.storage,
        **(
            {}
            if submission.recovery_target_s is None
            else {"recovery_target_s": submission.recovery_target_s}
        ),
        **({"labels": dict(submission.labels)} if submission.labels else {}),
    }


def _new_id(name: str) -> str:
    """A job id that contains the job's name; it becomes a directory's name."""
    slug = re.sub(r"[^a-z0-9_]+", "-", name.lower())[:_SLUG_LENGTH_MAX].strip("-")
    return f"{slug or 'job'}-{secrets.token_hex(4)}"


def check_key(key: str | None) -> None:
    """Check an idempotency key.

    Raises:
        Invalid: The key is empty, too long, or not printable.
    """
    limit = operations.KEY_LENGTH_MAX
    if key is not None and (not key or len(key) > limit or not key.isprintable()):
        raise Invalid(f"an idempotency key has 1 to {limit} printable characters")


def name_of(actor: User | None) -> str:
    """The account's name in a cause."""
    return "the control plane" if actor is None else actor.get_username()
