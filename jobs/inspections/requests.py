"""Services that request an inspection, and read it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import FloatField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock, logs
from controlplane.base.errors import Forbidden, Invalid, NotFound, TooBusy, WrongState, existing
from controlplane.base.formatting import duration
from jobs.drivers import outbox
from jobs.inspections import store
from jobs.inspections.flames import Flames, merged, uploads_in
from jobs.inspections.store import Inspection
from jobs.models import Artifact, Job, Operator, OutboxCommand, Subtask
from jobs.services import locked
from weir.ids import AttemptNumber, OperatorId
from weir.protocol.inspection import (
    RECORDS_MAX,
    Inspected,
    InspectionKind,
    InspectSubtask,
)
from weir.protocol.lifecycle import JobStatus, SubtaskStatus

# Of one request, the busiest; each answer is up to a hundred kilobytes.
SUBTASKS_MAX = {InspectionKind.STACKS: 16, InspectionKind.RECORDS: 4}
WAITING_MAX = 64  # Requests that a job's driver has not taken.


@dataclass(frozen=True, slots=True)
class Result:
    """An inspection as far as it has come."""

    inspection: Inspection
    is_over: bool
    answers: dict[int, Inspected]  # By the subtask's index; of a tap, once it is over.
    causes: dict[int, str] = field(default_factory=dict)  # Why a subtask has nothing to show.

    def flames(self) -> Flames:
        """The stacks of all that have answered."""
        stacks = [one.stacks for one in self.answers.values() if one.stacks is not None]
        uploads = Artifact.objects.filter(digest__in=uploads_in(stacks))
        return merged(stacks, dict(uploads.values_list("digest", "file_name")))


def refusal_of_taps(job: Job, operator: Operator) -> str:
    """Why the records of an operator are not shown; empty: they can be."""
    if not settings.WEIR_TAP:
        return "taps are switched off on this control plane (WEIR_TAP)"
    if job.settings.get("allow_tap", True) is not True:
        return "this job forbids that its records are shown (weir.tap.enabled)"
    if operator.is_sink:
        return f"{operator.uid} is a sink and passes nothing on; look at an operator before it"
    return ""


def ask(
    actor: User, job_id: str, uid: str, kind: InspectionKind, subtask: int | None
) -> Inspection:
    """Ask one subtask of an operator, or the busiest, for its stacks or records.

    A tap leaves an audit entry.

    Raises:
        NotFound: There is no such job or operator.
        Invalid: The operator has no such subtask.
        Forbidden: Records are not to be shown.
        WrongState: Neither the job nor the subtask runs.
        TooBusy: The job's driver has not taken earlier requests.
        Unavailable: Redis is away.
    """
    job = existing(Job.objects.filter(pk=job_id), f"There is no job {job_id}.")
    operator = existing(
        Operator.objects.filter(job=job, uid=uid), f"Job {job_id} has no operator {uid!r}."
    )
    is_tap = kind is InspectionKind.RECORDS
    if is_tap and (why := refusal_of_taps(job, operator)):
        raise Forbidden(f"Records are not shown: {why}.")
    if subtask is not None and subtask >= operator.parallelism:
        raise Invalid(
            "there is no such subtask",
            errors={"subtask": [f"{uid} has {operator.parallelism}, counted from 0."]},
        )
    _check_runs(job)
    running = _running(job, operator.chain, subtask)
    chosen = running[: SUBTASKS_MAX[kind]]
    inspection = Inspection(
        id=store.new_id(),
        job=job.pk,
        operator=uid,
        kind=kind.value,
        subtasks=sorted(index for index, _ in chosen),
        left_out=len(running) - len(chosen),
        asked_ms=clock.now_ms(),
        asked_by=actor.pk,
    )
    if not is_tap and (known := store.same(inspection)) is not None:
        return known
    store.keep(inspection)  # Before the job is locked: Redis may take its time.
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        _check_runs(job)
        if OutboxCommand.objects.filter(job=job, message__type=_TYPE).count() >= WAITING_MAX:
            raise TooBusy("the job's driver has not taken earlier requests; try again soon")
        commands = [
            InspectSubtask(AttemptNumber(attempt), inspection.id, kind, OperatorId(uid), index)
            for index, attempt in chosen
        ]
        outbox.enqueue(job, commands, clock.now())
        if is_tap:
            record(actor, "job.tap", f"job/{job.pk}", after=_told(inspection))
    if not is_tap:
        store.share(inspection)
    return inspection


_TYPE = InspectSubtask.__name__


def _check_runs(job: Job) -> None:
    if job.status != JobStatus.RUNNING:
        raise WrongState(
            f"the job is {job.status}; subtasks can be looked into while it runs",
            state=job.status,
            allowed=[JobStatus.RUNNING.value],
        )


def _running(job: Job, chain: str, subtask: int | None) -> list[tuple[int, int]]:
    """Index and attempt of the running subtasks, the busiest first.

    Raises:
        WrongState: None of them runs.
    """
    rows = Subtask.objects.filter(job=job, chain=chain, status=SubtaskStatus.RUNNING)
    if subtask is not None:
        rows = rows.filter(index=subtask)
    busy = Cast(KT("rates__busy"), FloatField()).desc(nulls_last=True)
    running = list(rows.order_by(busy, "index").values_list("index", "attempt"))
    if not running:
        name = chain if subtask is None else f"{chain}-{subtask}"
        raise WrongState(
            f"{name} does not run (any more)", state=job.status, allowed=[JobStatus.RUNNING.value]
        )
    return running


def _told(inspection: Inspection, **more: Any) -> dict[str, Any]:
    return {
        "operator": inspection.operator,
        "subtasks": inspection.subtasks,
        "inspection": inspection.id,
        "records_max": RECORDS_MAX * len(inspection.subtasks),
    } | more


def read(actor: User, job_id: str, inspection_id: str, *, may_tap: bool) -> Result:
    """An inspection of a job, with the answers that have come.

    Records are shown to the account that asked for them, once all have come; the first reading
    leaves an audit entry that counts them.

    Args:
        may_tap: Whether the request has the role that taps need.

    Raises:
        NotFound: There is no such inspection of this job, or it is another account's tap.
        Unavailable: Redis is away.
    """
    inspection = store.find(inspection_id)
    is_tap = inspection is not None and inspection.kind == InspectionKind.RECORDS
    if inspection is None or inspection.job != job_id:
        raise NotFound("There is no such inspection of this job; they are kept for some minutes.")
    if is_tap and not (may_tap and inspection.asked_by == actor.pk):
        raise NotFound("Records are shown to the account that asked for them.")
    answers = store.answers(inspection)
    is_over = inspection.is_over(answers)
    if is_tap and not is_over:
        return Result(inspection, False, {})
    if is_tap and not store.was_read(inspection):
        count = sum(len(one.records.records) for one in answers.values() if one.records)
        told = _told(inspection, records=count)
        record(actor, "job.tap_read", f"job/{job_id}", after=told)
        store.note_reading(inspection)  # In this order: rather two entries than none.
    return Result(inspection, is_over, answers, _causes(inspection, answers) if is_over else {})


def _causes(inspection: Inspection, answers: dict[int, Inspected]) -> dict[int, str]:
    causes = {index: one.cause for index, one in answers.items() if one.cause}
    missing = [index for index in inspection.subtasks if index not in answers]
    if not missing:
        return causes
    return causes | _why_missing(inspection, missing)


def _why_missing(inspection: Inspection, missing: Sequence[int]) -> dict[int, str]:
    """Why no answer came in time, as far as rows tell."""
    job = Job.objects.filter(pk=inspection.job).first()
    within = f"no answer came within {store.ANSWER_WITHIN.total_seconds():g} seconds"
    if job is None or job.status != JobStatus.RUNNING:
        state = "gone" if job is None else job.status
        return dict.fromkeys(missing, f"{within}: the job is {state}")
    chain = Operator.objects.filter(job=job, uid=inspection.operator).values("chain")[:1]
    rows = Subtask.objects.filter(job=job, chain__in=chain, index__in=missing)
    stalls = {row.index: row.stall for row in rows.only("index", "stall") if row.stall}
    causes = {}
    for index in missing:
        stall = stalls.get(index)
        if stall is not None:
            took = duration(float(stall.get("stalled_ms", 0)))
            causes[index] = f"{within}: its loop has been in one call for {took}"
        else:
            causes[index] = (
                f"{within}: its driver is cut off from the control plane, or of an older version"
            )
    return causes
