"""``python -m tests.soak``: rounds of random programs under random faults, and their table.

Each round is a line of ``results.jsonl`` in the results' directory, ``build/soak/…``; a finding has
a directory below ``findings`` with its logs, its output, its storage and the command that repeats
it. Ctrl-C, or a kill, loses the round that runs; ``--resume DIRECTORY`` goes on. Exits with 1 if
there is a finding, with 130 after Ctrl-C.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from tests.soak.disk import Disk
from tests.soak.faults import CANNOT
from tests.soak.leftovers import Scratch, scratch
from tests.soak.on_plane import ControlledJob, start_plane
from tests.soak.on_spark import SparkJob
from tests.soak.results import Log, Outcome, Result, next_seed, seconds_left, table
from tests.soak.rounds import Rounds
from tests.soak.schedule import FAULTS, OVERLAPS, Where, schedule_of
from tests.spark.harness import SESSION

RESULTS = Path(__file__).resolve().parents[2] / "build" / "soak"
LOG, OPTIONS, FINDINGS = "results.jsonl", "options.json", "findings"
MINUTES = 20.0
INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def rounds_of(where: Where, made: Scratch, findings: Path) -> Iterator[Rounds]:
    """The rounds of a place, which is ready within the context."""
    disk = Disk(made.disk)
    try:
        if where is Where.SPARK:
            yield Rounds(
                SparkJob,
                disk,
                lambda schedule: disk.path / f"round-{schedule.seed}",
                made.path,
                findings,
                made.session,
            )
            return
        plane = start_plane(made.path / "home", disk.path)
        try:
            yield Rounds(
                lambda place, storage, session: ControlledJob(plane, place, storage),
                disk,
                lambda schedule: disk.path,
                made.path,
                findings,
                made.session,
            )
        finally:
            plane.stack.stop()
            plane.stack.postgres.remove()
    finally:
        disk.close()


def soak(log: Log, options: argparse.Namespace, made: Scratch, findings: Path) -> None:
    """Run rounds until the time of each place is up, or there were as many as wanted."""
    places = [options.only] if options.only else list(Where)
    minutes = options.minutes / len(places)
    for where in places:
        if seconds_left(minutes, where, log.results) <= 0:
            continue
        with rounds_of(where, made, findings) as rounds:
            for _ in _turns(options.rounds):
                if seconds_left(minutes, where, log.results) <= 0:
                    break
                seed = next_seed(options.seed, log.results)
                schedule = schedule_of(
                    seed, where, options.faults, rounds.disk.cannot | CANNOT, options.overlaps
                )
                result = rounds.run(schedule)
                log.append(result)
                print(told(result), flush=True)


def _turns(count: int | None) -> Iterator[int]:
    number = 0
    while count is None or number < count:
        yield number
        number += 1


def told(result: Result) -> str:
    """A round in a line, or more if it is a finding."""
    faults = ", ".join(one["kind"] + _mark(one) for one in result.struck)
    line = (
        f"{result.where} {result.seed}: {result.outcome}, {result.seconds:.0f} s, "
        f"{result.checkpoints} checkpoints, {result.attempts} attempts; {faults}"
    )
    return "\n    ".join([line, *result.wrong])


def _mark(struck: dict[str, Any]) -> str:
    if not struck["fired"]:
        return " (not fired)"
    return " (failed)" if struck["told"] else ""  # An operation.


def settings(given: Sequence[str] | None) -> argparse.Namespace:
    """The options; those of a soak that is resumed are its first ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all places together")
    parser.add_argument("--seed", type=int, default=None, help="of the first round; else drawn")
    parser.add_argument("--only", type=Where, choices=list(Where), help="no other place")
    parser.add_argument("--rounds", type=int, help="of each place, at most")
    parser.add_argument("--faults", type=int, default=FAULTS, help="of each round")
    parser.add_argument(
        "--overlaps", type=float, default=OVERLAPS, help="share of faults that await no recovery"
    )
    parser.add_argument("--resume", type=Path, metavar="DIRECTORY", help="go on with its results")
    options = parser.parse_args(given)
    if options.resume is None:
        if options.seed is None:
            options.seed = time.time_ns() // 1_000_000_000
        return options
    file = options.resume / OPTIONS
    if not file.exists():
        parser.error(f"{options.resume} has no results of a soak; give a directory of build/soak")
    kept = json.loads(file.read_text())
    kept["only"] = kept["only"] and Where(kept["only"])
    return argparse.Namespace(**vars(options) | kept)


def main(given: Sequence[str] | None = None) -> int:
    """Run, print the table, and clean up."""
    options = settings(given)
    directory: Path = options.resume or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in vars(options).items() if name != "resume"}
    (directory / OPTIONS).write_text(json.dumps(kept))
    log = Log.open(directory / LOG)
    print(f"results: {directory}; first seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    is_interrupted = False
    with scratch(directory) as made, patch.dict(os.environ, _environment(made)):
        try:
            soak(log, options, made, directory / FINDINGS)
        except KeyboardInterrupt:
            is_interrupted = True
    print(f"\n{table(log.results)}")
    if is_interrupted:
        print(f"\nto go on: python -m tests.soak --resume {directory}")
        return INTERRUPTED
    return int(any(one.outcome is Outcome.FINDING for one in log.results))


def _environment(made: Scratch) -> dict[str, str]:
    """The environment of every process of the soak: its mark, and the place of temporary files."""
    temporary = made.path / "temporary"
    temporary.mkdir(mode=0o777)
    return {
        SESSION: made.session,
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",
        "PYTHONPATH": str(RESULTS.parents[1]),
    }


def _interrupt(number: int, frame: FrameType | None) -> Any:
    for one in (signal.SIGINT, signal.SIGTERM):  # What is being ended now is not left half ended.
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
