"""Window assigners under PyFlink's module name."""

from weir.operators.windows.window_assigners import (
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

__all__ = ["TimeWindow", "TumblingEventTimeWindows", "TumblingProcessingTimeWindows"]
