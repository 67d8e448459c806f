"""Checks of a pipeline's user functions while its graph is built."""

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
