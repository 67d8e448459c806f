"""Jobs of the embedded control plane: taken up again after Ctrl-C, or running on without it."""

import signal
from pathlib import Path

import psutil
import psycopg2
import pytest

from controlplane.embedded.drivers import driver_processes
from controlplane.embedded.process import is_alive
from tests.process.embedded.weir_up import WeirUp, processes_of, wait_until

pytestmark = [pytest.mark.timeout(400)]


def value(home: Path, query: str) -> object:
    """The answer of the embedded database of ``home``."""
    connection = psycopg2.connect(
        host="127.0.0.1",
        port=int((home / "postgres" / "port").read_text()),
        user="weir",
        password=(home / "postgres" / "password").read_text(),
        dbname="weir",
    )
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
    finally:
        connection.close()
    assert row is not None
    return row[0]


def completed(home: Path) -> int:
    query = "SELECT count(*) FROM checkpoints_checkpoint WHERE status = 'completed'"
    count = value(home, query)
    assert isinstance(count, int)
    return count


def await_checkpoints(home: Path, more: int) -> None:
    wanted = completed(home) + more
    wait_until(lambda: completed(home) >= wanted, f"{more} more checkpoints")


def drivers(home: Path) -> list[psutil.Process]:
    return driver_processes(home / "drivers")


def test_a_job_survives_the_control_plane_or_goes_on_after_it(home: Path) -> None:
    """One job through three runs of weir_up: kept, ended with everything, and taken up again."""
    first = WeirUp(home, "--port", "0", "--demo", "--keep-jobs")
    page, _ = first.login()
    job = first.job()
    await_checkpoints(home, 2)
    kept = drivers(home)
    assert first.end(signal.SIGINT) == 0, first.output
    assert {process.pid for process in processes_of(home)} <= {one.pid for one in drivers(home)}
    assert [one for one in kept if is_alive(one)]

    second = WeirUp(home, "--port", "0", "--demo")
    assert second.login()[0] == page
    assert second.job() == job
    await_checkpoints(home, 2)
    assert value(home, "SELECT max(number) FROM jobs_driver") == 1  # The same one, found again.
    assert second.end(signal.SIGINT) == 0, second.output
    assert drivers(home) == []
    assert processes_of(home) == []

    third = WeirUp(home, "--port", "0")
    third.login()
    wait_until(
        lambda: value(home, "SELECT max(number) FROM jobs_driver") == 2, "another driver to start"
    )
    await_checkpoints(home, 2)
    restored = "SELECT restored_checkpoint FROM jobs_attempt ORDER BY number DESC LIMIT 1"
    assert value(home, restored) is not None
    assert third.end(signal.SIGTERM) == 0, third.output
    assert processes_of(home) == []
