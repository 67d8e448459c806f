"""``python -m tests.troubles [name ...] [--beside N]``: the table of what verdicts say."""

import argparse
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.e2e.plane import Plane, PlaneJob
from tests.services import reachable_directory
from tests.troubles import pipeline
from tests.troubles.cases import TROUBLES, Json, Run, Trouble, busy_loops

ENVIRONMENT = {
    "WEIR_DRIVER_TIMEOUT_MS": "10000",
    "WEIR_LOG_LEVEL": "WARNING",
    "WEIR_RETAINED_CHECKPOINTS": "300",
}


def submit(plane: Plane, directory: Path) -> PlaneJob:
    """The job, with its switches and its output below a directory."""
    (directory / "switches").mkdir(parents=True)
    submission = {
        "name": "troubles",
        "pipeline": {"kind": "module", "module": pipeline.__name__},
        "parallelism": 2,
        "parameters": {"switches": str(directory / "switches")},
    }
    operation = plane.client.post("jobs", submission, key=str(uuid.uuid4()))
    return plane.job(operation["job"], directory)


def inject(run: Run, trouble: Trouble) -> tuple[str, Json]:
    """One trouble: the judgement of the verdict, and the verdict."""
    run.await_calm()
    try:
        verdict = trouble.do(run)
    except AssertionError as error:
        return "no verdict", {"headline": str(error)[:200], "advice": [], "because": []}
    return trouble.judged(verdict), verdict


def table_of(plane: Plane, troubles: Sequence[Trouble], beside: int, home: Path) -> dict[str, int]:
    """Inject all troubles with so many busy loops beside the job; print the table, count it."""
    console, counts = Console(width=200, soft_wrap=False), {}
    run = Run(submit(plane, home), home / "switches")
    run.job.await_completed(beyond=3)
    table = Table("trouble", "expected", "said", "is", title=f"{beside} busy loops beside")
    with busy_loops(beside):
        time.sleep(3 if beside else 0)
        for trouble in troubles:
            judged, verdict = inject(run, trouble)
            counts[judged] = counts.get(judged, 0) + 1
            table.add_row(trouble.name, trouble.expected, verdict["headline"], judged)
            console.print(f"[{judged}] {trouble.name}: {verdict['headline']}", markup=False)
            if judged != "right":
                for line in (*verdict["because"], *verdict["advice"]):
                    console.print(f"      {line}", markup=False)
    console.print(table)
    console.print(counts)
    run.job.ask("cancel")
    run.job.await_status("canceled")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.troubles")
    parser.add_argument("names", nargs="*", help="parts of the names of troubles; none: all")
    parser.add_argument("--beside", type=int, nargs="*", default=[0, 6], help="busy loops")
    given = parser.parse_args()
    chosen = [t for t in TROUBLES if not given.names or any(n in t.name for n in given.names)]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # Ends the plane.
    with reachable_directory() as home, tempfile.TemporaryDirectory() as scratch:
        environment = ENVIRONMENT | {"SPARK_LOCAL_DIRS": scratch}
        plane = Plane.start(home / "home", environment)
        try:
            for beside in given.beside:
                table_of(plane, chosen, beside, home / f"beside-{beside}")
        finally:
            plane.stack.stop()
            plane.stack.postgres.remove()


if __name__ == "__main__":
    main()
