"""The display of Weir's errors that a script or a notebook cell does not catch.

Python would print the frames of Weir above the message; the user's are those that help.
"""

import sys
from types import TracebackType
from typing import Any

from weir.common.notebook import notebook_shell
from weir.common.tracebacks import users_frames, without_own_frames
from weir.errors import WeirError


def fold_tracebacks() -> None:
    """Show uncaught errors of Weir with the user's frames only. Harmless when repeated.

    A hook that the program, or another library, has set stays.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    shell = notebook_shell()
    if shell is not None and WeirError not in (shell.custom_exceptions or ()):
        shell.set_custom_exc((WeirError,), _show_in_notebook)


def told(error: BaseException) -> str:
    """An error of Weir: the user's frames, then the message."""
    return f"{users_frames(error)}weir: {without_own_frames(str(error)).rstrip()}\n"


def _show(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
    if isinstance(error, WeirError):
        print(told(error), end="", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, stack)


def _show_in_notebook(
    shell: Any, kind: type[BaseException], error: BaseException, stack: Any, tb_offset: Any = None
) -> None:
    print(told(error), end="", file=sys.stderr)
