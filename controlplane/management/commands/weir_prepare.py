"""The command ``manage.py weir_prepare``: migrations, roles, static files, accounts, demo job."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection
from django.db.migrations.exceptions import MigrationSchemaMissing
from psycopg2.errors import InsufficientPrivilege

from controlplane.accounts.models import Role, User
from controlplane.accounts.services import create_token, ensure_account
from controlplane.base import advisory_locks, clock
from controlplane.base.management.database_command import DatabaseCommand
from controlplane.base.unusable_database import applied_migrations
from controlplane.embedded.demo import ensure_demo
from controlplane.embedded.server import kept_secret
from controlplane.launcher_role import ensure_launcher_role
from jobs.models import FINAL_JOB_STATUSES, Job

OPERATOR, ADMIN = "operator", "admin"
TOKEN_LIFETIME = timedelta(days=1)  # Each start prints another one.


class Command(DatabaseCommand):
    """Bring the database and the static files up to date, before services start. Idempotent."""

    start_advice = "Start PostgreSQL, create the database"
    help = (
        "Migrate the database, give the launcher's role its rights if WEIR_LAUNCHER_ROLE names "
        "one, and collect the static files; with --operator, --admin and --demo also create "
        "accounts and submit the demonstration job, and print as JSON what came of it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument(
            "--operator",
            metavar="FILE",
            type=Path,
            help=f"create the account '{OPERATOR}' with the password kept in FILE",
        )
        parser.add_argument(
            "--admin",
            metavar="FILE",
            type=Path,
            help=f"create the account '{ADMIN}' with the password kept in FILE",
        )
        parser.add_argument(
            "--demo",
            action="store_true",
            help=f"submit the demonstration job as the account '{OPERATOR}'",
        )
        parser.add_argument(
            "--no-static",
            action="store_true",
            help="only the database: an image has its static files",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prepare; with an account, print a JSON object: a token, the demo job, jobs that go on."""
        with advisory_locks.held_beside("weir_prepare", self._say_that_it_waits):
            self._prepare_database()
        if options["no_static"]:
            return
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        call_command("collectstatic", interactive=False, verbosity=0)
        if options["admin"]:
            _account(ADMIN, options["admin"], Role.ADMIN)
        if options["operator"]:
            self.stdout.write(json.dumps(_prepared(**options)))

    def _say_that_it_waits(self) -> None:
        self.stderr.write("another weir_prepare is at work on the database; waiting for its end")

    def _prepare_database(self) -> None:
        self._check_encoding()
        with _with_rights("ALTER DATABASE {name} OWNER TO {user}"):
            call_command("migrate", interactive=False, verbosity=0)
        if settings.WEIR_LAUNCHER_ROLE:
            with _with_rights("ALTER ROLE {user} CREATEROLE"):
                ensure_launcher_role(settings.WEIR_LAUNCHER_ROLE, settings.WEIR_LAUNCHER_PASSWORD)

    def _check_encoding(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_database(), current_setting('server_encoding')")
            name, encoding = cursor.fetchone()
        if encoding == "UTF8":
            return
        text = (
            f"The database {name} has the encoding {encoding}, and texts of jobs hold any "
            f"character. Create it anew: CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0"
        )
        if not applied_migrations(connection):
            raise CommandError(text)
        self.stderr.write(f"{text}, and restore a dump of this one into it.")


@contextmanager
def _with_rights(to_get_them: str) -> Iterator[None]:
    """Turn a refusal within into a line with advice, a statement for the database's superuser."""
    try:
        yield
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    except (MigrationSchemaMissing, ProgrammingError) as error:
        database = error if isinstance(error, ProgrammingError) else error.__context__
        refusal = database and database.__cause__
        if not isinstance(refusal, InsufficientPrivilege):
            raise
        user, name = connection.settings_dict["USER"], connection.settings_dict["NAME"]
        raise CommandError(
            f"The role {user} may not prepare the database {name}: {str(refusal).splitlines()[0]}. "
            f"As a superuser: {to_get_them.format(user=user, name=name)}"
        ) from error


def _prepared(*, operator: Path, demo: bool, **options: Any) -> dict[str, Any]:
    user = _account(OPERATOR, operator, Role.OPERATOR)
    going_on = Job.objects.exclude(status__in=FINAL_JOB_STATUSES).order_by("created_at", "id")
    jobs = [f"{name} ({pk})" for pk, name in going_on.values_list("pk", "name")]
    job = ""
    if demo:
        directory = settings.WEIR_HOME / "demo"
        directory.mkdir(mode=0o700, exist_ok=True)
        job = ensure_demo(user, directory)
    _, token = create_token(
        None, user, "weir_up", Role.OPERATOR, expires_at=clock.now() + TOKEN_LIFETIME
    )
    return {"token": token, "job": job, "going_on": jobs}


def _account(name: str, password: Path, role: Role) -> User:
    return ensure_account(name, kept_secret(password, length_bytes=12), role)
