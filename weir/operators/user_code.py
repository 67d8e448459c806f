"""What an operator says when the user's function raised: which operator, which record, and why.

A list comprehension over an iterator costs nothing on the good path and still knows, afterwards,
how far it came: what the iterator has left tells which record failed, and nothing runs twice.
"""

from collections.abc import Iterator, Sequence
from operator import length_hint
from reprlib import Repr
from typing import Any

from weir.errors import SubtaskError, WeirError

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 12


def short_repr(record: object) -> str:
    """``repr`` cut to a length that fits a message; never raises."""
    return _SHORT.repr(record)


def failure_at(
    name: str, records: Sequence[Any], left: Iterator[Any], error: Exception
) -> Exception:
    """What to raise when user code of operator ``name`` failed on the record last taken.

    ``left`` is a list iterator over ``records``. An error that Weir raised on purpose stays itself.
    """
    return failure_on(name, records[len(records) - length_hint(left) - 1], error)


def failure_on(name: str, record: object, error: Exception) -> Exception:
    """What to raise when user code of operator ``name`` failed on ``record``."""
    return failure_in(name, f"on the record {short_repr(record)}", error)


def failure_in(name: str, where: str, error: Exception) -> Exception:
    """What to raise when user code of operator ``name`` failed in ``where``."""
    if isinstance(error, WeirError):
        return error
    return SubtaskError(f"{name!r} failed {where}: {type(error).__name__}: {error}")
