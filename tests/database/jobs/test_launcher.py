"""The launcher with real processes: a small script stands where spark-submit would."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, transaction
from pytest_django.fixtures import Settings

from controlplane.accounts.models import digest_of
from controlplane.base import clock
from jobs import services
from jobs.drivers import child_processes, driver_files, driver_watch, drivers, launcher, processes
from jobs.models import Driver, DriverStatus, Job
from tests.database.jobs.builders import (
    ALWAYS_AT_ONCE,
    apply,
    at_once,
    changed,
    coming_up,
    driver_of,
    pass_time,
    planned,
    reload,
    submitted,
)
from tests.waiting import TIMEOUT_S, wait_until
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db

SUBMIT = """#!{python} -ES
import json, os, signal, sys, time
with open(sys.argv[-1]) as file:
    behaviour = json.load(file)["options"].get("parameters", {{}}).get("behaviour", "run")
if behaviour == "exit":
    print("JAVA_HOME is not set", file=sys.stderr)
    sys.exit(3)
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if behaviour == "family" and os.fork() == 0:
    print("child", os.getpid(), flush=True)
    while True:
        signal.pause()
print("up", os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(autouse=True)
def spark_submit(tmp_path: Path, settings: Settings, db: None) -> Iterator[Path]:
    """Starts what the job's parameter ``behaviour`` says; nothing of it outlives the test."""
    script = tmp_path / "spark-submit"
    script.write_text(SUBMIT.format(python=sys.executable))
    script.chmod(0o755)
    settings.WEIR_SPARK_SUBMIT = str(script)
    yield script
    children = list(child_processes._children.values())
    child_processes._children.clear()
    for child in children:  # By pid: one that is just being executed has no command line yet.
        child.kill()
    wait_until(lambda: not killed(script), "nothing runs")  # One may just have forked.
    for child in children:
        child.wait(timeout=TIMEOUT_S)


def killed(script: Path) -> int:
    """Kill what runs of a script, by its command line: a test may have changed the rows."""
    running = [p for p in processes._all() if str(script).encode() in command_line(p.pid)]
    for process in running:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return len(running)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until_tick(condition: Callable[[], Any], expectation: str) -> Any:
    """The condition's value once it is true; the launcher looks after its drivers until then."""

    def ticked() -> Any:
        launcher.tick()
        return condition()

    return wait_until(ticked, expectation)


def log_of(driver: Driver) -> str:
    return driver_files.tail(driver)


def launched(behaviour: str = "run", **given: Any) -> tuple[Job, Driver]:
    """A job whose driver's process is up."""
    job = submitted(options={"parameters": {"behaviour": behaviour}}, **given)
    assert launcher.launch() == 1
    driver = driver_of(job)
    wait_until(lambda: "up" in log_of(driver) or behaviour == "exit", "the process is up")
    return job, driver


def brought_up(behaviour: str = "run") -> tuple[Job, Driver]:
    """A job that runs, with a process behind it."""
    job, driver = launched(behaviour)
    drivers.heard(driver, clock.now())
    return apply(job, planned(restart=ALWAYS_AT_ONCE), *coming_up()), driver


def runs(driver: Driver) -> bool:
    return processes.is_running(driver.pid, driver.process_started_at)


def test_driver_is_started_and_noted() -> None:
    job, driver = launched()
    assert driver.status == DriverStatus.STARTING
    assert (driver.launched_by, driver.boot_id) == (processes.host_name(), processes.boot_id())
    assert runs(driver)
    assert driver.launch_expires_at is None
    assert driver.heartbeat_due_at > clock.now()
    assert os.getsid(driver.pid) == driver.pid  # It outlives its launcher's terminal.
    told = json.loads((Path(driver.directory) / "job.json").read_text())
    assert (told["job_id"], told["driver"]) == (job.pk, 1)
    assert digest_of(told["token"]) == driver.token_digest
    assert drivers.authenticate(job, told["token"]) == driver
    assert job.operations.get().status == "running"


def test_token_is_neither_in_the_command_line_nor_in_the_environment() -> None:
    _, driver = launched()
    token = json.loads((Path(driver.directory) / "job.json").read_text())["token"].encode()
    for name in ("cmdline", "environ"):
        assert token not in Path(f"/proc/{driver.pid}/{name}").read_bytes()


def test_driver_that_cannot_come_up_is_lost_with_its_exit_code_and_last_words() -> None:
    job, driver = launched("exit")
    until_tick(lambda: reload(driver).status == DriverStatus.LOST, "the driver is lost")
    cause = reload(driver).cause
    assert "with exit code 3" in cause
    assert f"; install Java 17 or newer on {processes.host_name()}, or set JAVA_HOME" in cause
    assert "JAVA_HOME is not set" in cause
    until_tick(lambda: reload(driver).stopped_at, "the driver's process was stopped")
    for _ in range(2):
        pass_time(reload(job), 5, "restart_at")
        from jobs import due_jobs

        wait_until(due_jobs.relaunch_due, "another driver is due")
        until_tick(lambda: driver_of(job).status == DriverStatus.LOST, "the driver is lost")
    job = reload(job)
    assert (job.status, driver_of(job).number) == ("failed", 3)
    assert "JAVA_HOME is not set" in job.operations.get().error


def test_killed_driver_is_replaced() -> None:
    job, driver = brought_up()
    os.kill(driver.pid, signal.SIGKILL)
    until_tick(lambda: driver_of(job).number == 2 and driver_of(job).pid, "another driver runs")
    assert reload(driver).cause == f"the driver's process {driver.pid} ended, killed by SIGKILL"
    assert reload(driver).stopped_at is not None
    assert runs(driver_of(job))


def test_driver_that_tells_of_its_loss_before_a_launcher_sees_it_dead_is_told_as_killed() -> None:
    job, driver = brought_up()
    said = "the cluster ended all slots: Spark's JVM has ended"
    os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: not runs(driver), "the process has ended")
    with transaction.atomic():
        drivers.lost(services.locked(job.pk), reload(driver), said)
    driver_watch.stop()
    driver_watch.stop()
    how = f"the driver's process {driver.pid} ended, killed by SIGKILL\n{said}"
    told = (reload(driver).cause, job.attempts.get().cause, job.exceptions.get().text)
    assert told == (how, how, how)
    assert reload(job).cause == how


