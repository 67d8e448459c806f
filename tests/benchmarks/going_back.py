"""The cost of going back: savepoint, stop and restore, rescale, rollback of one job on Spark.

Through the control plane as its users see it: from the request to the first row that comes out
again. Each figure is beside its phases, for most of it is the start of a JVM and of Spark, as the
baseline shows: the first start of the same job, from its submission to its first row.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.benchmarks.keyed_pipeline import outputs
from tests.benchmarks.report import Row

if TYPE_CHECKING:
    from tests.e2e.plane import Plane, PlaneJob

KEYS, KEYS_QUICK = 1_000_000, 100_000
RATE = 100_000.0
INTERVAL_MS = 1_000
PIPELINE = "tests.benchmarks.keyed_pipeline"
START_S = 180.0
PARALLELISM, WIDER = 2, 4

Moment = tuple[str, float | None]  # What was reached, and when; None: it was not noted.


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement and its parts, in milliseconds."""

    ms: float
    phases: dict[str, float] = field(default_factory=dict)


def going_back(quick: bool) -> list[Row]:
    """Savepoint, stop → restored, rescale and rollback of a job with a million keys, on Spark."""
    times = 1 if quick else 3
    with _plane() as (plane, home):
        bench = _Bench(plane, home, KEYS_QUICK if quick else KEYS)
        started = [bench.start()]
        state = bench.await_full()
        what = f"{state / 1e6:.0f} MB of state"
        checkpoints, savepoints = bench.checkpoints(), bench.savepoints(3 * times)
        rollbacks = [bench.roll_back() for _ in range(times)]
        rescales = []
        for _ in range(times):
            rescales.append(bench.rescale(WIDER))
            bench.rescale(PARALLELISM)
        restores = [bench.stop_and_restore() for _ in range(times)]
        bench.end()
    against = "first start of the same job: submitted → first row"
    return [
        _row(
            f"a savepoint, {what}",
            savepoints,
            checkpoints,
            f"a periodic checkpoint of the same state, {len(checkpoints)} of them",
        ),
        _row(f"stop with savepoint → restored and running, {what}", restores, started, against),
        _row(f"rescaled {PARALLELISM} → {WIDER}: no row came out for", rescales, started, against),
        _row("rolled back: asked → first row", rollbacks, started, against),
    ]


def _row(what: str, weir: Sequence[Measured], baseline: Sequence[Measured], against: str) -> Row:
    ours, theirs = (median(one.ms for one in measured) for measured in (weir, baseline))
    phases = {
        name: median(one.phases[name] for one in weir if name in one.phases)
        for name in dict.fromkeys(name for one in weir for name in one.phases)
    }
    told = ", ".join(f"{name} {ms:,.0f}" for name, ms in phases.items())
    spread = f"{min(one.ms for one in weir):,.0f} to {max(one.ms for one in weir):,.0f} ms"
    return Row(
        what=what,
        unit="ms",
        weir=ours,
        baseline=theirs,
        ratio=ours / theirs,
        against=against,
        target="none",
        met=None,
        note=f"{told} ms; {spread} of {len(weir)}",
    )


