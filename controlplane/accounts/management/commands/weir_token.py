"""The command ``manage.py weir_token USER --name NAME --role operator``: create a token."""

import json
import os
import tempfile
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from controlplane.accounts import services
from controlplane.accounts.models import Role, User
from controlplane.base import clock
from controlplane.base.errors import Refusal
from controlplane.base.management.database_command import DatabaseCommand


class Command(DatabaseCommand):
    """Create a token and print its secret."""

    help = "Create a token that acts for a user, and print its secret, which is not shown again."
    requires_system_checks = ()  # As ``weir_prepare`` runs them.

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("user", help="the name of an open account")
        parser.add_argument("--name", required=True, help="the purpose of the token")
        parser.add_argument(
            "--role",
            choices=Role.values,
            default=services.TOKEN_ROLE.value,
            help="at most the user's role; default: %(default)s",
        )
        end = parser.add_mutually_exclusive_group()
        end.add_argument(
            "--days",
            type=int,
            default=services.TOKEN_LIFETIME.days,
            help="days until the token expires, 1 to 36500; default: %(default)s",
        )
        end.add_argument("--no-end", action="store_true", help="the token never expires")
        parser.add_argument(
            "--file",
            type=Path,
            help="write URL and token to this file as JSON, readable by its owner only, instead of "
            "printing the token",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the secret alone, so that it can be piped, or write it to a file."""
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(
                f"There is no open account {options['user']}; create it with weir_user."
            )
        days = options["days"]
        if not 1 <= days <= 36_500:
            raise CommandError(f"--days={days} is out of range; give 1 to 36500")
        try:
            _, secret = services.create_token(
                None,
                user,
                options["name"],
                Role(options["role"]),
                expires_at=None if options["no_end"] else clock.now() + timedelta(days=days),
            )
        except Refusal as refusal:
            raise CommandError(refusal.detail) from refusal
        if options["file"] is None:
            self.stdout.write(secret)
        else:
            _write(options["file"], json.dumps({"url": settings.WEIR_URL, "token": secret}))


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all, never readable by other users."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # Mode 0600.
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