def test_driver_that_a_launcher_ends_itself_is_not_told_as_killed() -> None:
    job, driver = brought_up()
    with transaction.atomic():
        drivers.lost(services.locked(job.pk), reload(driver), "driver 1 was silent for 10 s")
    until_tick(lambda: reload(driver).stopped_at, "the driver's process was stopped")
    assert reload(driver).cause == "driver 1 was silent for 10 s"


def test_nothing_of_a_killed_driver_is_left_as_a_twin() -> None:
    """The JVM is killed; the Python driver is its child and would go on."""
    job, driver = brought_up("family")
    told = wait_until(
        lambda: re.search(r"child (\d+)\n", log_of(driver)), "the child tells its pid"
    )
    child = int(told[1])
    assert processes.find(child).session == driver.pid
    os.kill(driver.pid, signal.SIGKILL)
    until_tick(lambda: driver_of(job).number == 2 and driver_of(job).pid, "another driver runs")
    left = processes.find(child)
    assert left is None or left.is_gone


def test_successor_waits_for_the_end_of_its_predecessor() -> None:
    """A driver that hangs is silent, not gone; two of them must not run at once."""
    job, driver = brought_up("stubborn")
    services.restart(None, job.pk)
    launcher.tick()
    assert driver_of(job).status == DriverStatus.REQUESTED
    assert runs(driver)
    pass_time(driver, 60, "stop_requested_at")  # It was asked, and did not go.
    until_tick(lambda: driver_of(job).status == DriverStatus.STARTING, "the driver starts")
    assert not runs(driver)
    assert reload(driver).stopped_at is not None


def test_driver_that_is_told_to_go_gets_the_chance_to() -> None:
    job, driver = launched()
    services.cancel(None, job.pk)
    assert reload(job).status == "canceled"
    until_tick(lambda: reload(driver).stopped_at, "the driver's process was stopped")
    assert not runs(driver)


def test_driver_that_stays_after_its_job_is_ended() -> None:
    job, driver = brought_up()
    apply(job, changed(JobStatus.FINISHED))
    launcher.tick()
    assert runs(driver)
    assert reload(driver).stop_requested_at is None
    pass_time(driver, 3_600, "ended_at")
    until_tick(lambda: reload(driver).stopped_at, "the driver's process was stopped")
    assert not runs(driver)


