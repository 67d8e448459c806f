"""The command ``manage.py weir_suspend``: the drivers of all running jobs end as planned."""

from typing import Any

from controlplane.base.management.database_command import DatabaseCommand
from jobs.services import suspend_all


class Command(DatabaseCommand):
    """Record that all drivers end, before or while their processes are ended. Idempotent."""

    help = (
        "Record that the drivers of all running jobs end with this control plane, so that the next "
        "start goes on with the jobs and counts no failure. Stop all services but the database "
        "before, and end the drivers' processes after it."
    )
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Suspend; print the number of drivers."""
        count = suspend_all("the control plane was stopped, and its drivers with it")
        self.stdout.write(str(count))
