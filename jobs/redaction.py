"""Settings as they are shown: the values of secrets are hidden. Pure.

Spark hides by the names of its settings, and so do pages and API: the pattern is the default of
``spark.redaction.regex``, and the credentials in a URI are hidden as well. Source: Spark,
``org.apache.spark.internal.config.SECRET_REDACTION_PATTERN``.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "••••••"
NAMES_OF_SECRETS = "secrets"  # An option of submissions: a list of names, without values.
HIDDEN_HELP = "Hidden: its name says that it is a secret."

_SECRET = re.compile(r"secret|password|passwd|token|credential|access[._-]?key|api[._-]?key", re.I)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether the value of a setting with this name is a secret."""
    return _SECRET.search(name) is not None


def shown(name: str, value: Any) -> Any:
    """The value with secrets hidden; inside objects and lists, by the names in them."""
    if isinstance(value, Mapping):
        return {key: shown(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if name.rpartition(".")[2] == NAMES_OF_SECRETS:
            return list(value)
        return [shown(name, inner) for inner in value]
    # Flags and numbers are no secrets, also under the name of one.
    if value is None or isinstance(value, bool | int | float):
        return value
    return HIDDEN if is_secret(name) and value else without_credentials(str(value))


def without_credentials(text: str) -> str:
    """The text with ``user:password`` hidden in each URI in it."""
    return _CREDENTIALS.sub(HIDDEN, text)
