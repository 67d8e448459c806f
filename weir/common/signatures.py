"""The check that a function can be called with so many arguments, before any record comes."""

import inspect
from collections.abc import Callable
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
