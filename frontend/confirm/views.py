"""Pages that confirm an operation on a job, and pages of operations and their results.

Each is a plain form on a page of its own, which works without a script and has an address to share.
Sending the same form twice acts once. A rollback takes two steps: a preview, which is an operation
of its own, and the confirmation on the preview's page.
"""

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, Savepoint
from checkpoints.operations import previews, requests, savepoints, upgrades
from checkpoints.retention import references
from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.errors import existing
from controlplane.base.formatting import duration, iso, milliseconds_between, rough_duration
from frontend.base import pages, status
from frontend.base.access import account, action_for, form_for, may, page_for
from frontend.base.forms import choice_field, form_page, sent
from frontend.job import queries, snapshot
from frontend.operations import effects, forms, restore_targets, results, steps
from frontend.operations.effects import Known
from jobs import job_changes, services
from jobs.models import Attempt, Job, Operation, OperationKind, OperationStatus
from weir.ids import JobId
from weir.protocol.lifecycle import CheckpointStatus
from weir.storage.layout import savepoint_location

Act = Callable[..., Operation]  # Takes user, job id, the form's arguments and an idempotency key.


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The texts of a confirmation. Title and button name the job that it is about."""

    title: str  # {} is the job's name; for a savepoint, its own name comes first.
    button: str  # As the title.
    says: str = ""  # Of an action without effect on a job; others list their effects.
    is_danger: bool = False
    leave: str = "Leave it as it is"
    tab: str = ""  # The job's page that it belongs to; empty: the job itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedAction(Words):
    """An operation on a job that is confirmed on a page of its own."""

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
        tab="job-savepoints",
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
        button="Preview the rollback of {}",
        form=forms.RollbackForm,
        act=previews.rollback,
        done="The rollback is being previewed. The job has not been touched.",
        tab="job-savepoints",
    ),
    "rescale": ConfirmedAction(
        title="Rescale {}?",
        button="Rescale {}",
        form=forms.RescaleForm,
        act=requests.rescale,
        done="The job is being rescaled.",
    ),
    "upgrade": ConfirmedAction(
        title="Upgrade {}?",
        button="Upgrade {}",
        form=forms.UpgradeForm,
        act=upgrades.upgrade,
        done="The new pipeline is being checked. The job has not been touched.",
    ),
    "fork": ConfirmedAction(
        title="Fork {}?",
        button="Fork {}",
        form=forms.ForkForm,
        act=requests.fork,
        done="The job is being forked.",
        tab="job-savepoints",
    ),
    "preview": ConfirmedAction(
        title="Preview a change to {}",
        says="Shows what a restore into a changed pipeline would do with each operator and state. "
        "The job is not touched.",
        button="Preview the restore",
        form=forms.PreviewForm,
        act=previews.restore,
        done="Checking the pipeline against the stored state. The job is not touched.",
        leave="Back to the job",
        tab="job-savepoints",
    ),
    "compare": ConfirmedAction(
        title="Compare the output of {}",
        says="Compares the committed output files of this job with those of its origin or of a "
        "fork, row by row. Neither job is touched.",
        button="Compare the outputs",
        form=forms.CompareForm,
        act=previews.compare,
        done="The outputs are being compared.",
        leave="Back to the job",
    ),
}


@form_for(Role.OPERATOR)
def ask(request: HttpRequest, job_id: str, name: str) -> HttpResponse:
    """Confirm an operation on a job, and request it once the form is sent."""
    job, question = queries.job_or_404(job_id), QUESTIONS[name]
    restorable = restore_targets.choices(queries.restorable(job_id), job.now)
    initial = {} if request.method == "POST" else _initial(request, job, name)
    form = question.form(job, restorable, sent(request), initial=initial)
    if isinstance(form, forms.CompareForm):
        form.offer(queries.relatives(job))
    if form.is_valid():
        with form.refusals():
            operation = question.act(
                account(request), job_id, **form.arguments(), key=pages.sent_key(request)
            )
            messages.success(request, question.done)
            return _to_operation(operation)
    context = {
        "job": job,
        "title": question.title.format(job.name),
        "question": question,
        "button": question.button.format(job.name),
        "consequences": effects.list_effects(name, _known(job)),
        "why_not": _why_not(job, name, form) if form.refusal is None else "",
        "missing": _missing(form, initial),
    }
    return _asked(request, form, context)


def _asked(request: HttpRequest, form: forms.Form, context: dict[str, Any]) -> HttpResponse:
    """Render a confirmation; a refusal of the service is shown beside the fields it is about."""
    form.focus_first_error()
    tab = context["question"].tab
    context |= {
        "crumb": pages.crumb(context["job"], tab) if tab else None,
        "errors": results.errors(form.refused),
        "key": pages.new_key(),
        "back": context.get("back") or reverse("job-page", args=[context["job"].pk]),
    }
    return form_page(request, "frontend/ask.html", form, context)


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


@action_for(Role.OPERATOR)
def roll_back(request: HttpRequest, job_id: str) -> HttpResponse:
    """Request the rollback that a preview has shown."""
    try:
        where = restore_targets.read(request.POST.get("target", ""))
    except ValueError:
        where = {}  # Not sent by the page's form; the service says what is missing.
    given = where | {"rewind_output": "rewind_output" in request.POST}
    with pages.refusals_as_messages(request):
        operation = requests.rollback(
            account(request), job_id, **given, key=pages.sent_key(request)
        )
        messages.success(request, "The job is being rolled back.")
        return _to_operation(operation)
    return HttpResponseRedirect(reverse("job-rollback", args=[job_id]))


@page_for(Role.VIEWER)
def show_operation(request: HttpRequest, job_id: str, operation_id: UUID) -> HttpResponse:
    """One operation: its progress and its result."""
    operation = _operation(job_id, operation_id)
    # Even if the preview failed, the rollback itself may be possible.
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
        "may_operate": pages.may_operate(request),
    }
    return render(request, "frontend/operation.html", context)


@page_for(Role.VIEWER)
def operation_data(request: HttpRequest, job_id: str, operation_id: UUID) -> HttpResponse:
    """The progress of an operation, as JSON."""
    return JsonResponse(_live(_operation(job_id, operation_id)))


def _operation(job_id: str, operation_id: UUID) -> Operation:
    rows = Operation.objects.select_related("requested_by", "job").filter(pk=operation_id)
    return existing(
        rows.filter(job=job_id), f"There is no operation {operation_id} of job {job_id!r}."
    )


def _live(operation: Operation) -> dict[str, Any]:
    """The values of an operation that change while it is under way."""
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
        "job_status": status.of_job(operation.job.status, is_planned=operation.job.is_planned),
        "said": results.said(operation),
    }


def _taken_for(operation: Operation) -> Checkpoint | None:
    """The checkpoint or savepoint that an operation takes, by the request id of recent ones."""
    recent = queries.recent_checkpoints(operation.job_id)
    return next((row for row in recent if row.request_id == str(operation.pk)), None)


def _acknowledged(taken: Checkpoint) -> steps.Acknowledged:
    is_durable = taken.status == CheckpointStatus.COMPLETED
    return steps.Acknowledged(taken.acknowledged_count, taken.subtask_count, is_durable)


@form_for(Role.OPERATOR)
def change_recovery_target(request: HttpRequest, job_id: str) -> HttpResponse:
    """Change a job's recovery target, or remove it."""
    job = queries.job_or_404(job_id)
    known = {"recovery_target_s": job.recovery_target_s}
    form = forms.RecoveryTargetForm(job, [], sent(request), initial=known)
    if form.is_valid():
        target_s = form.cleaned_data["recovery_target_s"]
        with form.refusals(even_missing=True):
            services.set_recovery_target(account(request), job_id, target_s)
            messages.success(request, "The recovery target was changed.")
            return HttpResponseRedirect(reverse("job-recovery", args=[job_id]))
    context = {
        "job": job,
        "title": _RECOVERY_TARGET.title.format(job.name),
        "question": _RECOVERY_TARGET,
        "button": _RECOVERY_TARGET.button.format(job.name),
        "back": reverse("job-recovery", args=[job_id]),
    }
    return _asked(request, form, context)