def test_restarted_launcher_finds_its_drivers_again() -> None:
    """All that a launcher keeps in memory is gone; its rows are not."""
    job, driver = brought_up()
    child = child_processes._children.pop((driver.pid, driver.process_started_at))
    launcher.tick()
    assert reload(driver).status == DriverStatus.RUNNING
    os.kill(driver.pid, signal.SIGKILL)
    until_tick(lambda: driver_of(job).number == 2, "another driver is requested")
    # How is for its parent alone to know.
    assert "its exit code is not known, since the launcher that started it" in reload(driver).cause
    assert child.wait(timeout=TIMEOUT_S) == -signal.SIGKILL


def test_process_that_was_started_and_not_noted_is_adopted() -> None:
    """The launcher died between the two."""
    _, driver = launched()
    session = (driver.pid, driver.process_started_at)
    driver.pid = driver.process_started_at = None
    driver.launch_expires_at = clock.now() + clock.milliseconds(60_000)
    driver.save()
    launcher.tick()
    assert reload(driver).pid is None  # Its launcher may yet note it.
    pass_time(driver, 120, "launch_expires_at")
    launcher.tick()
    driver = reload(driver)
    assert (driver.pid, driver.process_started_at) == session
    assert driver.status == DriverStatus.STARTING


def test_claim_whose_launcher_died_before_it_started_anything_is_given_up() -> None:
    job = submitted()
    driver = driver_of(job)
    with transaction.atomic():
        assert launcher._claim(services.locked(job.pk), driver, 1, {}) is not None
    launcher.tick()
    assert reload(driver).status == DriverStatus.STARTING  # The claim stands.
    pass_time(driver, 120, "launch_expires_at")
    launcher.tick()
    assert reload(driver).status == DriverStatus.LOST
    assert reload(driver).stopped_at is not None
    assert reload(job).restart_at is not None


def test_launcher_that_noted_too_late_ends_what_it_started() -> None:
    """It was held up for so long that its claim ran out and the driver was given up."""
    job = submitted()
    with transaction.atomic():
        claimed = launcher._claim(services.locked(job.pk), driver_of(job), 1, {})
    services.cancel(None, job.pk)
    launcher._start(claimed)
    driver = reload(claimed.driver)
    assert driver.status == DriverStatus.ENDED
    assert driver.pid is not None
    until_tick(lambda: reload(driver).stopped_at, "the driver's process was stopped")
    assert not runs(driver)


@pytest.mark.parametrize("is_too_old", [False, True])
def test_spark_that_starts_no_java_of_its_own_is_told_with_what_to_do(
    is_too_old: bool, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEIR_SPARK_SUBMIT = ""  # That of PySpark.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if is_too_old:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(
            "#!/bin/sh\necho 'java.lang.UnsupportedClassVersionError: version 61.0' >&2\nexit 1\n"
        )
        (tmp_path / "bin" / "java").chmod(0o755)
    job = submitted()
    until_tick(lambda: driver_of(job).status == DriverStatus.LOST, "the driver is lost")
    assert "; install Java 17 or newer on " in driver_of(job).cause


def test_driver_that_cannot_be_started_at_all_is_lost_and_tried_again(
    settings: Settings,
) -> None:
    settings.WEIR_SPARK_SUBMIT = "/nowhere/spark-submit"
    job = submitted()
    until_tick(lambda: driver_of(job).status == DriverStatus.LOST, "the driver is lost")
    driver = driver_of(job)
    assert "exit code 127\nweir: cannot start /nowhere/spark-submit: [Errno 2]" in driver.cause
    until_tick(lambda: reload(driver).stopped_at, "the driver's process was stopped")
    assert reload(job).restart_at is not None


