"""Hypothesis strategies made from message types: values within their bounds, and beyond them."""

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, NewType, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from weir.bounds import Between, Length
from weir.config import CheckpointConfig, RestartConfig
from weir.errors import ConfigError
from weir.wire.mirrors import _IDS

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(characters, max_size=5)
)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(characters, max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


Special = tuple[tuple[Any, st.SearchStrategy[Any]], ...]


@cache
def fitting(annotation: Any, special: Special = ()) -> st.SearchStrategy[Any]:
    """Any value of an annotated type within its bounds; fields with a default vary as well.

    ``special`` gives strategies for some types instead.
    """
    for known, strategy in special:
        if annotation is known:
            return strategy
    bare, bounds = _bare(annotation)
    arguments = get_args(bare)
    if bare is int:
        assert isinstance(bounds, Between), annotation
        return st.integers(bounds.least, bounds.most)
    if bare is float:
        assert isinstance(bounds, Between), annotation
        return st.floats(bounds.least, bounds.most)
    if bare is str:
        assert isinstance(bounds, Length), annotation
        return st.text(characters, max_size=min(bounds.most, 8)) | st.just("x" * bounds.most)
    if bare in (bool, bytes, NoneType):
        return cast("st.SearchStrategy[Any]", st.from_type(bare))
    if get_origin(bare) is dict:
        return st.dictionaries(st.text(characters, max_size=3), json_values, max_size=3)
    if get_origin(bare) is frozenset:
        return st.frozensets(fitting(arguments[0], special), max_size=3)
    if get_origin(bare) is tuple and arguments[-1] is ...:
        return st.lists(fitting(arguments[0], special), max_size=3).map(tuple)
    if get_origin(bare) is tuple:
        return st.tuples(*(fitting(argument, special) for argument in arguments))
    if arguments:
        return st.one_of(*(fitting(argument, special) for argument in arguments))
    if not is_dataclass(bare):
        return st.sampled_from(bare)
    hints = get_type_hints(bare, include_extras=True)
    parts = {f.name: fitting(hints[f.name], special) for f in fields(bare)}
    if bare in (CheckpointConfig, RestartConfig):  # They check themselves.
        given = st.fixed_dictionaries({}, optional=parts)
        made = given.map(lambda values: _or_none(cast("type[Any]", bare), values))
        return made.filter(lambda value: value is not None)
    return st.builds(cast("type[Any]", bare), **parts)


def _or_none(cls: type[Any], given: dict[str, Any]) -> Any:
    try:
        return cls(**given)
    except ConfigError:
        return None


def _bare(annotation: Any) -> tuple[Any, Between | Length | None]:
    if isinstance(annotation, NewType):
        return annotation.__supertype__, _IDS.get(annotation)
    if get_origin(annotation) is Annotated:
        bare, *notes = get_args(annotation)
        return bare, next((note for note in notes if isinstance(note, Between | Length)), None)
    return annotation, None
