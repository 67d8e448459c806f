"""Elements that a test feeds to a source: records, records with an event time, watermarks."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Timed:
    """A record with its event time in milliseconds, in place of what the pipeline would assign."""

    record: Any
    at_ms: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark in milliseconds: no record at or below this event time follows, but late ones."""

    at_ms: int
