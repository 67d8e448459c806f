"""Weir's own processes under supervision: their ends, their leftovers, their children."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from controlplane.embedded.process import (
    ServiceError,
    ServiceRunningError,
    ServiceStoppedError,
)
from controlplane.embedded.program import Program
from tests.waiting import TIMEOUT_S, wait_until
from weir.child_process import is_alive

# Starts a child, says so, first in its log, and waits. With "deaf" it ignores the request to end.
SCRIPT = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, "home", os.environ["WEIR_HOME"], flush=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(child.pid))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""

Make = Callable[..., Program]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Program] = []
    (tmp_path / "script.py").write_text(SCRIPT)

    def program(*arguments: str, answers: Callable[[], bool] | None = None) -> Program:
        ready = tmp_path / "ready"

        def command() -> list[str]:
            ready.unlink(missing_ok=True)
            return [sys.executable, str(tmp_path / "script.py"), str(ready), *arguments]

        made.append(
            Program(
                "sleeper",
                command,
                log_path=tmp_path / "sleeper.log",
                pid_path=tmp_path / "sleeper.json",
                directory=tmp_path,
                environment=lambda: {"PATH": os.environ["PATH"], "WEIR_HOME": "/some/where"},
                answers=answers or ready.exists,
            )
        )
        return made[-1]

    yield program
    for one in made:
        one.stop(timeout_s=2)


def child_of(tmp_path: Path) -> psutil.Process:
    return psutil.Process(int((tmp_path / "ready").read_text()))


def await_end(process: psutil.Process) -> None:
    wait_until(lambda: not is_alive(process), f"{process} has ended")


def test_stopping_ends_it_and_what_it_started(make: Make, tmp_path: Path) -> None:
    program = make()
    program.start()
    leader, child = psutil.Process(program.pid), child_of(tmp_path)
    assert os.getpgid(child.pid) == leader.pid
    program.stop()
    await_end(leader)
    await_end(child)
    assert not (tmp_path / "sleeper.json").exists()
    assert "home /some/where" in (tmp_path / "sleeper.log").read_text()


def test_one_that_does_not_listen_is_killed(make: Make) -> None:
    program = make("deaf")
    program.start()
    leader = psutil.Process(program.pid)
    program.stop(timeout_s=0.5)
    await_end(leader)


def test_what_a_killed_one_left_behind_ends_before_the_next_starts(
    make: Make, tmp_path: Path
) -> None:
    """A Celery worker that is killed leaves its pool, which would take tasks beside the new one."""
    program = make()
    program.start()
    orphan = child_of(tmp_path)
    program.kill()
    assert program.wanted
    assert not program.running
    assert is_alive(orphan)
    program.start()
    await_end(orphan)
    assert is_alive(child_of(tmp_path))


def test_a_killed_starters_process_is_found_and_ended(make: Make, tmp_path: Path) -> None:
    first, successor = make(), make()
    first.start()
    leader, child = psutil.Process(first.pid), child_of(tmp_path)
    with pytest.raises(ServiceRunningError, match=f"process {leader.pid}"):
        successor.start()
    assert successor.end_leftover()
    await_end(leader)
    await_end(child)
    assert not successor.end_leftover()


def test_a_recycled_process_id_is_no_leftover(make: Make, tmp_path: Path) -> None:
    program = make()
    started_at = psutil.Process().create_time() - 60
    (tmp_path / "sleeper.json").write_text(f'{{"pid": {os.getpid()}, "started_at": {started_at}}}')
    assert program.leftover_pid() is None
    assert not program.end_leftover()
    program.start()  # Does not take this test's process for its own.


def test_a_start_that_fails_says_what_the_log_says(make: Make, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit('no such luck')")
    program = make()
    with pytest.raises(ServiceError, match="ended with code 1:\nno such luck"):
        program.start()
    assert not program.running


def test_a_start_that_takes_too_long_ends(make: Make) -> None:
    program = make(answers=lambda: False)
    with pytest.raises(ServiceError, match="did not get ready in time"):
        program.start(timeout_s=0.3)
    assert not program.running


def test_stopping_cuts_a_start_short(make: Make, tmp_path: Path) -> None:
    asked = threading.Event()

    def never() -> bool:
        asked.set()
        return False

    program = make(answers=never)
    raised: list[BaseException] = []

    def start() -> None:
        try:
            program.start()
        except ServiceStoppedError as error:
            raised.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    assert asked.wait(TIMEOUT_S)
    began = time.monotonic()
    program.stop()
    starter.join(TIMEOUT_S)
    assert time.monotonic() - began < 50  # A start by itself waits for a minute.
    assert len(raised) == 1
    assert not program.running


def test_an_end_by_itself_is_seen(make: Make) -> None:
    program = make()
    program.start()
    os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: not program.running, "the end is seen")
    assert program.wanted
    with pytest.raises(ServiceError, match="sleeper is not running"):
        _ = program.pid
