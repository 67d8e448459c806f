"""Pages over rows that no driver sends but that columns can hold; JSON is as writers shape it."""

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.db import DataError, IntegrityError, models, transaction
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django.fixtures import Settings

from checkpoints.models import Checkpoint, GateAlignment, Savepoint, SubtaskAck
from controlplane.accounts.models import Role
from controlplane.alerts.models import Alert, Rule, Silence
from controlplane.deliveries.models import Delivery, DeliveryAttempt, Endpoint
from controlplane.embedded.redis import Redis
from jobs.models import (
    Attempt,
    ChainSample,
    Driver,
    Edge,
    Job,
    JobException,
    Operator,
    Subtask,
    Worker,
)
from tests import factories
from tests.database.frontend.all_pages import assert_every_page_opens, job_on_every_page

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.usefixtures("plain_templates"),
    pytest.mark.whole,
]

EXAMPLES = 8
MODELS: tuple[type[models.Model], ...] = (
    *(Job, Driver, Attempt, Worker, Operator, Edge, Subtask, JobException),
    *(Checkpoint, Savepoint, SubtaskAck, GateAlignment),
    *(ChainSample, Endpoint, Delivery, DeliveryAttempt, Rule, Alert, Silence),
)
_KEYS = {  # What joins rows, and what the services look rows up by.
    *("id", "number", "index", "chain", "uid", "operator", "job", "checkpoint", "attempt"),
    *("token_digest", "position"),
}
_FIRST = datetime(1, 1, 2, tzinfo=UTC)
_LAST = datetime(9999, 12, 30, tzinfo=UTC)
texts = st.sampled_from(["", "a", "<b>&", "\n" * 9, "é" * 50, "%s {} \\", "-1", "\u202e"])


@cache
def values_of(field: Any) -> st.SearchStrategy[Any] | None:
    """Values for a column; None: it stays as it is."""
    strategy: st.SearchStrategy[Any]
    match field:
        case _ if field.name in _KEYS or field.is_relation or field.primary_key:
            return None
        case models.CharField() if field.choices:
            strategy = st.sampled_from([value for value, _ in field.choices])  # type: ignore[union-attr]
        case models.CharField():
            long = "x" * int(field.max_length or 0)
            strategy = texts.map(lambda text: text[: field.max_length]) | st.just(long)
        case models.TextField():
            strategy = texts | st.just("x" * 65_536)
        case models.BooleanField():
            strategy = st.booleans()
        case models.BigIntegerField():
            strategy = st.sampled_from([0, 1, -1, 2**53, -(2**63), 2**63 - 1]) | st.integers(
                0, 10**6
            )
        case models.IntegerField():
            strategy = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]) | st.integers(0, 100)
        case models.FloatField():
            strategy = st.sampled_from([0.0, -1.5, 1e300, -1e300, 1e-300]) | st.floats(0, 10**6)
        case models.DateTimeField():
            near = st.integers(-100_000, 100_000).map(
                lambda s: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s)
            )
            strategy = st.sampled_from([_FIRST, _LAST]) | near
        case _:
            return None
    return st.none() | strategy if field.null else strategy


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[type[models.Model], int, dict[str, Any]]]:
    """Models, which of the job's rows, and new values for some of their columns."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        model = draw(st.sampled_from(MODELS))
        known = {
            field.name: strategy
            for field in model._meta.get_fields()
            if isinstance(field, models.Field) and (strategy := values_of(field)) is not None
        }
        names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=6, unique=True))
        made.append((model, draw(st.integers(0, 3)), {name: draw(known[name]) for name in names}))
    return made


@pytest.fixture
def job(settings: Settings, redis: Redis, tmp_path: Path) -> Job:
    """A job with rows in every table."""
    job = job_on_every_page(settings, tmp_path)
    factories.exception(job, "boom")
    return job


def of_job(model: type[models.Model], job: Job) -> models.QuerySet[Any]:
    manager = model._default_manager
    if model is Job:
        return manager.filter(pk=job.pk)
    if model is Worker:
        return manager.filter(attempt__job=job)
    if model is Rule:
        return manager.filter(alerts__job=job.pk).distinct()
    if model in (Endpoint, Delivery, DeliveryAttempt, Alert, Silence):
        return manager.all()
    if model in (SubtaskAck, GateAlignment):
        return manager.filter(checkpoint__job=job)
    return manager.filter(job=job)


def test_no_page_breaks_over_a_row_that_can_be_stored(job: Job) -> None:
    admin = Client(raise_request_exception=False)
    admin.force_login(factories.user(Role.ADMIN))
    assert_every_page_opens(admin, job)
    counts = {"stored": 0, "refused": 0}

    @settings(
        max_examples=EXAMPLES,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changes())
    def change(drawn: list[tuple[type[models.Model], int, dict[str, Any]]]) -> None:
        with transaction.atomic():
            for model, place, new in drawn:
                keys = list(of_job(model, job).order_by("pk").values_list("pk", flat=True))
                if not keys:
                    continue
                try:
                    with transaction.atomic():
                        model._default_manager.filter(pk=keys[place % len(keys)]).update(**new)
                    counts["stored"] += 1
                except (DataError, IntegrityError):  # A column's range, a constraint of the table.
                    counts["refused"] += 1
            assert_every_page_opens(admin, job)
            transaction.set_rollback(True)

    change()
    assert counts["stored"] > EXAMPLES, counts
