"""The command ``manage.py weir_reencrypt_secrets``: encrypt all secrets with the first key."""

from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from controlplane.base.errors import Refusal
from controlplane.base.management.database_command import DatabaseCommand
from controlplane.deliveries import endpoints
from controlplane.secrets import services


class Command(DatabaseCommand):
    """Encrypt all secrets with the first key of ``WEIR_ENCRYPTION_KEYS``."""

    help = (
        "Encrypt all secrets, of pipelines and of endpoints, with the first key of "
        "WEIR_ENCRYPTION_KEYS; the keys behind it may be taken out of the setting afterwards."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the number of secrets."""
        try:
            with transaction.atomic():
                count = services.reencrypt()
                endpoint_count = endpoints.reencrypt()
        except Refusal as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(
            f"{count} secrets and {endpoint_count} endpoints are encrypted with the first key"
        )
