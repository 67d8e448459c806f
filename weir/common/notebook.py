"""The notebook that this process may be: IPython's shell, and the cells of its code.

IPython is asked only where it runs already; Weir never imports it.
"""

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
