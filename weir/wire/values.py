"""Values of the own process as JSON, for rows that the same version reads back.

The form is that of ``weir.protocol.wire``, which reads it. When written nothing is checked: the
types of the values are those that the type checker has seen.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from weir.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_ENCODER = msgspec.json.Encoder(order="deterministic")


def to_json(value: Any) -> str:
    """A frozen dataclass, or a list of them, as text."""
    return _ENCODER.encode(value).decode()


class Rows(Generic[T]):
    """The form in rows of one dataclass, whose fields hold classes but no unions of several.

    To be made when a module is imported, for the reason that ``weir.wire.mirrors`` gives.
    """

    def __init__(self, cls: type[T]) -> None:
        self._cls = cls
        self._names = frozenset(field.name for field in fields(cls))
        msgspec.json.Decoder(cls)

    def to_row(self, value: T) -> dict[str, Any]:
        """The value as plain dicts and lists."""
        row: dict[str, Any] = msgspec.to_builtins(value)
        return row

    def from_row(self, row: object) -> T:
        """The value that ``to_row`` turned into this.

        Raises:
            ProtocolError: The row does not fit the class.
        """
        if isinstance(row, dict) and (unknown := row.keys() - self._names):
            raise ProtocolError(f"{self._cls.__name__} has no {', '.join(sorted(unknown))}")
        try:
            return msgspec.convert(row, self._cls)
        except (msgspec.ValidationError, ConfigError) as error:  # Settings check themselves.
            raise ProtocolError(f"{self._cls.__name__}: {error}") from error
