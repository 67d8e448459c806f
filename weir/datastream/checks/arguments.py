"""Checks of a call's arguments while the pipeline is built: functions, types, numbers, names."""

import inspect
from collections.abc import Sequence
from typing import Any

from weir.common.abstract import check_complete
from weir.common.signatures import function_name, mismatch
from weir.common.typeinfo import TypeInformation, Types
from weir.errors import GraphError
from weir.operators.aggregates import AggregateSpec
from weir.operators.functions import Function
from weir.operators.output_tag import OutputTag
from weir.operators.user_code import short_repr

_TYPE_OF: dict[type, str] = {
    **{int: "Types.LONG()", float: "Types.DOUBLE()", str: "Types.STRING()"},
    **{bool: "Types.BOOLEAN()", bytes: "Types.PRIMITIVE_ARRAY(Types.BYTE())"},
    **{tuple: "Types.TUPLE([...])", list: "Types.LIST(...)", dict: "Types.MAP(..., ...)"},
}


def check_function(
    func: Any, kind: type, method: str, call: str = "", *, takes: str = "one record", count: int = 1
) -> None:
    """Check that ``func`` is a function of ``count`` arguments, or a complete object of ``kind``.

    Args:
        method: The method that was given ``func``, for messages.
        call: The name of the method of ``kind`` that is called.
        takes: The arguments in words, for messages.

    Raises:
        GraphError: It is neither, or it yields where it should return one value; the message names
            ``method``.
    """
    if isinstance(func, kind):
        check_complete(func)
        called = getattr(func, call, None) if call else None
    else:
        _check_callable(func, kind, method)
        called = func
    if called is None:
        return
    name = function_name(func)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise GraphError(f"{method} cannot await {name}: write it with def instead of async def")
    if inspect.isgeneratorfunction(called) and method not in _MANY:
        raise GraphError(
            f"{method} takes one value of each call, but {name} yields: return the value, or use "
            "flat_map, which takes any number of records from each"
        )
    if (takes_instead := mismatch(called, count)) is not None:
        raise GraphError(
            f"{method} calls its function with {takes}, but {name} takes "
            f"{takes_instead}{_hint(takes_instead, method)}"
        )


def check_result_names(
    keys: Sequence[str], specs: Sequence[AggregateSpec], bounds: Sequence[str] = ()
) -> None:
    """Check that the key columns, bounds of a window and aggregates of a row have names apart.

    Raises:
        GraphError: A key column is called like a bound, or an aggregate like one of both.
    """
    if taken := next((key for key in keys if key in bounds), None):
        raise GraphError(
            f"the key column {taken} is called like a bound of the window, which stands beside it "
            "in the result: give the column another name before key_by"
        )
    for spec in specs:
        if spec.name in keys or spec.name in bounds:
            other = "a key column" if spec.name in keys else "a bound of the window"
            raise GraphError(
                f"the aggregate {spec.name} is called like {other}, which stands beside it in the "
                "result: give it another name, such as "
                f'aggregate_batches(result=("{spec.column}", "{spec.function}"))'
            )


_CALLED = {
    "process_element": (2, "a record and its context"),
    "process_batch": (2, "a batch and its context"),
    "on_timer": (2, "a timestamp and its context"),
    "apply": (3, "a key, a window and the records"),
    "process": (3, "a key, a context and the records"),
    "create_accumulator": (0, "no argument"),
    "add": (2, "a record and the accumulator"),
    "get_result": (1, "the accumulator"),
}
_MANY = frozenset({"flat_map", "flat_map_batches"})


def check_kind(func: Any, kind: type, method: str, other: str = "") -> None:
    """Check that ``func`` is a complete object of ``kind``, which no plain function can stand for.

    Raises:
        GraphError: It is not, or its method takes other arguments; ``other`` is advice for the
            message.
    """
    if isinstance(func, kind):
        check_complete(func)
        for name, (count, takes) in _CALLED.items():
            if name in vars(kind) and (given := mismatch(getattr(func, name), count)) is not None:
                raise GraphError(
                    f"{type(func).__name__}.{name} is called with {takes}, but it takes {given}"
                )
        return
    if isinstance(func, type) and issubclass(func, Function):
        raise _is_class(func, method)
    advice = other or f"derive a class from {kind.__name__} and give an object of it"
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise GraphError(f"{method} takes {article} {kind.__name__}, not {_shown(func)}; {advice}")


