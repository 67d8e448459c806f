"""``Configuration``: settings by Flink's keys, as text or as values, in the order they were set."""

from collections.abc import Mapping, Set
from typing import Any, Self


class Configuration:
    """A mutable map from keys such as ``execution.checkpointing.interval`` to values."""

    def __init__(self, other: "Configuration | Mapping[str, Any] | None" = None) -> None:
        self._values: dict[str, Any] = {}
        if isinstance(other, Configuration):
            self._values |= other._values
        elif other is not None:
            self._values |= other

    def set(self, key: str, value: Any) -> Self:
        """Set ``key``, replacing what it had."""
        self._values[key] = value
        return self

    def get(self, key: str, default_value: Any = None) -> Any:
        """The value of ``key``, or the default."""
        return self._values.get(key, default_value)

    def set_string(self, key: str, value: str) -> Self:
        """Set ``key`` to a string."""
        return self.set(key, value)

    def get_string(self, key: str, default_value: str) -> str:
        """The value as text."""
        return str(self.get(key, default_value))

    def set_integer(self, key: str, value: int) -> Self:
        """Set ``key`` to an integer."""
        return self.set(key, value)

    def get_integer(self, key: str, default_value: int) -> int:
        """The value as an integer."""
        return int(self.get(key, default_value))

    def set_float(self, key: str, value: float) -> Self:
        """Set ``key`` to a float."""
        return self.set(key, value)

    def get_float(self, key: str, default_value: float) -> float:
        """The value as a float."""
        return float(self.get(key, default_value))

    def set_boolean(self, key: str, value: bool) -> Self:
        """Set ``key`` to a truth value."""
        return self.set(key, value)

    def get_boolean(self, key: str, default_value: bool) -> bool:
        """The value as a truth value; text counts as true when it says "true"."""
        value = self.get(key, default_value)
        return value.strip().lower() == "true" if isinstance(value, str) else bool(value)

    def contains_key(self, key: str) -> bool:
        """Whether ``key`` was set."""
        return key in self._values

    def key_set(self) -> Set[str]:  # The method ``set`` hides the builtin here.
        """All keys."""
        return set(self._values)

    def remove_config(self, key: str) -> bool:
        """Remove ``key``; returns whether it was set."""
        existed = key in self._values
        self._values.pop(key, None)
        return existed

    def add_all(self, other: "Configuration") -> Self:
        """Take over all settings of another configuration."""
        self._values |= other._values
        return self

    def to_dict(self) -> dict[str, Any]:
        """A copy as a plain dict."""
        return dict(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # Mutable.

    def __repr__(self) -> str:
        return f"Configuration({self._values!r})"
