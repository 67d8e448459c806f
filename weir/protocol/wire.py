"""Frozen messages as JSON and back, by their own type annotations.

A dataclass becomes an object with one entry per field; bytes become base64 text, tuples and sets
lists, enums their value. Where the reader cannot know the class from the annotation (a message, a
union of classes) the object also carries its class name under ``type``. Decoding is strict: an
unknown or missing key, an unknown type or a value of another type is refused, and the error names
its path. Entries of fields with a default may be missing.

Codecs are built from the annotations once per class; decoding then runs through closures only.
"""

import math
import types
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    Any,
    NewType,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from weir.errors import ProtocolError
from weir.protocol.deployment import SlotCommand, SlotReport, WorkerCommand, WorkerReport
from weir.protocol.driver_messages import DriverCommand, DriverEvent
from weir.protocol.events import JobEvent
from weir.protocol.messages import SCHEMA_VERSION, Message

WireMessage: TypeAlias = (
    Message
    | JobEvent
    | DriverEvent
    | DriverCommand
    | SlotReport
    | SlotCommand
    | WorkerReport
    | WorkerCommand
)

TYPE_KEY = "type"
DEPTH_MAX = 32  # Of free-form details; deeper nesting is an attack or a mistake.

T = TypeVar("T")
_Convert = Callable[[Any], Any]


def encode_message(message: WireMessage) -> dict[str, Any]:
    """A message in its versioned envelope, ready for ``json.dumps``.

    Raises:
        ProtocolError: A value is not of its field's type, or has no JSON form.
    """
    return {"schema_version": SCHEMA_VERSION, "message": encode(message)}


def decode_message(envelope: object) -> WireMessage:
    """The message in an envelope, as ``json.loads`` gave it.

    Raises:
        ProtocolError: The envelope has another version, or the message does not fit its class.
    """
    if type(envelope) is not dict or envelope.keys() != {"schema_version", "message"}:
        raise ProtocolError("an envelope holds schema_version and message, and nothing else")
    version = envelope["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ProtocolError(
            f"message of schema version {version!r}; this side speaks {SCHEMA_VERSION}: "
            "run the same version of Weir on both sides"
        )
    return decode(envelope["message"])


def encode(message: WireMessage) -> dict[str, Any]:
    """A message as a plain dict that carries its type."""
    return cast("dict[str, Any]", _reporting(_message_codec()[0], message, "message"))


def decode(data: object) -> WireMessage:
    """The message that ``encode`` turned into this dict.

    Raises:
        ProtocolError: The dict is no message, or does not fit its class.
    """
    return cast("WireMessage", _reporting(_message_codec()[1], data, "message"))


def to_wire(value: object) -> dict[str, Any]:
    """Any frozen dataclass as a plain dict, without its type: the reader has to know it."""
    cls = type(value)
    return cast("dict[str, Any]", _reporting(_codec(cast(Hashable, cls))[0], value, cls.__name__))


def from_wire(cls: type[T], data: object) -> T:
    """The value of dataclass ``cls`` that ``to_wire`` turned into this dict.

    Raises:
        ProtocolError: The data does not fit the class.
    """
    return cast("T", _reporting(_codec(cast(Hashable, cls))[1], data, cls.__name__))


