from django.apps import AppConfig


class CheckpointsConfig(AppConfig):
    name = "checkpoints"

    def ready(self) -> None:
        """Set the hooks by which jobs reach their checkpoints."""
        from checkpoints import job_hooks
        from jobs import hooks

        hooks.checkpoints = job_hooks
