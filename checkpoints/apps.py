from django.apps import AppConfig


class CheckpointsConfig(AppConfig):
    name = "checkpoints"

    def ready(self) -> None:
        """Listen to what jobs say."""
        from checkpoints import receivers  # noqa: F401 - connects its receivers.
