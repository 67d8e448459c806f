"""Jobs of the embedded control plane: taken up again after Ctrl-C, or running on without it."""

import os
import signal
from pathlib import Path

import psutil
import psycopg2

from controlplane.embedded.drivers import driver_processes
from tests.migrated import begin_prepared
from tests.process.embedded.weir_up import DEADLINE_S, WeirUp
from tests.processes import processes_of
from tests.waiting import wait_until
from weir.child_process import is_alive


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
    wait_until(lambda: completed(home) >= wanted, f"{more} more checkpoints", DEADLINE_S)


def hold_checkpoint(home: Path) -> int:
    """Stop a worker process, so that no checkpoint completes; the number of the one that waits."""
    pid = value(home, "SELECT pid FROM jobs_worker ORDER BY id DESC LIMIT 1")
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    stopped_at = value(home, "SELECT now()::text")
    last = value(home, "SELECT max(number) FROM checkpoints_checkpoint")
    # The one under way at that moment may have had the worker's acknowledgement already: then
    # another follows. Or it is the one that waits, and none is triggered after it.
    waits = (
        "SELECT coalesce(max(number), 0) FROM checkpoints_checkpoint WHERE status = 'pending' AND "
        f"(number > {last} OR now() > '{stopped_at}'::timestamptz + interval '10 seconds')"
    )
    wait_until(lambda: value(home, waits), "a checkpoint waits for the worker", DEADLINE_S)
    number = value(home, waits)
    assert isinstance(number, int)
    return number


def check_nothing_failed(home: Path, under_way: int) -> None:
    """The end of the control plane aborted its checkpoint, and is nowhere told as a failure."""
    ended = f"SELECT status || ' ' || reason FROM checkpoints_checkpoint WHERE number = {under_way}"
    assert value(home, ended) == "aborted control_plane_stopped"
    for failures in (
        "checkpoints_checkpoint WHERE status = 'failed'",
        "jobs_driver WHERE status = 'lost'",
        "jobs_attempt WHERE \"end\" = 'failed'",
        "jobs_jobexception WHERE kind <> 'notice'",
        "jobs_job WHERE restart_state IS NOT NULL",
        "jobs_jobevent WHERE NOT planned AND kind <> 'checkpoint.completed'",
    ):
        assert value(home, f"SELECT count(*) FROM {failures}") == 0, failures
    told = "SELECT count(*) FROM jobs_jobevent WHERE kind = 'attempt.ended' AND planned"
    assert value(home, told) == 1


def drivers(home: Path) -> list[psutil.Process]:
    return driver_processes(home / "drivers")


def test_a_job_survives_the_control_plane_or_goes_on_after_it(home: Path) -> None:
    """One job through three runs of weir_up: kept, ended with everything, and taken up again.

    Ctrl-C comes while a checkpoint is under way, and neither that one nor its driver has failed.
    """
    begin_prepared(home)
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
    assert f"Jobs of an earlier run go on, in about 15 s: flights ({job.split('/')[4]})." in (
        second.output
    )
    assert second.job() == job
    await_checkpoints(home, 2)
    assert value(home, "SELECT max(number) FROM jobs_driver") == 1  # The same one, found again.
    under_way = hold_checkpoint(home)
    assert second.end(signal.SIGINT) == 0, second.output
    assert drivers(home) == []
    assert processes_of(home) == []

    third = WeirUp(home, "--port", "0")
    third.login()
    wait_until(
        lambda: value(home, "SELECT max(number) FROM jobs_driver") == 2,
        "another driver is requested",
        DEADLINE_S,
    )
    await_checkpoints(home, 2)
    check_nothing_failed(home, under_way)
    restored = "SELECT restored_checkpoint FROM jobs_attempt ORDER BY number DESC LIMIT 1"
    assert value(home, restored) is not None
    assert third.end(signal.SIGTERM) == 0, third.output
    assert processes_of(home) == []
