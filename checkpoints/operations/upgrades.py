"""Upgrades: a job goes on with another pipeline, and with its old one where that does not run.

A preview first judges, in a process of its own, whether the new pipeline can restore the job's
newest checkpoint; ``check_due`` takes its answer in. A job that runs is then stopped with a
savepoint and launched from it; see ``checkpoints.operations.returns`` for the launch and the way
back.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from checkpoints.catalog import restore_targets, savepoint_names
from checkpoints.operations import begin, previews, returns
from checkpoints.operations.requests import (
    check_relaunchable,
    derived_submission,
    where,
)
from controlplane.accounts.models import User
from controlplane.base.errors import Invalid, WrongState
from jobs import job_pipeline, operations, preview_processes, services
from jobs.models import (
    OPEN_OPERATIONS,
    Job,
    Operation,
    OperationKind,
    OperationStatus,
)
from jobs.set_aside import Step
from jobs.submissions import Pipeline, check
from weir.protocol import operations as steps
from weir.protocol.lifecycle import JobStatus
from weir.protocol.operations import Checked, NotChecked, OperationState, Phase, Save

logger = logging.getLogger(__name__)

RUN_WITHIN_S_MIN, RUN_WITHIN_S_MAX = 1, 86_400  # A day.
_SETTLED = (JobStatus.CREATED, JobStatus.INITIALIZING)


def upgrade(
    actor: User | None,
    job_id: str,
    *,
    pipeline: Pipeline | None = None,
    parameters: Mapping[str, str] | None = None,
    secrets: Sequence[str] | None = None,
    parallelism: int | None = None,
    allow_non_restored_state: bool | None = None,
    run_within_s: float | None = None,
    key: str | None = None,
) -> Operation:
    """Go on with another pipeline, from a savepoint that is taken for it.

    The job keeps its id, its settings and its history. Before it is touched, a preview judges
    whether the new pipeline can restore its state. A job that does not come to run with the new
    pipeline goes on with the old one, from the same savepoint. One that is over is launched from
    its newest checkpoint.

    Args:
        pipeline: None: the job's own, read anew.
        parameters: Laid over the job's.
        secrets: Names of all its secrets; None: unchanged.
        run_within_s: The time that the new pipeline has until all its subtasks run, from its launch
            on; None: that of every operation.

    Raises:
        NotFound: There is no such job.
        Invalid: The pipeline, its options or the time is not valid.
        WrongState: The job has finished, is starting or being cancelled, or has no checkpoint yet.
        Busy: Another operation has to end first.
        KeyReused: The idempotency key came with another request.
    """
    given: dict[str, Any] = {
        "pipeline": None if pipeline is None else [pipeline.kind, pipeline.target],
        "artifact_digest": None if pipeline is None else pipeline.artifact_digest,
        "parameters": dict(parameters or {}),
        "secrets": None if secrets is None else sorted(set(secrets)),
        "parallelism": parallelism,
        "allow_non_restored_state": allow_non_restored_state,
        "run_within_s": run_within_s,
    }
    _check_time(run_within_s)
    with services.asking(actor, job_id, OperationKind.UPGRADE, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        check_relaunchable(job, "upgraded", is_finished_too=False)
        changed: dict[str, Any] = {
            "pipeline": pipeline,
            "parallelism": parallelism,
            "parameters": parameters,
            "secrets": secrets,
            "allow_non_restored_state": allow_non_restored_state,
        }
        runs = job_pipeline.of_submission(check(derived_submission(job, job.name, **changed)))
        newest = restore_targets.newest(job)
        if newest is None and job.status == JobStatus.RUNNING:
            raise WrongState(
                "the job has no completed checkpoint to check the new pipeline against; take one "
                "first, or wait for it",
                state=job.status,
                allowed=[JobStatus.RUNNING.value],
            )
        progress = OperationState(
            steps.OperationKind.UPGRADE,
            checks=newest is not None,
            # A job that is over can become no worse.
            before=None if job.is_over else returns.before(job, goes_back=False),
        )
        operation = operations.begin(
            job,
            OperationKind.UPGRADE,
            actor,
            {**given, "runs": runs, "was": job_pipeline.of_job(job)},
            key=key,
            mark=asked.mark,
            timeout_ms=begin.timeout_ms(job) + preview_processes.time_ms(),
            progress=progress,
        )
        if newest is not None:
            preview = previews.restore(actor, job_id, restore=newest.number, **changed)
            operation.parameters |= {"preview": str(preview.pk), "checked": newest.number}
            operation.save(update_fields=["parameters"])
        logger.info("an upgrade to %s was requested", runs["pipeline_target"])
        return begin.start(actor, job, operation, before=where(job))


def check_due() -> int:
    """Take in the answers of previews that upgrades wait for; return their number."""
    return returns.on_each(Phase.CHECKING, Step.CHECK, _take_in)


def _take_in(job: Job, operation: Operation) -> bool:
    preview = Operation.objects.filter(pk=operation.parameters["preview"]).first()
    if preview is not None and preview.status in OPEN_OPERATIONS:
        return False
    problem = _problem_of(operation, preview)
    if problem:
        commands = operations.fold(operation, NotChecked(f"{problem}. The job was not touched"))
    elif job.status in _SETTLED:
        return False  # It is starting: a later tick sees whether it runs.
    else:
        commands = operations.fold(operation, Checked(is_running=begin.runs(job)))
        if any(isinstance(command, Save) for command in commands):
            name = savepoint_names.default_name("upgrade")
            savepoint_names.create(job, operation, operation.requested_by, name=name)
    begin.carry_out(job, operation, commands)
    return bool(commands)


def _problem_of(operation: Operation, preview: Operation | None) -> str:
    """The reason why the new pipeline is not to run; empty: it can restore the job's state."""
    which = f"checkpoint {operation.parameters['checked']}"
    if preview is None:
        return f"whether the new pipeline can restore {which} is not known: its preview is gone"
    if preview.status != OperationStatus.SUCCEEDED:
        # The end of what it printed: an exception, and the command's sentence on it.
        said = [line.strip() for line in preview.error.splitlines() if line.strip()][-2:]
        why = "; ".join(said) or preview.status
        return f"the new pipeline could not be checked against {which}: {why}"
    result = preview.result or {}
    if result.get("would_restore"):
        return ""
    problems = "; ".join(map(str, result.get("problems", ())))
    return f"the new pipeline cannot restore {which}: {problems}"


def _check_time(run_within_s: float | None) -> None:
    if run_within_s is None:
        return
    is_number = type(run_within_s) in (int, float)
    if not is_number or not RUN_WITHIN_S_MIN <= run_within_s <= RUN_WITHIN_S_MAX:
        said = f"Give a number of seconds from {RUN_WITHIN_S_MIN} to {RUN_WITHIN_S_MAX}."
        raise Invalid(
            "the job cannot be upgraded with this deadline", errors={"run_within_s": [said]}
        )
