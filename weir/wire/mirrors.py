"""Structs of msgspec that mirror message classes, made from the annotations of their fields.

A struct is decoded by msgspec in one pass that checks every type and bound and refuses unknown
fields; a converter then makes the message of it. Writing goes the other way: the message's
attributes fill the struct, which checks them as strictly, and the struct becomes JSON.

The form is that of ``weir.protocol.wire``: an object per message, with its class name under
``type`` where several classes are possible, bytes as base64, sets and tuples as lists, enums by
value. Entries of a field with a default may be missing. A set's entry that comes twice counts once.

Structs and converters are made by one thread, before any other uses them: msgspec describes a class
to itself when it is first used, other threads see that description before it is whole, and reading
by half of it ends the process (msgspec 0.22). So each is described where it is made.
"""

import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, NewType, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from weir.bounds import NAME_LENGTH_MAX, WORD_LENGTH_MAX, Between, Length
from weir.errors import ConfigError
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId

TYPE_KEY = "type"
ENTRIES_MAX = 1 << 17  # Of a list: the subtasks of the largest job, and more.
FREE_FORM_BYTES_MAX = 256 << 10  # Of free-form settings or details.
FREE_FORM_DEPTH_MAX = 32
# Neither the storage nor the database reach these; the next attempt or checkpoint adds one.
_IDS: Mapping[Any, Between | Length] = {
    AttemptNumber: Between(0, 1_000_000_000),
    CheckpointId: Between(0, 2**62),
    OperatorId: Length(NAME_LENGTH_MAX),
    JobId: Length(WORD_LENGTH_MAX),
}

_FINITE = msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)

Convert: TypeAlias = Callable[[Any], Any]


