"""Errors of user code: the operator, the record and the cause; and whether the program made it.

A list comprehension over an iterator costs nothing extra as long as it succeeds. When it fails, the
number of records left in the iterator tells which one failed, and no record is processed twice.

An error that only the program can make gets its *place*, by which the job master recognises it when
it comes back (``weir.protocol.repeated_errors``). Errors of files, connections and client libraries
have none, and neither has one that was raised because of them: what they name may be back soon.
"""

import re
from collections.abc import Iterator, Sequence
from operator import length_hint
from reprlib import Repr
from typing import Any

from weir.errors import InternalError, SchemaError, SubtaskError, WeirError

# By the exact class: those derived from them belong to libraries and to what these talk to.
PROGRAM_ERRORS = frozenset(
    {
        *(TypeError, AttributeError, NameError, UnboundLocalError, KeyError, IndexError),
        *(ValueError, UnicodeDecodeError, UnicodeEncodeError, ZeroDivisionError, AssertionError),
    }
)

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # Of an object: it is another after a restart.

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


def failure_in(label: str, where: str, error: Exception, *, place: str | None = None) -> Exception:
    """The error to raise when user code of the operator ``label`` failed in ``where``.

    ``place`` says it shorter, where ``where`` is not the same after a restart.
    """
    if isinstance(error, SchemaError):
        return SchemaError(f"{label} failed {where}: {error}")
    if isinstance(error, WeirError):
        return error
    return SubtaskError(
        f"{label} failed {where}: {type(error).__name__}: {error}",
        place=place_of(label, where if place is None else place, error),
    )


def failure_in_open(label: str, error: Exception) -> Exception:
    """The error to raise when ``open()`` of the operator ``label`` failed.

    It has no place: ``open()`` connects, loads and asks, before it meets a record.
    """
    if isinstance(error, WeirError):
        return failure_in(label, "in open()", error)
    return SubtaskError(f"{label} failed in open(): {type(error).__name__}: {error}")


def place_of(label: str, where: str, error: BaseException) -> str | None:
    """The place of an error that only the program can make; None for all others."""
    chain: BaseException | None = error
    while chain is not None:
        if type(chain) not in PROGRAM_ERRORS:
            return None
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return f"{label} fails {_ADDRESS.sub('', where)} with {type(error).__name__}"


def all_handled(label: str, left: Iterator[Any]) -> None:
    """Check that all records of a slice were processed.

    Raises:
        InternalError: Records are left, which would be lost.
    """
    if count := length_hint(left):
        raise InternalError(f"{label} left {count} records of a slice unhandled")
