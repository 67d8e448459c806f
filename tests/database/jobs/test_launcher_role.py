"""The launcher's role in the database suffices for all that a launcher does, and for no more."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import ProgrammingError, connection, transaction
from pytest_django.fixtures import Settings

from controlplane.launcher_role import ensure_launcher_role
from jobs import operations, preview_processes
from jobs.drivers import child_processes, driver_files, launcher
from jobs.models import Driver, DriverStatus, OperationKind
from tests.database.jobs.builders import (
    ALWAYS_AT_ONCE,
    apply,
    coming_up,
    driver_of,
    planned,
    reload,
    submitted,
)
from tests.waiting import wait_until

DEADLINE_S = 120.0
ROLE = "weir_launcher_test"
PASSWORD = "it's 100% \\ secret"


@contextmanager
def as_launcher() -> Iterator[None]:
    """Statements run with the rights of the role alone."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {ROLE}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")


@pytest.fixture
def submit(tmp_path: Path, settings: Settings) -> Iterator[None]:
    """Drivers that fail at once."""
    script = tmp_path / "spark-submit"
    script.write_text("#!/bin/sh\necho up\nexit 3\n")
    script.chmod(0o755)
    settings.WEIR_SPARK_SUBMIT = str(script)
    yield
    for child in child_processes._children.values():
        child.wait(DEADLINE_S)
    child_processes._children.clear()


@pytest.mark.django_db
@pytest.mark.usefixtures("submit")
def test_role_suffices_for_drivers_and_previews(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_launcher_role(ROLE, PASSWORD)
    ensure_launcher_role(ROLE, PASSWORD)  # Again, as with each migration.
    job = submitted()
    commands = [[sys.executable, "-c", "print('{}')"]]
    monkeypatch.setattr(preview_processes, "commands_of", lambda _: commands)
    operation = operations.begin(
        submitted(), OperationKind.PREVIEW, None, {"kind": "restore"}, key=None
    )
    with as_launcher():
        wait_until(
            lambda: preview_processes.tick() or reload(operation).ended_at,
            "the operation has ended",
        )
        wait_until(
            lambda: launcher.tick() or driver_of(job).status == DriverStatus.LOST,
            "the driver is lost",
        )
        wait_until(lambda: launcher.tick() or driver_of(job).stopped_at, "the driver has stopped")
        assert "up" in driver_files.tail(driver_of(job))
    assert reload(operation).status == "succeeded"
    assert job.exceptions.count() == 1


@pytest.mark.django_db
@pytest.mark.usefixtures("submit")
def test_role_suffices_for_the_loss_of_a_running_job() -> None:
    """Attempt, subtasks, commands and checkpoints are settled, and a successor is asked for."""
    ensure_launcher_role(ROLE, PASSWORD)
    job = submitted()
    with as_launcher():
        assert launcher.launch() == 1
    apply(job, planned(restart=ALWAYS_AT_ONCE), *coming_up())
    Driver.objects.filter(job=job).update(status=DriverStatus.RUNNING)
    with as_launcher():
        wait_until(lambda: launcher.tick() or driver_of(job).number == 2, "another driver is there")
    assert job.exceptions.count() == 1
    assert not job.attempts.filter(ended_at=None).exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT password FROM accounts_user",
        "UPDATE accounts_user SET username = 'x'",
        "INSERT INTO accounts_user (username) VALUES ('x')",
        "SELECT * FROM accounts_token",
        "SELECT * FROM accounts_session",
        "SELECT actor_name FROM audit_auditentry",
        "DELETE FROM audit_auditentry",
        "CREATE TABLE x ()",
        "CREATE ROLE x",
    ],
)
def test_role_may_do_no_more(statement: str) -> None:
    ensure_launcher_role(ROLE, PASSWORD)
    with (
        pytest.raises(ProgrammingError, match="permission denied"),
        transaction.atomic(),
        as_launcher_until_rollback() as cursor,
    ):
        cursor.execute(statement)


@contextmanager
def as_launcher_until_rollback() -> Iterator[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
        yield cursor


@pytest.mark.django_db(transaction=True)
def test_role_logs_in_with_its_password_alone() -> None:
    settings = connection.get_connection_params()
    where = {name: settings[name] for name in ("host", "port", "dbname")}
    try:
        ensure_launcher_role(ROLE, "another")
        ensure_launcher_role(ROLE, PASSWORD)
        psycopg2.connect(**where, user=ROLE, password=PASSWORD).close()
        with pytest.raises(psycopg2.OperationalError, match="authentication failed"):
            psycopg2.connect(**where, user=ROLE, password="another")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


@pytest.mark.django_db
def test_owner_of_the_tables_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="owns the tables"):
        ensure_launcher_role("weir", PASSWORD)