_RECOVERY_TARGET = Words(
    title="Change the recovery target of {}",
    button="Save the recovery target of {}",
    says="Rules on slow recoveries judge the job by its target, and without one by their own "
    "limits. The job is not touched.",
    tab="job-recovery",
)


@form_for(Role.OPERATOR)
def archive(request: HttpRequest, job_id: str, is_back: bool) -> HttpResponse:
    """Confirm that a job is archived, or brought back to the lists, and do so once it is sent."""
    job, question = queries.job_or_404(job_id), _UNARCHIVE if is_back else _ARCHIVE
    form = forms.EmptyForm(job, [])
    if request.method == "POST":
        with form.refusals(even_missing=True):
            (job_changes.unarchive if is_back else job_changes.archive)(account(request), job_id)
            done = "in lists again" if is_back else "archived"
            messages.success(request, f"{job.name} is {done}.")
            return HttpResponseRedirect(reverse("job-page", args=[job_id]))
    context = {
        "job": job,
        "title": question.title.format(job.name),
        "question": question,
        "button": question.button.format(job.name),
        "consequences": effects.of_unarchiving() if is_back else effects.of_archiving(job.name),
        "why_not": "" if is_back or form.refusal is not None else snapshot.actions(job)["archive"],
    }
    return _asked(request, form, context)


