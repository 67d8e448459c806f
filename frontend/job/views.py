"""The page of a job and the data that it fetches. Viewers may read, operators may act.

Actions are plain forms: without JavaScript they lead back to the page with a message; a script that
accepts JSON gets the operation instead.
"""

from collections.abc import Callable
from importlib.metadata import version
from urllib.parse import quote

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import condition

from checkpoints.operations import savepoints
from controlplane.accounts.models import Role, User
from controlplane.base import clock
from controlplane.base.errors import NotFound, Refusal
from frontend.base import pages
from frontend.base.access import account, action_for, data_for, form_for, page_for
from frontend.graph import picture
from frontend.job import details, figures, history, queries, snapshot
from frontend.job.marks import Figure
from frontend.job.outages import is_resumed
from jobs import services as job_services
from jobs.models import Job, Operation

VERSION = version("weir-streaming")

# Operations with pages of their own, linked from the savepoints: page and button.
GOING_BACK = (
    ("savepoint", "Take a savepoint"),
    ("rollback", "Roll back"),
    ("rescale", "Rescale"),
    ("upgrade", "Upgrade"),
    ("fork", "Fork"),
    ("preview", "Preview a change"),
    ("compare", "Compare"),
)

# The same in the menu of the job page, with an explanation.
MORE_ACTIONS = (
    ("rollback", "Roll back", "To a savepoint or an earlier checkpoint"),
    ("rescale", "Rescale", "Continue with another parallelism"),
    ("upgrade", "Upgrade", "Continue with another pipeline"),
    ("fork", "Fork", "Start another job from this one's state"),
    ("preview", "Preview a change", "Check what a changed pipeline would restore"),
    ("compare", "Compare", "This job's output with another job's"),
    ("archive", "Archive", "Leave the job out of lists; nothing of it is deleted"),
)

Act = Callable[[User, str, str], Operation]


@page_for(Role.VIEWER)
def job_page(request: HttpRequest, job_id: str) -> HttpResponse:
    """One job: its live state, its checkpoints, and its operations."""
    job, pair = pages.job_or_404(job_id), snapshot.with_graph(job_id, is_opening=True)
    if pair is None:  # Deleted in between.
        raise Http404(f"There is no job {job_id!r}.")
    shown, operators = pair
    window = history.window(request.GET.get("window"))
    context = {
        "live": shown,
        "picture": picture.picture(operators, shown["graph"]),
        "details": details.job_details(job, window),
        "windows": history.WINDOWS.values(),
        "keys": _keys(),
        "more_actions": MORE_ACTIONS,
    }
    return pages.job_page(request, "frontend/job_page.html", job, "job-page", context)


def _revision(request: HttpRequest, job_id: str, name: str = "") -> str | None:
    revisions = snapshot.revisions(job_id)
    if revisions is None:
        return None
    # A window of time moves on though nothing happens. Another version of Weir may render the same
    # data differently.
    window = history.window(request.GET.get("window"))
    minute = clock.now().strftime("%d%H%M") if window.span else ""
    # Quoted: the ends of attempts are text of any kind, a header is not.
    return f'"{quote("/".join([VERSION, name, *revisions.values(), minute]))}"'


@data_for(Role.VIEWER)
@condition(etag_func=_revision)
def job_details(request: HttpRequest, job_id: str) -> HttpResponse:
    """The past of the job for its page, as JSON."""
    window = history.window(request.GET.get("window"))
    return JsonResponse(details.job_details(pages.job_or_404(job_id), window))


@data_for(Role.VIEWER)
@condition(etag_func=_revision)
def job_figure(request: HttpRequest, job_id: str, name: str) -> HttpResponse:
    """One of the page's figures, for Plotly."""
    job = pages.job_or_404(job_id)
    match name:
        case "history":
            return JsonResponse(_history(job, history.window(request.GET.get("window"))))
        case "alignment":
            latest = queries.latest_aligned(job.pk)
            return JsonResponse(figures.alignment(queries.aligned(latest, figures.GATES_SHOWN)))
    raise Http404(f"There is no figure {name!r}.")


def _history(job: Job, window: history.Window) -> Figure:
    now = clock.now()
    rows = queries.settled_within(job.pk, window)
    since = rows[-1].triggered_at if rows else now - window.span
    attempts = queries.attempts_since(job.pk, since)
    is_over = job.is_over or is_resumed(attempts[-1] if attempts else None, job)
    return figures.history(
        rows,
        address=lambda number: reverse("checkpoint-page", args=[job.pk, number]),
        downs=history.down_times(attempts, is_over=is_over),
        exceptions=queries.exceptions_since(job.pk, since),
        alerts=queries.alerts_since(job.pk, since),
        now=now,
    )


@action_for(Role.OPERATOR)
def take_checkpoint(request: HttpRequest, job_id: str) -> HttpResponse:
    """Request a checkpoint now."""
    return _act(
        request,
        job_id,
        lambda user, job, key: savepoints.request_checkpoint(user, job, key=key),
        "Checkpoint requested.",
    )


@form_for(Role.OPERATOR)
def cancel_job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Confirm the cancellation of a job, and request it once the form is sent."""
    if request.method != "POST":
        job = pages.job_or_404(job_id)
        context = {"job": job, "why_not": snapshot.actions(job)["cancel"], "keys": _keys()}
        return render(request, "frontend/cancel.html", context)
    return _act(
        request,
        job_id,
        lambda user, job, key: job_services.cancel(user, job, key=key),
        "The job is being cancelled.",
    )


@action_for(Role.OPERATOR)
def restart_job(request: HttpRequest, job_id: str) -> HttpResponse:
    """Request a restart from the newest completed checkpoint."""
    return _act(
        request,
        job_id,
        lambda user, job, key: job_services.restart(user, job, key=key),
        "The job is being restarted.",
    )


def _act(request: HttpRequest, job_id: str, act: Act, done: str) -> HttpResponse:
    wants_json = request.accepts("application/json") and not request.accepts("text/html")
    try:
        operation = act(account(request), job_id, pages.sent_key(request))
    except NotFound:
        raise
    except Refusal as refusal:
        if wants_json:
            problem = {"detail": refusal.detail, "code": refusal.code, "key": pages.new_key()}
            return JsonResponse(problem, status=refusal.status)
        messages.error(request, refusal.detail)
        return HttpResponseRedirect(reverse("job-page", args=[job_id]))
    if wants_json:
        shown = snapshot.operation(operation, clock.now())
        return JsonResponse(
            {"detail": done, "operation": shown, "key": pages.new_key()}, status=202
        )
    messages.success(request, done)
    return HttpResponseRedirect(reverse("job-page", args=[job_id]))


def _keys() -> dict[str, str]:
    return {name: pages.new_key() for name in ("checkpoint", "cancel", "restart")}
