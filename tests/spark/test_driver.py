"""The driver dies, loses its JVM, or meets another driver of its job."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark import pipeline
from tests.spark.harness import (
    SESSION,
    Count,
    count,
    environment,
    fired,
    once,
    processes_of,
    rows_of,
    wait_until_gone,
    wrong_numbers,
)
from tests.waiting import wait_until
from weir.datastream.execution import ExecutionOptions, overriding
from weir.fault_points import VARIABLE, Fault, to_environment
from weir.storage.local import LocalStore
from weir.storage.manifest import Manifest, find_jobs, list_checkpoints

N = 2_500
RATE = 500.0
EXACT = Count(lost=0, duplicated=0, out_of_order=0)


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of a test's job."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def completed(self) -> list[int]:
        """Completed checkpoints, newest first."""
        store = LocalStore(self.checkpoints)
        return [
            stored.checkpoint_id
            for job in find_jobs(store, pipeline.NAME)
            for stored in list_checkpoints(store, job)
            if isinstance(stored.manifest, Manifest)
        ]


@dataclass(frozen=True, slots=True)
class Driver:
    """``weir run`` in a process of its own."""

    process: "subprocess.Popen[str]"
    session: str
    events: Path

    def end(self, timeout_s: float = 60.0) -> int:
        """Wait for its exit code."""
        return self.process.wait(timeout_s)

    def told_of(self, kind: str, **values: Any) -> list[dict[str, Any]]:
        """The events of a kind that it wrote with these values."""
        wanted = {"type": kind, **values}.items()
        lines = self.events.read_text().splitlines() if self.events.exists() else ()
        told = [json.loads(line)["message"] for line in lines]
        return [event for event in told if wanted <= event.items()]

    def left(self) -> list[psutil.Process]:
        """Its JVM, slots, templates and workers that still live."""
        return [p for p in processes_of(self.session) if p.pid != self.process.pid]


@contextmanager
def driver(
    session: str,
    place: Place,
    *options: str,
    script: str = pipeline.__file__,
    armed: tuple[Fault, ...] = (),
    directory: Path | None = None,
) -> Iterator[Driver]:
    """A driver while it runs, which works in ``directory``, or else where the tests do."""
    own = f"{session}/{uuid.uuid4().hex}"
    events = place.root / f"events-{uuid.uuid4().hex}.jsonl"
    command = [sys.executable, "-m", "weir", "run", script, "--master", "local[2]"]
    command += ["--storage", str(place.checkpoints), "--events", str(events), *options]
    for key, value in {"output": place.output, "records": N, "rate": RATE}.items():
        command += ["--arg", f"{key}={value}"]
    environ = {**os.environ, SESSION: own, "PYTHONPATH": os.getcwd()}
    if armed:
        environ[VARIABLE] = to_environment(armed)
    with (place.root / "driver.log").open("a") as log:
        process = subprocess.Popen(
            command, cwd=directory, env=environ, stdout=log, stderr=log, text=True
        )
    try:
        yield Driver(process, own, events)
    finally:
        process.kill()
        process.wait()


def test_a_killed_driver_takes_all_along_and_its_successor_goes_on(
    session: str, tmp_path: Path
) -> None:
    place, marker = Place(tmp_path), tmp_path / "marker"
    # The first dies when a manifest is written and no listener was told of it yet.
    armed = (once("manifest.written", "kill", marker, after=5),)
    with driver(session, place, armed=armed) as first:
        assert first.end() == -signal.SIGKILL
        wait_until_gone(first.left)
    newest = int(fired(marker)["where"]["id"])
    assert place.completed[0] == newest
    assert rows_of(place.output), "nothing was committed before"

    with driver(session, place, "--restore", "latest") as second:
        wait_until(lambda: place.completed[0] > newest + 2, "it goes on")
        assert len(second.left()) > 4, "JVM, two slots, their templates and workers"
        second.process.kill()
        wait_until_gone(second.left)
    before = len(rows_of(place.output))
    assert before < 2 * N

    with driver(session, place, "--restore", "latest") as third:
        assert third.end() == 0, (tmp_path / "driver.log").read_text()[-4_000:]
        wait_until_gone(third.left)
    rows = rows_of(place.output)
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)


def test_a_killed_driver_leaves_local_copies_to_its_successor(session: str, tmp_path: Path) -> None:
    """The second driver completes no checkpoint, so what it restores locally is the first's."""
    place, copies = Place(tmp_path), tmp_path / "copies"
    keeping = ("--arg", f"copies={copies}")
    with driver(session, place, *keeping) as first:
        wait_until(lambda: len(place.completed) > 2, "three checkpoints")
        first.process.kill()
        wait_until_gone(first.left)
    newest = place.completed[0]
    assert list(copies.glob("*/*")), "no copy outlived its driver"

    with driver(session, place, *keeping, "--restore", "latest", "--interval", "600s") as second:
        wait_until(lambda: second.told_of("JobChanged", status="running"), "it goes on")
        worker = second.told_of("WorkerStarted")[0]["pid"]
        os.kill(worker, signal.SIGKILL)
        (recovered,) = wait_until(lambda: second.told_of("Recovered"), "a worker is replaced")
        second.process.kill()
        wait_until_gone(second.left)
    assert place.completed[0] == recovered["restored_checkpoint"] == newest
    stored = recovered["restored_bytes"] - recovered["restored_local_bytes"]
    # Each subtask gets the watermarks of all, also those that the other slot wrote.
    assert 0 < stored < 1_000 < recovered["restored_local_bytes"]

    with driver(session, place, *keeping, "--restore", "latest") as third:
        assert third.end() == 0, (tmp_path / "driver.log").read_text()[-4_000:]
        wait_until_gone(third.left)
    rows = rows_of(place.output)
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)
    assert not list(copies.iterdir()), "the job has ended"


def test_a_driver_without_its_jvm_ends(session: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    with driver(session, place) as run:
        wait_until(lambda: len(place.completed) > 1, "two checkpoints")
        (jvm,) = [p for p in run.left() if p.name() == "java"]
        jvm.kill()
        assert run.end() == 1
        wait_until_gone(run.left)
    assert "Spark's JVM has ended" in (tmp_path / "driver.log").read_text()


@pytest.mark.usefixtures("local")
def test_a_second_driver_of_the_job_fences_the_first(session: str, tmp_path: Path) -> None:
    place = Place(tmp_path)
    with driver(session, place) as first:
        wait_until(lambda: len(place.completed) > 2, "three checkpoints")
        env = environment(None)
        pipeline.build(env, place.output, N, RATE)
        options = ExecutionOptions(storage=str(place.checkpoints), restore="latest")
        with overriding(options):
            second = env.execute(pipeline.NAME)
        assert first.end(1) == 1, "it was fenced long ago"
        wait_until_gone(first.left)
        log = (tmp_path / "driver.log").read_text()
        assert "another driver runs" in log
        assert "stops without committing anything" in log
    assert second.history.restored_checkpoint is not None
    rows = rows_of(place.output)
    assert count(rows, N) == EXACT
    assert not wrong_numbers(rows)