class MisfitError(Exception):
    """A value that the struct accepts does not fit its class; collects the path to it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def within(self, step: str) -> "MisfitError":
        """The error as seen from the value that holds this one under ``step``."""
        self.path = step + self.path
        return self


class Mirrors:
    """Structs for reading or for writing one version, each made once."""

    def __init__(
        self,
        *,
        are_read: bool,
        cuts_prose: bool,
        are_bounded: bool = True,
        without: Mapping[type, frozenset[str]] | None = None,
    ) -> None:
        """``cuts_prose``: overlong texts for people are cut when read, not refused.

        ``are_bounded``: numbers and texts have bounds, each of them, and are held to them.
        ``without``: fields that are left out, by the classes that have them; for writing only.
        """
        assert not (are_read and without), "what is left out cannot be read"
        self._are_read = are_read
        self._cuts_prose = cuts_prose
        self._are_bounded = are_bounded
        self._without = without or {}
        self._structs: dict[tuple[type, bool], type[msgspec.Struct]] = {}
        self._converters: dict[type, Convert] = {}

    def struct(self, cls: type, *, is_tagged: bool = False) -> type[msgspec.Struct]:
        """The struct for a message class; ``is_tagged``: it carries its class name.

        Raises:
            TypeError: A field has a type without a form on the wire, or a number without bounds.
        """
        key = (cls, is_tagged)
        if key not in self._structs:
            hints = get_type_hints(cls, include_extras=True)
            if TYPE_KEY in hints:
                raise TypeError(f"{cls.__name__}.{TYPE_KEY} would hide the type on the wire")
            described = [
                (f.name, self._annotation(hints[f.name]), *self._default(f))
                for f in fields(cls)
                if f.name not in self._without.get(cls, ())
            ]
            self._structs[key] = _described(
                msgspec.defstruct(
                    cls.__name__,
                    described,
                    frozen=True,
                    order=True,  # Sets of them go out in this order.
                    kw_only=True,
                    forbid_unknown_fields=True,
                    gc=False,  # No struct ever holds itself.
                    tag_field=TYPE_KEY if is_tagged else None,
                    tag=cls.__name__ if is_tagged else None,
                )
            )
        return self._structs[key]

    def union(self, classes: tuple[type, ...]) -> Any:
        """The annotation of a value that is one of several classes."""
        return Union[tuple(self.struct(cls, is_tagged=True) for cls in classes)]  # noqa: UP007

    def converter(self, annotation: Any) -> Convert | None:
        """The function from decoded to message values; None: they are the same."""
        bare, bounds = _bare(annotation)
        if bare is str:
            is_cut = isinstance(bounds, Length) and bounds.is_prose and self._cuts_prose
            return partial(cut, most=bounds.most) if is_cut else None  # type: ignore[union-attr]
        origin, arguments = get_origin(bare), get_args(bare)
        if origin is dict:
            return _free_form
        if origin in (Union, types.UnionType):
            return self._of_union(arguments)
        if origin in (tuple, frozenset):
            return self._of_entries(origin, arguments)
        if isinstance(bare, type) and is_dataclass(bare):
            return self._of_class(bare)
        return None

    # Annotations.

    def _annotation(self, annotation: Any) -> Any:
        bare, bounds = _bare(annotation)
        origin, arguments = get_origin(bare), get_args(bare)
        if not self._are_bounded and bare in (int, float, str):
            return Annotated[float, _FINITE] if bare is float else bare
        if bare in (int, float):
            if not isinstance(bounds, Between):
                raise TypeError(f"{annotation} has no bounds; use a type of weir.bounds")
            return Annotated[bare, msgspec.Meta(ge=bounds.least, le=bounds.most)]
        if bare is str:
            if not isinstance(bounds, Length):
                raise TypeError(f"{annotation} has no bounds; use a type of weir.bounds")
            is_cut = bounds.is_prose and self._cuts_prose
            return str if is_cut else Annotated[str, msgspec.Meta(max_length=bounds.most)]
        if origin in (Union, types.UnionType):
            return self._union_annotation(arguments)
        if origin is tuple and arguments[-1] is not ...:
            return tuple[tuple(map(self._annotation, arguments))]  # type: ignore[misc]
        if origin in (tuple, frozenset):
            most = bounds.most if isinstance(bounds, Length) else ENTRIES_MAX
            entry = self._annotation(arguments[0])
            several = tuple[entry, ...] if origin is tuple else frozenset[entry]  # type: ignore[valid-type]
            if not self._are_bounded:
                return several
            return Annotated[several, msgspec.Meta(max_length=most)]
        if origin is dict and arguments == (str, Any):
            return msgspec.Raw if self._are_read else bare
        if bare in (bool, bytes, types.NoneType):
            return bare
        if isinstance(bare, type) and issubclass(bare, Enum):
            return bare
        if isinstance(bare, type) and is_dataclass(bare):
            return self.struct(bare)
        raise TypeError(f"{annotation} has no form on the wire; use what weir.wire describes")

    def _union_annotation(self, members: tuple[Any, ...]) -> Any:
        present = tuple(member for member in members if member is not types.NoneType)
        of_present = self._annotation(present[0]) if len(present) == 1 else self.union(present)
        return of_present if len(present) == len(members) else of_present | None

    def _default(self, field: Field[Any]) -> tuple[Any, ...]:
        if field.default is not MISSING:
            return (msgspec.field(default=field.default),)
        if field.default_factory is dict and self._are_read:
            return (msgspec.field(default=msgspec.Raw(b"{}")),)
        if field.default_factory is not MISSING:
            return (msgspec.field(default_factory=field.default_factory),)
        return ()

    # Converters.

    def _of_class(self, cls: type) -> Convert:
        if cls not in self._converters:
            hints = get_type_hints(cls, include_extras=True)
            converters = {field.name: self.converter(hints[field.name]) for field in fields(cls)}
            if all(_is_plain(converter) for converter in converters.values()):
                self._converters[cls] = _Plain(cls)
            else:
                self._converters[cls] = _by_field(cls, converters)
        return self._converters[cls]

    def _of_union(self, members: tuple[Any, ...]) -> Convert | None:
        present = tuple(member for member in members if member is not types.NoneType)
        if len(present) > 1:
            by_struct = {self.struct(cls, is_tagged=True): self._of_class(cls) for cls in present}
            return lambda value: None if value is None else by_struct[type(value)](value)
        convert = self.converter(present[0])
        if convert is None or isinstance(convert, _Plain):
            return None if convert is None else _Plain(convert.annotation | None)
        return lambda value: None if value is None else convert(value)

    def _of_entries(self, build: Any, arguments: tuple[Any, ...]) -> Convert | None:
        if build is tuple and arguments[-1] is not ...:
            if any(map(self.converter, arguments)):
                raise TypeError("the places of a tuple hold plain values only")
            return None
        convert = self.converter(arguments[0])
        if convert is None:
            return None
        if isinstance(convert, _Plain):
            entry: Any = convert.annotation
            return _Plain(tuple[entry, ...] if build is tuple else frozenset[entry])

        def convert_entries(values: Any) -> Any:
            converted = []
            for index, value in enumerate(values):
                try:
                    converted.append(convert(value))
                except MisfitError as misfit:
                    raise misfit.within(f"[{index}]") from None
            return build(converted)

        return convert_entries


class _Plain:
    """Converter that msgspec alone carries out: nothing in the value is cut or parsed again."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = _described(annotation)

    def __call__(self, value: Any) -> Any:
        try:
            return msgspec.convert(value, self.annotation, from_attributes=True)
        except ConfigError as error:  # Settings check themselves.
            raise MisfitError(str(error)) from error


