"""Settings from the environment, read strictly: a missing or malformed variable is refused by name.

``X_FILE`` names a file that holds the value of ``X``, so that secrets need not be in the
environment; one of the two may be set, not both.
"""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


def text(name: str, default: str | None = None) -> str:
    """The value of a variable, or of the file that ``NAME_FILE`` names; without default: required.

    Raises:
        ImproperlyConfigured: The value is missing, empty or given twice, or the file is unreadable.
    """
    value, file = os.environ.get(name), os.environ.get(f"{name}_FILE")
    if value is not None and file is not None:
        raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; keep one of them")
    if file is not None:
        try:
            value = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(f"{name}_FILE={file} cannot be read: {error}") from error
    if value is None:
        if default is None:
            raise ImproperlyConfigured(f"set {name}, or {name}_FILE to a file that holds it")
        return default
    if not value and default is None:
        raise ImproperlyConfigured(f"{name} is empty; give it a value")
    return value


def integer(name: str, default: int, *, least: int = 0) -> int:
    """A whole number of at least ``least``."""
    given = text(name, str(default))
    try:
        value = int(given)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={given!r} is not a whole number") from error
    if value < least:
        raise ImproperlyConfigured(f"{name}={value} is too small; give at least {least}")
    return value


def flag(name: str, default: bool) -> bool:
    """Yes or no."""
    given = text(name, "yes" if default else "no").lower()
    if given in _YES:
        return True
    if given in _NO:
        return False
    raise ImproperlyConfigured(f"{name}={given!r} is neither yes nor no; give one of them")


def words(name: str, default: str = "") -> list[str]:
    """A list, separated by commas."""
    return [word.strip() for word in text(name, default).split(",") if word.strip()]
