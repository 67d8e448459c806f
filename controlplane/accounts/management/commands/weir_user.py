"""The command ``manage.py weir_user NAME --role operator``: create or change an account."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from controlplane.accounts import services
from controlplane.accounts.models import Role, User
from controlplane.base.errors import Refusal
from controlplane.base.management.database_command import DatabaseCommand


class Command(DatabaseCommand):
    """Create an account, or change an existing one."""

    help = "Create an account with a generated password, or change an existing one."
    requires_system_checks = ()  # As ``weir_prepare`` runs them.

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("name", help="the account's name")
        parser.add_argument("--role", choices=Role.values, help="default for a new account: viewer")
        parser.add_argument(
            "--new-password",
            action="store_true",
            help="generate another password for an existing account",
        )
        activity = parser.add_mutually_exclusive_group()
        activity.add_argument(
            "--close", action="store_true", help="close the account: it can no longer log in"
        )
        activity.add_argument(
            "--open", action="store_true", help="open the account: it can log in again"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the account's name and role, and a new password if one was generated."""
        try:
            with transaction.atomic():
                self._handle(**options)
        except Refusal as refusal:
            raise CommandError(refusal.detail) from refusal

    def _handle(self, **options: Any) -> None:
        name, role = options["name"], options["role"]
        user = User.objects.filter(username=name).first()
        password = None
        if user is None:
            user, password = services.create_user(None, name, Role(role or Role.VIEWER))
        else:
            if role:
                user = services.set_role(None, user.pk, Role(role))
            if options["new_password"]:
                password = services.set_password(None, user.pk)
        if options["close"] or options["open"]:
            user = services.set_active(None, user.pk, options["open"])
        self.stdout.write(f"user {name}")
        self.stdout.write(f"role {user.effective_role.value}")
        if not user.is_active:
            self.stdout.write("closed")
        if password is not None:
            self.stdout.write(f"password {password}")
