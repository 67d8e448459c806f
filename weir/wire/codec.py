"""Writing and reading of messages through their mirrors: checks, JSON, errors with their place.

A free-form field is checked by hand where it is written, since msgspec would write what no reader
gives back; where it is read its converter checks it.
"""

import re
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from weir.errors import ProtocolError
from weir.wire.mirrors import Convert, Mirrors, MisfitError, check_free_form

ENCODER = msgspec.json.Encoder(order="deterministic")
_PLACE = re.compile(r"(.*) - at `(?:key in )?\$\.?([^`]*)`", re.DOTALL)


class Writer:
    """Messages to JSON.

    Its structs are described by the thread that imports: see ``weir.wire.mirrors``.
    """

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors

    def describe(self, *classes: type, is_tagged: bool = False) -> None:
        """Make the structs of these classes."""
        for cls in classes:
            self._mirrors.struct(cls, is_tagged=is_tagged)

    def encode(self, message: Any, *, is_tagged: bool = False) -> bytes:
        """The message; ``is_tagged``: with its class name. Half surrogate pairs are replaced.

        Raises:
            ProtocolError: A value is not of its field's type, or beyond its bounds.
        """
        try:
            return self.encode_exactly(message, is_tagged=is_tagged)
        except UnicodeEncodeError:  # Half a surrogate pair, in a path of the file system perhaps.
            struct = self._mirrors.struct(type(message), is_tagged=is_tagged)
            filled = msgspec.convert(message, struct, from_attributes=True)
            return ENCODER.encode(_encodable(msgspec.to_builtins(filled, order="deterministic")))

    def encode_exactly(self, message: Any, *, is_tagged: bool = False) -> bytes:
        """The message as it is.

        Raises:
            ProtocolError: A value is not of its field's type, or beyond its bounds.
            UnicodeEncodeError: A text holds half a surrogate pair.
        """
        cls: Any = type(message)
        try:
            filled = msgspec.convert(
                message, self._mirrors.struct(cls, is_tagged=is_tagged), from_attributes=True
            )
            for name in _free_form_names(cls):
                _check_free_form(name, getattr(message, name))
            return ENCODER.encode(filled)
        except UnicodeEncodeError:
            raise
        except (msgspec.MsgspecError, TypeError, RecursionError, OverflowError) as error:
            raise ProtocolError(_said(error, cls.__name__)) from error


class Reader:
    """JSON to messages of one class, or of one of a union's; to be made by the importing thread."""

    def __init__(self, mirrors: Mirrors, annotation: Any) -> None:
        members = union_members(annotation)
        struct = mirrors.struct(annotation) if len(members) == 1 else mirrors.union(members)
        convert = mirrors.converter(annotation)
        assert convert is not None
        self._convert: Convert = convert
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(struct)

    def decode(self, data: bytes) -> Any:
        """The message.

        Raises:
            ProtocolError: The data does not fit; the text names the field by its path.
        """
        try:
            return self._convert(self._decoder.decode(data))
        except MisfitError as misfit:
            raise ProtocolError(f"{misfit.path.removeprefix('.')}: {misfit.problem}") from misfit
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(_said(error)) from error


def union_members(union: Any) -> tuple[type, ...]:
    """The classes of a union, those of unions in it as well."""
    if get_origin(union) in (Union, UnionType):
        return tuple(
            dict.fromkeys(cls for member in get_args(union) for cls in union_members(member))
        )
    return (union,)


def _check_free_form(name: str, value: Any) -> None:
    try:
        check_free_form(value)
    except MisfitError as misfit:
        raise msgspec.ValidationError(f"{misfit.problem} - at `$.{name}`") from misfit


@cache
def _free_form_names(cls: type) -> tuple[str, ...]:
    hints = get_type_hints(cls)
    return tuple(f.name for f in fields(cls) if get_origin(hints[f.name]) is dict)


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list() | tuple():
            return [_encodable(item) for item in value]
        case dict():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
        case _:
            return value


def _said(error: Exception, root: str = "") -> str:
    """The problem behind the path to it, as ``events[0].attempt: Expected ...``."""
    place = _PLACE.fullmatch(str(error))
    if place is None:
        return f"{root}: {error}" if root else str(error)
    path = f"{root}.{place[2]}".removeprefix(".") if place[2] else root
    return f"{path}: {place[1]}" if path else place[1]
