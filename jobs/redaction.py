"""What settings' values are shown as: those that keep a secret are not shown at all. Pure.

Spark hides by the names of its settings, and so do pages and API: the pattern is the default of
``spark.redaction.regex``, and the credentials in a URI are hidden as well. Source: Spark,
``org.apache.spark.internal.config.SECRET_REDACTION_PATTERN``.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "••••••"
HIDDEN_HELP = "Hidden: its name says that it keeps a secret."

_SECRET = re.compile(r"secret|password|passwd|token|credential|access[._-]?key|api[._-]?key", re.I)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether a setting of this name keeps a secret."""
    return _SECRET.search(name) is not None


def shown(name: str, value: Any) -> Any:
    """The value as anybody may see it; objects and lists go by the names in them."""
    if isinstance(value, Mapping):
        return {key: shown(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shown(name, inner) for inner in value]
    # Whether something is on, and how much of it there is, are no secrets whatever they are called.
    if value is None or isinstance(value, bool | int | float):
        return value
    return HIDDEN if is_secret(name) and value else without_credentials(str(value))


def without_credentials(text: str) -> str:
    """The text with ``user:password`` hidden in each URI in it."""
    return _CREDENTIALS.sub(HIDDEN, text)
