"""The delays of a start, a kill and a command, between driver, supervisor and worker."""

import os
import signal
import time
from statistics import median

from tests.benchmarks.report import Row, limit_row
from tests.networks import JOB_ID
from tests.process.managed.control_plane import control_plane
from tests.process.managed.test_gateway import Heard, driver
from tests.process.worker.fake_master import fake_master, program, supervisor
from weir.protocol.deployment import SlotAccepted, SlotRegistered, WorkerExited
from weir.protocol.driver_messages import CancelJob

COMMAND_MS_MAX = 20.0
REPORTED_MS_MAX = 50.0
STARTS_IN_MS_MAX = 50.0
FIRST_MS_MAX = 100.0
FIRST_STARTS = 5


def slots(quick: bool) -> list[Row]:
    """Milliseconds until a worker is ready, until its end is known, and until a command arrives."""
    rounds = 5 if quick else 30
    started, reported = _starts_and_kills(rounds)
    first, *others = started
    forked = [_first_start(warm=True) for _ in range(FIRST_STARTS)]
    anew = [_first_start(warm=False) for _ in range(FIRST_STARTS)]
    return [
        limit_row(
            "the first worker of a slot that forks its template, p50",
            "ms",
            median(forked),
            at_most=FIRST_MS_MAX,
            baseline=median(anew),
            against="one whose template is started anew",
        ),
        limit_row(
            "a worker of a warm slot is ready, p50",
            "ms",
            median(others),
            at_most=STARTS_IN_MS_MAX,
            baseline=first,
            against="the first one, whose template imports everything",
        ),
        limit_row(
            "a killed worker is reported, p50",
            "ms",
            median(reported),
            at_most=REPORTED_MS_MAX,
            baseline=max(reported),
            against="the slowest of them",
        ),
        _commands(rounds),
    ]


def _first_start(*, warm: bool) -> float:
    """Milliseconds from the program's arrival at a slot until its first worker is ready."""
    with fake_master() as master, supervisor(master, warm=warm):
        slot, _ = master.expect(SlotRegistered)
        began = time.perf_counter()
        master.send(slot, SlotAccepted(JOB_ID, program(), ()))
        master.start_worker(slot)
        return (time.perf_counter() - began) * 1000


def _starts_and_kills(rounds: int) -> tuple[list[float], list[float]]:
    started, reported = [], []
    with fake_master() as master, supervisor(master):
        slot = master.accept_slot(program())
        for attempt in range(1, rounds + 2):
            began = time.perf_counter()
            _, ready = master.start_worker(slot, attempt)
            started.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            os.kill(ready.pid, signal.SIGKILL)
            master.expect(WorkerExited)
            reported.append((time.perf_counter() - began) * 1000)
    return started, reported


def _commands(rounds: int) -> Row:
    took = []
    heard = Heard()
    with control_plane() as control, driver(control, heard):
        for number in range(rounds):
            began = time.perf_counter()
            control.command(CancelJob(str(number)))
            heard.wait_for(lambda expected=number + 1: len(heard.commands) == expected)
            took.append((time.perf_counter() - began) * 1000)
    return limit_row(
        "a command reaches a driver that polls, p50",
        "ms",
        median(took),
        at_most=COMMAND_MS_MAX,
        baseline=max(took),
        against="the slowest of them",
    )
