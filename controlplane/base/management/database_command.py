"""The base of commands that need the control plane's database, as it is prepared."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import NotSupportedError, OperationalError, connection

from controlplane.base.unusable_database import DatabaseUnprepared


class DatabaseCommand(BaseCommand):
    """A command that says what to do where the database is away, or not prepared."""

    start_advice = (
        "Start the control plane in another terminal (weir up, or python manage.py weir_up)"
    )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Look for the database, then run the command.

        Raises:
            CommandError: The database is away, too old, or lacks tables of this version.
        """
        try:
            connection.ensure_connection()
        except OperationalError as error:
            first_line = str(error).partition("\n")[0].strip()
            raise CommandError(
                f"The control plane's database is not there: {first_line}. {self.start_advice}, or "
                "set DATABASE_URL to the address of its database, "
                "postgres://USER:PASSWORD@HOST:PORT/NAME."
            ) from error
        except NotSupportedError as error:
            raise CommandError(f"The control plane's database is too old: {error}") from error
        try:
            return super().execute(*args, **options)
        except DatabaseUnprepared as error:
            raise CommandError(
                "The database is not prepared for this version of Weir; run: "
                "python manage.py weir_prepare --no-static"
            ) from error
