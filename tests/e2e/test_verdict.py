"""A running job gets into one trouble after the other, and each time the verdict says which."""

import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import trouble
from tests.e2e.plane import Plane, PlaneJob, wait_for

pytestmark = [pytest.mark.timeout(600)]

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
    verdict: dict[str, Any] = job.get(f"checkpoints/{number}/verdict")
    return verdict


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

    def find_long() -> dict[str, Any] | None:
        completed = job.checkpoints(status="completed")
        long = [c for c in completed if c["number"] > beyond and c["duration_ms"] >= LONG_MS]
        return min(long, key=lambda c: c["number"]) if long else None

    return dict(wait_for(find_long, "a checkpoint that took long"))


def quick_again(job: PlaneJob) -> int:
    """Wait until a checkpoint is quick; its number."""

    def quick() -> int:
        (newest, *_) = job.checkpoints(status="completed")
        return int(newest["number"]) if newest["duration_ms"] < LONG_MS / 2 else 0

    return int(wait_for(quick, "a quick checkpoint"))


def test_the_verdict_names_what_was_injected(plane: Plane, tmp_path: Path) -> None:
    switches = tmp_path / "switches"
    job = submitted(plane, tmp_path, switches)
    job.await_completed(beyond=2)
    calm = verdict_of(job, quick_again(job))
    assert calm["tone"] == "good", calm
    assert calm["headline"].startswith("All is well: the checkpoint took "), calm

    for trouble_of in (slow, both_slow, stuck, skewed, slow_storage, silent_then_gone, expired):
        quick_again(job)
        trouble_of(job, switches)

    job.ask("cancel")
    job.await_status("canceled")
    shutil.rmtree(switches)


def slow(job: PlaneJob, switches: Path) -> None:
    """One subtask takes too long for each record."""
    with on(switches, "slow"):
        time.sleep(RATES_S)
        verdict = verdict_of(job, long_one(job, job.newest_completed())["number"])
    assert verdict["tone"] == "warn", verdict
    assert verdict["culprits"] == ["work-1"], verdict
    assert "work-1 was slow, busy" in verdict["headline"], verdict
    assert ", most of it in process_element (trouble.py:" in verdict["headline"], verdict
    assert verdict["channel"]["receiver"] == "work-1", verdict


def both_slow(job: PlaneJob, switches: Path) -> None:
    """Two do, of operators on two branches."""
    with on(switches, "both"):
        time.sleep(RATES_S)
        beyond = job.newest_completed()

        def found_both() -> dict[str, Any] | None:
            numbers = [c["number"] for c in job.checkpoints(status="completed")]
            verdicts = (verdict_of(job, number) for number in numbers if number > beyond)
            return next((one for one in verdicts if one["headline"].startswith("Two ")), None)

        verdict = dict(wait_for(found_both, "a verdict on both"))
    assert verdict["tone"] == "warn", verdict
    assert set(verdict["culprits"]) == {"work-1", "audit-0"}, verdict
    assert "Two operators were slow, " in verdict["headline"], verdict
    assert all(f"{culprit} (busy " in verdict["headline"] for culprit in verdict["culprits"]), (
        verdict
    )


def stuck(job: PlaneJob, switches: Path) -> None:
    """A call does not return for some seconds."""
    before = job.newest_completed()
    with on(switches, "block"):
        now = under_way(job, lambda v: "work-1 has been stuck" in v["headline"])
        assert now["tone"] == "warn", now
        verdict = verdict_of(job, long_one(job, before)["number"])
    for one in (now, verdict):
        assert one["culprits"] == ["work-1"], one
        assert "stuck in look_up_rates (trouble.py:" in one["headline"], one
        assert "time.sleep(BLOCKED_S)" in one["stack"], one


def skewed(job: PlaneJob, switches: Path) -> None:
    """All records have one key."""
    with on(switches, "skewed"):
        time.sleep(RATES_S)
        verdict = verdict_of(job, long_one(job, job.newest_completed())["number"])
    (culprit,) = verdict["culprits"]
    assert culprit in ("work-0", "work-1"), verdict
    assert verdict["headline"].startswith(f"{culprit} was slow, busy"), verdict
    assert "records" in verdict["headline"], verdict  # Many times those of its sibling.
    assert any("salt the key" in line for line in verdict["advice"]), verdict


def slow_storage(job: PlaneJob, switches: Path) -> None:
    """Every snapshot takes long to write."""
    with on(switches, "storage"):
        # A checkpoint under way may have been written before.
        (newest, *_) = job.checkpoints()
        verdict = verdict_of(job, long_one(job, newest["number"])["number"])
    assert verdict["tone"] == "warn", verdict
    assert verdict["headline"].startswith("The checkpoint storage was slow: slot "), verdict


def silent_then_gone(job: PlaneJob, switches: Path) -> None:
    """A slot's process is stopped, says nothing any more, and is killed."""
    pid = job.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        silent = under_way(job, lambda v: "has reported nothing" in v["headline"])
        number = job.await_pending()
    finally:
        with suppress(ProcessLookupError):  # The checks say so if it was replaced before its time.
            os.kill(pid, signal.SIGKILL)
    assert "slot 0 (host " in silent["headline"], silent
    assert "is frozen" in silent["headline"], silent
    assert f"process {pid})" in silent["headline"], silent
    assert not any(line.startswith("Also: ") for line in silent["because"]), silent
    gone = of_failed(job, number)
    assert "the worker process of slot 0 " in gone["headline"], gone
    assert {"numbers-0", "work-0", "audit-0"} <= set(gone["culprits"]), gone
    if "killed by signal 9" in gone["headline"]:  # Not if its supervisor's word came too late.
        assert "memory" in gone["advice"][0], gone
    job.await_completed(beyond=number)


def expired(job: PlaneJob, switches: Path) -> None:
    """A call does not return until the checkpoint's time is over, which fails the job."""
    with on(switches, "hang"):
        under_way(job, lambda v: "work-1 has been stuck" in v["headline"])
        verdict = of_failed(job, job.await_pending())
    assert verdict["tone"] == "bad", verdict
    assert verdict["headline"].startswith("Timed out after "), verdict
    assert "because work-1 was stuck in await_lock (trouble.py:" in verdict["headline"], verdict
    assert verdict["culprits"] == ["work-1"], verdict
    assert "time.sleep(HELD_S)" in verdict["stack"], verdict


def of_failed(job: PlaneJob, number: int) -> dict[str, Any]:
    """The verdict on a checkpoint once it has failed."""

    def failed() -> bool:
        return bool(job.get(f"checkpoints/{number}")["status"] == "failed")

    wait_for(failed, f"the end of checkpoint {number}")
    return verdict_of(job, number)


def under_way(job: PlaneJob, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The verdict on a checkpoint that is under way, once it says something."""

    def find_verdict() -> dict[str, Any] | None:
        for checkpoint in job.checkpoints(status="pending"):
            verdict = verdict_of(job, checkpoint["number"])
            if holds(verdict):
                return verdict
        return None

    return dict(wait_for(find_verdict, "the verdict on what is under way"))
