"""Migrations of tables that may be large lock none of them for long.

The rule (``docs/operating.md`` has it for people): an index on a table that exists already is built
concurrently, in a migration of its own with ``atomic = False``; so a column is added without one.
A constraint is added unvalidated, and validated by itself.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.postgres.operations import (
    AddConstraintNotValid,
    AddIndexConcurrently,
    RemoveIndexConcurrently,
    ValidateConstraint,
)
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.migration import Migration

OURS = {
    *("accounts", "audit", "checkpoints", "controlplane", "deliveries", "jobs", "retention"),
    "secrets",
}
# Written before the rule, when there were no large tables.
BEFORE = {
    ("audit", "0002_refusals_counted"),
    ("checkpoints", "0003_attempts_and_failures"),
    ("jobs", "0003_recent_operations"),
}
# Tables that people fill row by row: an index on them takes milliseconds.
SMALL = {
    *("accounts.user", "accounts.token", "secrets.secret", "jobs.artifact", "jobs.job"),
    *("checkpoints.savepoint", "audit.auditchain", "retention.tally", "deliveries.endpoint"),
}
CONCURRENT = (AddIndexConcurrently, RemoveIndexConcurrently)


def all_migrations() -> Iterator[Migration]:
    loader = MigrationLoader(None)
    assert loader.disk_migrations is not None
    for (app, _), migration in sorted(loader.disk_migrations.items()):
        if app in OURS:
            yield migration


def problems_of(migration: Migration) -> list[str]:
    """The operations of a migration that would lock a large table."""
    app = migration.app_label
    new = {o.name_lower for o in migration.operations if isinstance(o, migrations.CreateModel)}
    problems = []
    for operation in migration.operations:
        model = getattr(operation, "model_name_lower", "")
        is_large = bool(model) and model not in new and f"{app}.{model}" not in SMALL
        if is_large and (problem := _problem(operation)):
            problems.append(f"{app}.{migration.name}: {operation.describe()}: {problem}")
    has_concurrent = [isinstance(operation, CONCURRENT) for operation in migration.operations]
    if any(has_concurrent) and not all(has_concurrent):
        problems.append(
            f"{app}.{migration.name}: put what builds indices concurrently into a migration of its "
            "own: it is not atomic, and a failure would leave the rest half done"
        )
    if any(has_concurrent) and migration.atomic:
        problems.append(f"{app}.{migration.name}: set atomic = False")
    return problems


def _problem(operation: Any) -> str:
    match operation:
        case AddIndexConcurrently() | RemoveIndexConcurrently() | AddConstraintNotValid():
            return ""
        case ValidateConstraint():
            return ""
        case migrations.AddIndex():
            return "use AddIndexConcurrently"
        case migrations.RemoveIndex():
            return "use RemoveIndexConcurrently"
        case migrations.AddConstraint():
            if isinstance(operation.constraint, models.CheckConstraint):
                return "use AddConstraintNotValid, and ValidateConstraint in the next migration"
            return "build a unique index concurrently instead"
        case migrations.AddField() | migrations.AlterField():
            field = operation.field
            if field.db_index or field.unique:
                return "give the column no index of its own, then use AddIndexConcurrently"
    return ""


def test_every_migration_keeps_the_rule() -> None:
    checked = [migration for migration in all_migrations() if _is_checked(migration)]
    assert {"0003_chain", "0004_chain_index", "0006_age_indexes"} <= {m.name for m in checked}
    assert [problem for migration in checked for problem in problems_of(migration)] == []


def _is_checked(migration: Migration) -> bool:
    return not migration.initial and (migration.app_label, migration.name) not in BEFORE


def made(*operations: Any, atomic: bool = True) -> Migration:
    migration = Migration("0099_new", "checkpoints")
    migration.operations, migration.atomic = list(operations), atomic
    return migration


INDEX = models.Index(fields=["status"], name="x")
CHECK = models.CheckConstraint(condition=models.Q(number__gte=0), name="y")
CREATED = migrations.CreateModel("Fresh", [("id", models.BigAutoField(primary_key=True))])


@pytest.mark.parametrize(
    ("operations", "atomic", "problem"),
    [
        ([migrations.AddIndex("checkpoint", INDEX)], True, "use AddIndexConcurrently"),
        ([migrations.RemoveIndex("checkpoint", "x")], True, "use RemoveIndexConcurrently"),
        ([AddIndexConcurrently("checkpoint", INDEX)], True, "set atomic = False"),
        ([AddIndexConcurrently("checkpoint", INDEX), CREATED], False, "a migration of its own"),
        (
            [migrations.AddField("checkpoint", "a", models.TextField(db_index=True, default=""))],
            True,
            "no index of its own",
        ),
        (
            [
                migrations.AddField(
                    "subtaskack", "b", models.ForeignKey("jobs.Job", models.CASCADE, null=True)
                )
            ],
            True,
            "no index of its own",
        ),
        (
            [migrations.AlterField("checkpoint", "cause", models.TextField(unique=True))],
            True,
            "no index of its own",
        ),
        ([migrations.AddConstraint("checkpoint", CHECK)], True, "use AddConstraintNotValid"),
        (
            [
                migrations.AddConstraint(
                    "checkpoint", models.UniqueConstraint(fields=["job", "kind"], name="z")
                )
            ],
            True,
            "build a unique index concurrently",
        ),
    ],
)
def test_a_migration_that_would_lock_a_large_table_is_noticed(
    operations: list[Any], atomic: bool, problem: str
) -> None:
    (said,) = problems_of(made(*operations, atomic=atomic))
    assert problem in said


@pytest.mark.parametrize(
    ("operations", "atomic"),
    [
        ([AddIndexConcurrently("checkpoint", INDEX)], False),
        ([CREATED, migrations.AddIndex("fresh", INDEX)], True),
        ([migrations.AddIndex("savepoint", INDEX)], True),
        ([migrations.AddField("checkpoint", "a", models.TextField(default=""))], True),
        (
            [
                migrations.AddField(
                    "checkpoint",
                    "b",
                    models.ForeignKey("jobs.Job", models.CASCADE, null=True, db_index=False),
                )
            ],
            True,
        ),
        ([AddConstraintNotValid("checkpoint", CHECK)], True),
        ([ValidateConstraint("checkpoint", "y")], True),
    ],
)
def test_a_migration_that_keeps_the_rule_passes(operations: list[Any], atomic: bool) -> None:
    assert problems_of(made(*operations, atomic=atomic)) == []
