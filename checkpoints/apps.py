from django.apps import AppConfig


class CheckpointsConfig(AppConfig):
    name = "checkpoints"

    def ready(self) -> None:
        """Connect the receivers of the jobs' signals."""
        from checkpoints import receivers  # noqa: F401 - importing it connects them.
