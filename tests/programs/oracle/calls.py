"""Calls of a user's functions: where one raises, the program must fail."""

import copy
from collections.abc import Callable, Iterator
from typing import Any


class Refused(Exception):
    """The program must fail; ``names`` is what the error must speak of."""

    def __init__(self, why: str, names: str = "") -> None:
        super().__init__(why)
        self.names = names


def result_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function, as it is.

    Raises:
        Refused: It raised.
    """
    try:
        return function(*arguments)
    except Refused:
        raise
    except Exception as error:
        named = repr(arguments[0]) if arguments else ""
        raise Refused(f"{type(error).__name__}: {error}", named) from error


def yielded(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """Every value that a user's function yields, copied at that moment."""
    made = iter(result_of(function, *arguments) or ())
    while True:
        try:
            value = next(made)
        except StopIteration:
            return
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}", repr(arguments[0])) from error
        yield copy.deepcopy(value)
