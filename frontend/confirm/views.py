"""Pages that ask before something is done to a job, and what comes of it.

Each is a plain form on a page of its own, which works without a script and can be sent to somebody
as an address. Sending the same form twice asks once. A rollback is asked about twice: first what it
would do, which is worked out as an operation; its page then asks whether it is to be done.
"""

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, Savepoint
from checkpoints.operations import previews, requests, savepoints
from checkpoints.retention import references
from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.errors import NotFound, Refusal
from controlplane.base.formatting import duration, iso, milliseconds_between, rough_duration
from frontend.base import pages, status
from frontend.base.access import may, role_required
from frontend.job import queries, snapshot
from frontend.operations import effects, forms, restore_targets, results, steps
from frontend.operations.effects import Known
from jobs.models import Attempt, Job, Operation, OperationKind, OperationStatus
from weir.ids import JobId
from weir.protocol.lifecycle import CheckpointStatus
from weir.storage.layout import savepoint_location

Act = Callable[..., Operation]  # Of somebody and a job, with what its form gives and a key.


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How something is asked. Title and button name the job: what is confirmed says of which."""

    title: str  # With {} for the job's name; of a savepoint's, its own name comes first.
    button: str  # As the title.
    says: str = ""  # Of what does nothing to a job; else ``consequences`` says what will happen.
    is_danger: bool = False
    leave: str = "Leave it as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedAction(Words):
    """One thing that can be asked of a job."""

    form: type[forms.Form]
    act: Act
    done: str


QUESTIONS = {
    "savepoint": ConfirmedAction(
        title="Take a savepoint of {}?",
        button="Take a savepoint of {}",
        form=forms.SavepointForm,
        act=savepoints.take,
        done="A savepoint is being taken.",
    ),
    "stop": ConfirmedAction(
        title="Stop {}?",
        button="Stop {}",
        form=forms.StopForm,
        act=requests.stop,
        done="The job is being stopped.",
        is_danger=True,
    ),
    "rollback": ConfirmedAction(
        title="Roll back {}?",
        button="Show what rolling back {} would do",
        form=forms.RollbackForm,
        act=previews.rollback,
        done="What a rollback would do is being worked out. Nothing is done to the job.",
    ),
    "rescale": ConfirmedAction(
        title="Rescale {}?",
        button="Rescale {}",
        form=forms.RescaleForm,
        act=requests.rescale,
        done="The job is being rescaled.",
    ),
    "fork": ConfirmedAction(
        title="Fork {}?",
        button="Fork {}",
        form=forms.ForkForm,
        act=requests.fork,
        done="The job is being forked.",
    ),
    "preview": ConfirmedAction(
        title="Preview a change of {}",
        says="Says for each operator and state what a restore into a changed pipeline would do. "
        "Nothing is done to the job.",
        button="Show what it would do",
        form=forms.PreviewForm,
        act=previews.restore,
        done="The pipeline is being held against the state. Nothing is done to the job.",
        leave="Back to the job",
    ),
    "compare": ConfirmedAction(
        title="Compare the output of {}",
        says="Holds the committed output files of this job against those of its origin or of a "
        "fork, row by row. Nothing is done to either job.",
        button="Compare them",
        form=forms.CompareForm,
        act=previews.compare,
        done="The outputs are being compared.",
        leave="Back to the job",
    ),
}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def ask(request: HttpRequest, job_id: str, name: str) -> HttpResponse:
    """Ask whether something is to be done to a job, and do it when that is confirmed."""
    job, question = _job(job_id), QUESTIONS[name]
    restorable = restore_targets.choices(queries.restorable(job_id), job.now)
    initial = {} if request.method == "POST" else _initial(request, job, name)
    given = {"data": request.POST} if request.method == "POST" else {"initial": initial}
    form = question.form(job, restorable, **given)
    if isinstance(form, forms.CompareForm):
        form.offer(queries.relatives(job))
    said: Refusal | None = None
    if request.method == "POST" and form.is_valid():
        try:
            operation = question.act(request.user, job_id, **form.arguments(), key=_key(request))
        except NotFound as refusal:
            raise Http404(refusal.detail) from refusal
        except Refusal as refusal:
            said = refusal
        else:
            messages.success(request, question.done)
            return _to_operation(operation)
    context = {
        "job": job,
        "title": question.title.format(job.name),
        "question": question,
        "button": question.button.format(job.name),
        "consequences": effects.list_effects(name, _known(job)),
        "why_not": _why_not(job, name, form) if said is None else "",
        "missing": _missing(form, initial),
    }
    return _asked(request, form, said, context)


def _asked(
    request: HttpRequest, form: forms.Form, said: Refusal | None, context: dict[str, Any]
) -> HttpResponse:
    """The page that asks; what a service refused stands beside the fields that it is about."""
    rest = form.refuse(said.extra.get("errors") or {}) if said else {}
    form.focus_first_error()
    context |= {
        "form": form,
        "refusal": said,
        "errors": results.errors(rest),
        "key": pages.new_key(),
        "back": context.get("back") or reverse("job-page", args=[context["job"].pk]),
    }
    status_code = said.status if said else 400 if form.errors else 200
    return render(request, "frontend/ask.html", context, status=status_code)


def _known(job: Job) -> Known:
    completed = queries.last_completed(job.pk)
    recovered = (
        Attempt.objects.filter(job=job, running_at__isnull=False).order_by("-number").first()
    )
    parts = [] if recovered is None else [recovered.redeploy_ms, recovered.restore_ms]
    down = [part for part in parts if part is not None]
    return Known(
        job=job.name,
        is_over=job.is_over,
        subtasks=completed.subtask_count if completed else None,
        parallelism=job.slot_count,
        state_bytes=completed.state_bytes if completed else None,
        checkpoint=completed.number if completed else None,
        checkpoint_ms=completed.duration_ms if completed else None,
        down_ms=sum(down) if down else None,
        savepoints=posixpath.dirname(
            savepoint_location(locations.storage_of(job), JobId(job.pk), "x")
        ),
    )


@never_cache
@require_http_methods(["POST"])
@role_required(Role.OPERATOR)
def roll_back(request: HttpRequest, job_id: str) -> HttpResponse:
    """Do what the page of a rollback's preview has shown."""
    try:
        where = restore_targets.read(request.POST.get("target", ""))
    except ValueError:
        where = {}  # No form of ours; the service says what is missing.
    given = where | {"rewind_output": "rewind_output" in request.POST}
    try:
        operation = requests.rollback(request.user, job_id, **given, key=_key(request))
    except NotFound as refusal:
        raise Http404(refusal.detail) from refusal
    except Refusal as refusal:
        messages.error(request, refusal.detail)
        return HttpResponseRedirect(reverse("job-rollback", args=[job_id]))
    messages.success(request, "The job is being rolled back.")
    return _to_operation(operation)


