"""One measured row, and the table of all of them."""

import datetime as dt
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table

import weir
from tests.benchmarks.other_work import OtherWork

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of one run, and the machine that they were measured on.

    Units: ``load`` the average number of running processes before the run; ``memory_bytes``.
    ``beside`` is the other work by the name of the benchmark; older reports lack it.
    """

    version: str
    measured_at: str  # ISO 8601, UTC.
    is_quick: bool
    machine: str
    cores: int
    memory_bytes: int
    python: str
    load: float
    rows: tuple[Row, ...]
    beside: Mapping[str, OtherWork] = field(default_factory=dict)

    @classmethod
    def made(
        cls,
        rows: Iterable[Row],
        *,
        is_quick: bool,
        load: float,
        beside: Mapping[str, OtherWork],
    ) -> "Report":
        """The report of a run that has just ended on this machine."""
        return cls(
            version=weir.__version__,
            measured_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            is_quick=is_quick,
            machine=f"{platform.system()} {platform.release()} {platform.machine()}",
            cores=os.cpu_count() or 0,
            memory_bytes=psutil.virtual_memory().total,
            python=platform.python_version(),
            load=load,
            rows=tuple(rows),
            beside=dict(beside),
        )

    def check_resumable(self, *, is_quick: bool) -> None:
        """Check that a run here may add its rows.

        Raises:
            ValueError: They would be another version's, another machine's or of another length.
        """
        now = Report.made((), is_quick=is_quick, load=0.0, beside={})
        for what, kept, here in (
            ("version", self.version, now.version),
            ("machine", self.machine, now.machine),
            ("number of cores", self.cores, now.cores),
            ("Python", self.python, now.python),
            ("--quick", self.is_quick, is_quick),
        ):
            if kept != here:
                raise ValueError(f"the report's {what} is {kept}, this run's is {here}; begin anew")

    @classmethod
    def load_from(cls, path: Path) -> "Report":
        """The report of an earlier run.

        Raises:
            ValueError: The file is no report.
        """
        try:
            document = json.loads(path.read_text())
            document["rows"] = tuple(Row(**row) for row in document["rows"])
            beside = document.get("beside", {})
            document["beside"] = {name: OtherWork(**work) for name, work in beside.items()}
            return cls(**document)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path} is no report of the benchmarks: {error}") from error

    def save(self, path: Path) -> None:
        """Write the report as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def show_changes(before: Report, after: Report, console: Console) -> None:
    """Print each row's ratio beside that of an earlier report.

    Ratios against the same run's baseline are compared, not speeds: another machine, or the same
    one with other work on it, is faster or slower at both.
    """
    table = Table(show_lines=False)
    for heading in ("what", before.version, after.version, "change"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    known = {row.what: row for row in before.rows}
    for row in after.rows:
        old = known.pop(row.what, None)
        if old is None:
            table.add_row(row.what, "", f"{row.ratio:.3g}", "new")
        else:
            change = row.ratio / old.ratio - 1
            table.add_row(row.what, f"{old.ratio:.3g}", f"{row.ratio:.3g}", f"{change:+.0%}")
    for row in known.values():
        table.add_row(row.what, f"{row.ratio:.3g}", "", "not measured")
    console.print(table)
    for report in (before, after):
        console.print(
            f"[dim]{report.version}: {report.measured_at}, {report.cores} cores, load "
            f"{report.load:.1f} before it{', short runs' if report.is_quick else ''}[/dim]"
        )
        busy = {name: work for name, work in report.beside.items() if not work.is_little}
        for name, work in busy.items():
            console.print(f"[yellow]{report.version}: {name} beside other work: {work}[/yellow]")


def readable(value: float, unit: str) -> str:
    """A number with three digits that matter."""
    for scale, name in _SCALES.get(unit, ()):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value:.3g} {unit}"
