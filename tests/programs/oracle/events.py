"""Events of a stream: records and watermarks."""

from dataclasses import dataclass
from typing import Any, TypeAlias

LAST_MS = 2**63 - 1
FIRST_MS = -(2**63)


@dataclass(slots=True)
class Record:
    """A value with its event time."""

    value: Any
    at: int | None = None


@dataclass(slots=True)
class Mark:
    """A watermark."""

    ms: int


Event: TypeAlias = Record | Mark
