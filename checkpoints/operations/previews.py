"""Previews of restores and rollbacks, and comparisons of two jobs' outputs.

They change nothing. Their operations (PREVIEW, COMPARE) succeed with the answer as result.
``jobs.preview_processes`` runs a pipeline's script, or reads output, in a process of its own; the
effect of a rollback is computed here, by a worker of the queue ``storage``.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, Sum

from checkpoints.catalog import locations, restore_targets
from checkpoints.coordinator import shell
from checkpoints.models import Checkpoint, SubtaskAck
from checkpoints.operations.requests import derived_submission
from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock, logs
from controlplane.base.errors import Invalid, existing
from jobs import operations, preview_processes, services
from jobs.models import OPEN_OPERATIONS, Attempt, Job, Operation, OperationKind, Subtask
from jobs.options import check_uri
from jobs.storable_text import storable_json
from jobs.submissions import Pipeline, check
from weir.errors import WeirError
from weir.ids import CheckpointId, JobId
from weir.output import rollback as rollbacks
from weir.protocol.wire import to_wire
from weir.storage.manifest import Manifest, load

logger = logging.getLogger(__name__)

ASKED_MAX = 20  # Previews of rollbacks in one look.
LEASE_S = 60.0  # A preview that takes longer is retried: its worker was killed.
TRIES_MAX = 2
KEYS_MAX = 20
COLUMN_LENGTH_MAX = 300


def restore(
    actor: User | None,
    job_id: str,
    *,
    restore: int | UUID | str,
    pipeline: Pipeline | None = None,
    parallelism: int | None = None,
    parameters: Mapping[str, str] | None = None,
    secrets: Sequence[str] | None = None,
    allow_non_restored_state: bool | None = None,
    key: str | None = None,
) -> Operation:
    """Preview a restore of a pipeline from a checkpoint, per operator and state.

    Args:
        restore: The number of a checkpoint of the job, a savepoint's id, or a URI.
        pipeline: None: the job's own, with its options.
        secrets: Names of all secrets that it gets; None: those of the job.

    Raises:
        NotFound: There is no such job, checkpoint or savepoint.
        Invalid: The pipeline, its options or the URI is not valid.
        KeyReused: The idempotency key came with another request.
    """
    given: dict[str, Any] = {
        "kind": "restore",
        "of": str(restore),
        "pipeline": None if pipeline is None else _named(pipeline),
        "parallelism": parallelism,
        "parameters": dict(parameters or {}),
        **({} if secrets is None else {"secrets": sorted(set(secrets))}),
        "allow_non_restored_state": allow_non_restored_state,
    }
    with services.asking(actor, job_id, OperationKind.PREVIEW, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        changed = derived_submission(
            job,
            job.name,
            pipeline=pipeline,
            parallelism=parallelism,
            parameters=parameters,
            secrets=secrets,
            allow_non_restored_state=allow_non_restored_state,
        )
        checked = check(changed)
        digest = None if checked.artifact is None else checked.artifact.digest
        runs = Pipeline(checked.pipeline_kind.value, checked.pipeline_target, digest)
        uri, origin = _place_of(job, restore)
        whole = {
            **given,
            "restore": uri,
            "origin": origin,
            # Kept until the preview has ended; savepoints are by themselves.
            "checkpoint": restore if isinstance(restore, int) else None,
            "pipeline": _named(runs),
            "options": checked.options,
        }
        return _begin(actor, job, OperationKind.PREVIEW, whole, key, asked.mark)


def _place_of(job: Job, restore: int | UUID | str) -> tuple[str, str | None]:
    """The URI to restore, and the id of the job that took it; None: that job is not known here."""
    if isinstance(restore, int):
        return restore_targets.of_checkpoint(job, restore).uri, job.pk
    if isinstance(restore, UUID):
        # A savepoint of another job as well: a preview restores nothing.
        savepoint = restore_targets.find_savepoint(restore)
        return restore_targets.of_savepoint(savepoint.job, restore).uri, savepoint.job_id
    try:
        problem = "Give the absolute path or URI of a checkpoint or savepoint."
        return check_uri(restore, problem), None
    except ValueError as error:
        raise Invalid(f"{restore!r} names no checkpoint", errors={"uri": [str(error)]}) from error


def rollback(
    actor: User | None,
    job_id: str,
    *,
    checkpoint: int | None = None,
    savepoint: UUID | None = None,
    rewind_output: bool = True,
    key: str | None = None,
) -> Operation:
    """Preview a rollback in numbers: positions, time, output, files that would move.

    Raises:
        NotFound, Invalid: As ``requests.rollback``.
        KeyReused: The idempotency key came with another request.
    """
    given = {
        "kind": "rollback",
        "checkpoint": checkpoint,
        "savepoint": None if savepoint is None else str(savepoint),
        "rewind_output": rewind_output,
    }
    with services.asking(actor, job_id, OperationKind.PREVIEW, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        target = restore_targets.chosen(job, checkpoint, savepoint)
        whole = {**given, "checkpoint": target.number, "restore": target.uri}
        return _begin(actor, job, OperationKind.PREVIEW, whole, key, asked.mark)


def compare(
    actor: User | None,
    job_id: str,
    *,
    other_job_id: str,
    keys: Sequence[str],
    windows: Sequence[str] = (),
    key: str | None = None,
) -> Operation:
    """Compare the file outputs of two jobs, by key and window.

    Raises:
        NotFound: There is no such job, or no such other job.
        Invalid: No key was named, or a job has no file output.
        KeyReused: The idempotency key came with another request.
    """
    given = {"other": other_job_id, "keys": list(keys), "windows": list(windows)}
    _check_columns("keys", keys, least=1)
    _check_columns("windows", windows)
    with services.asking(actor, job_id, OperationKind.COMPARE, given, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        is_id = "\0" not in other_job_id
        others = Job.objects.filter(pk=other_job_id) if is_id else Job.objects.none()
        other = existing(others, f"there is no job {other_job_id!r}")
        whole = {**given, "outputs": _pairs(job, other)}
        return _begin(actor, job, OperationKind.COMPARE, whole, key, asked.mark)


def _pairs(job: Job, other: Job) -> list[dict[str, str]]:
    """The pairs of outputs to compare: of operators with one uid, or each job's only one."""
    left, right = preview_processes.outputs_of(job), preview_processes.outputs_of(other)
    for one, outputs in ((job, left), (other, right)):
        if not outputs:
            raise Invalid(
                f"{one.pk} has no output in files to compare",
                errors={"other": [f"{one.pk} has no file sink, or its pipeline is not known yet."]},
            )
    pairs = [(uid, left[uid], right[uid]) for uid in left if uid in right]
    if not pairs and len(left) == len(right) == 1:
        pairs = [(*item, files) for item, files in zip(left.items(), right.values(), strict=True)]
    if not pairs:
        raise Invalid(
            f"no file sink of {job.pk} has the uid of one of {other.pk}: they are matched by uid",
            errors={"other": [f"It has {', '.join(right)}; this job has {', '.join(left)}."]},
        )
    return [
        {"operator": uid, "left": ours, "right": theirs}
        for uid, ours, theirs in pairs[: preview_processes.OUTPUTS_MAX]
    ]


