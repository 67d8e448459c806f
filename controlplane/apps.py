import atexit
import gc

from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    name = "controlplane"

    def ready(self) -> None:
        """Leave what is loaded out of the interpreter's last collections of garbage.

        They walk over it several times, a fifth of a second of a processor at the end of each
        process.
        """
        atexit.register(gc.freeze)
