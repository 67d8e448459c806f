"""Savepoints: taken on request, named, described, and deleted on request only."""

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction

from checkpoints.catalog import restore_targets, savepoint_names
from checkpoints.coordinator.shell import config_of, pump
from checkpoints.models import Checkpoint, Savepoint
from checkpoints.operations import begin
from checkpoints.retention import references
from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock, logs, wakeups
from controlplane.base.errors import NotFound, Problems, WrongState
from jobs import operations, services
from jobs.models import Job, Operation, OperationKind
from weir.protocol import operations as steps
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, JobStatus
from weir.protocol.messages import CheckpointRequested
from weir.protocol.operations import OperationState

logger = logging.getLogger(__name__)

CLAIMED_MAX = 200  # Checked in one sweep.


def request_checkpoint(actor: User | None, job_id: str, *, key: str | None = None) -> Operation:
    """Take a checkpoint now; the operation succeeds once it completed.

    While as many as allowed are under way it waits for its turn.

    Raises:
        NotFound: There is no such job.
        WrongState: The job is not running.
        Busy: The job is being cancelled or restarted.
        KeyReused: The idempotency key came with another request.
    """
    with services.asking(actor, job_id, OperationKind.CHECKPOINT, {}, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        begin.check_runs(job, "checkpoints are taken while it runs")
        operation = operations.begin(job, OperationKind.CHECKPOINT, actor, {}, key=key)
        operations.start(operation)
        pump(job, [CheckpointRequested(str(operation.pk))], now_ms=clock.now_ms())
        operation.refresh_from_db()  # It may have been refused at once.
        record(
            actor,
            "job.checkpoint",
            f"job/{job.pk}",
            after={"operation": str(operation.pk), "status": operation.status},
        )
        logger.info("a checkpoint was requested")
    return operation


def take(
    actor: User | None,
    job_id: str,
    *,
    name: str = "",
    note: str = "",
    labels: Mapping[str, str] | None = None,
    location: str = "",
    key: str | None = None,
) -> Operation:
    """Take a savepoint of a job that runs; the operation succeeds once it is durable.

    Its result: ``{"savepoint": id, "checkpoint": number, "path": URI, "duration_ms": ...}``.

    Args:
        name: Unique among the job's savepoints. Empty: a name is generated.
        location: A directory of its own, as absolute path or URI. Empty: in the job's storage.

    Raises:
        NotFound: There is no such job.
        Invalid: Name, note, labels or location are not valid, or the name is in use.
        WrongState: The job is not running.
        Busy: Another operation has to end first.
        KeyReused: The idempotency key came with another request.
    """
    words = {"name": name, "note": note, "labels": dict(labels or {}), "location": location}
    progress = OperationState(steps.OperationKind.SAVEPOINT)
    return save(actor, job_id, progress, words, {}, key)


def save(
    actor: User | None,
    job_id: str,
    progress: OperationState,
    words: Mapping[str, Any],
    more: Mapping[str, Any],
    key: str | None,
) -> Operation:
    """Begin an operation whose first step is a savepoint, described by ``words``.

    Args:
        words: The savepoint's name, note, labels and location, as requested.
        more: The operation's other parameters.

    Raises:
        As ``take``.
    """
    kind = OperationKind(progress.kind.value)
    problems = Problems()
    savepoint_names.check_description(
        words["name"] or None, words["note"], words["labels"], problems
    )
    location = words["location"] and savepoint_names.check_location(words["location"], problems)
    with services.asking(actor, job_id, kind, {**words, **more}, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        problems.refuse("the description of the savepoint is not valid")
        begin.check_runs(job, "savepoints are taken while it runs")
        name = words["name"] or savepoint_names.default_name()
        operation = operations.begin(
            job,
            kind,
            actor,
            {**words, **more, "name": name, "location": location},
            key=key,
            mark=asked.mark,
            timeout_ms=begin.timeout_ms(job),
            progress=progress,
        )
        savepoint_names.create(
            job,
            operation,
            actor,
            name=name,
            location=location,
            note=words["note"],
            labels=words["labels"],
        )
        logger.info("%s was requested, with savepoint %s", kind.value, name)
        return begin.start(actor, job, operation)


def describe(
    actor: User | None,
    savepoint_id: UUID,
    *,
    name: str | None = None,
    note: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Savepoint:
    """Change a savepoint's name, note or labels; None leaves one as it is.

    Its directory does not change.

    Raises:
        NotFound: There is no such savepoint.
        Invalid: As ``take``.
    """
    problems = Problems()
    savepoint_names.check_description(name, note, labels, problems)
    problems.refuse("the description of the savepoint is not valid")
    with transaction.atomic():
        job, savepoint = _locked(savepoint_id)
        if savepoint.deleted_at is not None:
            raise NotFound(f"savepoint {savepoint.name} was deleted")
        before = {"name": savepoint.name, "note": savepoint.note, "labels": savepoint.labels}
        if name is not None and name != savepoint.name:
            savepoint_names.check_free(job, name)
            savepoint.name = name
        savepoint.note = savepoint.note if note is None else note
        savepoint.labels = savepoint.labels if labels is None else dict(labels)
        savepoint.save(update_fields=["name", "note", "labels"])
        after = {"name": savepoint.name, "note": savepoint.note, "labels": savepoint.labels}
        if after != before:
            target = f"savepoint/{savepoint.pk}"
            record(actor, "savepoint.describe", target, before=before, after=after)
            wakeups.on_commit(wakeups.job(job.pk))
    return savepoint


def delete(actor: User | None, savepoint_id: UUID, *, key: str | None = None) -> Operation:
    """Delete a savepoint for good; the operation (DISCARD) succeeds once its files are gone.

    Raises:
        NotFound: There is no such savepoint.
        WrongState: It is being taken, or it is still needed: ``needed_by`` says by what.
        KeyReused: The idempotency key came with another request.
    """
    services.check_key(key)
    with transaction.atomic():
        job, savepoint = _locked(savepoint_id)
        asked: dict[str, str | int] = {"savepoint": str(savepoint.pk)}
        mark = operations.fingerprint(OperationKind.DISCARD, asked, job.pk)
        if (repeated := operations.earlier(actor, key, mark)) is not None:
            return repeated
        if savepoint.deleted_at is not None:
            raise NotFound(f"savepoint {savepoint.name} was deleted already")
        checkpoint = savepoint.checkpoint
        if checkpoint is None or checkpoint.status != CheckpointStatus.COMPLETED:
            state = "pending" if checkpoint is None else checkpoint.status
            raise WrongState(
                f"savepoint {savepoint.name} is {state}, not completed",
                state=state,
                allowed=[CheckpointStatus.COMPLETED.value],
            )
        if needed_by := references.users_of(savepoint):
            raise WrongState(
                f"savepoint {savepoint.name} is needed: {'; '.join(needed_by)}",
                state=checkpoint.status,
                allowed=[],
                needed_by=needed_by,
            )
        asked |= {"name": savepoint.name, "checkpoint": checkpoint.number}
        operation = operations.begin(job, OperationKind.DISCARD, actor, asked, key=key, mark=mark)
        operations.start(operation)
        _discard(actor, savepoint, {"operation": str(operation.pk)})
    return operation


def let_claimed_go() -> int:
    """Delete claimed savepoints whose jobs have enough checkpoints of their own; return how many.

    A claimed savepoint is the job's own, so retention discards it as the job's oldest checkpoint.
    """
    claimed = Savepoint.objects.filter(claimed_by__status=JobStatus.RUNNING, deleted_at=None)
    count = 0
    for savepoint in claimed.select_related("claimed_by").order_by("created_at")[:CLAIMED_MAX]:
        problem = "a claimed savepoint could not be deleted; the next sweep tries again"
        with logs.guarding(logger, problem, job=savepoint.job_id):
            count += _let_go(savepoint)
    return count


def _let_go(savepoint: Savepoint) -> bool:
    claimant = savepoint.claimed_by
    assert claimant is not None
    own = Checkpoint.objects.filter(
        job=claimant,
        kind=CheckpointKind.CHECKPOINT.value,
        status=CheckpointStatus.COMPLETED,
        abandoned_at=None,
    )
    if own.count() < config_of(claimant).retained_max:
        return False
    with transaction.atomic():
        _, savepoint = _locked(savepoint.pk)
        is_there = savepoint.deleted_at is None and savepoint.checkpoint is not None
        if not is_there or references.users_of(savepoint, but_for=claimant):
            return False
        _discard(None, savepoint, {"claimed_by": claimant.pk})
    return True


def _discard(actor: User | None, savepoint: Savepoint, after: dict[str, Any]) -> None:
    checkpoint = savepoint.checkpoint
    assert checkpoint is not None
    savepoint.deleted_at = checkpoint.discard_due_at = clock.now()
    checkpoint.discard_tries, checkpoint.discard_error = 0, ""
    savepoint.save(update_fields=["deleted_at"])
    checkpoint.save(update_fields=["discard_due_at", "discard_tries", "discard_error"])
    job_id = savepoint.job_id
    record(
        actor,
        "savepoint.delete",
        f"savepoint/{savepoint.pk}",
        before={"name": savepoint.name, "location": savepoint.location, "job": job_id},
        after=after,
    )
    wakeups.on_commit(wakeups.job(job_id))
    with logs.about(job=job_id, checkpoint=checkpoint.number):
        logger.info("savepoint %s is to be deleted", savepoint.name)


def _locked(savepoint_id: UUID) -> tuple[Job, Savepoint]:
    """The savepoint and its job, which is locked."""
    job = services.locked(restore_targets.find_savepoint(savepoint_id).job_id)
    return job, restore_targets.find_savepoint(savepoint_id)  # As it is now.