_ARCHIVE = Words(title="Archive {}?", button="Archive {}")
_UNARCHIVE = Words(
    title="Show {} in lists again?", button="Show {} in lists", leave="Leave it archived"
)


@form_for(Role.OPERATOR)
def describe_savepoint(request: HttpRequest, job_id: str, savepoint_id: UUID) -> HttpResponse:
    """Change a savepoint's name, note and labels."""
    savepoint = _savepoint(job_id, savepoint_id)
    known = {"name": savepoint.name, "note": savepoint.note, "labels": savepoint.labels}
    form = forms.DescriptionForm(savepoint.job, [], sent(request), initial=known)
    if form.is_valid():
        with form.refusals(even_missing=True):
            savepoints.describe(account(request), savepoint_id, **form.arguments())
            messages.success(request, f"Savepoint {form.cleaned_data['name']} was changed.")
            return HttpResponseRedirect(reverse("job-savepoints", args=[job_id]))
    return _asked(request, form, _of_savepoint(savepoint, _DESCRIBE))


@form_for(Role.OPERATOR)
def delete_savepoint(request: HttpRequest, job_id: str, savepoint_id: UUID) -> HttpResponse:
    """Confirm the deletion of a savepoint, and request it once the form is sent."""
    savepoint = _savepoint(job_id, savepoint_id)
    form = forms.EmptyForm(savepoint.job, [])
    if request.method == "POST":
        with form.refusals(even_missing=True):
            operation = savepoints.delete(
                account(request), savepoint_id, key=pages.sent_key(request)
            )
            messages.success(request, f"Savepoint {savepoint.name} is being deleted.")
            return _to_operation(operation)
    return _asked(request, form, _of_savepoint(savepoint, _DELETE) | _deletion(savepoint))


