"""Errors of user code: the operator, the record and the cause; and whether the program made it.

A list comprehension over an iterator costs nothing extra as long as it succeeds. When it fails, the
number of records left in the iterator tells which one failed, and no record is processed twice.

An error that only the program can make gets its *place*, by which the job master recognises it when
it comes back (``weir.protocol.repeated_errors``). Errors of files, connections and client libraries
have none, and neither has one that was raised because of them: what they name may be back soon.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from inspect import isgeneratorfunction
from operator import length_hint
from pathlib import Path
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

# What a function fails with. Its ``sys.exit`` would end the process, in-process the program itself,
# with records left and perhaps with exit code 0.
RAISED = (Exception, SystemExit)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # Of an object: it is another after a restart.
# Where the results of user functions are iterated.
_ITERATING = tuple(str(Path(__file__).with_name(name)) for name in ("hand_over.py", "collector.py"))

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 12


def short_repr(record: object) -> str:
    """``repr``, cut to a length that fits into a message; never raises."""
    return _SHORT.repr(record)


def named(error: BaseException) -> str:
    """The class of an error and its message, where it has one; a sentence for ``sys.exit``."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r}) ends no job; raise an error that says why"
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def failure_at(
    label: str,
    records: Sequence[Any],
    left: Iterator[Any],
    error: Exception,
    *,
    timestamp: int | None = 0,
) -> Exception:
    """The error to raise when user code of the operator ``label`` failed on the record last taken.

    ``left`` is a list iterator over ``records``; ``timestamp`` is what ``ctx.timestamp()`` returns,
    for functions that have a context. An error that Weir raised on purpose is returned
    unchanged, but a ``SchemaError`` gets the operator and the record added.
    """
    record = records[len(records) - length_hint(left) - 1]
    return failure_on(label, record, error, timestamp=timestamp)


def failure_on(
    label: str, record: object, error: Exception, *, timestamp: int | None = 0
) -> Exception:
    """The error to raise when user code of the operator ``label`` failed on ``record``."""
    return failure_in(label, f"on the record {short_repr(record)}", error, timestamp=timestamp)


def failure_in(
    label: str,
    where: str,
    error: Exception,
    *,
    place: str | None = None,
    timestamp: int | None = 0,
) -> Exception:
    """The error to raise when user code of the operator ``label`` failed in ``where``.

    ``place`` says it shorter, where ``where`` is not the same after a restart.
    """
    if isinstance(error, SchemaError):
        return SchemaError(f"{label} failed {where}: {error}")
    if isinstance(error, WeirError):
        return error
    return SubtaskError(
        f"{label} failed {where}: {named(error)}{_advice(error, timestamp)}",
        place=place_of(label, where if place is None else place, error),
    )


def _advice(error: Exception, timestamp: int | None) -> str:
    """The advice for errors that most often have one cause; empty for others."""
    stack = error.__traceback__
    if isinstance(error, AttributeError):
        return _missing_attribute(error)
    if not isinstance(error, TypeError) or stack is None:
        return ""
    while stack.tb_next is not None:
        stack = stack.tb_next
    code, message = stack.tb_frame.f_code, str(error)
    if message.endswith("is not iterable") and code.co_filename in _ITERATING:
        return (
            ". The function has to return a list of records, or None, or yield its records; for "
            "one record of each use map"
        )
    if "NoneType" not in message:
        return ""
    if timestamp is None and "timestamp" in code.co_names:
        return (
            ". ctx.timestamp() is None, because the records have no event time; call "
            "assign_timestamps_and_watermarks before"
        )
    if "value" in code.co_names:
        return ". state.value() is None until the key has a value; write state.value() or 0, say"
    return ""


def _missing_attribute(error: AttributeError) -> str:
    """The methods of an object of Weir's that lacks the one called; empty for other objects."""
    kind, name = type(error.obj), error.name or ""
    if kind.__module__.startswith("weir.state."):
        methods = ", ".join(each for each in dir(kind) if not each.startswith("_"))
        return f". It has {methods}"
    if name.startswith("get_") and (name.endswith("state") or "subtask" in name):
        return f". Call it on the argument of open: def open(self, context): context.{name}(...)"
    return ""


def failure_in_open(label: str, error: Exception) -> Exception:
    """The error to raise when ``open()`` of the operator ``label`` failed.

    It has no place: ``open()`` connects, loads and asks, before it meets a record.
    """
    if isinstance(error, WeirError):
        return failure_in(label, "in open()", error)
    return SubtaskError(f"{label} failed in open(): {named(error)}")


def place_of(label: str, where: str, error: BaseException) -> str | None:
    """The place of an error that only the program can make; None for all others."""
    chain: BaseException | None = error
    while chain is not None:
        if type(chain) not in PROGRAM_ERRORS:
            return None
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return f"{label} fails {_ADDRESS.sub('', where)} with {type(error).__name__}"


def returning_records(process: Callable[..., Any]) -> Callable[..., Any]:
    """``process_element``, checked where it does not yield: one record is no list of them.

    A generator function, as most are, is returned unchanged.
    """
    if isgeneratorfunction(process):
        return process

    def checked(*arguments: Any) -> Any:
        made = process(*arguments)
        if isinstance(made, str | bytes | dict | tuple):
            raise SchemaError(
                f"{process.__name__} returned the {type(made).__name__} {short_repr(made)}, which "
                "is one record and no list of them: write yield instead of return"
            )
        return made

    return checked


def all_handled(label: str, left: Iterator[Any]) -> None:
    """Check that all records of a slice were processed.

    Raises:
        InternalError: Records are left, which would be lost.
    """
    if count := length_hint(left):
        raise InternalError(f"{label} left {count} records of a slice unhandled")