class _Mismatch(Exception):
    """A value does not fit its type; collects the path to it while it travels up."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def within(self, step: str) -> "_Mismatch":
        self.path = step + self.path
        return self


def _reporting(convert: _Convert, value: object, root: str) -> object:
    try:
        return convert(value)
    except _Mismatch as mismatch:
        raise ProtocolError(f"{root}{mismatch.path}: {mismatch.problem}") from mismatch


@cache
def _message_codec() -> tuple[_Convert, _Convert]:
    return _codec(WireMessage)


@cache
def _codec(annotation: Any) -> tuple[_Convert, _Convert]:
    """Encoder and decoder for values of an annotated type."""
    if isinstance(annotation, NewType):
        return _codec(annotation.__supertype__)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _collection(tuple, arguments[0])
    if origin is tuple:
        return _fixed(arguments)
    if origin is frozenset:
        return _collection(frozenset, arguments[0])
    if origin is dict and arguments == (str, Any):
        return _free_form, _free_form
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _dataclass(annotation)
    raise TypeError(f"{annotation} has no wire form; use what weir.protocol.wire describes")


def _dataclass(cls: type, tag: str | None = None) -> tuple[_Convert, _Convert]:
    """Codec of one class; with a tag its objects carry it under ``type``."""
    hints = get_type_hints(cls)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(cls)}
    if TYPE_KEY in codecs:
        raise TypeError(f"{cls.__name__}.{TYPE_KEY} would hide the type on the wire; rename it")
    encoders = [(name, codec[0]) for name, codec in codecs.items()]
    decoders = [(name, codec[1]) for name, codec in codecs.items()]
    keys = codecs.keys() | ({TYPE_KEY} if tag else set())
    required = {
        f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
    }

    def encoder(value: Any) -> dict[str, Any]:
        if type(value) is not cls:
            raise _Mismatch(f"expected {cls.__name__}, got {type(value).__name__}")
        data: dict[str, Any] = {TYPE_KEY: tag} if tag else {}
        name = ""
        try:
            for name, convert in encoders:
                data[name] = convert(getattr(value, name))
        except _Mismatch as mismatch:
            raise mismatch.within(f".{name}") from None
        return data

    def decoder(data: Any) -> Any:
        if type(data) is not dict:
            raise _Mismatch(f"expected an object for {cls.__name__}, got {type(data).__name__}")
        complete = data.keys() == keys
        if not complete:
            if unknown := sorted(str(key) for key in data.keys() - keys):
                raise _Mismatch(f"{cls.__name__} has no {', '.join(unknown)}")
            if missing := sorted(required - data.keys()):
                raise _Mismatch(f"{cls.__name__} lacks {', '.join(missing)}")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, convert in decoders:
                if complete or name in data:
                    values[name] = convert(data[name])
        except _Mismatch as mismatch:
            raise mismatch.within(f".{name}") from None
        return cls(**values)

    return encoder, decoder


def _union(members: tuple[Any, ...]) -> tuple[_Convert, _Convert]:
    """Codec of an optional value, or of several classes told apart by ``type``."""
    present = tuple(member for member in members if member is not types.NoneType)
    encode_present, decode_present = _codec(present[0]) if len(present) == 1 else _tagged(present)
    if len(present) == len(members):
        return encode_present, decode_present
    return (
        lambda value: None if value is None else encode_present(value),
        lambda data: None if data is None else decode_present(data),
    )


def _tagged(classes: tuple[type, ...]) -> tuple[_Convert, _Convert]:
    codecs = {cls.__name__: _dataclass(cls, tag=cls.__name__) for cls in classes}
    if len(codecs) < len(classes):
        raise TypeError(f"two of these classes have the same name: {classes}")
    encoders = {cls: codecs[cls.__name__][0] for cls in classes}
    decoders = {name: codec[1] for name, codec in codecs.items()}

    def encoder(value: Any) -> Any:
        convert = encoders.get(type(value))
        if convert is None:
            raise _Mismatch(f"{type(value).__name__} is none of {', '.join(sorted(codecs))}")
        return convert(value)

    def decoder(data: Any) -> Any:
        if type(data) is not dict:
            raise _Mismatch(f"expected an object, got {type(data).__name__}")
        tag = data.get(TYPE_KEY)
        convert = decoders.get(tag) if type(tag) is str else None
        if convert is None:
            raise _Mismatch(f"unknown type {tag!r}; known are {', '.join(sorted(codecs))}")
        return convert(data)

    return encoder, decoder


def _collection(
    build: type[tuple[Any, ...] | frozenset[Any]], item: Any
) -> tuple[_Convert, _Convert]:
    """Codec of a tuple or a frozen set as a list; a set goes out in a fixed order."""
    encode_item, decode_item = _codec(item)

    def each(convert: _Convert, values: Any) -> list[Any]:
        try:
            return [convert(value) for value in values]
        except _Mismatch:
            for index, value in enumerate(values):  # Once more, to name the index.
                try:
                    convert(value)
                except _Mismatch as mismatch:
                    raise mismatch.within(f"[{index}]") from None
            raise

    def encoder(values: Any) -> list[Any]:
        if not isinstance(values, build):
            raise _Mismatch(f"expected a {build.__name__}, got {type(values).__name__}")
        return each(encode_item, sorted(values) if build is frozenset else values)

    def decoder(data: Any) -> Any:
        if type(data) is not list:
            raise _Mismatch(f"expected a list, got {type(data).__name__}")
        values = build(each(decode_item, data))
        if build is frozenset and len(values) != len(data):
            raise _Mismatch("an entry occurs twice")
        return values

    return encoder, decoder


def _fixed(items: tuple[Any, ...]) -> tuple[_Convert, _Convert]:
    """Codec of a tuple with a type for each place, as a list."""
    codecs = [_codec(item) for item in items]

    def converter(
        expected: type[tuple[Any, ...] | list[Any]],
        build: type[tuple[Any, ...] | list[Any]],
        side: int,
    ) -> _Convert:
        converts = [codec[side] for codec in codecs]

        def convert(values: Any) -> Any:
            if not isinstance(values, expected) or len(values) != len(converts):
                raise _Mismatch(f"expected a {expected.__name__} of {len(converts)} entries")
            return build([each(value) for each, value in zip(converts, values, strict=True)])

        return convert

    return converter(tuple, list, 0), converter(list, tuple, 1)


def _enum(cls: type[Enum]) -> tuple[_Convert, _Convert]:
    members: Mapping[str, Enum] = {member.value: member for member in cls}

    def encoder(value: Any) -> Any:
        if type(value) is not cls:
            raise _Mismatch(f"expected {cls.__name__}, got {value!r}")
        return value.value

    def decoder(data: Any) -> Enum:
        member = members.get(data) if type(data) is str else None
        if member is None:
            raise _Mismatch(f"{data!r} is no {cls.__name__}")
        return member

    return encoder, decoder


def _exactly(cls: type) -> _Convert:
    """Pass values of exactly this type: a bool is no int, a str subclass no str."""

    def check(value: Any) -> Any:
        if type(value) is not cls:
            raise _Mismatch(f"expected {cls.__name__}, got {type(value).__name__}")
        return value

    return check


def _number(value: Any) -> float:
    """A finite float; whole numbers may come as int, as other languages write them."""
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and abs(value) <= 2**53:
        return float(value)
    raise _Mismatch(f"expected a finite number, got {value!r:.40}")


def _bytes_to_text(value: Any) -> str:
    if type(value) is not bytes:
        raise _Mismatch(f"expected bytes, got {type(value).__name__}")
    return b64encode(value).decode("ascii")


def _text_to_bytes(data: Any) -> bytes:
    if type(data) is not str:
        raise _Mismatch(f"expected base64 text, got {type(data).__name__}")
    try:
        return b64decode(data, validate=True)
    except (Base64Error, ValueError) as error:
        raise _Mismatch(f"not base64: {error}") from None


def _free_form(value: Any) -> Any:
    """A dict of values that JSON can hold and returns unchanged."""
    if type(value) is not dict:
        raise _Mismatch(f"expected an object, got {type(value).__name__}")
    return _json(value, DEPTH_MAX)


def _json(value: Any, depth: int) -> Any:
    if depth == 0:
        raise _Mismatch(f"nested deeper than {DEPTH_MAX}")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [_json(item, depth - 1) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _json(item, depth - 1) for key, item in value.items()}
    raise _Mismatch(f"{type(value).__name__} {value!r:.40} has no JSON form")


_PLAIN: Mapping[Any, tuple[_Convert, _Convert]] = {
    int: (_exactly(int), _exactly(int)),
    str: (_exactly(str), _exactly(str)),
    bool: (_exactly(bool), _exactly(bool)),
    float: (_number, _number),
    bytes: (_bytes_to_text, _text_to_bytes),
}
