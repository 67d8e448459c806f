"""The pages of the audit log: the whole log, that of one job, and its export. For admins."""

from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import path

from controlplane.accounts.models import Role, User
from controlplane.audit.api import AuditFilter
from controlplane.audit.export import CONTENT_TYPES, Format, export
from controlplane.audit.models import AuditEntry, record
from controlplane.base import clock
from frontend.about import audit_log
from frontend.base import pages
from frontend.base.access import page_for
from jobs.models import Job
from jobs.redaction import shown

FILTERS = ("actor", "action", "target", "after", "before")


@page_for(Role.ADMIN)
def audit(request: HttpRequest) -> HttpResponse:
    """Every change by an account or by the control plane itself, newest first."""
    return render(request, "frontend/audit.html", _context(request))


@page_for(Role.ADMIN)
def job_audit(request: HttpRequest, job_id: str) -> HttpResponse:
    """The entries about one job and its savepoints."""
    job = pages.job_or_404(job_id)
    return pages.job_page(
        request, "frontend/job_audit.html", job, "job-audit", _context(request, job)
    )


@page_for(Role.ADMIN)
def export_audit(request: HttpRequest) -> StreamingHttpResponse:
    """The entries that the page's filters select, oldest first, as a file of ``?format=``.

    Secrets are hidden as on the pages; the command ``weir_audit`` exports all that is stored.
    """
    given = request.GET.get("format", Format.CSV)
    if given not in list(Format):
        raise Http404(f"There is no export as {given[:40]!r}; choose csv or jsonl.")
    form = Format(given)
    wanted = AuditFilter(data=request.GET, queryset=AuditEntry.objects.all())
    if not wanted.is_valid():
        raise Http404("The filters of the export are malformed; choose them on the page Audit.")
    filters = {name: request.GET[name] for name in FILTERS if request.GET.get(name)}
    assert isinstance(request.user, User)  # role_required has let no other through.
    record(request.user, "audit.export", "audit", after={"format": form.value, **filters})
    return StreamingHttpResponse(
        (part.encode() for part in export(wanted.qs, form, partial(shown, ""))),
        content_type=f"{CONTENT_TYPES[form]}; charset=utf-8",
        headers={
            "Content-Disposition": (
                f'attachment; filename="audit-{clock.now():%Y-%m-%d}.{form.value}"'
            )
        },
    )


def _context(request: HttpRequest, job: Job | None = None) -> dict[str, Any]:
    given = {name: request.GET.get(name, "") for name in FILTERS}
    return {
        "log": audit_log.page(request, job),
        "given": given,
        "is_narrow": any(given.values()),
        "actions": sorted(audit_log.ACTIONS),
        "filters": urlencode({name: value for name, value in given.items() if value}),
    }


urlpatterns = [
    path("audit/", audit, name="audit"),
    path("audit/export", export_audit, name="audit-export"),
    path(f"{pages.OF_JOB}/audit/", job_audit, name="job-audit"),
]
