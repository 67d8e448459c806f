"""Audit entries as the pages show them: filtered and paged as by the API, with links."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse

from checkpoints.models import Savepoint
from controlplane.audit.api import AuditFilter
from controlplane.audit.models import AuditEntry
from frontend.about import audit_changes
from frontend.about.audit_changes import Change
from frontend.base.paging import paged
from jobs.models import Job

SAVEPOINTS_CONSIDERED = 500  # The newest of a job: entries about older ones are not listed.

# Recorded actions in words; an action that is missing here is shown by its own name.
ACTIONS: Mapping[str, str] = {
    "access.refused": "Was refused access",
    "alert.acknowledge": "Acknowledged the alert",
    "audit.export": "Exported the audit log",
    "audit.remove": "Removed old audit entries",
    "delivery.redeliver": "Sent deliveries again",
    "driver.lost": "Lost its driver",
    "driver.suspend": "Ended its driver, with the control plane",
    "endpoint.change": "Changed the endpoint",
    "endpoint.create": "Created an endpoint",
    "endpoint.delete": "Deleted the endpoint",
    "endpoint.disable": "Disabled the endpoint: it failed for too long, or is gone",
    "endpoint.reencrypt": "Encrypted all endpoints anew",
    "endpoint.rotate": "Replaced the endpoint’s signing secret",
    "endpoint.test": "Sent a test to the endpoint",
    "job.archive": "Archived the job",
    "job.cancel": "Requested to cancel the job",
    "job.describe": "Changed the job’s name or labels",
    "job.checkpoint": "Triggered a checkpoint",
    "job.compare": "Requested a comparison of outputs",
    "job.fork": "Requested a fork",
    "job.kill": "Killed a process of the job",
    "job.preview": "Requested a preview",
    "job.relaunch": "Requested the next driver",
    "job.remove": "Removed a job that ended long ago",
    "job.rescale": "Requested a rescale",
    "job.restart": "Requested a restart",
    "job.return": "Took the job back to how it was before a change",
    "job.rollback": "Requested a rollback",
    "job.savepoint": "Requested a savepoint",
    "job.set_recovery_target": "Changed the job’s recovery target",
    "job.stop": "Requested to stop the job",
    "job.submit": "Submitted the job",
    "job.unarchive": "Showed the job in lists again",
    "job.upgrade": "Requested an upgrade",
    "rule.change": "Changed the rule",
    "rule.create": "Created a rule",
    "rule.delete": "Deleted the rule",
    "savepoint.delete": "Requested to delete the savepoint",
    "savepoint.describe": "Changed the savepoint’s description",
    "secret.create": "Stored a secret",
    "secret.delete": "Deleted the secret",
    "secret.reencrypt": "Encrypted all secrets anew",
    "secret.replace": "Replaced the secret’s value",
    "silence.create": "Silenced alerts",
    "silence.end": "Ended the silence",
    "token.create": "Created a token",
    "token.first_use": "Used the token for the first time",
    "token.revoke": "Revoked the token",
    "upload.store": "Uploaded a pipeline",
    "user.close": "Closed the account",
    "user.create": "Created an account",
    "user.login": "Logged in",
    "user.login_failed": "Failed to log in",
    "user.login_throttled": "Failed to log in too often",
    "user.logout": "Logged out",
    "user.open": "Reopened the account",
    "user.set_password": "Set the password",
    "user.end_sessions": "Ended logins",
    "user.set_role": "Changed the role",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    at: datetime
    count: int  # Of a refusal: how many within the hour.
    last_at: datetime | None  # The last of several.
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


def page(request: HttpRequest, about: Job | None = None) -> Log:
    """The page of the log that the request's query selects. Two queries, three about a job.

    Args:
        about: Limits the log to entries about this job and its savepoints.
    """
    rows = AuditEntry.objects.all() if about is None else _of_job(about)
    got = paged(request, rows, AuditFilter, "at")
    return Log(_entries(got.rows), got.older, got.newer, got.errors, got.is_lost)


def _of_job(job: Job) -> QuerySet[AuditEntry]:
    savepoints = Savepoint.objects.filter(job=job).order_by("-created_at", "-id")
    newest = savepoints.values_list("pk", flat=True)[:SAVEPOINTS_CONSIDERED]
    targets = [f"job/{job.pk}", *(f"savepoint/{pk}" for pk in newest)]
    return AuditEntry.objects.filter(Q(target__in=targets))


def _entries(rows: Iterable[AuditEntry]) -> list[Entry]:
    listed = list(rows)
    known = _known({row.target for row in listed})
    return [
        Entry(
            at=row.at,
            count=row.count,
            last_at=row.last_at,
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
    jobs: dict[str, str] = {}
    savepoints: dict[UUID, str] = {}
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
    for id, name, job_id in rows.values_list("pk", "name", "job_id"):
        url = reverse("job-savepoints", args=[job_id])
        links[savepoints[id]] = _Target(f"savepoint {name} of {job_id}", url)
    return links


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