def _check_columns(field: str, columns: Sequence[str], *, least: int = 0) -> None:
    is_sound = least <= len(columns) <= KEYS_MAX and all(
        type(column) is str and 0 < len(column) <= COLUMN_LENGTH_MAX and column.isprintable()
        for column in columns
    )
    if not is_sound:
        said = f"Name {least or 'no'} to {KEYS_MAX} columns of the output."
        raise Invalid("the outputs cannot be compared by these columns", errors={field: [said]})


def _named(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "kind": pipeline.kind,
        "target": pipeline.target,
        "artifact_digest": pipeline.artifact_digest,
    }


def _begin(
    actor: User | None,
    job: Job,
    kind: OperationKind,
    given: Mapping[str, Any],
    key: str | None,
    mark: str,
) -> Operation:
    operation = operations.begin(
        job,
        kind,
        actor,
        given,
        key=key,
        mark=mark,
        timeout_ms=preview_processes.time_ms(),
    )
    record(
        actor,
        f"job.{kind.value}",
        f"job/{job.pk}",
        after={"operation": str(operation.pk), **given},
    )
    return operation


# Rollbacks ----------------------------------------------------------------------------------------


def answer_due() -> int:
    """Answer the previews of rollbacks that are waiting; return how many were answered."""
    now = clock.now()
    asked = Operation.objects.filter(
        Q(progress__isnull=True) | Q(progress__until__lt=now.isoformat()),
        kind=OperationKind.PREVIEW,
        parameters__kind="rollback",
        status__in=OPEN_OPERATIONS,
    )
    count = 0
    for pk in list(asked.order_by("created_at").values_list("pk", flat=True)[:ASKED_MAX]):
        problem = "the preview of a rollback failed; it is tried again, or expires"
        with logs.guarding(logger, problem, operation=str(pk)):
            operation = _claimed(pk)
            if operation is not None:
                _answer(operation)
                count += 1
    return count


