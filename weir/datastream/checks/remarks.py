"""Remarks on a pipeline that can run and hardly does what its author meant.

They are read off the graph and the functions' code before the job starts, and nothing is called.
A remark is made only where the code leaves no doubt, since it comes again with every run.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from weir.common.signatures import returns_nothing
from weir.datastream.transformation import Transformation
from weir.operators.functions import Function
from weir.operators.output_tag import OutputTag

_METHODS = ("map", "flat_map", "filter", "process_element", "on_timer")
_EFFECT = {
    "Map": "every record becomes None; let it return the new record",
    "Filter": "it keeps no record; let it return True for those that stay",
    "Flat Map": "it makes no record; let it return a list of records, or yield them",
}
_DEPTH_MAX = 4


def remarks(transformations: Sequence[Transformation]) -> list[str]:
    """The remarks on a pipeline, in the order of its operators."""
    made = list(_unused(transformations))
    for t in transformations:
        made += _on_function(t)
    return [*made, *_unknown_tags(transformations)]


def _unused(transformations: Sequence[Transformation]) -> Iterator[str]:
    if transformations and not any(t.is_sink for t in transformations):
        yield (
            "the pipeline has no sink, so its results go nowhere: end a stream with print() or "
            "sink_to(...)"
        )
        return
    read = {end.of for t in transformations for end in t.inputs}
    for t in transformations:
        if t not in read and not t.is_sink:
            yield (
                f"{t.label} is not run, for nothing reads its records; print() or sink_to(...) "
                "would, and an operator's method returns a new stream, stream = stream.map(...)"
            )


def _on_function(t: Transformation) -> Iterator[str]:
    for function in _functions_of(t.function):
        effect = _EFFECT.get(t.kind)
        if effect is not None and returns_nothing(function):
            yield f"{t.label}: its function {_name(function)} returns nothing, so {effect}"
        for name, value in _mutable_defaults(function):
            yield (
                f"{t.label}: the default {name}={value!r} of {_name(function)} is one object for "
                "all calls; what is kept in it is in no checkpoint, and is lost or counted twice "
                "after a restart: use keyed state"
            )


def _functions_of(given: Any) -> list[FunctionType]:
    """The plain functions that are called for records."""
    if isinstance(given, Function):
        methods = (getattr(type(given), name, None) for name in _METHODS)
        return [method for method in methods if isinstance(method, FunctionType)]
    return [given] if isinstance(given, FunctionType) else []


def _mutable_defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(parameter.default, list | dict | set) and not parameter.default:
            yield name, parameter.default


def _unknown_tags(transformations: Sequence[Transformation]) -> Iterator[str]:
    """The side outputs that are read, and that the code of their function names nowhere."""
    told: set[tuple[Transformation, str]] = set()
    for t in transformations:
        for end in t.inputs:
            made_by, tag = end.of, end.side_tag
            if tag is None or made_by.kind not in ("Process", "Keyed Process"):
                continue
            policy = made_by.on_error
            if policy is not None and policy.tag is not None and policy.tag.tag_id == tag:
                continue
            known = _Named()
            known.look_at(made_by.function, 0)
            if tag in known.texts or tag in known.tags or (made_by, tag) in told:
                continue
            told.add((made_by, tag))
            others = ", ".join(map(repr, sorted(known.tags)))
            hint = f"it knows {others}" if others else "it knows no OutputTag"
            yield (
                f"{made_by.label}: its side output {tag!r} is read, and its function never yields "
                f"to a tag of that name; {hint}"
            )


class _Named:
    """The output tags and texts that a function's code can reach by name."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.texts: set[str] = set()
        self._seen: set[int] = set()

    def look_at(self, value: Any, depth: int) -> None:
        """Take in a value and, to a limited depth, what it refers to."""
        if isinstance(value, OutputTag):
            self.tags.add(value.tag_id)
        elif isinstance(value, str):
            self.texts.add(value)
        elif depth < _DEPTH_MAX and id(value) not in self._seen:
            self._seen.add(id(value))
            for inner in self._inside(value):
                self.look_at(inner, depth + 1)

    def _inside(self, value: Any) -> Iterator[Any]:
        if isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                try:
                    yield cell.cell_contents
                except ValueError:  # Not set yet.
                    continue
            yield from _reached(value.__code__, value.__globals__)
        elif isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple | set):
            yield from value
        elif not isinstance(value, ModuleType):
            yield from getattr(value, "__dict__", {}).values()
            for kind in type(value).__mro__ if not isinstance(value, type) else value.__mro__:
                if not kind.__module__.startswith(("weir.", "builtins")):
                    yield from vars(kind).values()


def _reached(code: CodeType, names: dict[str, Any]) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _reached(constant, names)
        else:
            yield constant
    for name in code.co_names:
        if name in names:
            yield names[name]
    for module in [names[name] for name in code.co_names if name in names]:
        if isinstance(module, ModuleType):
            yield from (getattr(module, name, None) for name in code.co_names)


def _name(function: Callable[..., Any]) -> str:
    name: str = function.__qualname__.rpartition("<locals>.")[2]
    return "lambda" if name == "<lambda>" else name
