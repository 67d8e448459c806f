"""Settings from the environment, read strictly: a missing or malformed variable is refused by name.

``X_FILE`` names a file that holds the value of ``X``, so that secrets need not be in the
environment; one of the two may be set, not both.
"""

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import dj_database_url
import psycopg2
from django.core.exceptions import ImproperlyConfigured
from psycopg2.extensions import make_dsn

T = TypeVar("T")

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})
_KEY_BYTES = 32
_REDIS_SCHEMES = ("redis", "rediss")
_CERTIFICATES = ("required", "optional", "none")  # As redis-py has them.
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


def database(
    name: str, default: str | None = None, parameters: Mapping[str, Any] | None = None
) -> dj_database_url.DBConfig:
    """The PostgreSQL that a URL names, for Django's settings: connections are kept and checked.

    The URL's own parameters of a connection, such as ``sslmode``, go before ``parameters``; where
    both have ``options`` for the server, those of the URL follow, and the server takes the last.
    Source: PostgreSQL, section 32.1.2, parameter key words.

    Raises:
        ImproperlyConfigured: It is no such URL, or has a parameter that libpq does not know; the
            message does not show the URL, for its password.
    """
    expected = f"{name} is no URL of PostgreSQL; give postgres://USER:PASSWORD@HOST:PORT/DATABASE"
    given = text(name, default)
    try:
        config = dj_database_url.parse(given, conn_max_age=None, conn_health_checks=True)
    except ValueError as error:
        raise ImproperlyConfigured(f"{expected}, with special characters quoted") from error
    if not str(config["ENGINE"]).endswith(".postgresql") or not config["NAME"]:
        raise ImproperlyConfigured(expected)
    own = config.get("OPTIONS", {})
    try:
        make_dsn(**own)
    except psycopg2.ProgrammingError as error:
        raise ImproperlyConfigured(f"{name}: {str(error).strip()}") from error
    merged = {**(parameters or {}), **own}
    if server := [one["options"] for one in (parameters or {}, own) if "options" in one]:
        merged["options"] = " ".join(server)
    config["OPTIONS"] = merged
    return config


def redis(name: str, default: str | None = None) -> str:
    """The URL of a Redis; over TLS (``rediss``) its certificate is verified, unless it says not to.

    Celery's client would verify none by default, and send the password all the same.
    Source: kombu.connection.Connection, "defaulting to insecure SSL behaviour".

    Raises:
        ImproperlyConfigured: It is no such URL; the message does not show it, for its password.
    """
    given = text(name, default)
    url = urlsplit(given)
    if url.scheme not in _REDIS_SCHEMES or not url.hostname:
        raise ImproperlyConfigured(
            f"{name} is no URL of Redis; give redis://:PASSWORD@HOST:PORT/0, or rediss://… for "
            "TLS, with special characters quoted"
        )
    asked = dict(parse_qsl(url.query)).get("ssl_cert_reqs")
    if asked not in (None, *_CERTIFICATES):
        raise ImproperlyConfigured(
            f"{name}: ssl_cert_reqs={asked!r} is not one of {', '.join(_CERTIFICATES)}"
        )
    if url.scheme == "redis" or asked is not None:
        return given
    return f"{given}{'&' if url.query else '?'}ssl_cert_reqs=required"


def parsed(name: str, default: str, parse: Callable[[str], T]) -> T:
    """The value of a variable as ``parse`` reads it; its ``ValueError`` says what is wrong."""
    given = text(name, default)
    try:
        return parse(given)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={given!r}: {error}") from error
