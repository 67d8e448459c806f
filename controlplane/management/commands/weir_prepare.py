"""The command ``manage.py weir_prepare``: migrations, roles, static files, accounts, demo job."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from controlplane.accounts.models import Role, User
from controlplane.accounts.services import create_token, ensure_account
from controlplane.base import clock
from controlplane.embedded.demo import ensure_demo
from controlplane.embedded.server import kept_secret
from controlplane.launcher_role import ensure_launcher_role
from jobs.models import FINAL_JOB_STATUSES, Job

OPERATOR, ADMIN = "operator", "admin"
TOKEN_LIFETIME = timedelta(days=1)  # Each start prints another one.


class Command(BaseCommand):
    """Bring the database and the static files up to date, before services start. Idempotent."""

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
        call_command("migrate", interactive=False, verbosity=0)
        if settings.WEIR_LAUNCHER_ROLE:
            ensure_launcher_role(settings.WEIR_LAUNCHER_ROLE, settings.WEIR_LAUNCHER_PASSWORD)
        if options["no_static"]:
            return
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        call_command("collectstatic", interactive=False, verbosity=0)
        if options["admin"]:
            _account(ADMIN, options["admin"], Role.ADMIN)
        if options["operator"]:
            self.stdout.write(json.dumps(_prepared(**options)))


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
