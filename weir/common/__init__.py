"""Common values of pipelines, operators and state: types, rows, durations, event time.

Names and meaning are those of PyFlink's ``pyflink.common``.
"""

from typing import TYPE_CHECKING

from weir.common.configuration import Configuration
from weir.common.missing_names import package_attribute, refuse_missing_imports
from weir.common.restart_strategy import RestartStrategies
from weir.common.row import Row
from weir.common.serialization import Encoder
from weir.common.time import Duration, Time
from weir.common.typeinfo import Types
from weir.common.watermark import TimestampAssigner, WatermarkStrategy

__all__ = [
    "Types",
    "Row",
    "Encoder",
    "Duration",
    "Time",
    "WatermarkStrategy",
    "TimestampAssigner",
    "Configuration",
    "RestartStrategies",
]

refuse_missing_imports()

if not TYPE_CHECKING:
    __getattr__ = package_attribute(__name__)
