"""Launches of jobs by ticks: with the pipeline of an upgrade, back to how they were, and forks.

``weir.protocol.operations`` decides that a job that was stopped for its upgrade is to be launched,
or that one which did not come to run with a change is to be taken back. A tick does it here, in a
transaction of its own, once the end of the job is settled. A tick also ends a fork's operation,
once the fork's own submission has ended: so no transaction holds the locks of two jobs.
"""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction

from checkpoints.catalog import restore_targets
from checkpoints.coordinator import operation_steps
from controlplane.audit.models import record
from controlplane.base import clock, logs
from controlplane.base.errors import Refusal, WrongState
from jobs import job_pipeline, operations, services
from jobs.models import OPEN_OPERATIONS, Job, Operation, OperationKind, OperationStatus
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.protocol.operations import (
    Before,
    ForkFailed,
    ForkRuns,
    LaunchTick,
    OperationCommand,
    Phase,
    Return,
)

logger = logging.getLogger(__name__)

CLAIMED_MAX = 100  # Operations per tick; the next, a second later, takes the rest.
_OPTIONS = ("parallelism", "allow_non_restored_state")  # That an operation may have changed.


def before(job: Job, *, goes_back: bool) -> Before | None:
    """The job as it is before an operation; None where there is nothing to take it back to.

    ``goes_back``: the operation leaves the job's newest checkpoint behind.
    """
    newest = restore_targets.newest(job) if goes_back else None
    if goes_back and newest is None:
        return None
    options: dict[str, Any] = {name: job.options.get(name) for name in _OPTIONS}
    return Before(**options, checkpoint=None if newest is None else newest.number)


def return_due() -> int:
    """Take back each job whose operation is due; return their number."""
    return on_each(Phase.RETURN_DUE, Step.RETURN, _take_back)


def launch_due() -> int:
    """Launch each job that was stopped to run another pipeline; return their number."""
    return on_each(Phase.LAUNCH_DUE, Step.LAUNCH, _launch)


def forks_launched() -> int:
    """End each fork's operation whose new job runs, or did not come to run; return their number."""
    return on_each(Phase.FORKING, Step.FORK, _fork_launched)


def on_each(phase: Phase, step: Step, act: Callable[[Job, Operation], bool]) -> int:
    """Act on each operation in a phase, under its job's lock; return for how many it was true.

    One whose job another transaction has locked, or whose end is not settled, is left to the next
    tick.
    """
    due = Operation.objects.filter(status__in=OPEN_OPERATIONS, progress__phase=phase.value)
    due = due.exclude(is_set_aside(step, clock.now(), "job_id")).order_by("created_at")
    count = 0
    for pk, job_id in list(due.values_list("pk", "job_id")[:CLAIMED_MAX]):
        with logs.about(operation=str(pk)), setting_aside(step, job_id):
            count += _act(pk, job_id, act)
    return count


def _act(pk: UUID, job_id: str, act: Callable[[Job, Operation], bool]) -> bool:
    try:
        with transaction.atomic():
            locked = Job.objects.filter(pk=job_id).select_for_update(skip_locked=True, of=("self",))
            job = locked.first()
            return job is not None and act(job, Operation.objects.get(pk=pk))
    except WrongState as unsettled:
        logger.info("%s is not launched yet: %s", job_id, unsettled.detail)
        return False


def _launch(job: Job, operation: Operation) -> bool:
    commands = operations.fold(operation, LaunchTick())
    operation_steps.carry_out(job, operation, commands)
    return bool(commands)


def _fork_launched(job: Job, operation: Operation) -> bool:
    if operation.result is None:
        return False
    submitted = Operation.objects.filter(pk=operation.result["operation"]).first()
    if submitted is None or submitted.status in OPEN_OPERATIONS:
        return False
    event: ForkRuns | ForkFailed = ForkRuns()
    if submitted.status != OperationStatus.SUCCEEDED:
        event = ForkFailed(f"{submitted.job_id} was submitted and does not run: {submitted.error}")
    commands = operations.fold(operation, event)
    operation_steps.carry_out(job, operation, commands)
    return bool(commands)


def _take_back(job: Job, operation: Operation) -> bool:
    commands: tuple[OperationCommand, ...] = operations.fold(operation, LaunchTick())
    for command in commands:
        assert isinstance(command, Return)
        _relaunch(job, operation, command)
    return bool(commands)


def _relaunch(job: Job, operation: Operation, command: Return) -> None:
    was = command.before
    if command.restore is not None:
        operation_steps.begin_with(job, operation, command.restore)
    elif was.checkpoint is not None:
        try:
            target = restore_targets.of_checkpoint(job, was.checkpoint)
        except Refusal as refused:
            error = f"{command.error}; the job could not be taken back: {refused.detail}"
            operations.fail(operation, error)
            return
        rewinds = operation.parameters["rewind_output"]
        beginning = services.Beginning(target.uri, job, target.number, rewinds_output=rewinds)
        services.begin_with(job, beginning)
    kind = OperationKind(operation.kind)
    changed: dict[str, Any] = {name: getattr(was, name) for name in _OPTIONS}
    if kind is OperationKind.UPGRADE:
        changed = operation.parameters["was"]
        job_pipeline.run(job, changed)
    else:
        kept = {name: value for name, value in job.options.items() if name not in _OPTIONS}
        given = {name: value for name, value in changed.items() if value is not None}
        job.options = {**kept, **given}
    job.save(update_fields=[*job_pipeline.FIELDS, *services.BEGINNING_FIELDS])
    why = f"the {kind.value} did not come to run; taken back to how it was"
    reason = operation_steps.RELAUNCH_REASONS[kind]
    services.relaunch(job, f"{why}: {command.error}", reason)
    record(
        None,
        "job.return",
        f"job/{job.pk}",
        after={"operation": str(operation.pk), "error": command.error, **changed},
    )
    logger.warning("%s: %s", job.pk, why)
