"""The part of a pipeline that cannot be pickled: operator, function and variable."""

import inspect
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import cloudpickle

from weir.datastream.environment import StreamExecutionEnvironment
from weir.datastream.stream import DataStream
from weir.graph.logical import JobGraph, Operator

_DEPTH_MAX = 8


def unpicklable_part(graph: JobGraph) -> str | None:
    """The words for the first variable that cannot be pickled; None: it cannot be told."""
    for op in graph.operators:
        if not _can_be_pickled(op.factory):
            label = f"{op.name!r} ({op.location})" if op.location else repr(op.name)
            return _words(label, op)
    return None


def _words(label: str, op: Operator) -> str | None:
    path = list(_path(op.factory, 0))
    if not path:
        return None
    function = next((said for said, value in path if isinstance(value, FunctionType)), "")
    said, value = path[-1]
    whose = f"{function} of {label}" if function and function != said else label
    kind = type(value)
    if isinstance(value, StreamExecutionEnvironment | DataStream):
        return (
            f"{whose} uses {said}, a {kind.__name__}: a function gets records while the job runs, "
            "and can use neither streams nor their environment"
        )
    return (
        f"{whose} uses {said}, a {kind.__module__}.{kind.__qualname__}, which cannot be sent: "
        "create it in open(), not when the function is created"
    )


def _path(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The way down to what cannot be pickled: names with values."""
    while depth < _DEPTH_MAX and not isinstance(value, StreamExecutionEnvironment | DataStream):
        depth += 1
        for said, inner in _parts(value):
            if not _can_be_pickled(inner):
                yield said, inner
                value = inner
                break
        else:
            return


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, partial):
        yield from ((_of_value(inner), inner) for inner in (*value.args, *value.keywords.values()))
    elif isinstance(value, MethodType):
        yield _of_value(value.__self__), value.__self__
    elif isinstance(value, FunctionType):
        known = inspect.getclosurevars(value)
        for name, inner in {**known.nonlocals, **known.globals}.items():
            yield f"the variable {name}", inner
        for name, parameter in inspect.signature(value).parameters.items():
            yield f"the default of {name}", parameter.default
    elif isinstance(value, type):
        for inner in vars(value).values():
            if isinstance(inner, FunctionType):
                yield _of_value(inner), inner
    elif isinstance(value, list | tuple | set):
        yield from ((f"an item of the {type(value).__name__}", inner) for inner in value)
    elif isinstance(value, dict):
        yield from ((f"the item {name!r}", inner) for name, inner in value.items())
    else:
        fields = getattr(value, "__dict__", {})
        yield from ((f"the field self.{name}", inner) for name, inner in fields.items())
        for name in getattr(type(value), "__dataclass_fields__", {}):
            if name not in fields:
                yield f"the field {name}", getattr(value, name)
        yield type(value).__name__, type(value)


def _of_value(value: Any) -> str:
    if isinstance(value, FunctionType):
        name = value.__qualname__.rpartition("<locals>.")[2]
        return "the lambda" if name == "<lambda>" else f"the function {name}"
    return f"an object of {type(value).__name__}"


def _can_be_pickled(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # Raised by the class of any object in it.
        return False
    return True
