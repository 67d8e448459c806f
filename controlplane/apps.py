import atexit
import gc

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class ControlPlaneConfig(AppConfig):
    name = "controlplane"

    def ready(self) -> None:
        """Watch connections for an unusable database; leave out the last collections.

        The interpreter's last collections of garbage walk over all that is loaded several times, a
        fifth of a second of a processor at the end of each process.
        """
        from controlplane.base import unusable_database

        connection_created.connect(unusable_database.note_connection)
        atexit.register(gc.freeze)