@never_cache
@require_GET
@role_required(Role.VIEWER)
def show_operation(request: HttpRequest, job_id: str, operation_id: UUID) -> HttpResponse:
    """One operation: where it stands, and what came of it."""
    operation = _operation(job_id, operation_id)
    # Whether or not the preview could say what it would do, the rollback itself may be possible.
    is_rollback = results.is_of_rollback(operation) and operation.ended_at is not None
    context = {
        "job": operation.job,
        "live": _live(operation),
        "operation": operation,
        "title": results.title(operation),
        "asked": results.asked(operation),
        "outcome": results.operation_outcome(operation),
        "next": _next(operation) if may(request.user, Role.OPERATOR) else [],
        "rollback": results.confirmation(operation)
        if is_rollback and may(request.user, Role.OPERATOR)
        else None,
        "key": pages.new_key(),
    }
    return render(request, "frontend/operation.html", context)


@never_cache
@require_GET
@role_required(Role.VIEWER)
def operation_data(request: HttpRequest, job_id: str, operation_id: UUID) -> HttpResponse:
    """Where an operation stands, as JSON."""
    return JsonResponse(_live(_operation(job_id, operation_id)))


def _operation(job_id: str, operation_id: UUID) -> Operation:
    found = Operation.objects.select_related("requested_by", "job").filter(pk=operation_id)
    operation = found.filter(job=job_id).first()
    if operation is None:
        raise Http404(f"There is no operation {operation_id} of job {job_id!r}.")
    return operation


