"""The notebook that this process may be: IPython's shell, the cells of its code, and their output.

IPython is asked only where it runs already; Weir never imports it.
"""

import secrets
import sys
from typing import Any


def notebook_shell() -> Any:
    """IPython's shell; None: this process has none."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def cell_of(filename: str) -> int | None:
    """The number of the cell that was compiled under this file name; None: it is no cell's."""
    shell = notebook_shell()
    cells = getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
    number: int | None = cells.get(filename)
    return number


def running_cell() -> int | None:
    """The number of the notebook's cell that runs; None: this process is no notebook's kernel."""
    shell = notebook_shell()
    if getattr(shell, "kernel", None) is None:  # IPython in a terminal replaces no output.
        return None
    number: int = shell.execution_count
    return number


class CellOutput:
    """One output below a cell, replaced in place whenever it is shown anew."""

    def __init__(self) -> None:
        """An output of the cell that runs; there must be one."""
        self._publisher = notebook_shell().display_pub
        self._transient = {"display_id": f"weir-{secrets.token_hex(8)}"}
        self._is_shown = False

    def show(self, html: str, text: str) -> None:
        """Show this; ``text`` is for frontends without HTML."""
        self._publisher.publish(
            data={"text/html": html, "text/plain": text},
            transient=self._transient,
            update=self._is_shown,
        )
        self._is_shown = True
