"""Threads beside a loop, in a process of their own: they compute with the interpreter lock, or not.

``SHA-256`` of a long buffer gives the lock up. The loop sleeps and wakes as one with little to do.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from checkpoints.verdict.facts import ThreadsBeside
from checkpoints.verdict.starvation import LOCK_SHARE, LOCK_WAIT_MS
from tests.process.worker.fake_master import REPOSITORY
from tests.processes import stopped

# The argument is the function that four threads run; a report, or null, is printed again and again.
PROGRAM = """
import hashlib, json, sys, threading, time
from dataclasses import asdict
from weir.common.clock import SystemClock
from weir.worker.cpu_wait import CpuWait
from weir.worker.inspection.threads_beside import ThreadsWatch

watch = ThreadsWatch(threading.get_ident(), clock=SystemClock())
block = bytes(8_000_000)

def count():
    while True:
        sum(range(100))

def digest():
    while True:
        hashlib.sha256(block)

def look():
    waited_ns = CpuWait().waited_ns
    while True:
        watch.sleep(0.02, waited_ns)

for number in range(4):
    threading.Thread(target=globals()[sys.argv[1]], name=f"users-{number}", daemon=True).start()
threading.Thread(target=look, name="weir-watch", daemon=True).start()
while True:
    time.sleep(0.05)
    beside = watch.beside()
    print(json.dumps(beside and asdict(beside)), flush=True)
"""
REPORTS = 40  # About two seconds, the time that a report is about.


def reports_of(
    function: str, directory: Path, *, frozen_s: float | None = None
) -> list[dict[str, Any]]:
    """The reports on threads that run a function, once a report's time has passed.

    ``frozen_s``: before them the process is stopped for so long, and each is about that time too.
    """
    program = directory / "orders.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, program, function],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    with process:
        try:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(REPORTS)]
            if frozen_s is not None:
                with stopped(process.pid):
                    time.sleep(frozen_s)
                    assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
            lines = [json.loads(process.stdout.readline()) for _ in range(REPORTS)]
        finally:
            process.kill()
    return [line for line in lines if line is not None]


def mean(reports: list[dict[str, Any]], field: str) -> float:
    return float(sum(report[field] for report in reports) / len(reports))


def test_threads_that_run_python_keep_the_lock_from_one_that_wakes(tmp_path: Path) -> None:
    reports = reports_of("count", tmp_path)
    assert reports
    assert mean(reports, "lock_wait_ms") >= LOCK_WAIT_MS
    assert mean(reports, "loop_share") < LOCK_SHARE
    assert all(report["cpu_share"] > 2 * report["loop_share"] for report in reports)
    line = PROGRAM[: PROGRAM.index("sum(")].count("\n") + 1
    texts = [ThreadsBeside(**report).text for report in reports]
    assert texts.count(f"count (orders.py:{line})") > len(texts) / 2


def test_threads_that_compute_without_the_lock_keep_it_from_none(tmp_path: Path) -> None:
    reports = reports_of("digest", tmp_path)
    assert reports  # They do compute.
    assert mean(reports, "cpu_share") >= 0.1
    assert mean(reports, "lock_wait_ms") < LOCK_WAIT_MS


def test_the_time_in_which_the_process_was_stopped_is_no_wait_for_the_lock(tmp_path: Path) -> None:
    reports = reports_of("digest", tmp_path, frozen_s=0.6)
    assert reports
    # Spread over the looks of two seconds the time would be 6 ms and more for each.
    assert max(report["lock_wait_ms"] for report in reports) < LOCK_WAIT_MS
