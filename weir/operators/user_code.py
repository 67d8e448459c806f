"""Errors of user code: the operator, the record and the cause.

A list comprehension over an iterator costs nothing extra as long as it succeeds. When it fails, the
number of records left in the iterator tells which one failed, and no record is processed twice.
"""

from collections.abc import Iterator, Sequence
from operator import length_hint
from reprlib import Repr
from typing import Any

from weir.errors import InternalError, SchemaError, SubtaskError, WeirError

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 12


def short_repr(record: object) -> str:
    """``repr``, cut to a length that fits into a message; never raises."""
    return _SHORT.repr(record)


def failure_at(
    label: str, records: Sequence[Any], left: Iterator[Any], error: Exception
) -> Exception:
    """The error to raise when user code of the operator ``label`` failed on the record last taken.

    ``left`` is a list iterator over ``records``. An error that Weir raised on purpose is returned
    unchanged, but a ``SchemaError`` gets the operator and the record added.
    """
    return failure_on(label, records[len(records) - length_hint(left) - 1], error)


def failure_on(label: str, record: object, error: Exception) -> Exception:
    """The error to raise when user code of the operator ``label`` failed on ``record``."""
    return failure_in(label, f"on the record {short_repr(record)}", error)


def failure_in(label: str, where: str, error: Exception) -> Exception:
    """The error to raise when user code of the operator ``label`` failed in ``where``."""
    if isinstance(error, SchemaError):
        return SchemaError(f"{label} failed {where}: {error}")
    if isinstance(error, WeirError):
        return error
    return SubtaskError(f"{label} failed {where}: {type(error).__name__}: {error}")


def all_handled(label: str, left: Iterator[Any]) -> None:
    """Check that all records of a slice were processed.

    Raises:
        InternalError: Records are left, which would be lost.
    """
    if count := length_hint(left):
        raise InternalError(f"{label} left {count} records of a slice unhandled")
