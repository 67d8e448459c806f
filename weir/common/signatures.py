"""The facts about a function that its signature and code tell, before any record comes."""

import dis
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any


def mismatch(called: Callable[..., Any], count: int) -> str | None:
    """The parameters of a function that cannot be called with ``count`` arguments; None: it can."""
    try:
        signature = inspect.signature(called)
    except (ValueError, TypeError):  # A built-in function need not tell.
        return None
    try:
        signature.bind(*(None,) * count)
    except TypeError:
        names = list(signature.parameters)
        return f"({', '.join(names)})" if names else "none"
    return None


def function_name(func: Any) -> str:
    """The name of a function, or of the class of an object, for messages."""
    name = getattr(func, "__qualname__", None)
    if name is None:
        return type(func).__name__
    return "the lambda" if name.endswith("<lambda>") else str(name).rpartition("<locals>.")[2]


def returns_nothing(function: FunctionType) -> bool:
    """Whether every return of a function is one of None, and it has one.

    ``lambda record: None`` is meant, and does not count.
    """
    if inspect.isgeneratorfunction(function):
        return False
    before: dis.Instruction | None = None
    count = 0
    for instruction in dis.get_instructions(function):
        if instruction.opname == "RETURN_CONST":
            if instruction.argval is not None:
                return False
            count += 1
        elif instruction.opname == "RETURN_VALUE":
            if before is None or before.opname != "LOAD_CONST" or before.argval is not None:
                return False
            count += 1
        before = instruction
    return count > 0 and function.__name__ != "<lambda>"
