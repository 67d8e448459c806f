"""The text of a subtask's failure: the operator and its line first, then the traceback.

The operator is read off the traceback: it is the innermost one whose method was running, or the
selector of an edge. So an error that nothing labelled on its way still names it, at no cost for
records.
"""

import re
import traceback
from types import TracebackType

from weir.common.tracebacks import users_frames
from weir.errors import SubtaskError, WeirError
from weir.operators.base import Operator
from weir.operators.user_code import named
from weir.worker.partitioners import ByKey, Custom

_LOCATED = re.compile(r"\([^()\n]+:\d+\)")  # It names a line of the pipeline.
_HEADER = "Traceback (most recent call last):\n"


def failure_text(error: BaseException) -> str:
    """The headline of an error, then its traceback.

    Of an error that user code raised the traceback is the user's own, not that of the error which
    Weir made of it for the headline. The message of one of Weir's, or of one without a frame of the
    user's, is in the headline and not said twice.
    """
    headline = _headline(error)
    shown = error
    if isinstance(error, SubtaskError) and error.__cause__ is not None:
        shown = error.__cause__
    of_users = [each for each in _chain(shown) if users_frames(each)]
    if of_users and not isinstance(of_users[0], WeirError):
        return f"{headline}\n{''.join(traceback.format_exception(shown))}"
    shown = of_users[0] if of_users else shown
    stack = "".join(traceback.format_tb(shown.__traceback__))
    return f"{headline}\n{_HEADER}{stack}{type(shown).__module__}.{type(shown).__qualname__}\n"


def _headline(error: BaseException) -> str:
    label = _label(error.__traceback__)
    said = str(error) if isinstance(error, WeirError) else named(error)
    if label is None or _LOCATED.search(said):
        return said
    return f"{label}: {said}" if isinstance(error, WeirError) else f"{label} failed: {said}"


def _label(stack: TracebackType | None) -> str | None:
    """The label of the innermost operator in a traceback; None: there is none."""
    label = None
    while stack is not None:
        runs = stack.tb_frame.f_locals.get("self")
        if isinstance(runs, Operator) and (ctx := getattr(runs, "ctx", None)) is not None:
            label = ctx.label
        elif isinstance(runs, ByKey | Custom):
            label = runs.label
        stack = stack.tb_next
    return label


def _chain(error: BaseException) -> list[BaseException]:
    """The error and those behind it."""
    chain: list[BaseException] = []
    behind: BaseException | None = error
    while behind is not None and behind not in chain:
        chain.append(behind)
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
    return chain