class _Bench:
    """The job that is measured; each measurement leaves it running."""

    def __init__(self, plane: "Plane", home: Path, keys: int) -> None:
        self._plane = plane
        self._home = home
        self._keys = keys
        self._jobs = 0
        self._full_since = 0
        self.job: PlaneJob

    @property
    def _directory(self) -> Path:
        return self._home / f"job-{self._jobs}"

    def start(self, restore: str | None = None) -> Measured:
        """Submit the job, its next one if there was one, and wait for its first row."""
        self._jobs += 1
        self._directory.mkdir()
        submission: dict[str, Any] = {
            "name": "going-back",
            "pipeline": {"kind": "module", "module": PIPELINE},
            "parallelism": PARALLELISM,
            "parameters": {
                "directory": str(self._directory),
                "keys": str(self._keys),
                "rate": str(RATE),
                "interval_ms": str(INTERVAL_MS),
            },
        }
        if restore is not None:
            submission["restore"] = restore
        operation = self._plane.client.post("jobs", submission, key=str(uuid.uuid4()))
        self.job = self._plane.job(operation["job"], self._directory / "output")
        begun = _s(operation["created_at"])
        first = self._await_row(after_attempt=0)
        return _measured(begun, [*self._moments_of_start(), ("first row", first)])

    def await_full(self) -> int:
        """Wait until every key has a total; the bytes of state."""

        def full() -> int:
            completed = self._completed()
            sizes = [one["state_bytes"] for one in completed[:2]]
            self._full_since = completed[0]["number"] if completed else 0
            return sizes[0] if len(sizes) == 2 and sizes[0] == sizes[1] else 0

        return int(self._wait("a state that does not grow any more", full))

    def checkpoints(self) -> list[Measured]:
        """Periodic checkpoints while no operation is requested."""
        self.job.await_completed(beyond=self._full_since + 8, timeout_s=START_S)
        periodic = [one for one in self._completed() if one["number"] > self._full_since]
        return [_parts(one) for one in periodic]

    def savepoints(self, count: int) -> list[Measured]:
        """So many savepoints, one after the other."""
        taken = []
        for _ in range(count):
            self._plane.await_success(self.job.ask("savepoints"), START_S)
            newest = self.job.checkpoints(kind="savepoint", status="completed")[0]
            taken.append(_parts(newest))
        return taken

    def roll_back(self) -> Measured:
        """Back to the oldest checkpoint there is; from the request to the next row."""
        self.job.await_completed(beyond=self.job.newest_completed() + 3, timeout_s=START_S)
        target = self._kept()[-1]
        return self._relaunched("rollback", checkpoint=target["number"])

    def rescale(self, parallelism: int) -> Measured:
        """To another parallelism; from the last row of the old to the first one of the new."""
        return self._relaunched("rescale", is_downtime=True, parallelism=parallelism)

    def stop_and_restore(self) -> Measured:
        """Stop with a savepoint and submit the job anew from it; until its next row."""
        self.job.await_status("running")  # Its first row may come before the control plane knows.
        stopped = self._plane.await_success(self.job.ask("stop", drain=False), START_S)
        self.job.await_status("finished")
        begun, over = _s(stopped["created_at"]), _s(stopped["ended_at"])
        saved = self.job.checkpoints(kind="stop_suspend", status="completed")[0]
        self.start(stopped["result"]["path"])
        moments = [
            ("savepoint", _s(saved["settled_at"])),
            ("finished", over),
            *self._moments_of_start(),
            ("first row", self._first_row(after_attempt=0)),
        ]
        return _measured(begun, moments)

    def end(self) -> None:
        """Cancel the job."""
        self._plane.await_success(self.job.ask("cancel"), START_S)
        self.job.await_status("canceled")

    def _relaunched(self, what: str, *, is_downtime: bool = False, **body: Any) -> Measured:
        attempt = int(self.job.get("attempts")["results"][0]["number"])
        before = self.job.get("drivers")["results"][0]["number"]
        operation = self._plane.await_success(self.job.ask(what, **body), START_S)
        first = self._await_row(after_attempt=attempt)
        last = max(o.last_ns for o in outputs(self._directory) if o.attempt <= attempt) / 1e9
        drivers = self.job.get("drivers")["results"]
        old = next(one for one in drivers if one["number"] == before)
        self.job.await_completed(beyond=self.job.newest_completed(), timeout_s=START_S)
        moments = [
            ("last row", last),
            ("driver gone", _s(old["stopped_at"])),
            *self._moments_of_start(),
            ("first row", first),
        ]
        if is_downtime:
            return _measured(last, moments[1:])
        return _measured(_s(operation["created_at"]), moments)

    def _moments_of_start(self) -> list[Moment]:
        """The steps of the newest driver's start."""
        (driver, *_), (attempt, *_) = (
            self.job.get(path)["results"] for path in ("drivers", "attempts")
        )
        workers = max((one["started_at"] for one in attempt["workers"]), default=None)
        return [
            ("launched", _s(driver["created_at"])),
            ("Spark and slots", _s(attempt["started_at"])),
            ("workers", _s(workers)),  # Then they are deployed, and restore their state.
        ]

    def _await_row(self, after_attempt: int) -> float:
        return float(self._wait("a row", lambda: self._first_row(after_attempt)))

    def _first_row(self, after_attempt: int) -> float:
        """When the first row of a later attempt came, 0 before that."""
        first_ns = [o.first_ns for o in outputs(self._directory) if o.attempt > after_attempt]
        return min(first_ns, default=0) / 1e9

    def _completed(self) -> list[dict[str, Any]]:
        return self.job.checkpoints(kind="checkpoint", status="completed")

    def _kept(self) -> list[dict[str, Any]]:
        """Checkpoints on the job's line that are not to be deleted, newest first."""
        return [
            one
            for one in self._completed()
            if not (one["discard_due_at"] or one["discarded_at"] or one["abandoned_at"])
        ]

    def _wait(self, what: str, holds: Callable[[], Any]) -> Any:
        from tests.e2e.plane import wait_for

        return wait_for(holds, what, START_S)


def _measured(begun: float | None, moments: Sequence[Moment]) -> Measured:
    """From ``begun`` to the last of the moments, and how long each took after the one before."""
    end = moments[-1][1]
    assert begun is not None
    assert end is not None
    known = [(at, name) for name, at in moments if at is not None and begun <= at <= end]
    reached = [(begun, ""), *sorted(known)]
    phases = {name: (at - before) * 1e3 for (before, _), (at, name) in pairwise(reached)}
    return Measured((end - begun) * 1e3, phases)


def _parts(checkpoint: dict[str, Any]) -> Measured:
    names = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
    phases = {
        name.removesuffix("_ms").replace("_", " "): float(checkpoint[name])
        for name in names
        if checkpoint[name] is not None
    }
    return Measured(float(checkpoint["duration_ms"]), phases)


def _s(at: str | None) -> float | None:
    return None if at is None else datetime.fromisoformat(at).timestamp()


@contextmanager
def _plane() -> Iterator[tuple["Plane", Path]]:
    from tests.e2e.plane import Plane
    from tests.services import reachable_directory

    with reachable_directory("weir-bench-") as home:
        plane = Plane.start(home / "home", {"WEIR_LOG_LEVEL": "WARNING"})
        try:
            yield plane, home
        finally:
            plane.stack.stop()
            plane.stack.postgres.remove()
