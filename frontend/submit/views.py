"""The form by which an operator submits a job: the API's request, its checks and its service."""

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from controlplane.accounts.models import Role
from controlplane.base.errors import Invalid, KeyReused, Refusal
from controlplane.base.formatting import size
from controlplane.base.threads import Unavailable
from frontend.base import pages
from frontend.base.access import account, form_for
from frontend.submit import choices
from frontend.submit.form import SubmitForm
from jobs import pipeline_files, services, uploads
from jobs.api.requests import SubmissionRequest
from jobs.api.submission import OPERATOR_CONF, submission_of
from jobs.models import Operation, PipelineKind

SENT_BEFORE = (
    "This form was sent before with other values, which created a job. Send it again to submit "
    "another one."
)


@form_for(Role.OPERATOR)
def submit(request: HttpRequest) -> HttpResponse:
    """Show the form, and submit the job. A link may fill in fields: ``?module=…&name=…``."""
    if request.method != "POST":
        return _page(request, _form(request))
    form = _form(request)
    form.is_valid()  # Errors of other fields are shown at once as well.
    _store_upload(request, form)
    if form.errors:
        return _page(request, form, status=400)
    try:
        operation = _submit(request, form)
    except KeyReused:
        form.add_error(None, SENT_BEFORE)
        return _page(request, form, status=KeyReused.status)
    except Refusal as refusal:
        form.add_error(None, refusal.detail)
        return _page(request, form, status=refusal.status)
    if operation is None:
        return _page(request, form, status=400)
    messages.success(request, "The job was submitted; its driver is being launched.")
    return HttpResponseRedirect(reverse("job-page", args=[operation.job_id]))


def _form(request: HttpRequest) -> SubmitForm:
    is_sent = request.method == "POST"
    return SubmitForm(
        request.POST if is_sent else None,
        request.FILES if is_sent else None,
        role=account(request).effective_role,
        uploads=choices.uploads(),
        conf=sorted(OPERATOR_CONF),
        initial=request.GET.dict(),
    )


def _store_upload(request: HttpRequest, form: SubmitForm) -> None:
    """Store the script sent with the form, so that it need not be chosen again."""
    file = form.cleaned_data.get("file")
    if form.cleaned_data.get("kind") != PipelineKind.UPLOAD or file is None:
        return
    try:
        artifact = uploads.store(account(request), file.name, file.chunks())
    except Invalid as refusal:
        form.refuse(refusal.extra.get("errors") or {"file": refusal.detail})
    except Refusal as refusal:  # Too large.
        form.refuse({"file": refusal.detail})
    else:
        form.keep(choices.upload(artifact))


def _submit(request: HttpRequest, form: SubmitForm) -> Operation | None:
    """Submit a valid form; None after a refusal about fields, which the form then shows.

    Raises:
        Refusal: The refusal is not about a field.
    """
    asked = SubmissionRequest(data=form.body())
    if not asked.is_valid():
        form.refuse(asked.errors)
        return None
    # As an API request of the logged-in user, without a token that might allow less.
    as_api = Request(request)
    as_api.user, as_api.auth = account(request), None
    try:
        with submission_of(as_api, asked.validated_data) as submission:
            return services.submit(account(request), submission, key=pages.sent_key(request))
    except PermissionDenied as refusal:  # An operator's form has no field for master and storage.
        form.refuse({"spark_conf": str(refusal.detail)})
    except Invalid as refusal:
        form.refuse(refusal.extra.get("errors") or {"": refusal.detail})
    return None


def _page(request: HttpRequest, form: SubmitForm, status: int = 200) -> HttpResponse:
    roots = settings.WEIR_SCRIPT_ROOTS
    scripts, unseen = [], ""
    try:
        scripts = pipeline_files.reach(lambda: choices.scripts(roots)) if roots else []
    except Unavailable as refusal:
        unseen = refusal.detail
    context = {
        "form": form,
        "key": pages.new_key() if status in (200, KeyReused.status) else pages.sent_key(request),
        "scripts": scripts,
        "scripts_unseen": unseen,
        "has_script_roots": bool(roots),
        "savepoints": choices.savepoints(),
        "upload_bytes_max": settings.WEIR_UPLOAD_BYTES_MAX,
        "upload_max": size(settings.WEIR_UPLOAD_BYTES_MAX),
        "storage": settings.WEIR_CHECKPOINT_ROOT,
        "master": settings.WEIR_SPARK_MASTER,
    }
    return render(request, "frontend/submit.html", context, status=status)


urlpatterns = [path("jobs/new", submit, name="job-new")]
