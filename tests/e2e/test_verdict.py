"""A running job gets into one trouble after the other, and each time the verdict says which."""

import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.plane import Plane, wait_for
from tests.troubles import pipeline
from tests.troubles.cases import LONG_MS, RATES_S, Run

# A verdict that first says that others keep the machine busy, which they may.
OTHER_LOAD = re.compile(r"^Slot [^;]* of the time for a processor; (with one it [^;]*; )?")
STARVED = re.compile(
    r"^Also: slot [^;]*, where (\S+) (?:ran, waited|runs, waits) .* for a processor"
)
TIMEOUT_MS = 15_000  # Of a checkpoint; a call that hangs makes it expire, and nothing else does.


def submitted(plane: Plane, directory: Path) -> Run:
    (directory / "switches").mkdir()
    submission = {
        "name": "trouble",
        "pipeline": {"kind": "module", "module": pipeline.__name__},
        "parallelism": 2,
        "parameters": {"switches": str(directory / "switches"), "timeout_ms": str(TIMEOUT_MS)},
    }
    operation = plane.client.post("jobs", submission, key=str(uuid.uuid4()))
    return Run(plane.job(operation["job"], directory), directory / "switches")


def quick_again(run: Run) -> int:
    """Wait until a checkpoint is quick; its number."""

    def quick() -> int:
        (newest, *_) = run.job.checkpoints(status="completed")
        return int(newest["number"]) if newest["duration_ms"] < LONG_MS / 2 else 0

    return int(wait_for(quick, "a quick checkpoint"))


def test_the_verdict_names_what_was_injected(plane: Plane, tmp_path: Path) -> None:
    run = submitted(plane, tmp_path)
    run.job.await_completed(beyond=2)
    calm = run.verdict(quick_again(run))
    assert calm["tone"] == "good", calm
    assert calm["headline"].startswith("All is well: the checkpoint took "), calm

    for inject in (slow, both_slow, stuck, skewed, slow_storage, silent_then_gone, expired):
        quick_again(run)
        inject(run)

    run.job.ask("cancel")
    run.job.await_status("canceled")
    shutil.rmtree(run.switches)


def slow(run: Run) -> None:
    """One subtask takes too long for each record."""
    with run.on("slow"):
        time.sleep(RATES_S)
        verdict = run.long_one(run.job.newest_completed())
    assert verdict["tone"] == "warn", verdict
    assert own_culprits(verdict) == ["work-1"], verdict
    assert "work-1 was slow, busy" in verdict["headline"], verdict
    assert ", most of it in process_element (pipeline.py:" in verdict["headline"], verdict
    assert verdict["channel"]["receiver"] == "work-1", verdict


def both_slow(run: Run) -> None:
    """Two do, of operators on two branches."""
    with run.on("both"):
        time.sleep(RATES_S)
        beyond = run.job.newest_completed()

        def both() -> dict[str, Any] | None:
            numbers = [c["number"] for c in run.job.checkpoints(status="completed")]
            verdicts = (run.verdict(number) for number in numbers if number > beyond)
            return next((one for one in verdicts if own_trouble(one).startswith("two ")), None)

        verdict = dict(wait_for(both, "a verdict on both"))
    assert verdict["tone"] == "warn", verdict
    culprits = own_culprits(verdict)
    assert set(culprits) == {"work-1", "audit-0"}, verdict
    assert own_trouble(verdict).startswith("two operators were slow, "), verdict
    assert all(f"{culprit} (busy " in verdict["headline"] for culprit in culprits), verdict


def stuck(run: Run) -> None:
    """A call does not return for some seconds."""
    before = run.job.newest_completed()
    with run.on("sleep"):
        now = under_way(run, lambda v: "work-1 has been stuck" in v["headline"])
        assert now["tone"] == "warn", now
        verdict = run.long_one(before)
    for one in (now, verdict):
        assert own_culprits(one) == ["work-1"], one
        assert "stuck in look_up_rates (pipeline.py:" in one["headline"], one
        assert "time.sleep(BLOCKED_S)" in one["stack"], one


