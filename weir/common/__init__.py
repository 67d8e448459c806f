"""What pipelines, operators and state all speak of: types, rows, lengths of time, event time.

Names and meaning are PyFlink's ``pyflink.common``; nothing here runs anything.
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
