"""``weir compare``: whether the outputs of two jobs hold the same rows."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import IO, Any

from rich.console import Console

from weir.cli import formats
from weir.cli.output import console, print_json, table
from weir.tools.output_comparison import Comparison, Side, compare


def run(arguments: Namespace) -> int:
    """Print how two outputs differ; 1 if they do, else 0."""
    found = compare(
        arguments.left,
        arguments.right,
        key=arguments.key or (),
        window=arguments.window or (),
        limit=arguments.limit,
    )
    if arguments.json:
        print_json(document(found), sys.stdout)
    else:
        _print(found, sys.stdout)
    return 0 if found.is_equal else 1


def document(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON has it."""
    return {"is_equal": found.is_equal, **asdict(found)}


def _print(found: Comparison, out: IO[str]) -> None:
    screen = console(out)
    for line in _head(found):
        screen.print(line, soft_wrap=True)
    grid = table("rows", "left", "right", right=("left", "right"))
    figures = ["rows", "earlier", "later", "only", "duplicates"]
    names = ["all", "from before the other began", "not there yet on the other side"]
    names += ["only on this side", "again with the same key"]
    for name, figure in zip(names, figures, strict=True):
        left, right = (getattr(side, figure) for side in (found.left, found.right))
        grid.add_row(name, f"{left:,}", f"{right:,}")
    grid.add_row("equal", f"{found.equal:,}", f"{found.equal:,}")
    grid.add_row("different", f"{found.different:,}", f"{found.different:,}")
    screen.print(grid)
    if found.different:
        columns = table("column", "different", "largest", right=("different", "largest"))
        for column in found.columns:
            if column.count:
                largest = "-" if column.largest is None else f"{column.largest:g}"
                columns.add_row(column.name, f"{column.count:,}", largest)
        screen.print()
        screen.print(columns)
    _print_samples(found, screen)
    screen.print()
    screen.print("the outputs are equal" if found.is_equal else "the outputs differ", style="bold")


def _head(found: Comparison) -> Iterator[str]:
    for name, side in (("left ", found.left), ("right", found.right)):
        windows = f", windows {side.first} to {side.last}" if side.first is not None else ""
        files = formats.counted(side.files, "file")
        yield f"{name}  {side.path}: {files}, {formats.counted(side.rows, 'row')}{windows}"
    by = ", ".join(dict.fromkeys([*found.key, *found.window]))
    yield f"matched by {by or 'nothing: there are no columns'}"
    if found.complete_to is not None:
        yield f"compared: windows {found.complete_from} to {found.complete_to}"
    for name, side in (("left", found.left), ("right", found.right)):
        if side.columns:
            yield f"columns only {name}, not compared: {', '.join(side.columns)}"
    yield ""


def _print_samples(found: Comparison, screen: Console) -> None:
    def show(title: str, lines: list[str], count: int) -> None:
        if not lines:
            return
        screen.print()
        more = f" (the first {len(lines):,} of {count:,})" if count > len(lines) else ""
        screen.print(f"{title}{more}", style="bold")
        for line in lines:
            screen.print(f"  {line}", soft_wrap=True)

    pairs = [
        f"{_row(pair['key'])}: "
        + ", ".join(f"{name} {ours} | {theirs}" for name, (ours, theirs) in pair["columns"].items())
        for pair in found.differing
    ]
    show("different (left | right)", pairs, found.different)
    sides: tuple[tuple[str, Side, list[dict[str, Any]], list[dict[str, Any]]], ...] = (
        ("left", found.left, found.only_left, found.twice_left),
        ("right", found.right, found.only_right, found.twice_right),
    )
    for name, side, only, twice in sides:
        show(f"only {name}", [_row(row) for row in only], side.only)
        show(f"keys of several rows {name}", [_repeated(one) for one in twice], len(twice))


def _repeated(one: Mapping[str, Any]) -> str:
    return f"{_row(one['row'])}: {one['count']:,} rows"


def _row(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
