"""One measured row, and the table of all of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

_SCALES = {
    "rows/s": ((1e6, "M rows/s"), (1e3, "k rows/s")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s")),
    "B": ((1e6, "MB"),),
    "ms": ((1e3, "s"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Units: ``weir`` and ``baseline`` in ``unit``.
    """

    what: str
    unit: str  # "rows/s", "B/s", "B" or "ms".
    weir: float
    baseline: float
    ratio: float  # The first by the second.
    against: str  # What the baseline is.
    target: str
    met: bool | None  # None: there is no target, only a number to know.
    note: str = ""  # How it was measured, where the name does not say it; spread.


def speed_row(
    what: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    *,
    against: str,
    at_least: float | None,
    target: str = "",
    note: str = "",
) -> Row:
    """A row about a ratio, from alternating (Weir, baseline) measurements; more is better.

    The ratio is the median of the pairs' own: what slows the machine down for a while slows both
    of a pair. The numbers beside it are medians by themselves.
    """
    ratio = median(weir / baseline for weir, baseline in pairs)
    return Row(
        what=what,
        unit=unit,
        weir=median(weir for weir, _ in pairs),
        baseline=median(baseline for _, baseline in pairs),
        ratio=ratio,
        against=against,
        target=target or ("none" if at_least is None else f"ratio ≥ {at_least:g}"),
        met=None if at_least is None else ratio >= at_least,
        note=note,
    )


def limit_row(
    what: str,
    unit: str,
    weir: float,
    *,
    at_most: float,
    baseline: float,
    against: str,
    note: str = "",
) -> Row:
    """A row whose target is a limit on Weir's own number; the baseline says what it is beside."""
    return Row(
        what=what,
        unit=unit,
        weir=weir,
        baseline=baseline,
        ratio=weir / baseline,
        against=against,
        target=f"≤ {readable(at_most, unit)}",
        met=weir <= at_most,
        note=note,
    )


_VERDICTS = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}


def show(rows: Iterable[Row], console: Console) -> None:
    """Print the table."""
    table = Table(show_lines=True)
    for heading in ("what", "Weir", "baseline", "ratio", "target", "met"):
        table.add_column(heading, justify="right" if heading in ("Weir", "ratio") else "left")
    for row in rows:
        table.add_row(
            f"{row.what}\n[dim]{row.note}[/dim]" if row.note else row.what,
            readable(row.weir, row.unit),
            f"{readable(row.baseline, row.unit)}\n[dim]{row.against}[/dim]",
            f"{row.ratio:.2f}",
            row.target,
            _VERDICTS[row.met],
        )
    console.print(table)


def save(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as JSON."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2))


def readable(value: float, unit: str) -> str:
    """A number with three digits that matter."""
    for scale, name in _SCALES.get(unit, ()):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value:.3g} {unit}"