def _described(annotation: Any) -> Any:
    """The annotation, now that msgspec has described its classes to itself."""
    msgspec.json.Decoder(annotation)
    return annotation


def _is_plain(convert: Convert | None) -> bool:
    return convert is None or isinstance(convert, _Plain)


def _by_field(cls: type, converters: Mapping[str, Convert | None]) -> Convert:
    changed = [(name, convert) for name, convert in converters.items() if convert is not None]

    def convert_class(value: Any) -> Any:
        values = {name: getattr(value, name) for name in converters}
        for name, convert in changed:
            try:
                values[name] = convert(values[name])
            except MisfitError as misfit:
                raise misfit.within(f".{name}") from None
        return cls(**values)

    return convert_class


def cut(text: str, most: int) -> str:
    """The text, or as much of it as fits with a remark on how much is missing."""
    if len(text) <= most:
        return text
    remark = f"\n… {len(text) - most:,} more characters were cut off"
    return text[: most - len(remark)] + remark


def _bare(annotation: Any) -> tuple[Any, Between | Length | None]:
    """The annotated type, and its bounds."""
    if isinstance(annotation, NewType):
        if annotation in _IDS:
            return annotation.__supertype__, _IDS[annotation]
        return _bare(annotation.__supertype__)
    if get_origin(annotation) is Annotated:
        bare, *notes = get_args(annotation)
        return bare, next((note for note in notes if isinstance(note, Between | Length)), None)
    return annotation, None


def _free_form(value: Any) -> Any:
    """The object in raw JSON; that of a default as it is."""
    raw = bytes(value)
    if len(raw) > FREE_FORM_BYTES_MAX:
        raise MisfitError(f"{len(raw)} bytes of JSON; at most {FREE_FORM_BYTES_MAX}")
    try:
        data = msgspec.json.decode(raw, type=dict[str, Any])
    except RecursionError:
        raise MisfitError(f"nested deeper than {FREE_FORM_DEPTH_MAX}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise MisfitError(str(error)) from error
    check_free_form(data)
    return data


def check_free_form(value: Any, depth: int = FREE_FORM_DEPTH_MAX) -> None:
    """Refuse what JSON, or a database's JSON, would not give back as it is.

    Raises:
        MisfitError: A value of another type, a number of more than 64 bits, or too deep a nesting.
    """
    if depth == 0:
        raise MisfitError(f"nested deeper than {FREE_FORM_DEPTH_MAX}")
    match value:
        case None | bool() | str():
            return
        case int() if -(2**63) <= value < 2**63:
            return
        case float() if math.isfinite(value):
            return
        case list():
            for item in value:
                check_free_form(item, depth - 1)
        case dict() if all(type(key) is str for key in value):
            for item in value.values():
                check_free_form(item, depth - 1)
        case _:
            raise MisfitError(f"{type(value).__name__} {value!r:.40} has no JSON form")
