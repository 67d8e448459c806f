"""Stop, rollback, rescale and fork: operations of several steps."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from checkpoints.catalog import restore_targets, savepoint_names
from checkpoints.catalog.restore_targets import Restorable
from checkpoints.operations import begin, returns, savepoints
from controlplane.accounts.models import User
from controlplane.base.errors import Invalid, WrongState
from jobs import cluster_size, operations, services
from jobs.models import DesiredState, Job, Operation, OperationKind
from jobs.submissions import Pipeline, Submission, check
from weir.graph.key_groups import default_max_parallelism
from weir.protocol import operations as steps
from weir.protocol.lifecycle import JobStatus
from weir.protocol.operations import OperationState

logger = logging.getLogger(__name__)

PARALLELISM_MAX = 32_768
_STARTING = frozenset({JobStatus.CREATED, JobStatus.INITIALIZING})
_RELAUNCHABLE = tuple(
    s.value for s in JobStatus if s not in _STARTING and s is not JobStatus.CANCELLING
)


def stop(
    actor: User | None,
    job_id: str,
    *,
    drain: bool,
    name: str = "",
    note: str = "",
    labels: Mapping[str, str] | None = None,
    location: str = "",
    key: str | None = None,
) -> Operation:
    """Stop a job with a savepoint; the operation succeeds once the job is FINISHED.

    With ``drain`` the sources end first, event-time timers fire and windows close.

    Raises:
        As ``savepoints.take``.
    """
    words = {"name": name, "note": note, "labels": dict(labels or {}), "location": location}
    progress = OperationState(steps.OperationKind.STOP, drains=drain)
    return savepoints.save(actor, job_id, progress, words, {"drain": drain}, key)


def rollback(
    actor: User | None,
    job_id: str,
    *,
    checkpoint: int | None = None,
    savepoint: UUID | None = None,
    rewind_output: bool = True,
    allow_non_restored_state: bool | None = None,
    key: str | None = None,
) -> Operation:
    """Roll a job back to an older checkpoint, an abandoned one, or a savepoint of its own.

    A job that is over is launched again. The operation succeeds once the job runs; one that ran
    before and does not come to run is taken back to where it was.

    Raises:
        NotFound: There is no such job, checkpoint or savepoint.
        Invalid: Not exactly one of the two was given; it is another job's; it is no longer kept.
        WrongState: The job is starting, or being cancelled.
        Busy: Another operation has to end first.
        KeyReused: The idempotency key came with another request.
    """
    given = {
        "checkpoint": checkpoint,
        "savepoint": None if savepoint is None else str(savepoint),
        "rewind_output": rewind_output,
        "allow_non_restored_state": allow_non_restored_state,
    }
    with services.asking(actor, job_id, OperationKind.ROLLBACK, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        check_relaunchable(job, "rolled back", is_finished_too=True)
        target = restore_targets.chosen(job, checkpoint, savepoint)
        operation = operations.begin(
            job,
            OperationKind.ROLLBACK,
            actor,
            {**given, **_named(target)},
            key=key,
            mark=asked.mark,
            progress=OperationState(
                steps.OperationKind.ROLLBACK,
                restore=target.uri,
                before=returns.before(job, goes_back=True),
            ),
        )
        return begin.start(actor, job, operation, before=where(job))


def rescale(
    actor: User | None,
    job_id: str,
    *,
    parallelism: int,
    wait_for_slots: bool = False,
    key: str | None = None,
) -> Operation:
    """Run a job with another parallelism, from a checkpoint taken for it, or else its newest one.

    A running job that does not come to run with it is taken back to its parallelism of before.

    Args:
        wait_for_slots: Begin also where the cluster is too small now: the new driver waits for its
            slots, as a cluster that grows with what is asked of it needs it to.

    Raises:
        NotFound, WrongState, Busy, KeyReused: As ``rollback``.
        Invalid: The parallelism is not valid, above the max parallelism of the job's state, or
            more than the cluster has slots.
    """
    given = {"parallelism": parallelism, "wait_for_slots": wait_for_slots}
    known = None if wait_for_slots else Job.objects.filter(pk=job_id).first()
    most = None if known is None else cluster_size.slots_max(known)  # Asked before rows are locked.
    with services.asking(actor, job_id, OperationKind.RESCALE, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        check_relaunchable(job, "rescaled", is_finished_too=False)
        _check_parallelism(job, parallelism)
        _check_slots(job, parallelism, most)
        operation = operations.begin(
            job,
            OperationKind.RESCALE,
            actor,
            given,
            key=key,
            mark=asked.mark,
            timeout_ms=begin.timeout_ms(job),
            progress=OperationState(
                steps.OperationKind.RESCALE, before=returns.before(job, goes_back=False)
            ),
        )
        before = {**where(job), "parallelism": job.options.get("parallelism")}
        return begin.start(actor, job, operation, before=before)


def fork(
    actor: User | None,
    job_id: str,
    *,
    name: str,
    checkpoint: int | None = None,
    savepoint: UUID | None = None,
    parameters: Mapping[str, str] | None = None,
    secrets: Sequence[str] | None = None,
    parallelism: int | None = None,
    recovery_target_s: float | None = None,
    pipeline: Pipeline | None = None,
    allow_non_restored_state: bool | None = None,
    key: str | None = None,
) -> Operation:
    """Submit a second job that begins with a checkpoint or savepoint of the first one.

    With neither, a savepoint is taken for it. The operation is the origin's and succeeds once the
    other job runs: ``result["job"]`` is its id, ``result["operation"]`` its SUBMIT, from the
    submission on.

    Args:
        parameters: Laid over the origin's.
        secrets: Names of all secrets of the fork; None: those of the origin.
        recovery_target_s: None: that of the origin, if it has one.
        pipeline: What the fork runs; None: what the origin runs.

    Raises:
        NotFound, Invalid, WrongState, Busy, KeyReused: As ``rollback`` and ``submit``.
    """
    given: dict[str, Any] = {
        "name": name,
        "checkpoint": checkpoint,
        "savepoint": None if savepoint is None else str(savepoint),
        "parameters": dict(parameters or {}),
        **({} if secrets is None else {"secrets": sorted(set(secrets))}),
        "parallelism": parallelism,
        **({} if recovery_target_s is None else {"recovery_target_s": recovery_target_s}),
        "pipeline": None if pipeline is None else [pipeline.kind, pipeline.target],
        "artifact_digest": None if pipeline is None else pipeline.artifact_digest,
        "allow_non_restored_state": allow_non_restored_state,
    }
    with services.asking(actor, job_id, OperationKind.FORK, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        submission = derived_submission(
            job,
            name,
            pipeline=pipeline,
            parallelism=parallelism,
            parameters=parameters,
            secrets=secrets,
            recovery_target_s=recovery_target_s,
            allow_non_restored_state=allow_non_restored_state,
        )
        check(submission)
        is_given = checkpoint is not None or savepoint is not None
        target = restore_targets.chosen(job, checkpoint, savepoint) if is_given else None
        if target is None:
            begin.check_runs(job, "a savepoint for the fork is taken while it runs; name one")
        operation = operations.begin(
            job,
            OperationKind.FORK,
            actor,
            {**given, **_named(target), "submission": services.parameters_of(submission)},
            key=key,
            mark=asked.mark,
            timeout_ms=begin.timeout_ms(job),
            progress=OperationState(
                steps.OperationKind.FORK, restore=None if target is None else target.uri
            ),
            waits=target is None,
        )
        if target is None:
            savepoint_names.create(
                job, operation, actor, name=savepoint_names.default_name(f"fork-{name}")
            )
        return begin.start(actor, job, operation)


def derived_submission(
    job: Job,
    name: str,
    *,
    pipeline: Pipeline | None,
    parallelism: int | None,
    parameters: Mapping[str, str] | None,
    secrets: Sequence[str] | None = None,
    recovery_target_s: float | None = None,
    allow_non_restored_state: bool | None,
) -> Submission:
    """The job's submission, changed by the arguments given; parameters are laid over the job's."""
    options = {
        "parallelism": parallelism,
        "allow_non_restored_state": allow_non_restored_state,
        "secrets": None if secrets is None else list(secrets),
        "parameters": {**job.options.get("parameters", {}), **(parameters or {})},
    }
    if pipeline is None:
        pipeline = Pipeline(job.pipeline_kind, job.pipeline_target, job.artifact_id)
    if pipeline.artifact_digest is not None:
        pipeline = replace(pipeline, target="")  # An upload is named by its digest alone.
    return Submission(
        name=name,
        pipeline_kind=pipeline.kind,
        pipeline_target=pipeline.target,
        artifact_digest=pipeline.artifact_digest,
        options={**job.options, **{k: v for k, v in options.items() if v is not None}},
        spark_master=job.spark_master,
        spark_conf=job.spark_conf,
        storage=job.storage,
        recovery_target_s=job.recovery_target_s if recovery_target_s is None else recovery_target_s,
    )


def check_relaunchable(job: Job, what: str, *, is_finished_too: bool) -> None:
    """Refuse an operation that relaunches a job, while that is not possible.

    Raises:
        WrongState: The job is starting or being cancelled; or it has finished, unless that is
            allowed.
    """
    allowed = _RELAUNCHABLE
    if not is_finished_too:
        allowed = tuple(s for s in _RELAUNCHABLE if s != JobStatus.FINISHED)
    is_cancelling = job.desired == DesiredState.CANCELED and not job.is_over
    if job.status in allowed and not is_cancelling:
        return
    state = JobStatus.CANCELLING.value if is_cancelling else job.status
    is_starting = job.status in _STARTING and not is_cancelling
    hint = "; wait until it runs, or cancel it" if is_starting else ""
    raise WrongState(
        f"the job is {state} and cannot be {what} now{hint}", state=state, allowed=list(allowed)
    )


def _check_parallelism(job: Job, parallelism: int) -> None:
    """Refuse a parallelism that the job's state cannot be spread over, as far as known here.

    Raises:
        Invalid: It is out of range, or above the max parallelism of an operator with state.
    """
    if not 1 <= parallelism <= PARALLELISM_MAX:
        said = f"Give a number from 1 to {PARALLELISM_MAX}."
        raise Invalid(
            f"a job cannot run with parallelism {parallelism}", errors={"parallelism": [said]}
        )
    # Without a setting the job's first parallelism decides; later ones and restored state keep it.
    is_first = (
        job.origin_uri == ""
        and not Operation.objects.filter(job=job, kind=OperationKind.RESCALE).exists()
    )
    for operator in job.operators.all():
        limit = operator.max_parallelism or job.settings.get("max_parallelism")
        if limit is None and is_first and (operator.is_keyed or operator.is_source):
            limit = default_max_parallelism(operator.parallelism)
        if limit is not None and parallelism > limit:
            said = f"The state of {operator.name} can be spread over {limit} subtasks at most."
            raise Invalid(
                f"parallelism {parallelism} is above the max parallelism {limit} of "
                f"{operator.name}, which its state was saved with",
                errors={"parallelism": [said]},
            )


def _check_slots(job: Job, parallelism: int, most: int | None) -> None:
    """Refuse more slots than the job's cluster has; None: that is not known.

    Raises:
        Invalid: It has fewer.
    """
    if most is None or parallelism <= most:
        return
    raise Invalid(
        f"{job.spark_master} can hold {most} slots for this job, and parallelism {parallelism} "
        "needs as many; the job was not touched. Add workers, or give wait_for_slots to begin "
        "all the same",
        errors={"parallelism": [f"The cluster can hold {most} slots for this job at most."]},
    )


def _named(target: Restorable | None) -> dict[str, Any]:
    """The restore target, as an operation shows it."""
    if target is None:
        return {}
    savepoint = target.savepoint
    return {
        "checkpoint": target.number,
        "savepoint": None if savepoint is None else str(savepoint.pk),
        "restore": target.uri,
    }


def where(job: Job) -> dict[str, Any]:
    """The job's status and what it restores, for the audit log."""
    return {"status": job.status, "restore": job.restore_uri}
