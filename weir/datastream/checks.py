"""Checks of a pipeline's user functions while its graph is built."""

from collections.abc import Sequence
from typing import Any

from weir.common.abstract import check_complete
from weir.errors import GraphError
from weir.operators.functions import Function


def check_function(func: Any, kind: type, method: str) -> None:
    """Check that ``func`` is a function, or an object of ``kind`` without abstract methods.

    Raises:
        GraphError: It is neither; the message names ``method``.
    """
    if not isinstance(func, kind) and not callable(func):
        raise GraphError(f"{method} takes a function or a {kind.__name__}, not {func!r}")
    if isinstance(func, Function):
        check_complete(func)


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
