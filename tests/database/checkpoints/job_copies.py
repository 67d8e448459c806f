"""Copies of a job: the rows that the real code made once, inserted again under a new id."""

import json
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import AutoField, Model

from checkpoints.coordinator import shell
from checkpoints.models import CoordinatorRow
from controlplane.accounts.models import digest_of
from controlplane.audit.models import AuditEntry
from controlplane.base import clock, wakeups
from jobs import job_events
from jobs.models import Attempt, Driver, Edge, Job, JobEvent, Operation, Operator, Subtask
from weir.config import CheckpointConfig
from weir.protocol.coordinator import CoordinatorState
from weir.protocol.wire import to_wire
from weir.wire.values import Rows

Columns = dict[str, Any]

# Of a job that was brought up; a test holds a copy against all tables.
_OTHERS = (Operation, Operator, Edge, Subtask)
_STATES = Rows(CoordinatorState)


def token_of(job_id: str, driver: int) -> str:
    """The token of a job's driver."""
    return f"token-{job_id}-{driver}"


@dataclass(frozen=True)
class JobRows:
    """The rows of a job whose first driver has brought it up, without a checkpoint so far."""

    job: Columns
    driver: Columns
    attempt: Columns
    coordinator: Columns
    operation: uuid.UUID
    rows: Mapping[type[Model], list[Columns]]
    events: list[Columns]
    entries: list[Columns]
    places: list[str]
    at: datetime

    @classmethod
    def read(cls, job_id: str) -> "JobRows":
        """Read a job's rows."""
        return cls(
            _columns(Job.objects.get(pk=job_id)),
            _columns(Driver.objects.get(job=job_id)),
            _columns(Attempt.objects.get(job=job_id)),
            _columns(CoordinatorRow.objects.get(job=job_id)),
            Operation.objects.get(job=job_id).pk,
            {model: _rows(model, job=job_id) for model in _OTHERS},
            _rows(JobEvent, job=job_id),
            _rows(AuditEntry, target=f"job/{job_id}"),
            _places(),
            clock.now(),
        )

    def insert(self, checkpoints: CheckpointConfig) -> str:
        """Insert the rows as those of a job that was brought up just now; return its id.

        Args:
            checkpoints: The settings of the new job's pipeline.
        """
        job_id, operation = f"{self.job['name']}-{secrets.token_hex(4)}", uuid.uuid4()
        now = clock.now()
        words = {
            self.job["id"]: job_id,
            str(self.operation): str(operation),
            **dict(zip(self.places, _places(), strict=True)),
        }

        def copied(value: Any) -> Any:
            match value:
                case datetime():
                    return now + (value - self.at)
                case uuid.UUID():
                    return operation if value == self.operation else value
                case str():
                    return _replaced(value, words)
                case dict() | list() if value:
                    text = json.dumps(value)
                    changed = _replaced(text, words)
                    return value if changed == text else json.loads(changed)
            return value

        def made(model: type[Model], rows: list[Columns], **columns: Any) -> list[Any]:
            return [
                model(**{name: copied(value) for name, value in row.items()} | columns)
                for row in rows
            ]

        with transaction.atomic():
            (job,) = Job.objects.bulk_create(
                made(Job, [self.job], checkpoint_config=to_wire(checkpoints))
            )
            digest = digest_of(token_of(job_id, self.driver["number"]))
            (driver,) = Driver.objects.bulk_create(made(Driver, [self.driver], token_digest=digest))
            Attempt.objects.bulk_create(made(Attempt, [self.attempt], driver_id=driver.pk))
            for model, rows in self.rows.items():
                model._default_manager.bulk_create(made(model, rows))
            CoordinatorRow.objects.bulk_create(
                made(CoordinatorRow, [self.coordinator], state=_STATES.to_row(shell.state_of(job)))
            )
            job_events.record_all(made(JobEvent, self.events))
            AuditEntry.objects.bulk_create(made(AuditEntry, self.entries))
            wakeups.on_commit(wakeups.job(job_id))
        return job_id


def _places() -> list[str]:
    """The directories in rows, of each test its own."""
    return [str(settings.WEIR_CHECKPOINT_ROOT), *map(str, settings.WEIR_SCRIPT_ROOTS)]


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def _rows(model: type[Model], **which: str) -> list[Columns]:
    return [_columns(row) for row in model._default_manager.filter(**which).order_by("pk")]


def _columns(row: Model) -> Columns:
    """A row's values by column, without a key that the database gives."""
    return {
        field.attname: getattr(row, field.attname)
        for field in row._meta.concrete_fields
        if not isinstance(field, AutoField)
    }
