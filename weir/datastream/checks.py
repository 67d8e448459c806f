"""Checks of the functions that a pipeline is written with, when its graph is built."""

from typing import Any

from weir.common.abstract import check_complete
from weir.errors import GraphError
from weir.operators.functions import Function


def check_function(func: Any, kind: type, method: str) -> None:
    """Refuse what is neither a function nor a whole object of its class.

    Raises:
        GraphError: It is neither; ``method`` is named.
    """
    if not isinstance(func, kind) and not callable(func):
        raise GraphError(f"{method} takes a function or a {kind.__name__}, not {func!r}")
    if isinstance(func, Function):
        check_complete(func)
