"""Rows of before planned ends were told from failures, as the migration leaves them."""

from importlib import import_module

import pytest
from django.db import connection

from checkpoints.models import Checkpoint
from tests import factories

pytestmark = pytest.mark.django_db

MIGRATION = import_module("checkpoints.migrations.0004_planned_is_not_failed")
SHUTDOWN = "checkpoint_coordinator_shutdown"


def after(sql: str) -> set[tuple[str, str, str]]:
    """Status of the job, status and reason of each checkpoint, once these statements have run."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
    return set(Checkpoint.objects.values_list("job__status", "status", "reason"))


def test_what_was_aborted_failed_unless_its_reason_says_that_it_was_planned() -> None:
    reasons = ("checkpoint_expired", "checkpoint_subsumed", "control_plane_away", SHUTDOWN)
    for status in ("running", "finished", "canceled", "failed"):
        job = factories.job(status=status)
        factories.checkpoint(job, 9)
        for number, reason in enumerate(reasons, 1):
            factories.checkpoint(job, number, status="aborted", reason=reason)
    expected = {
        (status, ended, reason)
        for status in ("running", "finished", "canceled", "failed")
        for ended, reason in (
            ("completed", ""),
            ("failed", "checkpoint_expired"),
            ("aborted", "checkpoint_subsumed"),
            ("aborted", "control_plane_away"),
        )
    }
    assert after(MIGRATION.FAILURES) == expected | {
        ("running", "failed", SHUTDOWN),
        ("failed", "failed", SHUTDOWN),
        ("finished", "aborted", "job_finished"),
        ("canceled", "aborted", "job_canceled"),
    }


def test_the_way_back_knows_no_reason_that_came_with_it() -> None:
    job = factories.job()
    factories.checkpoint(job, 1, status="failed", reason="checkpoint_expired")
    planned = ("job_finished", "job_stopped", "job_rescaled", "control_plane_stopped")
    for number, reason in enumerate(planned, 2):
        factories.checkpoint(job, number, status="aborted", reason=reason)
    assert {(status, reason) for _, status, reason in after(MIGRATION.BACK)} == {
        ("aborted", "checkpoint_expired"),
        ("aborted", SHUTDOWN),
        ("aborted", "checkpoint_subsumed"),
        ("aborted", "job_failover"),
    }
