"""``RuntimeExecutionMode``: streams, which is the only mode that Weir runs."""

from enum import Enum


class RuntimeExecutionMode(Enum):
    """The mode of a pipeline, for ``env.set_runtime_mode``."""

    STREAMING = "streaming"
    BATCH = "batch"  # Refused by set_runtime_mode, as is AUTOMATIC.
    AUTOMATIC = "automatic"