def _claimed(pk: UUID) -> Operation | None:
    """Take a preview under a lease; None where another worker has it, or it failed too often."""
    with transaction.atomic():
        claim = Operation.objects.filter(pk=pk).select_for_update(skip_locked=True, of=("self",))
        operation = claim.first()
        now = clock.now()
        if operation is None or operation.status not in OPEN_OPERATIONS:
            return None
        progress = operation.progress or {}
        if progress and progress["until"] >= now.isoformat():
            return None
        tries = int(progress.get("tries", 0)) + 1
        if tries > TRIES_MAX:
            operations.fail(
                operation, f"the worker that computed the preview was lost {TRIES_MAX} times"
            )
            return None
        until = now + clock.milliseconds(LEASE_S * 1_000)
        operation.progress = {"until": until.isoformat(), "tries": tries}
        operation.save(update_fields=["progress"])
        operations.start(operation)
        return operation


def _answer(operation: Operation) -> None:
    job = operation.job
    with logs.about(job=job.pk):
        try:
            result = _rollback_of(job, operation.parameters)
        except (WeirError, OSError) as error:
            operations.fail(operation, str(error))
            return
        if len(json.dumps(result)) > preview_processes.ANSWER_BYTES_MAX:
            operations.fail(operation, "the answer is too large to be kept")
            return
        operations.succeed(operation, result)


def _rollback_of(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """The effects of a rollback, as JSON.

    Raises:
        WeirError: The target cannot be read.
    """
    newest = restore_targets.newest(job)
    preview = rollbacks.preview(
        locations.store_of(job),
        JobId(job.pk),
        given["restore"],
        None if newest is None else _manifest(job, newest),
        rewinds_output=given["rewind_output"],
        now_ms=clock.now_ms(),
        emitted=None if newest is None else _emitted_since(job, newest),
        abandoned_ttl_ms=shell.config_of(job).abandoned_ttl_ms,
    )
    result: dict[str, Any] = storable_json(to_wire(preview))
    return result


def _emitted_since(job: Job, checkpoint: Checkpoint) -> dict[str, int] | None:
    """Records that each source has emitted since a checkpoint, by uid; None: not known."""
    attempt = Attempt.objects.filter(job=job).order_by("-number").first()
    if attempt is None:
        return None
    before: dict[str, int] = {}
    if checkpoint.attempt == attempt.number and checkpoint.has_details:
        acks = SubtaskAck.objects.filter(checkpoint=checkpoint).values_list("operator")
        before = dict(acks.annotate(Sum("records")).order_by())
    elif attempt.restored_checkpoint != checkpoint.number:
        return None
    emitted: dict[str, int] = {}
    for uid in job.operators.filter(is_source=True).values_list("uid", flat=True):
        running = Subtask.objects.filter(job=job, chain=uid, attempt=attempt.number)
        now = sum(int(m.get("records_in", 0)) for m in running.values_list("metrics", flat=True))
        emitted[uid] = max(0, now - before.get(uid, 0))
    return emitted


def _manifest(job: Job, row: Checkpoint) -> Manifest | None:
    path = locations.layout_of(job).manifest(CheckpointId(row.number))
    try:
        stored = load(locations.store_of(job).read(path), path)
    except WeirError as error:
        logger.warning("the newest checkpoint cannot be read: %s", error)
        return None
    return stored if isinstance(stored, Manifest) else None