def test_driver_whose_files_cannot_be_made_is_lost_and_tried_again(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = submitted()
    driver_files.root().mkdir()
    (driver_files.root() / job.pk).symlink_to(tmp_path)
    launcher.tick()
    driver = driver_of(job)
    assert driver.status == DriverStatus.LOST
    assert "is no directory; remove it" in driver.cause
    assert driver.stopped_at is not None
    assert reload(job).restart_at is not None
    assert "could not be started" in caplog.text


def test_drivers_that_a_restored_database_does_not_know_keep_their_directories(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Drivers 2 and 3 were of commits that are lost; the second runs still."""
    job, first = brought_up()
    os.kill(first.pid, signal.SIGKILL)
    until_tick(lambda: driver_of(job).number == 2 and driver_of(job).pid, "another driver runs")
    unknown = Path(driver_of(job).directory)
    told = (unknown / driver_files.JOB_FILE_NAME).read_text()
    (unknown.parent / "3").mkdir()
    Driver.objects.filter(job=job, number=2).delete()
    Job.objects.filter(pk=job.pk).update(status=JobStatus.RUNNING)
    first.save()  # As it was.
    with transaction.atomic():
        drivers.lost(services.locked(job.pk), first, "driver 1 was refused")
    until_tick(lambda: driver_of(job).number == 4 and driver_of(job).pid, "another driver runs")
    assert runs(driver_of(job))
    assert Path(driver_of(job).directory) == unknown.parent / "4"
    assert (unknown / driver_files.JOB_FILE_NAME).read_text() == told
    assert list((unknown.parent / "3").iterdir()) == []
    assert "driver 2 is started as driver 4" in caplog.text
    assert "could not be started" not in caplog.text
    assert [*job.drivers.values_list("number", flat=True)] == [4, 1]


def test_process_that_cannot_be_noted_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database goes away right after the process was started: it would never be found again."""
    started: list[int] = []

    def fail(driver: Driver, pid: int, *_: object) -> bool:
        started.append(pid)
        raise OperationalError("the connection was lost")

    monkeypatch.setattr(launcher, "note", fail)
    job = submitted()
    assert launcher.launch() == 0
    assert processes.find(started[0]) is None
    assert driver_of(job).status == DriverStatus.LOST
    assert "the connection was lost" in driver_of(job).cause
    assert not child_processes._children


def test_process_with_the_same_pid_is_not_the_driver() -> None:
    _, driver = brought_up()
    # As if the pid were another process' by now: this one must never be signalled.
    Driver.objects.filter(pk=driver.pk).update(process_started_at=driver.process_started_at - 100)
    launcher.tick()
    assert reload(driver).status == DriverStatus.LOST
    assert runs(driver)


def test_drivers_of_other_machines_and_boots_are_none_of_its_business() -> None:
    _, driver = brought_up()
    for column in ("launched_by", "boot_id"):
        other = Driver.objects.filter(pk=driver.pk)
        other.update(**{column: "other", "process_started_at": 1.0})
        launcher.tick()
        assert reload(driver).status == DriverStatus.RUNNING
        other.update(
            process_started_at=driver.process_started_at,
            **{column: getattr(driver, column)},
        )


@pytest.mark.django_db(transaction=True)
def test_two_launchers_start_each_driver_once() -> None:
    jobs = [submitted() for _ in range(4)]
    results = at_once(launcher.launch, launcher.launch)
    until_tick(lambda: all(driver_of(job).pid for job in jobs), "each job has a driver")
    assert sum(results) <= len(jobs)
    for job in jobs:
        assert driver_of(job).number == 1
        mark = f"{job.pk}/1"
        leaders = [p for p in processes._all() if p.pid == p.session and carries(p.pid, mark)]
        assert [p.pid for p in leaders] == [driver_of(job).pid]


def carries(pid: int, mark: str) -> bool:
    try:
        return f"WEIR_DRIVER={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.django_db(transaction=True)
def test_two_launchers_report_a_lost_driver_once() -> None:
    job, driver = brought_up()
    os.kill(driver.pid, signal.SIGKILL)
    wait_until(lambda: not runs(driver), "the process has ended")
    at_once(driver_watch.watch, driver_watch.watch, driver_watch.watch)
    assert driver_of(job).number == 2
    assert job.exceptions.count() == 1


def test_clock_that_jumps_changes_no_identity() -> None:
    """The kernel counts a process's start from the boot."""
    process = processes.find(os.getpid())
    assert process is not None
    assert 0 < process.started_at <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert processes.is_running(os.getpid(), process.started_at)
    assert not processes.is_running(os.getpid(), process.started_at + 0.5)
