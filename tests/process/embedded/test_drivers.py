"""Drivers are found by the job file on their command line, and end with all they started."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from controlplane.embedded import drivers
from controlplane.embedded.drivers import driver_processes, end_drivers
from controlplane.embedded.process import is_alive
from jobs.drivers.processes import MARK

DRIVER = """
import subprocess, sys, time
# A worker of its own process group, as Spark's Python daemon is; the session stays the same.
subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""


def started(job_file: Path, mark: str | None = "job-1/1") -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"]} | ({} if mark is None else {MARK: mark})
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(job_file)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.fixture
def driver(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = started(tmp_path / "drivers" / "job-1" / "1" / "job.json")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    yield process
    for one in family:
        if is_alive(one):
            one.kill()
    with process:
        process.wait()


def test_a_driver_is_found_with_what_it_started(
    tmp_path: Path, driver: "subprocess.Popen[str]"
) -> None:
    running = driver_processes(tmp_path / "drivers")
    assert driver.pid in {process.pid for process in running}
    assert len(running) == 2
    assert driver_processes(tmp_path / "driver") == []
    assert driver_processes(tmp_path / "other") == []


def test_ending_leaves_nothing(
    tmp_path: Path, driver: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "END_TIMEOUT_S", 60.0)
    family = driver_processes(tmp_path / "drivers")
    began = time.monotonic()
    assert end_drivers(tmp_path / "drivers") == 2
    assert time.monotonic() - began < 50
    assert [process for process in family if is_alive(process)] == []
    assert end_drivers(tmp_path / "drivers") == 0


def test_all_drivers_end(tmp_path: Path, driver: "subprocess.Popen[str]") -> None:
    second = started(tmp_path / "drivers" / "job-1" / "2" / "job.json")
    try:
        assert end_drivers(tmp_path / "drivers") == 4
    finally:
        with second:
            second.kill()


def test_a_reader_of_a_drivers_log_is_left_alone(tmp_path: Path) -> None:
    reader = started(tmp_path / "drivers" / "job-1" / "1" / "driver.log", mark=None)
    try:
        assert end_drivers(tmp_path / "drivers") == 0
        assert reader.poll() is None
    finally:
        for process in psutil.Process(reader.pid).children():
            process.kill()
        with reader:
            reader.kill()