def _live(operation: Operation) -> dict[str, Any]:
    """What of an operation changes while it is under way."""
    now = clock.now()
    is_over = operation.ended_at is not None
    taken = None if is_over else _taken_for(operation)
    took = milliseconds_between(operation.created_at, operation.ended_at or now)
    return snapshot.operation(operation, now) | {
        "now": iso(now),
        "is_over": is_over,
        "since": None if is_over else iso(operation.created_at),
        "took_ago": duration(took) if is_over else rough_duration(took),
        "steps": [
            step.as_json() for step in steps.operation_steps(operation, operation.job.status)
        ],
        "progress": None if taken is None else _acknowledged(taken).as_json(),
        "job_status": status.of_job(operation.job.status),
        "said": results.said(operation),
    }


def _taken_for(operation: Operation) -> Checkpoint | None:
    """The checkpoint or savepoint that an operation takes; the newest ones know who asked."""
    recent = queries.recent_checkpoints(operation.job_id)
    return next((row for row in recent if row.request_id == str(operation.pk)), None)


def _acknowledged(taken: Checkpoint) -> steps.Acknowledged:
    is_durable = taken.status == CheckpointStatus.COMPLETED
    return steps.Acknowledged(taken.acknowledged_count, taken.subtask_count, is_durable)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def describe_savepoint(request: HttpRequest, job_id: str, savepoint_id: UUID) -> HttpResponse:
    """Change a savepoint's name, note and labels."""
    savepoint = _savepoint(job_id, savepoint_id)
    known = {"name": savepoint.name, "note": savepoint.note, "labels": savepoint.labels}
    given = {"data": request.POST} if request.method == "POST" else {"initial": known}
    form = forms.DescriptionForm(savepoint.job, [], **given)
    said: Refusal | None = None
    if request.method == "POST" and form.is_valid():
        try:
            savepoints.describe(request.user, savepoint_id, **form.arguments())
        except Refusal as refusal:
            said = refusal
        else:
            messages.success(request, f"Savepoint {form.cleaned_data['name']} was changed.")
            return HttpResponseRedirect(reverse("job-savepoints", args=[job_id]))
    return _asked(request, form, said, _of_savepoint(savepoint, _DESCRIBE))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def delete_savepoint(request: HttpRequest, job_id: str, savepoint_id: UUID) -> HttpResponse:
    """Ask whether a savepoint is to be deleted, and do it when that is confirmed."""
    savepoint = _savepoint(job_id, savepoint_id)
    said: Refusal | None = None
    if request.method == "POST":
        try:
            operation = savepoints.delete(request.user, savepoint_id, key=_key(request))
        except Refusal as refusal:
            said = refusal
        else:
            messages.success(request, f"Savepoint {savepoint.name} is being deleted.")
            return _to_operation(operation)
    form = forms.EmptyForm(savepoint.job, [])
    return _asked(request, form, said, _of_savepoint(savepoint, _DELETE) | _deletion(savepoint))


_DESCRIBE = Words(
    title="Edit savepoint {} of {}",
    button="Save savepoint {} of {}",
    says="What it is called, and what is to be known of it. Where it lies does not change.",
)
_DELETE = Words(
    title="Delete savepoint {} of {}?",
    button="Delete savepoint {} of {} for good",
    is_danger=True,
    leave="Keep it",
)


def _of_savepoint(savepoint: Savepoint, words: Words) -> dict[str, Any]:
    names = (savepoint.name, savepoint.job.name)
    return {
        "job": savepoint.job,
        "title": words.title.format(*names),
        "question": words,
        "button": words.button.format(*names),
        "back": reverse("job-savepoints", args=[savepoint.job_id]),
    }


def _deletion(savepoint: Savepoint) -> dict[str, Any]:
    """What deleting it would do; or why it cannot be deleted, and who needs it."""
    checkpoint = savepoint.checkpoint
    if savepoint.deleted_at is not None:
        return {"why_not": f"Savepoint {savepoint.name} is being deleted already."}
    if checkpoint is None or checkpoint.status != CheckpointStatus.COMPLETED:
        return {
            "why_not": f"Savepoint {savepoint.name} is not complete yet: nothing can be deleted."
        }
    # Without the job's lock: who needs it may change until somebody confirms, and is asked again.
    needed_by = references.users_of(savepoint)
    said = effects.of_deletion(
        name=savepoint.name,
        location=savepoint.location,
        state_bytes=checkpoint.state_bytes,
        checkpoint=checkpoint.number,
        needed_by=needed_by,
    )
    if not needed_by:
        return {"consequences": said}
    needed = f"Savepoint {savepoint.name} is needed, so it cannot be deleted now."
    return {"why_not": needed, "consequences": said}


