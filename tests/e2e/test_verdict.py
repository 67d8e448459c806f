"""A running job gets into one trouble after the other, and each time the verdict says which."""

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import trouble
from tests.e2e.plane import Plane, PlaneJob, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

LONG_MS = 1_000  # What a checkpoint takes that a trouble has hit.
RATES_S = 2.5  # Shares of time are of the last two seconds; after that they are the trouble's.


def submitted(plane: Plane, directory: Path, switches: Path) -> PlaneJob:
    switches.mkdir()
    submission = {
        "name": "trouble",
        "pipeline": {"kind": "module", "module": trouble.__name__},
        "parallelism": 2,
        "parameters": {"switches": str(switches)},
    }
    operation = plane.client.post("jobs", submission, key=str(uuid.uuid4()))
    return plane.job(operation["job"], directory)


def verdict_of(job: PlaneJob, number: int) -> dict[str, Any]:
    found: dict[str, Any] = job.get(f"checkpoints/{number}/verdict")
    return found


@contextmanager
def on(switches: Path, name: str) -> Iterator[None]:
    """One trouble, from now until the end of the block."""
    (switches / name).touch()
    try:
        yield
    finally:
        (switches / name).unlink(missing_ok=True)


def long_one(job: PlaneJob, beyond: int) -> dict[str, Any]:
    """The first completed checkpoint beyond another that took long."""

    def found() -> dict[str, Any] | None:
        completed = job.checkpoints(status="completed")
        long = [c for c in completed if c["number"] > beyond and c["duration_ms"] >= LONG_MS]
        return min(long, key=lambda c: c["number"]) if long else None

    return dict(wait_for("a checkpoint that took long", found, 60.0))


def quick_again(job: PlaneJob) -> int:
    """Wait until a checkpoint is quick; its number."""

    def quick() -> int:
        (newest, *_) = job.checkpoints(status="completed")
        return int(newest["number"]) if newest["duration_ms"] < LONG_MS / 2 else 0

    return int(wait_for("a quick checkpoint", quick, 60.0))


def test_the_verdict_names_what_was_injected(plane: Plane, tmp_path: Path) -> None:
    switches = tmp_path / "switches"
    job = submitted(plane, tmp_path, switches)
    job.await_completed(beyond=2)
    before = quick_again(job)
    calm = verdict_of(job, before)
    assert calm["tone"] == "good", calm
    assert calm["headline"].startswith("All is well: it took "), calm

    with on(switches, "slow"):
        time.sleep(RATES_S)
        found = verdict_of(job, long_one(job, job.newest_completed())["number"])
    assert found["tone"] == "warn", found
    assert found["culprits"] == ["work-1"], found
    assert "work-1 was slow, busy" in found["headline"], found
    assert found["channel"]["receiver"] == "work-1", found

    before = quick_again(job)
    with on(switches, "block"):
        stuck = under_way(job, lambda v: "work-1 has been stuck" in v["headline"])
        assert stuck["tone"] == "warn", stuck
        found = verdict_of(job, long_one(job, before)["number"])
    for one in (stuck, found):
        assert one["culprits"] == ["work-1"], one
        assert "stuck in look_up_rates (trouble.py:" in one["headline"], one
        assert "time.sleep(BLOCKED_S)" in one["stack"], one

    quick_again(job)
    with on(switches, "skewed"):
        time.sleep(RATES_S)
        found = verdict_of(job, long_one(job, job.newest_completed())["number"])
    (culprit,) = found["culprits"]
    assert culprit in ("work-0", "work-1"), found
    assert found["headline"].startswith(f"{culprit} was slow, busy"), found
    assert "records" in found["headline"], found  # Many times those of its sibling.
    assert any("salt the key" in line for line in found["advice"]), found

    quick_again(job)
    with on(switches, "storage"):
        # Whatever is under way may have been written before.
        (newest, *_) = job.checkpoints()
        found = verdict_of(job, long_one(job, newest["number"])["number"])
    assert found["tone"] == "warn", found
    assert found["headline"].startswith("The checkpoint storage was slow: slot "), found

    job.ask("cancel")
    job.await_status("canceled")
    shutil.rmtree(switches)


def under_way(job: PlaneJob, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The verdict on a checkpoint that is under way, once it says something."""

    def found() -> dict[str, Any] | None:
        for checkpoint in job.checkpoints(status="pending"):
            verdict = verdict_of(job, checkpoint["number"])
            if holds(verdict):
                return verdict
        return None

    return dict(wait_for("the verdict on what is under way", found, 30.0))
