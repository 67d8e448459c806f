"""``env.get_checkpoint_config()``: PyFlink's setters over Weir's frozen checkpoint settings.

Every setter makes a new checked config, so a contradiction is refused where it is made.
"""

from dataclasses import replace
from typing import Any, Self

from weir.common.time import Duration, milliseconds_of
from weir.config import CheckpointConfig as Settings
from weir.config import CheckpointingMode
from weir.config import Retention as ExternalizedCheckpointRetention

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointRetention"]


class CheckpointConfig:
    """When and how an environment's job takes checkpoints."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # What to wait for before going unaligned, kept while unaligned checkpoints are off.
        self._alignment_timeout_ms = 0

    def change(self, **values: Any) -> Self:
        """Replace fields of the settings.

        Raises:
            ConfigError: The settings would contradict one another.
        """
        self.settings = replace(self.settings, **values)
        return self

    def is_checkpointing_enabled(self) -> bool:
        """Whether checkpoints are taken periodically."""
        return self.settings.interval_ms is not None

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """What a restore may do to a record."""
        return self.settings.mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> Self:
        """Exactly once, or at least once without waiting for barriers."""
        return self.change(mode=checkpointing_mode)

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between triggers; -1 while checkpointing is off."""
        return -1 if self.settings.interval_ms is None else self.settings.interval_ms

    def set_checkpoint_interval(self, checkpoint_interval: int) -> Self:
        """Trigger every so many milliseconds."""
        return self.change(interval_ms=checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        """Milliseconds after which a checkpoint is given up."""
        return self.settings.timeout_ms

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> Self:
        """Give a checkpoint up after so many milliseconds."""
        return self.change(timeout_ms=checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """Milliseconds from the end of one checkpoint to the next trigger, at least."""
        return self.settings.min_pause_ms

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> Self:
        """Leave at least so many milliseconds between two checkpoints."""
        return self.change(min_pause_ms=min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        """How many checkpoints may be under way."""
        return self.settings.concurrent_max

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> Self:
        """Allow so many checkpoints at a time; 1 with unaligned ones."""
        return self.change(concurrent_max=max_concurrent_checkpoints)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """How many failures in a row do not fail the job."""
        return self.settings.tolerable_failures

    def set_tolerable_checkpoint_failure_number(
        self, tolerable_checkpoint_failure_number: int
    ) -> Self:
        """Fail the job only beyond so many failures in a row."""
        return self.change(tolerable_failures=tolerable_checkpoint_failure_number)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Whether checkpoints outlive the job."""
        return self.settings.retention

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> Self:
        """Say whether checkpoints outlive the job."""
        return self.change(retention=retention_mode)

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether any checkpoint outlives the job."""
        none = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        return self.settings.retention is not none

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether barriers may overtake records."""
        return self.settings.alignment_timeout_ms is not None

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:
        """Let barriers overtake records, at once or after the aligned timeout."""
        return self.change(alignment_timeout_ms=self._alignment_timeout_ms if enabled else None)

    def disable_unaligned_checkpoints(self) -> Self:
        """Keep barriers in line."""
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """How long an unaligned checkpoint first tries to align."""
        return Duration.of_millis(self._alignment_timeout_ms)

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Duration) -> Self:
        """Try to align for so long; counts once unaligned checkpoints are enabled."""
        self._alignment_timeout_ms = milliseconds_of(alignment_timeout)
        return self.enable_unaligned_checkpoints(self.is_unaligned_checkpoints_enabled())

    def get_num_retained_checkpoints(self) -> int:
        """How many completed checkpoints are kept."""
        return self.settings.retained_max

    def set_num_retained_checkpoints(self, num_retained_checkpoints: int) -> Self:
        """Keep so many completed checkpoints."""
        return self.change(retained_max=num_retained_checkpoints)

    def get_checkpoint_storage(self) -> str | None:
        """Where checkpoints are written; None keeps them in the driver's memory."""
        return self.settings.storage

    def set_checkpoint_storage(self, storage: str) -> Self:
        """Write checkpoints to a directory or URI."""
        return self.change(storage=str(storage))
