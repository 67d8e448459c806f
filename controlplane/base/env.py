"""Settings from the environment, read strictly: a missing or malformed variable is refused by name.

``X_FILE`` names a file that holds the value of ``X``, so that secrets need not be in the
environment; one of the two may be set, not both.
"""

import base64
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_KEY_BYTES = 32
_URL_SAFE = str.maketrans("+/", "-_")


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


def keys(name: str) -> list[bytes]:
    """Keys of 32 bytes, in hexadecimal or base64, separated by commas, as Fernet takes them.

    Raises:
        ImproperlyConfigured: One of them is malformed; the message does not show it.
    """
    decoded = []
    for number, word in enumerate(words(name), start=1):
        try:
            if len(word) == 2 * _KEY_BYTES:
                key = bytes.fromhex(word)
            else:
                padded = word.rstrip("=").translate(_URL_SAFE) + "="
                key = base64.b64decode(padded, altchars=b"-_", validate=True)
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise ImproperlyConfigured(
                f"key {number} of {name} does not have {_KEY_BYTES} bytes, in hexadecimal or "
                f"base64; generate one with openssl rand -hex {_KEY_BYTES}"
            )
        decoded.append(base64.urlsafe_b64encode(key))
    return decoded


def integer(name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
    """A whole number of at least ``least`` and at most ``most``."""
    given = text(name, str(default))
    try:
        value = int(given)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={given!r} is not a whole number") from error
    if value < least:
        raise ImproperlyConfigured(f"{name}={value} is too small; give at least {least}")
    if most is not None and value > most:
        raise ImproperlyConfigured(f"{name}={value} is too large; give at most {most}")
    return value


def flag(name: str, default: bool) -> bool:
    """Yes or no."""
    given = text(name, "yes" if default else "no").lower()
    if given in _YES:
        return True
    if given in _NO:
        return False
    raise ImproperlyConfigured(f"{name}={given!r} is neither yes nor no; give one of them")


def choice(name: str, default: str, allowed: Sequence[str]) -> str:
    """One of some words."""
    given = text(name, default)
    if given not in allowed:
        raise ImproperlyConfigured(f"{name}={given!r} is none of {', '.join(allowed)}")
    return given


def words(name: str, default: str = "") -> list[str]:
    """A list, separated by commas."""
    return [word.strip() for word in text(name, default).split(",") if word.strip()]


def database(name: str, default: str | None = None) -> dj_database_url.DBConfig:
    """The PostgreSQL that a URL names, for Django's settings: connections are kept and checked.

    Raises:
        ImproperlyConfigured: It is no such URL; the message does not show it, for its password.
    """
    expected = f"{name} is no URL of PostgreSQL; give postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    given = text(name, default)
    try:
        config = dj_database_url.parse(given, conn_max_age=None, conn_health_checks=True)
    except ValueError as error:
        raise ImproperlyConfigured(f"{expected}, with special characters quoted") from error
    if not str(config["ENGINE"]).endswith(".postgresql") or not config["NAME"]:
        raise ImproperlyConfigured(expected)
    return config


def parsed(name: str, default: str, parse: Callable[[str], T]) -> T:
    """The value of a variable as ``parse`` reads it; its ``ValueError`` says what is wrong."""
    given = text(name, default)
    try:
        return parse(given)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={given!r}: {error}") from error
