"""Window assigners under PyFlink's module name."""

from typing import TYPE_CHECKING

from weir.common.missing_names import module_attribute
from weir.operators.windows.window_assigners import (
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

__all__ = ["TimeWindow", "TumblingEventTimeWindows", "TumblingProcessingTimeWindows"]

if not TYPE_CHECKING:
    __getattr__ = module_attribute(__name__)
