"""``python -m tests.benchmarks [row ...] [--quick] [--json FILE [--resume]] [--compare [FILE]]``.

Each run is kept as JSON with its host and load, in ``build/benchmarks`` where no file is named: it
is written after each benchmark, of which each has a process of its own, and ``--resume`` goes on
with it. The report of the last release lies in the repository, in ``tests/benchmarks/releases``. A
benchmark that ran beside other work is marked. With ``--against CHECKOUT`` the rows are measured in
turns here and in another checkout, and shown side by side.
"""

import argparse
import datetime as dt
import inspect
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from tests.benchmarks.alternating import alternate
from tests.benchmarks.benchmarks import BENCHMARKS, measured
from tests.benchmarks.other_work import OtherWork, look
from tests.benchmarks.report import Report, Row, show, show_changes

FILE_WIDTH = 140  # Where the output is no terminal.
RUNS = Path("build", "benchmarks")
RELEASES = Path(__file__).parent / "releases"


def newest(directory: Path) -> Path | None:
    """The newest report below a directory."""
    reports = sorted(directory.glob("*.json"), key=lambda path: Report.load_from(path).measured_at)
    return reports[-1] if reports else None


def compare(run: Path | None) -> int:
    """Show a run, or the newest of a directory, beside the last release."""
    release = newest(RELEASES)
    if run == RUNS:
        run = newest(RUNS)
    if run is None or release is None:
        missing = "a release's report" if release is None else "a run: `make bench` makes one"
        print(f"nothing to compare: there is no {missing}", file=sys.stderr)
        return 1
    show_changes(Report.load_from(release), Report.load_from(run), Console())
    return 0


def main() -> int:
    """Measure what was asked for; 1 where a benchmark could not run."""
    listed = "\n".join(f"  {name:12} {inspect.getdoc(b)}" for name, b in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=f"Measures Weir against the same work without it.\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="row", help="which; without any, all")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the report goes there")
    parser.add_argument(
        "--resume", action="store_true", help="add to the FILE of --json what it does not have yet"
    )
    parser.add_argument(
        "--compare",
        nargs="?",
        type=Path,
        const=RUNS,
        metavar="FILE",
        help="measure nothing: show a report, the newest one here, beside the last release's",
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="in turns with this one")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of measuring in turns; without it, 3"
    )
    given = parser.parse_args()
    if given.compare is not None:
        return compare(given.compare)
    if unknown := sorted(set(given.names) - BENCHMARKS.keys()):
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if given.resume and given.json is None:
        parser.error("--resume goes on with a report; name it with --json FILE")
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    if given.against is not None:
        names, other = given.names or list(BENCHMARKS), given.against.resolve()
        show_changes(*alternate(names, other, given.rounds, is_quick=given.quick), console)
        return 0
    load, work = os.getloadavg()[0], look()
    path = given.json or RUNS / f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H%M%SZ}.json"
    begun = Report.load_from(path) if given.resume and path.exists() else None
    if begun is not None:
        try:
            begun.check_resumable(is_quick=given.quick)
        except ValueError as error:
            parser.error(str(error))
    beside: dict[str, OtherWork] = {} if begun is None else dict(begun.beside)
    rows: list[Row] = [] if begun is None else list(begun.rows)
    failed: dict[str, Exception] = {}
    for name in given.names or BENCHMARKS:
        if begun is not None and name in begun.beside:
            continue
        started = time.monotonic()
        try:
            rows += measured(name, given.quick)
        except Exception as error:  # The rest of the table is worth having.
            failed[name] = error
            console.print_exception()
        took, before, work = time.monotonic() - started, work, look()
        beside[name] = before.or_more(work)
        style = "dim" if beside[name].is_little else "yellow"
        console.print(f"[{style}]{name}: {took:.0f} s; beside it {beside[name]}[/{style}]")
        kept = {name: work for name, work in beside.items() if name not in failed}
        Report.made(rows, is_quick=given.quick, load=load, beside=kept).save(path)
    show(rows, console)
    console.print(f"[dim]kept as {path}[/dim]")
    for name, cause in failed.items():
        console.print(f"[red]{name} could not run: {cause}[/red]")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
