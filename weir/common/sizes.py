"""Sizes as people read them, and the memory that objects take."""

import sys
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

_SAMPLE = 8
_DEPTH = 4
_UNKNOWN_BYTES = 64


def size(count: int) -> str:
    """Bytes, in thousands.

    Units: ``count`` in bytes.
    """
    if count < 1_000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1_000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1_000:.1f} TB"


def object_bytes(value: Any, depth: int = _DEPTH) -> int:
    """The memory of an object and what is in it, estimated from a sample of each container.

    Units: at most ``_SAMPLE ** depth`` objects are looked at.
    """
    own = sys.getsizeof(value, _UNKNOWN_BYTES)
    parts: Sequence[Any]
    if isinstance(value, dict):
        parts, count = list(islice(value.items(), _SAMPLE)), len(value)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts, count = list(islice(value, _SAMPLE)), len(value)
    else:
        parts = [vars(value)] if hasattr(value, "__dict__") and not isinstance(value, type) else []
        count = len(parts)
    if depth == 0 or not parts:
        return own
    return own + count * sum(object_bytes(part, depth - 1) for part in parts) // len(parts)
