"""``manage.py weir_token USER --name NAME --role operator``."""

import json
import os
import tempfile
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts import services
from controlplane.accounts.models import Role, User
from controlplane.base import clock
from controlplane.base.errors import Refusal


class Command(BaseCommand):
    """Make a token and print its secret."""

    help = "Make a token that acts for a user, and print its secret, which is not shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("user")
        parser.add_argument("--name", required=True, help="what it is for")
        parser.add_argument("--role", choices=Role.values, help="the user's own unless given")
        parser.add_argument("--days", type=int, help="it expires after so many; else never")
        parser.add_argument(
            "--file",
            type=Path,
            help="write url and token there as JSON, readable by the owner only; else print it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the secret alone, so that it can be piped, or write it to a file."""
        user = User.objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"There is no open account {options['user']}.")
        days = options["days"]
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError("--days has to be between 1 and 36500")
        try:
            _, secret = services.create_token(
                None,
                user,
                options["name"],
                Role(options["role"] or user.effective_role),
                expires_at=None if days is None else clock.now() + timedelta(days=days),
            )
        except Refusal as refusal:
            raise CommandError(refusal.detail) from refusal
        if options["file"] is None:
            self.stdout.write(secret)
        else:
            _write(options["file"], json.dumps({"url": settings.WEIR_URL, "token": secret}))


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # Mode 0600.
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