_DESCRIBE = Words(
    title="Edit savepoint {} of {}",
    button="Save savepoint {} of {}",
    says="Changes the name, note and labels of the savepoint. Its directory stays the same.",
    tab="job-savepoints",
)
_DELETE = Words(
    title="Delete savepoint {} of {}?",
    button="Delete savepoint {} of {} for good",
    is_danger=True,
    leave="Keep it",
    tab="job-savepoints",
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
    """The effects of deleting a savepoint; or why it cannot be deleted, with its users."""
    checkpoint = savepoint.checkpoint
    if savepoint.deleted_at is not None:
        return {"why_not": f"Savepoint {savepoint.name} is being deleted already."}
    if checkpoint is None or checkpoint.status != CheckpointStatus.COMPLETED:
        return {
            "why_not": f"Savepoint {savepoint.name} is not complete yet, so it cannot be deleted."
        }
    # Without the job's lock: its users may change until the deletion is sent, which checks again.
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
    if isinstance(form, forms.TargetForm) and not form.restorable:
        return "This job has no kept checkpoint or savepoint to restore."
    if isinstance(form, forms.CompareForm) and not choice_field(form, "other_job_id").choices:
        return "This job has no fork and is not one, so there is no output to compare with."
    return ""


def _initial(request: HttpRequest, job: Job, name: str) -> dict[str, Any]:
    """The initial values of a form: the target in the address, or the parameters of a preview."""
    initial = {"target": restore_targets.asked_for(request.GET)}
    if name in _AFTER_PREVIEW and (which := request.GET.get("preview")):
        initial |= _previewed(job, which)
    return {name: value for name, value in initial.items() if value}


_AFTER_PREVIEW = ("fork", "preview", "upgrade")


def _previewed(job: Job, which: str) -> dict[str, Any]:
    try:
        operation = job.operations.filter(pk=UUID(which), kind=OperationKind.PREVIEW).first()
    except ValueError:
        return {}
    if operation is None or operation.parameters.get("kind") != "restore":
        return {}
    return results.as_form(operation, job)


def _missing(form: forms.Form, initial: dict[str, Any]) -> list[str]:
    """Notes on values of the address or the preview that the form cannot hold."""
    notes = [_not_offered(form, initial.get("target", ""))]
    if withheld := initial.get("withheld"):
        notes.append(
            f"Parameters that hold secrets are not filled in. Enter again: {', '.join(withheld)}."
        )
    return [*filter(None, notes)]


def _not_offered(form: forms.Form, target: str) -> str:
    if not target or not isinstance(form, forms.TargetForm):
        return ""
    offered = [value for _, group in form.restorable for value, _ in group]
    if target in offered:
        return ""
    return f"{restore_targets.named(target)} is no longer kept, or not of this job: choose another."


def _next(operation: Operation) -> list[tuple[str, str]]:
    """Links to follow-up actions of an operation that has ended: text and address."""
    result, job_id = operation.result or {}, operation.job_id
    if operation.kind == OperationKind.UPGRADE and (which := operation.parameters.get("preview")):
        preview = ("Preview of the new pipeline", reverse("job-operation", args=[job_id, which]))
        return [preview, *_after_success(operation)]
    if operation.kind in _OF_SAVEPOINTS and operation.ended_at is not None:
        links = [("Savepoints and lineage", reverse("job-savepoints", args=[job_id]))]
        if "savepoint" in result and operation.kind == OperationKind.SAVEPOINT:
            which = f"?savepoint={result['savepoint']}"
            links.insert(0, ("Fork from it", reverse("job-fork", args=[job_id]) + which))
        return links
    if links := _after_success(operation):
        return links
    if not result or operation.parameters.get("kind") != "restore":
        return []
    after = f"?preview={operation.pk}"
    changed = ("Change it and preview again", reverse("job-preview", args=[job_id]) + after)
    fork = ("Fork the job with this change", reverse("job-fork", args=[job_id]) + after)
    upgrade = ("Upgrade the job to this", reverse("job-upgrade", args=[job_id]) + after)
    return [upgrade, fork, changed] if result.get("would_restore") else [changed]


def _after_success(operation: Operation) -> list[tuple[str, str]]:
    if operation.status != OperationStatus.SUCCEEDED or operation.kind not in _OF_ATTEMPTS:
        return []
    return [("Attempts and downtime", reverse("job-recovery", args=[operation.job_id]))]


_OF_SAVEPOINTS = (OperationKind.SAVEPOINT, OperationKind.STOP, OperationKind.DISCARD)
_OF_ATTEMPTS = (
    OperationKind.ROLLBACK,
    OperationKind.RESCALE,
    OperationKind.UPGRADE,
    OperationKind.RESTART,
)


def _to_operation(operation: Operation) -> HttpResponse:
    return HttpResponseRedirect(reverse("job-operation", args=[operation.job_id, operation.pk]))


def _savepoint(job_id: str, savepoint_id: UUID) -> Savepoint:
    rows = Savepoint.objects.select_related("job", "checkpoint", "claimed_by")
    rows = rows.filter(pk=savepoint_id, job=job_id)
    return existing(rows, f"Job {job_id!r} has no savepoint {savepoint_id}.")
