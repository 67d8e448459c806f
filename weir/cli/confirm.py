"""The question before a deletion, asked on a terminal."""

import sys

from weir.errors import RestoreError


def confirmed(question: str, without_terminal: str) -> bool:
    """Whether the user answers yes; no is the default.

    Raises:
        RestoreError: Standard input is no terminal; ``without_terminal`` says what to do.
    """
    if not sys.stdin.isatty():
        raise RestoreError(without_terminal)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