def skewed(run: Run) -> None:
    """All records have one key."""
    with run.on("skewed"):
        time.sleep(RATES_S)
        verdict = run.long_one(run.job.newest_completed())
    (culprit,) = own_culprits(verdict)
    assert culprit in ("work-0", "work-1"), verdict
    assert own_trouble(verdict).startswith(f"{culprit} was slow, busy"), verdict
    assert "records" in verdict["headline"], verdict  # Many times those of its sibling.
    assert any("salt the key" in line for line in verdict["advice"]), verdict


def slow_storage(run: Run) -> None:
    """Every snapshot takes long to write."""
    with run.on("storage"):
        # A checkpoint under way may have been written before.
        verdict = run.long_one(run.newest())
    assert verdict["tone"] == "warn", verdict
    assert own_trouble(verdict).startswith("the checkpoint storage was slow: slot "), verdict


def silent_then_gone(run: Run) -> None:
    """A slot's process is stopped, says nothing any more, and is killed."""
    pid = run.job.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        silent = under_way(run, lambda v: "has reported nothing" in v["headline"])
        number = run.job.await_pending()
    finally:
        with suppress(ProcessLookupError):  # The checks say so if it was replaced before its time.
            os.kill(pid, signal.SIGKILL)
    assert "slot 0 (host " in silent["headline"], silent
    assert "is frozen" in silent["headline"], silent
    assert f"process {pid})" in silent["headline"], silent
    assert not any(line.startswith("Also: ") for line in silent["because"]), silent
    gone = of_failed(run, number)
    assert "the worker process of slot 0 " in gone["headline"], gone
    assert {"numbers-0", "work-0", "audit-0"} <= set(gone["culprits"]), gone
    if "killed by signal 9" in gone["headline"]:  # Not if its supervisor's word came too late.
        assert "memory" in gone["advice"][0], gone
    run.job.await_completed(beyond=number)


def expired(run: Run) -> None:
    """A call does not return until the checkpoint's time is over, which fails the run.job."""
    with run.on("hang"):
        under_way(run, lambda v: "work-1 has been stuck" in v["headline"])
        verdict = of_failed(run, run.job.await_pending())
    assert verdict["tone"] == "bad", verdict
    assert verdict["headline"].startswith("Timed out after "), verdict
    assert "because work-1 was stuck in await_lock (pipeline.py:" in verdict["headline"], verdict
    assert own_culprits(verdict) == ["work-1"], verdict
    assert "time.sleep(HELD_S)" in verdict["stack"], verdict


def own_trouble(verdict: dict[str, Any]) -> str:
    """The headline without other load, beginning as in the middle of a sentence."""
    headline = OTHER_LOAD.sub("", verdict["headline"])
    return headline[0].lower() + headline[1:]


def own_culprits(verdict: dict[str, Any]) -> list[str]:
    """The culprits but for those named because their slot waited for a processor."""
    starved = {match[1] for line in verdict["because"] if (match := STARVED.match(line))}
    return [name for name in verdict["culprits"] if name not in starved]


def of_failed(run: Run, number: int) -> dict[str, Any]:
    """The verdict on a checkpoint once it has failed."""

    def failed() -> bool:
        return bool(run.job.get(f"checkpoints/{number}")["status"] == "failed")

    wait_for(failed, f"the end of checkpoint {number}")
    return run.verdict(number)


def under_way(run: Run, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The verdict on a checkpoint that is under way, once it says something."""

    def find_verdict() -> dict[str, Any] | None:
        for checkpoint in run.job.checkpoints(status="pending"):
            verdict = run.verdict(checkpoint["number"])
            if holds(verdict):
                return verdict
        return None

    return dict(wait_for(find_verdict, "the verdict on what is under way"))
