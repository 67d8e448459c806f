"""Output of results: a terminal gets colours and its own width, a file plain text."""

import json
from collections.abc import Sequence
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_UNBOUNDED = 10_000  # Columns: in a file no line is cut or wrapped.


def console(file: IO[str]) -> Console:
    """A console that prints text as it is given."""
    out = Console(file=file, markup=False, highlight=False, emoji=False, soft_wrap=False)
    if not out.is_terminal:
        out.width = _UNBOUNDED
    return out


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; the columns named in ``right`` are aligned to the right, as for numbers."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_json(value: Any, file: IO[str]) -> None:
    """Write ``value`` as one JSON document."""
    json.dump(value, file, indent=2, default=str, ensure_ascii=False)
    file.write("\n")