def _why_not(job: Job, name: str, form: forms.Form) -> str:
    if why := snapshot.actions(job, queries.recent_operations(job.pk))[name]:
        return str(why)
    if isinstance(form, forms.TargetForm) and not form.fields["target"].choices:
        return "Nothing is kept that one could begin with: no checkpoint, and no savepoint."
    if isinstance(form, forms.CompareForm) and not form.fields["other_job_id"].choices:
        return "This job has no fork and is none, so there is nothing to compare it with."
    return ""


def _initial(request: HttpRequest, job: Job, name: str) -> dict[str, Any]:
    """What the form begins with: a target that the address names, or what a preview was about."""
    found = {"target": restore_targets.asked_for(request.GET)}
    if name in _AFTER_PREVIEW and (which := request.GET.get("preview")):
        found |= _previewed(job, which)
    return {name: value for name, value in found.items() if value}


_AFTER_PREVIEW = ("fork", "preview")


def _previewed(job: Job, which: str) -> dict[str, Any]:
    try:
        operation = job.operations.filter(pk=UUID(which), kind=OperationKind.PREVIEW).first()
    except ValueError:
        return {}
    if operation is None or operation.parameters.get("kind") != "restore":
        return {}
    return results.as_form(operation, job)


def _missing(form: forms.Form, initial: dict[str, Any]) -> list[str]:
    """What the address or the preview names and the form does not hold: it would be overlooked."""
    found = [_not_offered(form, initial.get("target", ""))]
    if withheld := initial.get("withheld"):
        found.append(
            f"Write again what keeps a secret and is not filled in: {', '.join(withheld)}."
        )
    return [*filter(None, found)]


def _not_offered(form: forms.Form, target: str) -> str:
    if not target or "target" not in form.fields:
        return ""
    offered = [value for _, group in form.fields["target"].choices for value, _ in group]
    if target in offered:
        return ""
    return (
        f"{restore_targets.named(target)} is not kept any more, or not of this job: choose another."
    )


def _next(operation: Operation) -> list[tuple[str, str]]:
    """What somebody may want to do once an operation has ended: words and an address."""
    result, job_id = operation.result or {}, operation.job_id
    if operation.kind in _OF_SAVEPOINTS and operation.ended_at is not None:
        found = [("Savepoints and lineage", reverse("job-savepoints", args=[job_id]))]
        if "savepoint" in result and operation.kind == OperationKind.SAVEPOINT:
            which = f"?savepoint={result['savepoint']}"
            found.insert(0, ("Fork from it", reverse("job-fork", args=[job_id]) + which))
        return found
    if operation.status == OperationStatus.SUCCEEDED and operation.kind in _OF_ATTEMPTS:
        return [("Attempts and downtime", reverse("job-recovery", args=[job_id]))]
    if not result or operation.parameters.get("kind") != "restore":
        return []
    after = f"?preview={operation.pk}"
    changed = ("Change it and look again", reverse("job-preview", args=[job_id]) + after)
    fork = ("Fork the job like this", reverse("job-fork", args=[job_id]) + after)
    return [fork, changed] if result.get("would_restore") else [changed]


_OF_SAVEPOINTS = (OperationKind.SAVEPOINT, OperationKind.STOP, OperationKind.DISCARD)
_OF_ATTEMPTS = (OperationKind.ROLLBACK, OperationKind.RESCALE, OperationKind.RESTART)


def _to_operation(operation: Operation) -> HttpResponse:
    return HttpResponseRedirect(reverse("job-operation", args=[operation.job_id, operation.pk]))


def _job(job_id: str) -> Job:
    job = queries.job_with_now(job_id)
    if job is None:
        raise Http404(f"There is no job {job_id!r}.")
    return job


def _savepoint(job_id: str, savepoint_id: UUID) -> Savepoint:
    found = (
        Savepoint.objects.select_related("job", "checkpoint", "claimed_by")
        .filter(pk=savepoint_id, job=job_id)
        .first()
    )
    if found is None:
        raise Http404(f"Job {job_id!r} has no savepoint {savepoint_id}.")
    return found


def _key(request: HttpRequest) -> str:
    return request.POST.get("key", "")[:200] or pages.new_key()
