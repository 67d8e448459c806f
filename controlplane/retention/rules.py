"""The rules of retention: which rows go, and when. One line for each kind of row.

``days`` and ``most`` name settings: rows go when they are older than so many days (0: at no age),
and those of a job behind its newest so many. ``removable`` are the rows that may go at all. The
others stay at any age: what runs, and what a restore, a rollback, a fork, a savepoint or an open
operation still needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.db.models import Exists, Model, OuterRef, Q

from checkpoints.models import Checkpoint, GateAlignment, Savepoint, SubtaskAck
from checkpoints.retention import rows as checkpoint_rows
from controlplane.accounts.models import Session, Token
from controlplane.alerts.models import FIRING, Alert, Silence
from controlplane.audit import chain
from controlplane.audit.models import AuditEntry
from controlplane.base.ticks import Budget
from controlplane.deliveries.models import PENDING, Delivery, DeliveryAttempt
from controlplane.retention import old_jobs, samples
from jobs import attempt_ends, uploads
from jobs.models import (
    LIVE_DRIVERS,
    Artifact,
    Attempt,
    ChainSample,
    Driver,
    Job,
    JobEvent,
    JobException,
    Operation,
    OperationKind,
    Worker,
)
from weir.protocol.lifecycle import CheckpointStatus

EVERY = Q()
# Removes rows older than a time, and beyond a number; returns how many. None: no such limit.
Remover = Callable[[datetime | None, int | None, Budget], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The retention of one kind of row."""

    kind: str  # In metrics and tallies.
    text: str  # On the page.
    model: type[Model]
    age: str  # The column that tells a row's age; with an index.
    days: str  # A setting.
    most: str | None = None  # A setting: so many of each job.
    removable: Q = EVERY
    batch: int = 1_000
    remove: Remover | None = None  # Instead of the removal in batches of ``rows``.
    # Called with the keys of a batch that is about to go, in its transaction.
    note_removal: Callable[[Sequence[Any]], None] | None = None
    parts: tuple[type[Model], ...] = ()  # Further tables whose rows go along.
    stays: str = ""  # The rows that stay at any age, in words.

    @property
    def days_kept(self) -> int:
        """Days until a row goes; 0: at no age."""
        return int(getattr(settings, self.days))

    @property
    def most_kept(self) -> int | None:
        """The number of a job's rows that are kept; None: any."""
        return None if self.most is None else int(getattr(settings, self.most))


# Attempts: the first tells the checkpoint that a fork began with, the newest is the job's own.
_BETWEEN_ATTEMPTS = Q(
    Exists(Attempt.objects.filter(job=OuterRef("job"), number__lt=OuterRef("number")))
) & Q(Exists(Attempt.objects.filter(job=OuterRef("job"), number__gt=OuterRef("number"))))
_REPLACED_DRIVER = (
    Q(ended_at__isnull=False)
    & ~Q(status__in=LIVE_DRIVERS)
    & Q(Exists(Driver.objects.filter(job=OuterRef("job"), number__gt=OuterRef("number"))))
    & ~Q(Exists(Attempt.objects.filter(driver=OuterRef("pk"))))
)
# Operations: a rescale has fixed the max parallelism; a savepoint names the one that asked for it.
_NEWER_RESCALE = Operation.objects.filter(
    job=OuterRef("job"), kind=OperationKind.RESCALE, created_at__gt=OuterRef("created_at")
)
_IDLE_OPERATION = (
    Q(ended_at__isnull=False)
    & (~Q(kind=OperationKind.RESCALE) | Q(Exists(_NEWER_RESCALE)))
    & ~Q(Exists(Savepoint.objects.filter(operation=OuterRef("pk"), deleted_at__isnull=True)))
)
_GONE_SAVEPOINT = Q(deleted_at__isnull=False) & (
    Q(checkpoint__isnull=True) | Q(checkpoint__status=CheckpointStatus.DISCARDED.value)
)


def _remove_audit(older: datetime | None, most: int | None, budget: Budget) -> int:
    """Remove audit entries, a day's at a time: each removal is an entry itself."""
    if older is None:
        return 0
    return chain.remove(older.replace(hour=0, minute=0, second=0, microsecond=0), budget)


def _remove_tokens(older: datetime | None, most: int | None, budget: Budget) -> int:
    """Remove tokens whose end, by their time or by hand, is before ``older``."""
    if older is None:
        return 0
    ended = Token.objects.filter(Q(expires_at__lt=older) | Q(revoked_at__lt=older))
    return ended.delete()[0]


