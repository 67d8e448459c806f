"""Pages that ask before something is done to a job, and what comes of it.

Each is a plain form on a page of its own, which works without a script and can be sent to somebody
as an address. Sending the same form twice asks once. A rollback is asked about twice: first what it
would do, which is worked out as an operation; its page then asks whether it is to be done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from checkpoints import going_back, previews, savepoints
from checkpoints.models import Savepoint
from controlplane import clock
from controlplane.accounts.models import Role
from controlplane.errors import NotFound, Refusal
from frontend import forms, live, outcomes, pages, queries, targets
from frontend.access import may, role_required
from jobs.models import Job, Operation, OperationKind

Act = Callable[..., Operation]  # Of somebody and a job, with what its form gives and a key.


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing that can be asked of a job."""

    title: str  # With {} for the job's name.
    says: str
    button: str
    form: type[forms.Form]
    act: Act
    done: str
    is_danger: bool = False
    shows_answer: bool = False  # Its operation has an answer to be read.
    leave: str = "Leave it as it is"


QUESTIONS = {
    "savepoint": Question(
        title="Take a savepoint of {}?",
        says="The job goes on meanwhile. A savepoint holds the whole state, can be moved, and is "
        "kept until somebody deletes it.",
        button="Take a savepoint",
        form=forms.SavepointForm,
        act=savepoints.take,
        done="A savepoint is being taken.",
    ),
    "stop": Question(
        title="Stop {}?",
        says="A savepoint is taken, what came before it is committed, and the job ends. If the "
        "savepoint fails, the job goes on: as if nothing had been asked when it suspends, from its "
        "newest checkpoint when it drains.",
        button="Stop the job",
        form=forms.StopForm,
        act=going_back.stop,
        done="The job is being stopped.",
        is_danger=True,
    ),
    "rollback": Question(
        title="Roll back {}?",
        says="The job goes on from an earlier checkpoint or savepoint, or from one that it had "
        "left behind. First you see what that would do; nothing is done until you confirm it.",
        button="Show what it would do",
        form=forms.RollbackForm,
        act=previews.rollback,
        done="What a rollback would do is being worked out. Nothing is done to the job.",
        shows_answer=True,
    ),
    "rescale": Question(
        title="Rescale {}?",
        says="A checkpoint is taken, and the job goes on from it with another parallelism; a job "
        "that does not run goes on from its newest one. It stands still while its driver is "
        "replaced.",
        button="Rescale the job",
        form=forms.RescaleForm,
        act=going_back.rescale,
        done="The job is being rescaled.",
    ),
    "fork": Question(
        title="Fork {}?",
        says="A second job is submitted that begins with the state of this one, which goes on "
        "untouched. The two must not write to the same place.",
        button="Fork the job",
        form=forms.ForkForm,
        act=going_back.fork,
        done="The job is being forked.",
    ),
    "preview": Question(
        title="Preview a change of {}",
        says="Says for each operator and state what a restore into a changed pipeline would do. "
        "Nothing is done to the job.",
        button="Show what it would do",
        form=forms.PreviewForm,
        act=previews.restore,
        done="The pipeline is being held against the state. Nothing is done to the job.",
        shows_answer=True,
        leave="Back to the job",
    ),
    "compare": Question(
        title="Compare the output of {}",
        says="Holds the committed output files of this job against those of its origin or of a "
        "fork, row by row. Nothing is done to either job.",
        button="Compare them",
        form=forms.CompareForm,
        act=previews.compare,
        done="The outputs are being compared.",
        shows_answer=True,
        leave="Back to the job",
    ),
}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def ask(request: HttpRequest, job_id: str, name: str) -> HttpResponse:
    """Ask whether something is to be done to a job, and do it when that is confirmed."""
    job, question = _job(job_id), QUESTIONS[name]
    restorable = targets.choices(queries.restorable(job_id), job.now)
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
            if question.shows_answer:
                return _to_operation(operation)
            return HttpResponseRedirect(reverse("job-page", args=[job_id]))
    context = {
        "job": job,
        "title": question.title.format(job.name),
        "question": question,
        "form": form,
        "refusal": said,
        "errors": outcomes.errors(said.extra.get("errors")) if said else [],
        "why_not": _why_not(job, name, form) if said is None else "",
        "missing": _missing(form, initial.get("target", "")),
        "key": pages.new_key(),
    }
    status = said.status if said else 400 if form.errors else 200
    return render(request, "frontend/ask.html", context, status=status)


@never_cache
@require_http_methods(["POST"])
@role_required(Role.OPERATOR)
def roll_back(request: HttpRequest, job_id: str) -> HttpResponse:
    """Do what the page of a rollback's preview has shown."""
    page = HttpResponseRedirect(reverse("job-page", args=[job_id]))
    try:
        where = targets.read(request.POST.get("target", ""))
    except ValueError:
        where = {}  # No form of ours; the service says what is missing.
    given = where | {"rewind_output": "rewind_output" in request.POST}
    try:
        going_back.rollback(request.user, job_id, **given, key=_key(request))
    except NotFound as refusal:
        raise Http404(refusal.detail) from refusal
    except Refusal as refusal:
        messages.error(request, refusal.detail)
    else:
        messages.success(request, "The job is being rolled back.")
    return page


