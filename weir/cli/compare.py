"""``weir compare``: the differences between the rows of two jobs' outputs."""

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
    """Print the differences between two outputs; 1 if there are any, else 0."""
    comparison = compare(
        arguments.left,
        arguments.right,
        key=arguments.key or (),
        window=arguments.window or (),
        limit=arguments.limit,
    )
    if arguments.json:
        print_json(document(comparison), sys.stdout)
    else:
        _print(comparison, sys.stdout)
    return 0 if comparison.is_equal else 1


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a JSON document."""
    return {"is_equal": comparison.is_equal, **asdict(comparison)}


def _print(comparison: Comparison, out: IO[str]) -> None:
    screen = console(out)
    for line in _head(comparison):
        screen.print(line, soft_wrap=True)
    grid = table("rows", "left", "right", right=("left", "right"))
    figures = ["rows", "earlier", "later", "only", "duplicates"]
    names = ["all", "before the other's first window", "not there yet on the other side"]
    names += ["only on this side", "further rows of the same key"]
    for name, figure in zip(names, figures, strict=True):
        left, right = (getattr(side, figure) for side in (comparison.left, comparison.right))
        grid.add_row(name, f"{left:,}", f"{right:,}")
    grid.add_row("equal", f"{comparison.equal:,}", f"{comparison.equal:,}")
    grid.add_row("different", f"{comparison.different:,}", f"{comparison.different:,}")
    screen.print(grid)
    if comparison.different:
        columns = table(
            *("column", "different", "largest difference"),
            right=("different", "largest difference"),
        )
        for column in comparison.columns:
            if column.count:
                largest = "-" if column.largest is None else f"{column.largest:g}"
                columns.add_row(column.name, f"{column.count:,}", largest)
        screen.print()
        screen.print(columns)
    _print_samples(comparison, screen)
    screen.print()
    verdict = "the outputs are equal" if comparison.is_equal else "the outputs differ"
    screen.print(verdict, style="bold")


def _head(comparison: Comparison) -> Iterator[str]:
    for name, side in (("left ", comparison.left), ("right", comparison.right)):
        windows = f", windows {side.first} to {side.last}" if side.first is not None else ""
        files = formats.counted(side.files, "file")
        yield f"{name}  {side.path}: {files}, {formats.counted(side.rows, 'row')}{windows}"
    by = ", ".join(dict.fromkeys([*comparison.key, *comparison.window]))
    yield f"matched by {by or 'nothing: there are no columns'}"
    if comparison.complete_to is not None:
        yield f"compared: windows {comparison.complete_from} to {comparison.complete_to}"
    for name, side in (("left", comparison.left), ("right", comparison.right)):
        if side.columns:
            yield f"columns only {name}, not compared: {', '.join(side.columns)}"
    yield ""


def _print_samples(comparison: Comparison, screen: Console) -> None:
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
        for pair in comparison.differing
    ]
    show("different (left | right)", pairs, comparison.different)
    sides: tuple[tuple[str, Side, list[dict[str, Any]], list[dict[str, Any]]], ...] = (
        ("left", comparison.left, comparison.only_left, comparison.twice_left),
        ("right", comparison.right, comparison.only_right, comparison.twice_right),
    )
    for name, side, only, twice in sides:
        show(f"only {name}", [_row(row) for row in only], side.only)
        show(f"keys with several rows, {name}", [_repeated(one) for one in twice], len(twice))


def _repeated(one: Mapping[str, Any]) -> str:
    return f"{_row(one['row'])}: {one['count']:,} rows"


def _row(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
