"""Common values of pipelines, operators and state: types, rows, durations, event time.

Names and meaning are those of PyFlink's ``pyflink.common``.
"""

from weir.common.configuration import Configuration
from weir.common.row import Row
from weir.common.time import Duration, Time
from weir.common.typeinfo import Types
from weir.common.watermark import TimestampAssigner, WatermarkStrategy

__all__ = [
    "Types",
    "Row",
    "Duration",
    "Time",
    "WatermarkStrategy",
    "TimestampAssigner",
    "Configuration",
]