@never_cache
@require_GET
@role_required(Role.VIEWER)
def show_operation(request: HttpRequest, job_id: str, operation_id: UUID) -> HttpResponse:
    """One operation: where it stands, and what came of it."""
    found = Operation.objects.select_related("requested_by", "job").filter(pk=operation_id)
    operation = found.filter(job=job_id).first()
    if operation is None:
        raise Http404(f"There is no operation {operation_id} of job {job_id!r}.")
    # Whether or not the preview could say what it would do, the rollback itself may be possible.
    is_rollback = outcomes.is_of_rollback(operation) and operation.ended_at is not None
    context = {
        "job": operation.job,
        "shown": live.operation(operation, clock.now()),
        "operation": operation,
        "title": outcomes.title(operation),
        "asked": outcomes.asked(operation),
        "outcome": outcomes.of(operation),
        "next": _next(operation) if may(request.user, Role.OPERATOR) else [],
        "rollback": outcomes.confirmation(operation)
        if is_rollback and may(request.user, Role.OPERATOR)
        else None,
        "key": pages.new_key(),
    }
    return render(request, "frontend/operation.html", context)


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
            return HttpResponseRedirect(reverse("job-page", args=[job_id]))
    return _ask_of_savepoint(
        request, savepoint, form, said, title=f"Edit savepoint {savepoint.name}", button="Save"
    )


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def delete_savepoint(request: HttpRequest, job_id: str, savepoint_id: UUID) -> HttpResponse:
    """Ask whether a savepoint is to be deleted, and do it when that is confirmed."""
    savepoint = _savepoint(job_id, savepoint_id)
    said: Refusal | None = None
    if request.method == "POST":
        try:
            savepoints.delete(request.user, savepoint_id, key=_key(request))
        except Refusal as refusal:
            said = refusal
        else:
            messages.success(request, f"Savepoint {savepoint.name} is being deleted.")
            return HttpResponseRedirect(reverse("job-page", args=[job_id]))
    return _ask_of_savepoint(
        request,
        savepoint,
        forms.EmptyForm(savepoint.job, []),
        said,
        title=f"Delete savepoint {savepoint.name}?",
        button="Delete it for good",
        says=f"Its files in {savepoint.location} are deleted. Nothing brings them back.",
        is_danger=True,
    )


def _ask_of_savepoint(
    request: HttpRequest,
    savepoint: Savepoint,
    form: forms.Form,
    said: Refusal | None,
    *,
    title: str,
    button: str,
    says: str = "",
    is_danger: bool = False,
) -> HttpResponse:
    context = {
        "job": savepoint.job,
        "title": title,
        "question": {
            "button": button,
            "says": says,
            "is_danger": is_danger,
            "leave": "Leave it as it is",
        },
        "form": form,
        "refusal": said,
        "errors": outcomes.errors(said.extra.get("errors")) if said else [],
        "key": pages.new_key(),
    }
    status = said.status if said else 400 if form.errors else 200
    return render(request, "frontend/ask.html", context, status=status)


def _why_not(job: Job, name: str, form: forms.Form) -> str:
    if why := live.actions(job, queries.recent_operations(job.pk))[name]:
        return str(why)
    if isinstance(form, forms.TargetForm) and not form.fields["target"].choices:
        return "Nothing is kept that one could begin with: no checkpoint, and no savepoint."
    if isinstance(form, forms.CompareForm) and not form.fields["other_job_id"].choices:
        return "This job has no fork and is none, so there is nothing to compare it with."
    return ""


def _initial(request: HttpRequest, job: Job, name: str) -> dict[str, Any]:
    """What the form begins with: a target that the address names, or what a preview was about."""
    found = {"target": targets.asked_for(request.GET)}
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
    return outcomes.as_form(operation, job)


def _missing(form: forms.Form, target: str) -> str:
    """Says that what the address or the preview names is not offered: another would be chosen."""
    if not target or "target" not in form.fields:
        return ""
    offered = [value for _, group in form.fields["target"].choices for value, _ in group]
    if target in offered:
        return ""
    return f"{targets.named(target)} is not kept any more, or not of this job: choose another."


def _next(operation: Operation) -> list[tuple[str, str]]:
    """What somebody may want to do once a restore's preview is there: words and an address."""
    result = operation.result
    if not result or operation.parameters.get("kind") != "restore":
        return []
    after = f"?preview={operation.pk}"
    changed = ("Change it and look again", reverse("job-preview", args=[operation.job_id]) + after)
    fork = ("Fork the job like this", reverse("job-fork", args=[operation.job_id]) + after)
    return [fork, changed] if result.get("would_restore") else [changed]


def _to_operation(operation: Operation) -> HttpResponse:
    return HttpResponseRedirect(reverse("job-operation", args=[operation.job_id, operation.pk]))


def _job(job_id: str) -> Job:
    job = queries.job_with_now(job_id)
    if job is None:
        raise Http404(f"There is no job {job_id!r}.")
    return job


def _savepoint(job_id: str, savepoint_id: UUID) -> Savepoint:
    found = Savepoint.objects.select_related("job").filter(pk=savepoint_id, job=job_id).first()
    if found is None:
        raise Http404(f"Job {job_id!r} has no savepoint {savepoint_id}.")
    return found


def _key(request: HttpRequest) -> str:
    return request.POST.get("key", "")[:200] or pages.new_key()
