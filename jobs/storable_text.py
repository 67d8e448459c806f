"""Text from elsewhere in a form that PostgreSQL can store: tracebacks and logs hold anything."""

from typing import Any

_NUL, _INSTEAD = "\0", "\ufffd"


def storable(text: str, length_max: int | None = None) -> str:
    """The text without NUL characters and lone surrogates, cut to ``length_max`` characters."""
    text = text.encode(errors="replace").decode().replace(_NUL, _INSTEAD)
    return text if length_max is None else text[:length_max]


def storable_json(value: Any) -> Any:
    """A JSON value with every text in it storable."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): storable_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(entry) for entry in value]
    return value
