"""``ExecutionConfig``: the environment's settings for the work of operators."""

from typing import Any, Self

from weir.common.flink_keys import needs_nothing
from weir.common.missing_names import MissingNames


class ExecutionConfig(MissingNames):
    """The execution settings that ``env.get_config()`` returns."""

    def __init__(self) -> None:
        self._object_reuse = False

    def enable_object_reuse(self) -> Self:
        """Let operators hand on the very objects that functions return, without a copy.

        Faster for records that can be changed in place, and wrong where a function changes or keeps
        an object that it received or returned.
        """
        self._object_reuse = True
        return self

    def disable_object_reuse(self) -> Self:
        """Copy records that can be changed in place before they are handed on; the default."""
        self._object_reuse = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Whether operators share the records that they hand on."""
        return self._object_reuse

    def set_auto_watermark_interval(self, interval: Any) -> Self:
        """Accept any interval: a watermark follows each slice of records, which is sooner.

        Raises:
            ConfigError: The interval is 0, which in Flink ends watermarks.
        """
        needs_nothing("pipeline.auto-watermark-interval", interval)
        return self