RULES: tuple[Rule, ...] = (
    Rule(
        kind="savepoints",
        text="Deleted savepoints",
        model=Savepoint,
        age="deleted_at",
        days="WEIR_KEEP_SAVEPOINTS_DAYS",
        removable=_GONE_SAVEPOINT,
        stays="Savepoints that are not deleted.",
    ),
    Rule(
        kind="checkpoints",
        text="Checkpoints, with acknowledgements, alignments and evidence",
        model=Checkpoint,
        age="triggered_at",
        days="WEIR_KEEP_CHECKPOINTS_DAYS",
        most="WEIR_KEEP_CHECKPOINTS_MAX",
        removable=checkpoint_rows.REMOVABLE,
        remove=checkpoint_rows.remove,
        parts=(SubtaskAck, GateAlignment),
        stays="Checkpoints and savepoints whose files are kept.",
    ),
    Rule(
        kind="operations",
        text="Operations",
        model=Operation,
        age="created_at",
        days="WEIR_KEEP_OPERATIONS_DAYS",
        most="WEIR_KEEP_OPERATIONS_MAX",
        removable=_IDLE_OPERATION,
        stays="Open ones, the newest rescale, and those of savepoints that are not deleted.",
    ),
    Rule(
        kind="attempts",
        text="Attempts and their workers",
        model=Attempt,
        age="ended_at",
        days="WEIR_KEEP_ATTEMPTS_DAYS",
        most="WEIR_KEEP_ATTEMPTS_MAX",
        removable=Q(ended_at__isnull=False) & _BETWEEN_ATTEMPTS,
        note_removal=attempt_ends.count_removed,
        parts=(Worker,),
        stays="The first and the newest of each job.",
    ),
    Rule(
        kind="drivers",
        text="Drivers; their directories and logs go with them",
        model=Driver,
        age="ended_at",
        days="WEIR_KEEP_DRIVERS_DAYS",
        most="WEIR_KEEP_DRIVERS_MAX",
        removable=_REPLACED_DRIVER,
        stays="The newest of each job, and those of attempts that are kept.",
    ),
    Rule(
        kind="exceptions",
        text="Exceptions",
        model=JobException,
        age="at",
        days="WEIR_KEEP_EXCEPTIONS_DAYS",
        most="WEIR_KEEP_EXCEPTIONS_MAX",
    ),
    Rule(
        kind="events",
        text="Events of jobs",
        model=JobEvent,
        age="at",
        days="WEIR_KEEP_EVENTS_DAYS",
        most="WEIR_KEEP_EVENTS_MAX",
    ),
    Rule(
        kind="samples",
        text="Samples of operators; after an hour one a minute",
        model=ChainSample,
        age="at",
        days="WEIR_KEEP_SAMPLES_DAYS",
        remove=samples.remove,
    ),
    Rule(
        kind="deliveries",
        text="Deliveries to endpoints, with their attempts",
        model=Delivery,
        age="created_at",
        days="WEIR_KEEP_DELIVERIES_DAYS",
        removable=~Q(status=PENDING),
        parts=(DeliveryAttempt,),
        stays="Those that are still tried.",
    ),
    Rule(
        kind="alerts",
        text="Alerts",
        model=Alert,
        age="fired_at",
        days="WEIR_KEEP_ALERTS_DAYS",
        removable=~Q(state=FIRING),
        stays="Those that fire.",
    ),
    Rule(
        kind="silences",
        text="Silences that are over",
        model=Silence,
        age="until_at",
        days="WEIR_KEEP_SILENCES_DAYS",
        stays="Silences that are not.",
    ),
    Rule(
        kind="jobs",
        text="Jobs that have ended",
        model=Job,
        age="ended_at",
        days="WEIR_KEEP_JOBS_DAYS",
        removable=old_jobs.REMOVABLE,
        remove=old_jobs.remove,
        stays="Jobs with a checkpoint or savepoint that can be restored, and those to be restored.",
    ),
    Rule(
        kind="uploads",
        text="Uploaded pipelines that no job uses",
        model=Artifact,
        age="uploaded_at",
        days="WEIR_KEEP_UPLOADS_DAYS",
        removable=uploads.UNUSED,
        remove=uploads.remove_unused,
        stays="Uploads of jobs that are kept.",
    ),
    Rule(
        kind="audit",
        text="Audit entries",
        model=AuditEntry,
        age="at",
        days="WEIR_KEEP_AUDIT_DAYS",
        removable=Q(number__isnull=False),
        remove=_remove_audit,
    ),
    Rule(
        kind="admin_log",
        text="The admin site’s own log",
        model=LogEntry,
        age="action_time",
        days="WEIR_KEEP_ADMIN_LOG_DAYS",
    ),
    Rule(
        kind="sessions",
        text="Sessions that have expired",
        model=Session,
        age="expire_date",
        days="WEIR_KEEP_SESSIONS_DAYS",
        stays="Sessions that have not.",
    ),
    Rule(
        kind="tokens",
        text="Tokens that have expired or were revoked",
        model=Token,
        age="expires_at",
        days="WEIR_KEEP_TOKENS_DAYS",
        remove=_remove_tokens,
        stays="Tokens without an end.",
    ),
)

# Models without a rule, by label, and the reason why their tables do not grow for ever.
KEPT: Mapping[str, str] = {
    "accounts.User": "As many as people; an admin closes them.",
    "accounts.User_groups": "As many as users have groups.",
    "accounts.User_user_permissions": "As many as users have permissions.",
    "alerts.Evaluator": "One row.",
    "alerts.Rule": "Made and deleted by admins.",
    "alerts.Rule_endpoints": "As many as rules name endpoints.",
    "alerts.Watch": "One for each condition that holds, or did lately; the evaluator deletes it.",
    "audit.AuditChain": "One row.",
    "auth.Group": "Made by admins.",
    "auth.Group_permissions": "As many as groups have permissions.",
    "auth.Permission": "As many as models have.",
    "checkpoints.CoordinatorRow": "One for each job; it goes with its job.",
    "checkpoints.RemovedCheckpoints": "One for each job; it goes with its job.",
    "contenttypes.ContentType": "As many as models.",
    "controlplane.ClockCorrection": "One row.",
    "deliveries.Endpoint": "Made and deleted by admins.",
    "frontend.SavedFilter": "Saved and deleted by people, a bounded number for each account.",
    "jobs.ControlPlanePulse": "One row.",
    "jobs.Edge": "Those of a job's graph; they go with their job.",
    "jobs.Operator": "Those of a job's graph; they go with their job.",
    "jobs.OutboxCommand": "Dropped once a driver has taken them, or their job is over.",
    "jobs.SetAsideStep": "A few for each job, forgotten a while after they stop failing.",
    "jobs.Subtask": "Those of a job's newest attempt, with a bounded number of samples.",
    "retention.Tally": "One for each rule and machine.",
    "secrets.Secret": "Stored and deleted by people.",
}
