"""The command ``manage.py weir_prepare``: migrations, roles, static files, account and demo job."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from controlplane.accounts.services import ensure_operator
from controlplane.embedded.demo import ensure_demo
from controlplane.embedded.server import kept_secret
from controlplane.launcher_role import ensure_launcher_role

OPERATOR = "operator"


class Command(BaseCommand):
    """Bring the database and the static files up to date, before services start. Idempotent."""

    help = (
        "Migrate the database, give the launcher's role its rights if WEIR_LAUNCHER_ROLE names "
        "one, and collect the static files; with --operator and --demo also create an account and "
        "submit the demonstration job."
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
            "--demo",
            action="store_true",
            help="submit the demonstration job as that account, and print its id",
        )

        parser.add_argument(
            "--no-static",
            action="store_true",
            help="only the database: an image has its static files",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Prepare; print the id of the demonstration job and nothing else."""
        call_command("migrate", interactive=False, verbosity=0)
        if settings.WEIR_LAUNCHER_ROLE:
            ensure_launcher_role(settings.WEIR_LAUNCHER_ROLE, settings.WEIR_LAUNCHER_PASSWORD)
        if options["no_static"]:
            return
        settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
        call_command("collectstatic", interactive=False, verbosity=0)
        if options["operator"]:
            user = ensure_operator(OPERATOR, kept_secret(options["operator"], length_bytes=12))
            if options["demo"]:
                directory = settings.WEIR_HOME / "demo"
                directory.mkdir(mode=0o700, exist_ok=True)
                self.stdout.write(ensure_demo(user, directory))
