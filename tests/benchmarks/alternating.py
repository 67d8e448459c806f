"""Benchmarks of this checkout and of another one, in turns: what slows the machine slows both."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.benchmarks.report import Report, Row

HERE = Path(__file__).parents[2]


def alternate(
    names: Sequence[str], other: Path, rounds: int, *, is_quick: bool
) -> tuple[Report, Report]:
    """The reports of the other checkout and of this one, each row the median of its rounds.

    Both run with the packages of this environment.

    Raises:
        subprocess.CalledProcessError: A benchmark could not run; it has printed why.
    """
    reports: dict[Path, list[Report]] = defaultdict(list)
    with TemporaryDirectory() as directory:
        for name in names:
            for number in range(rounds):
                # The first of a round takes turns too.
                for tree in (other, HERE) if number % 2 == 0 else (HERE, other):
                    file = Path(directory, f"{name}-{number}-{tree is HERE}.json")
                    command = [sys.executable, "-m", "tests.benchmarks", name, f"--json={file}"]
                    command += ["--quick"] if is_quick else []
                    environment = {**os.environ, "PYTHONPATH": str(tree)}
                    subprocess.run(command, cwd=tree, env=environment, check=True)
                    reports[tree].append(Report.load_from(file))
    return united(reports[other]), united(reports[HERE])


def united(reports: Sequence[Report]) -> Report:
    """One report of several: of rows about the same the one in the middle, by its ratio."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for report in reports:
        for row in report.rows:
            rows[row.what].append(row)
    middle = [
        min(same, key=lambda row: abs(row.ratio - median(other.ratio for other in same)))
        for same in rows.values()
    ]
    beside = {name: work for report in reports for name, work in report.beside.items()}
    return replace(reports[-1], rows=tuple(middle), beside=beside)
