"""Tests on a PostgreSQL database."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from django.db.models.signals import post_migrate
from django.template.base import Template

from checkpoints.conditions import judge
from checkpoints.retention import discards
from controlplane.base import clock, server_losses
from jobs import due_jobs, set_aside
from jobs.drivers import driver_watch


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> None:
    """The test database, where tests of real transactions leave no rows.

    Django would make its permissions anew after each of them; Weir has roles instead.
    """
    permissions = "django.contrib.auth.management.create_permissions"
    assert post_migrate.disconnect(dispatch_uid=permissions)


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a few seconds are longer than a busy machine needs for the rest of a test."""
    monkeypatch.setattr(set_aside, "BACKOFF_MIN_S", 60.0)
    monkeypatch.setattr(discards, "BACKOFF_MIN_S", 60.0)
    monkeypatch.setattr(judge, "LATE_TICK_MS", 30_000.0)
    monkeypatch.setattr(due_jobs, "AWAY_MS", 30_000)
    monkeypatch.setattr(driver_watch, "STOP_GRACE_MS", 30_000)


@pytest.fixture(autouse=True)
def database_losses() -> Iterator[None]:
    """Losses that a test notes are forgotten after it: others judge silence by them."""
    yield
    server_losses.forget()


@pytest.fixture
def standing_clock(db: None, monkeypatch: pytest.MonkeyPatch) -> datetime:
    """The clock of all rows stands still, in queries as well; what it says."""
    now = clock.now()

    def in_query(*_: Any, **__: Any) -> tuple[str, list[Any]]:
        return "%s::timestamptz", [now]

    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(clock.DatabaseNow, "as_sql", in_query)
    return now


@pytest.fixture
def plain_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered as in production, for tests that open pages by the hundred.

    Django's test environment copies the context of each template for the test client.
    """
    monkeypatch.setattr(Template, "_render", lambda self, context: self.nodelist.render(context))
