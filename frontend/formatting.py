"""The forms of numbers and times on pages: those of the whole control plane."""

from controlplane.formatting import (
    NOTHING,
    age,
    duration,
    event_time,
    interval,
    iso,
    listed,
    milliseconds_between,
    moment,
    number,
    plural,
    rough_duration,
    size,
)

__all__ = [
    "NOTHING",
    "age",
    "duration",
    "event_time",
    "interval",
    "iso",
    "listed",
    "milliseconds_between",
    "moment",
    "number",
    "plural",
    "rough_duration",
    "size",
]
