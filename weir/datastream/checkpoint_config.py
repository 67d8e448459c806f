"""``env.get_checkpoint_config()``: PyFlink's setters over Weir's frozen checkpoint settings.

Every setter makes a new checked config, so the call that sets a contradiction raises.
"""

from dataclasses import replace
from typing import Any, Self

from weir.common.missing_names import MissingNames
from weir.common.time import Duration, milliseconds_of
from weir.config import CheckpointConfig as Settings
from weir.config import CheckpointingMode
from weir.config import Retention as ExternalizedCheckpointRetention
from weir.errors import ConfigError

__all__ = ["CheckpointConfig", "CheckpointingMode", "ExternalizedCheckpointRetention"]


_COUNTS = frozenset({"concurrent_max", "tolerable_failures", "retained_max", "inline_max_bytes"})


def _fitting(setting: str, value: Any) -> Any:
    """A setting's value, a length of time in milliseconds.

    Raises:
        ConfigError: It is of another class than the setting's.
    """
    if value is not None and setting.endswith("_ms"):
        return milliseconds_of(value)
    if setting in _COUNTS and (isinstance(value, bool) or not isinstance(value, int)):
        named = setting.replace("_", " ")
        raise ConfigError(f"{named} takes a whole number, such as 3, not {value!r}")
    if setting == "mode" and not isinstance(value, CheckpointingMode):
        raise ConfigError(
            f"the checkpointing mode is {value!r}; write CheckpointingMode.EXACTLY_ONCE or "
            "another of its members"
        )
    return value


class CheckpointConfig(MissingNames):
    """The checkpoint settings of an environment's job.

    Units: intervals, timeouts and pauses are milliseconds; the alignment timeout is a ``Duration``.

    Raises:
        ConfigError: From any setter, for a value out of range or one that contradicts another.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        # The aligned phase of unaligned checkpoints; kept while those are off.
        self._alignment_timeout_ms = 0

    def change(self, **values: Any) -> Self:
        """Replace fields of the settings; not in PyFlink.

        Raises:
            ConfigError: A value is out of range, or the settings would contradict one another.
        """
        self.settings = replace(self.settings, **{k: _fitting(k, v) for k, v in values.items()})
        return self

    def is_checkpointing_enabled(self) -> bool:
        """Whether checkpoints are taken periodically."""
        return self.settings.interval_ms is not None

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """The guarantee after a restore: exactly once or at least once."""
        return self.settings.mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> Self:
        """Set exactly once, which aligns barriers, or at least once, which does not align.

        ``STOP_THE_WORLD``, not in PyFlink, is exactly once as well: each subtask pauses behind the
        barrier until the checkpoint is durable, so nothing flows meanwhile.
        """
        return self.change(mode=checkpointing_mode)

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between triggers; -1 while checkpointing is off."""
        return -1 if self.settings.interval_ms is None else self.settings.interval_ms

    def set_checkpoint_interval(self, checkpoint_interval: int) -> Self:
        """Trigger a checkpoint every so many milliseconds, at least 10."""
        return self.change(interval_ms=checkpoint_interval)

    def get_checkpoint_timeout(self) -> int:
        """Milliseconds after which a checkpoint that has not completed is aborted."""
        return self.settings.timeout_ms

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> Self:
        """Abort a checkpoint that has not completed after so many milliseconds, at least 10."""
        return self.change(timeout_ms=checkpoint_timeout)

    def get_min_pause_between_checkpoints(self) -> int:
        """The least milliseconds between the end of one checkpoint and the next trigger."""
        return self.settings.min_pause_ms

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> Self:
        """Leave so many milliseconds at least between a checkpoint's end and the next trigger."""
        return self.change(min_pause_ms=min_pause_between_checkpoints)

    def get_max_concurrent_checkpoints(self) -> int:
        """The number of checkpoints that may be under way at a time."""
        return self.settings.concurrent_max

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> Self:
        """Allow so many checkpoints under way at a time; only 1 with unaligned checkpoints."""
        return self.change(concurrent_max=max_concurrent_checkpoints)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """The number of checkpoint failures in a row that do not fail the job."""
        return self.settings.tolerable_failures

    def set_tolerable_checkpoint_failure_number(
        self, tolerable_checkpoint_failure_number: int
    ) -> Self:
        """Fail the job only beyond so many checkpoint failures in a row."""
        return self.change(tolerable_failures=tolerable_checkpoint_failure_number)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """The retention: whether checkpoints outlive a job that fails or is cancelled."""
        return self.settings.retention

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> Self:
        """Set whether checkpoints outlive a job that fails or is cancelled."""
        return self.change(retention=retention_mode)

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether checkpoints outlive a job that fails."""
        none = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        return self.settings.retention is not none

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether barriers may overtake records."""
        return self.settings.alignment_timeout_ms is not None

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> Self:
        """Let barriers overtake records: at once, or after the aligned checkpoint timeout.

        Records that a barrier overtakes are part of the checkpoint. Savepoints stay aligned, and so
        do ``forward`` edges that are not chained, ``rescale``, ``broadcast`` and custom partitions:
        records under way there could not be restored at another parallelism.
        """
        return self.change(alignment_timeout_ms=self._alignment_timeout_ms if enabled else None)

    def disable_unaligned_checkpoints(self) -> Self:
        """Keep barriers in line with the records."""
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """The time for which an unaligned checkpoint first tries to align.

        PyFlink: ``get_alignment_timeout``.
        """
        return Duration.of_millis(self._alignment_timeout_ms)

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Duration) -> Self:
        """Try to align for so long before barriers overtake records, counted from the trigger.

        It takes effect once unaligned checkpoints are enabled. PyFlink: ``set_alignment_timeout``.
        """
        self._alignment_timeout_ms = milliseconds_of(alignment_timeout)
        return self.enable_unaligned_checkpoints(self.is_unaligned_checkpoints_enabled())

    def get_num_retained_checkpoints(self) -> int:
        """The number of completed checkpoints that are retained; not in PyFlink."""
        return self.settings.retained_max

    def set_num_retained_checkpoints(self, num_retained_checkpoints: int) -> Self:
        """Retain so many completed checkpoints, at least 1.

        PyFlink: the key ``execution.checkpointing.num-retained``.
        """
        return self.change(retained_max=num_retained_checkpoints)

    def get_checkpoint_storage(self) -> str | None:
        """The directory or URI of the checkpoints; None: the driver's memory."""
        return self.settings.storage

    def set_checkpoint_storage(self, storage: str) -> Self:
        """Write checkpoints to this directory or URI, which all machines of the job must reach.

        PyFlink: ``set_checkpoint_storage_dir``.
        """
        return self.change(storage=str(storage))
