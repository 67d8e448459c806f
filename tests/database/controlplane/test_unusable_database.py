"""A database that takes no writes, or is not prepared, is one that is away."""

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, ProgrammingError, connection, transaction
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.accounts.models import Role, Session, Token, User
from controlplane.base import server_losses, unusable_database
from jobs.models import Job
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def become_standby() -> int:
    """Let the server of this connection take no writes from here on; the connection's process."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    assert unusable_database.is_read_only(connection)
    return process()


def process() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_a_refused_write_is_a_lost_database_and_the_next_connection_is_another() -> None:
    job = factories.job()
    before = become_standby()
    assert Job.objects.get(pk=job.pk).name == job.name  # It still reads.
    assert process() == before
    with pytest.raises(OperationalError, match="takes no writes") as refused:
        Job.objects.filter(pk=job.pk).update(name="other")
    assert server_losses.is_database_lost(refused.value)
    assert process() != before
    assert Job.objects.filter(pk=job.pk).update(name="other") == 1


def test_a_transaction_ends_with_the_first_refused_write() -> None:
    job = factories.job()

    def lock() -> None:
        with transaction.atomic():
            assert Job.objects.get(pk=job.pk).name == job.name
            with transaction.atomic():
                Job.objects.select_for_update().get(pk=job.pk)

    before = become_standby()
    with pytest.raises(unusable_database.DatabaseReadOnly):
        lock()
    assert process() != before
    lock()


def test_other_errors_of_the_database_leave_the_connection_as_it_is() -> None:
    before = process()
    with pytest.raises(OperationalError) as other, connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 1; SELECT pg_sleep(5)")
    assert not isinstance(other.value, unusable_database.DatabaseReadOnly)
    assert process() == before


def test_a_connection_is_watched_once_however_often_it_is_made() -> None:
    for _ in range(3):
        connection.close()
        connection.ensure_connection()
    watching: list[Any] = [
        one for one in connection.execute_wrappers if one is unusable_database._execute
    ]
    assert len(watching) == 1


def test_the_answer_says_that_the_database_takes_no_writes_and_the_next_one_is_done() -> None:
    user: User = factories.user(Role.OPERATOR)
    job = factories.job()
    api = APIClient()
    api.force_authenticate(user)
    at = f"/api/v1/jobs/{job.pk}/cancel"
    become_standby()
    answer = api.post(at)
    assert answer.status_code == 503
    assert answer.json()["code"] == "database_unavailable"
    said = unusable_database.DatabaseReadOnly.said
    assert answer.json()["detail"] == f"The database {said}; try again in a moment."
    assert api.post(at).status_code == 202

    browser = Client()
    browser.force_login(user)
    become_standby()
    page = browser.post(f"/jobs/{job.pk}/recovery/target", {"recovery_target_s": "2.5"})
    assert page.status_code == 503
    assert "PostgreSQL takes no writes" in page.content.decode()


def test_jobs_are_shown_whose_reading_notes_a_use() -> None:
    """Of a session and of a token, once a minute."""
    user: User = factories.user(Role.VIEWER)
    job = factories.job()
    browser = Client()
    browser.force_login(user)
    Session.objects.update(used_at=timezone.now() - timedelta(minutes=5))
    secret = "weir_" + "s" * 40
    factories.token(user, secret)
    for ask, written in (
        (lambda: browser.get(f"/jobs/{job.pk}/"), lambda: Session.objects.get().used_at),
        (
            lambda: Client().get(
                f"/api/v1/jobs/{job.pk}", headers={"Authorization": f"Bearer {secret}"}
            ),
            lambda: Token.objects.get().last_used_at,
        ),
    ):
        before, at = written(), become_standby()
        assert ask().status_code == 200
        assert process() != at, "no write was refused"
        assert written() == before
        assert ask().status_code == 200
        assert written() != before


def unapply_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process's code have a migration that was not applied."""
    known = unusable_database._migrations() | {("jobs", "9999_next")}
    monkeypatch.setattr(unusable_database, "_migrations", lambda: known)


def test_a_database_without_tables_of_this_version_is_not_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unapply_last(monkeypatch)
    with connection.cursor() as cursor:
        for statement in ("SELECT 1 FROM jobs_next", "SELECT next FROM jobs_job"):
            with pytest.raises(
                unusable_database.DatabaseUnprepared, match="is not prepared"
            ) as lost:
                cursor.execute(statement)
            assert server_losses.is_database_lost(lost.value)


def test_within_a_transaction_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    unapply_last(monkeypatch)
    with (
        pytest.raises(unusable_database.DatabaseUnprepared),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT 1 FROM jobs_next")
    assert Job.objects.count() == 0


def test_a_statement_that_is_wrong_is_no_want_of_preparation() -> None:
    with connection.cursor() as cursor, pytest.raises(ProgrammingError, match="jobs_next"):
        cursor.execute("SELECT 1 FROM jobs_next")


def test_an_unprepared_database_is_unavailable(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    unapply_last(monkeypatch)
    monkeypatch.setattr(Session._meta, "db_table", "accounts_next")
    monkeypatch.setattr(Token._meta, "db_table", "accounts_next")
    client.cookies[settings.SESSION_COOKIE_NAME] = "x" * 32
    page = client.get("/jobs/")
    assert page.status_code == 503
    assert "The database is not prepared" in page.content.decode()
    answer = APIClient().get("/api/v1/jobs", headers={"Authorization": "Bearer " + "x" * 40})
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert "run manage.py weir_prepare" in answer.json()["detail"]
