"""The processor time of the embedded services: at rest, and with the demonstration job.

Beside each figure: PostgreSQL and Redis alone, and the job's slots alone.
"""

import time
import uuid
from collections.abc import Sequence

import psutil

from controlplane.base.wakeups import AWAKE_S
from tests.benchmarks.report import Row, limit_row
from tests.e2e.plane import Plane
from tests.services import reachable_directory

PIPELINE = "weir.examples.flights"
ROWS_PER_SECOND = 2_000  # As the demonstration of ``weir_up``.
INTERVAL_MS = 2_000
REST_MAX = 5.0  # Percents of a core.
JOB_MAX = 50.0
CHECKPOINTS = 10  # Before the job is measured.


def services(quick: bool) -> list[Row]:
    """Percents of a core: the services at rest, and with one job."""
    seconds = 10.0 if quick else 60.0
    with reachable_directory() as home:
        plane = Plane.start(home / "home", {})
        try:
            time.sleep(AWAKE_S + 5.0)
            rest = _shares(seconds)
            input_file, output = home / "flights.parquet", home / "output"
            submission = {
                "name": "flights",
                "pipeline": {"kind": "module", "module": PIPELINE},
                "parallelism": 2,
                "checkpoint_interval_ms": INTERVAL_MS,
                "parameters": {
                    "input": str(input_file),
                    "output": str(output),
                    "rows_per_second": str(ROWS_PER_SECOND),
                    "rounds": "0",
                },
            }
            operation = plane.client.post("jobs", submission, key=str(uuid.uuid4()))
            job = plane.job(operation["job"], output)
            job.await_completed(beyond=CHECKPOINTS)
            busy = _shares(seconds)
            slots = {
                worker["pid"] for attempt in job.get("attempts")["results"][:1]
                for worker in attempt["workers"]
            }  # fmt: skip
            job.ask("cancel")
            job.await_status("canceled")
        finally:
            plane.stack.stop()
            plane.stack.postgres.remove()
    of_slots = sum(share for pid, (_, share) in busy.items() if pid in slots)
    return [
        _row("the embedded services at rest", rest, REST_MAX, _stored(rest), "PostgreSQL, Redis"),
        _row(
            f"the services, and a job of {ROWS_PER_SECOND:,} rows/s with its driver and slots",
            busy, JOB_MAX, of_slots, "its slots",
        ),
    ]  # fmt: skip


def _row(
    what: str,
    shares: dict[int, tuple[str, float]],
    at_most: float,
    baseline: float,
    against: str,
) -> Row:
    largest = sorted(shares.values(), key=lambda one: -one[1])[:8]
    return limit_row(
        what,
        "% of a core",
        sum(share for _, share in shares.values()),
        at_most=at_most,
        baseline=baseline,
        against=against,
        note="\n".join(f"{share:.2f} {name}" for name, share in largest),
    )


def _stored(shares: dict[int, tuple[str, float]]) -> float:
    servers = ("postgres", "redis")
    return sum(share for name, share in shares.values() if any(one in name for one in servers))


def _shares(seconds: float) -> dict[int, tuple[str, float]]:
    """The share of a core of each process below this one, in percents, by its id."""
    before = _times(psutil.Process().children(recursive=True))
    started = time.monotonic()
    time.sleep(seconds)
    after = _times(psutil.Process().children(recursive=True))
    took = time.monotonic() - started
    return {
        process.pid: (name, 100 * (spent - before.get(process, ("", 0.0))[1]) / took)
        for process, (name, spent) in after.items()
    }


def _times(processes: Sequence[psutil.Process]) -> dict[psutil.Process, tuple[str, float]]:
    times = {}
    for process in processes:
        try:
            with process.oneshot():
                spent = process.cpu_times()
                words = [word.rsplit("/", 1)[-1] for word in process.cmdline()]
                fork = process.name() if process.name().startswith("weir:") else ""
                times[process] = (fork or " ".join(words)[:70], spent.user + spent.system)
        except psutil.NoSuchProcess:
            continue
    return times