def _check_callable(func: Any, kind: type, method: str) -> None:
    if isinstance(func, type) and issubclass(func, Function):
        raise _is_class(func, method)
    if callable(func):
        return
    if isinstance(func, Function):
        base = next(one for one in type(func).__mro__ if one.__module__.startswith("weir."))
        raise GraphError(
            f"{method} takes a function or a {kind.__name__}, but {type(func).__name__} is a "
            f"{base.__name__}{_ITS_METHOD.get(base.__name__, '')}"
        )
    hint = ""
    if func is None:
        hint = ": give it the function itself, f and not f(...)"
    elif isinstance(func, int | float | str | list | tuple | dict):
        hint = ": give it the function itself, not what it returned"
    raise GraphError(f"{method} takes a function or a {kind.__name__}, not {_shown(func)}{hint}")


_ITS_METHOD = {
    "MapFunction": ": call map with it",
    "FlatMapFunction": ": call flat_map with it",
    "FilterFunction": ": call filter with it",
    "ReduceFunction": ": call reduce with it, after key_by",
    "ProcessFunction": ": call process with it",
    "KeyedProcessFunction": ": call process with it, after key_by",
    "KeySelector": ": call key_by with it",
}


def _is_class(func: type, method: str) -> GraphError:
    return GraphError(
        f"{method} got the class {func.__name__} instead of an object of it: write "
        f"{method}({func.__name__}())"
    )


def _hint(takes: str, method: str) -> str:
    if method not in ("map", "flat_map", "filter", "key_by"):
        return ""
    if takes == "none":
        return "; a method has self as its first parameter"
    return "; a tuple comes as one argument, whose fields are record[0], record[1] ..."


def _shown(value: Any) -> str:
    if inspect.isroutine(value):
        return function_name(value)
    if inspect.getattr_static(type(value), "__repr__") is object.__repr__:
        return f"an object of {type(value).__name__}"
    return short_repr(value) if value is None else f"{short_repr(value)} ({type(value).__name__})"


def check_type(given: Any, argument: str) -> None:
    """Check that an argument is a type, or None.

    Raises:
        GraphError: It is not; the message says which type was meant, where that can be told.
    """
    if given is None or isinstance(given, TypeInformation):
        return
    hint = "; give a type such as Types.STRING() or Types.TUPLE([Types.STRING(), Types.LONG()])"
    name = getattr(given, "__name__", "")
    if name and vars(Types).get(name) is not None and getattr(Types, name) == given:
        name = f"Types.{name}"
        hint = f": write {name}(), with parentheses"
    elif isinstance(given, type) and given in _TYPE_OF:
        hint = f": write {_TYPE_OF[given]}"
    elif isinstance(given, list | tuple) and all(isinstance(i, TypeInformation) for i in given):
        hint = ": write Types.TUPLE([...]) with these types"
    shown = name or short_repr(given)
    if isinstance(given, list | tuple):
        shown = f"a {type(given).__name__}"
    raise GraphError(f"{argument} is {shown}, which is no type{hint}")


def check_count(given: Any, method: str) -> None:
    """Check that a number is whole.

    Raises:
        GraphError: It is not.
    """
    if isinstance(given, bool) or not isinstance(given, int):
        raise GraphError(f"{method} takes a whole number, such as 2, not {_shown(given)}")


def check_parallelism(given: Any, method: str) -> None:
    """Check that a parallelism is a whole number of at least 1.

    Raises:
        GraphError: It is not.
    """
    check_count(given, method)
    if given < 1:
        raise GraphError(f"parallelism is {given}; it must be at least 1")


def check_text(given: Any, method: str) -> None:
    """Check that a name is text that is not empty.

    Raises:
        GraphError: It is not.
    """
    if not isinstance(given, str) or not given:
        raise GraphError(f"{method} takes a text, such as {method}('counts'), not {_shown(given)}")


def check_tag(given: Any, method: str) -> None:
    """Check that an argument is an output tag.

    Raises:
        GraphError: It is not.
    """
    if not isinstance(given, OutputTag):
        named = repr(given) if isinstance(given, str) else "'late'"
        raise GraphError(
            f"{method} takes an OutputTag, not {_shown(given)}: write OutputTag({named}), the same "
            "one that the function yields to"
        )


def column_names(given: Sequence[str], method: str) -> tuple[str, ...]:
    """The names of columns that ``method`` was given.

    Raises:
        GraphError: They are no list of names, or one is named twice.
    """
    names = () if isinstance(given, str) or not isinstance(given, Sequence) else tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise GraphError(f"{method} takes columns as a list of names, not {given!r}")
    if len(set(names)) != len(names):
        raise GraphError(f"{method} names a column twice: {', '.join(names)}")
    return names
