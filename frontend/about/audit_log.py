"""Audit entries as the pages show them: filtered and paged as by the API, with links.

The filters and the cursors are the API's own: a page and an API client see the same rows, and a
page costs the same wherever in the log it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from checkpoints.models import Savepoint
from controlplane.audit.api import AuditFilter
from controlplane.audit.models import AuditEntry
from controlplane.base.pagination import Cursor, CursorPagination
from frontend.about import audit_changes
from frontend.about.audit_changes import Change
from jobs.models import Job

SAVEPOINTS_CONSIDERED = 500  # The newest of a job: entries about older ones are not listed.

# Recorded actions in words; an action that is missing here is shown by its own name.
ACTIONS: Mapping[str, str] = {
    "driver.lost": "Lost its driver",
    "job.cancel": "Requested to cancel the job",
    "job.checkpoint": "Triggered a checkpoint",
    "job.compare": "Requested a comparison of outputs",
    "job.fork": "Requested a fork",
    "job.kill": "Killed a process of the job",
    "job.preview": "Requested a preview",
    "job.relaunch": "Requested the next driver",
    "job.rescale": "Requested a rescale",
    "job.restart": "Requested a restart",
    "job.rollback": "Requested a rollback",
    "job.savepoint": "Requested a savepoint",
    "job.stop": "Requested to stop the job",
    "job.submit": "Submitted the job",
    "savepoint.delete": "Requested to delete the savepoint",
    "savepoint.describe": "Changed the savepoint’s description",
    "token.create": "Created a token",
    "token.revoke": "Revoked the token",
    "upload.store": "Uploaded a pipeline",
    "user.close": "Closed the account",
    "user.create": "Created an account",
    "user.open": "Reopened the account",
    "user.set_password": "Set the password",
    "user.set_role": "Changed the role",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    at: datetime
    actor: str
    is_control_plane: bool
    action: str  # The recorded name, which the filter takes.
    text: str
    target: str  # The recorded name, which the filter takes.
    target_text: str
    target_url: str  # Empty: the target has no page.
    changes: list[Change]
    address: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Log:
    """A page of the log."""

    entries: list[Entry]
    older: str  # The query of the next page; empty: this is the last one.
    newer: str
    errors: Mapping[str, str]  # Messages by filter; with any, no entries are shown.
    is_lost: bool  # The cursor belongs to other filters; this is the first page.


class _Ordering:
    """The part of a view that ``CursorPagination`` reads: its orderings."""

    orderings: ClassVar[Mapping[str, tuple[str, ...]]] = {"at": ("at", "id")}
    default_ordering: ClassVar[str] = "-at"


def page(request: HttpRequest, about: Job | None = None) -> Log:
    """The page of the log that the request's query selects. Two queries, three about a job.

    Args:
        about: Limits the log to entries about this job and its savepoints.
    """
    rows = AuditEntry.objects.all() if about is None else _of_job(about)
    wanted = AuditFilter(data=request.GET, queryset=rows)
    if not wanted.is_valid():
        said = {name: " ".join(errors) for name, errors in wanted.form.errors.items()}
        return Log([], "", "", said, is_lost=False)
    pages, is_lost = CursorPagination(), False
    try:
        entries = pages.paginate_queryset(wanted.qs, Request(request), _Ordering())
    except ValidationError:  # The cursor is from an old link, or was edited.
        filters = request.GET.copy()
        for name in ("cursor", "page_size", "ordering"):
            filters.pop(name, None)
        request.GET = filters
        pages, is_lost = CursorPagination(), True
        entries = pages.paginate_queryset(wanted.qs, Request(request), _Ordering())
    return Log(
        _entries(entries),
        _query(request, pages.next),
        _query(request, pages.previous),
        {},
        is_lost,
    )


def _of_job(job: Job) -> QuerySet[AuditEntry]:
    savepoints = Savepoint.objects.filter(job=job).order_by("-created_at", "-id")
    newest = savepoints.values_list("pk", flat=True)[:SAVEPOINTS_CONSIDERED]
    targets = [f"job/{job.pk}", *(f"savepoint/{pk}" for pk in newest)]
    return AuditEntry.objects.filter(Q(target__in=targets))


def _query(request: HttpRequest, cursor: Cursor | None) -> str:
    """The query with the same filters and another cursor."""
    if cursor is None:
        return ""
    given = {k: v for k, v in request.GET.items() if k in AuditFilter.base_filters and v}
    return "?" + urlencode(given | {"cursor": cursor.encode()})


def _entries(rows: Iterable[AuditEntry]) -> list[Entry]:
    listed = list(rows)
    known = _known({row.target for row in listed})
    return [
        Entry(
            at=row.at,
            actor=row.actor_name,
            # An account may have the same name; only entries without an account count.
            is_control_plane=row.actor_id is None and row.actor_name == "control plane",
            action=row.action,
            text=ACTIONS.get(row.action, row.action),
            target=row.target,
            target_text=known[row.target].text if row.target in known else row.target,
            target_url=known[row.target].url if row.target in known else "",
            changes=audit_changes.list_changes(_object(row.before), _object(row.after)),
            address=row.address or "",
            request_id=row.request_id,
        )
        for row in listed
    ]


def _object(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) or value is None else {"value": value}


@dataclass(frozen=True, slots=True)
class _Target:
    """The link to a target that has a page."""

    text: str
    url: str


def _known(targets: Iterable[str]) -> dict[str, _Target]:
    """Links for the targets that have pages: existing jobs, and savepoints on their jobs' pages."""
    jobs, savepoints = {}, {}
    for target in targets:
        kind, _, pk = target.partition("/")
        if kind == "job":
            jobs[pk] = target
        elif kind == "savepoint" and (uuid := _uuid(pk)) is not None:
            savepoints[uuid] = target
    links = {
        jobs[pk]: _Target(jobs[pk], reverse("job-page", args=[pk]))
        for pk in Job.objects.filter(pk__in=jobs).order_by().values_list("pk", flat=True)
    }
    rows = Savepoint.objects.filter(pk__in=savepoints).order_by()
    for pk, name, job_id in rows.values_list("pk", "name", "job_id"):
        url = reverse("job-savepoints", args=[job_id])
        links[savepoints[pk]] = _Target(f"savepoint {name} of {job_id}", url)
    return links


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
