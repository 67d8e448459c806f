"""Every process is killed while checkpoints run; every record counts exactly once all the same.

Two jobs, one for the processes of a job and one for those of the control plane, each with all its
kills in turn. Each kill hits while a checkpoint is under way and must be recovered from, by a
checkpoint that was triggered after it, before the next; the outputs are compared with all that the
sources hold, which is what an undisturbed run writes.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.e2e.plane import Plane, PlaneJob, wait_for
from tests.processes import stopped
from tests.spark.harness import Count, count, rows_of, wrong_numbers
from tests.waiting import wait_until

EXACT = Count(lost=0, duplicated=0, out_of_order=0)
RECORDS = 20_000  # More than any of these tests lets pass before it hurries.
RATE = 100.0


def check_output(job: PlaneJob, records: int) -> None:
    """Nothing lost, nothing doubled, nothing out of order, and state that counted to the end."""
    rows = rows_of(job.output)
    assert count(rows, records) == EXACT
    assert not wrong_numbers(rows)


def check_one_driver(job: PlaneJob) -> None:
    """No twin: one Python driver, and it is the newest."""

    def holds() -> bool:
        newest = job.python_driver.pid
        return [process.pid for process in job.drivers_alive()] == [newest]

    wait_for(holds, "one driver, the newest")


@contextmanager
def one_driver_at_any_time(*jobs: PlaneJob, followed_by: int = 0) -> Iterator[None]:
    """Look at the machine again and again meanwhile: no job ever has two drivers that run.

    Each driver leads a session of its own, to which every child of its belongs, also one that has
    not executed its own program yet and bears its parent's command line.

    ``followed_by``: so many drivers that follow others have to be seen, else nothing was shown.
    """
    seen: dict[str, set[int]] = {job.id: set() for job in jobs}
    twins: list[set[int]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.2):
            for job in jobs:
                sessions = _sessions(job.drivers_alive())
                seen[job.id].update(sessions)
                if len(sessions) > 1:
                    twins.append(sessions)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            is_over.set()
        looking.result()
    assert twins == []
    assert sum(len(sessions) - 1 for sessions in seen.values()) == followed_by, seen


def _sessions(processes: Iterable[psutil.Process]) -> set[int]:
    sessions = set()
    for process in processes:
        with suppress(ProcessLookupError):
            sessions.add(os.getsid(process.pid))
    return sessions


def kill_during_checkpoint(job: PlaneJob, pid: Callable[[], int]) -> int:
    """SIGKILL a process while a checkpoint is under way; the checkpoint's number.

    A worker process is held up meanwhile, so that the checkpoint cannot end before the kill, and
    the checkpoint's own times are compared with the kill's.
    """
    victim = pid()
    with stopped(job.worker_pid):  # It may be the victim.
        under_way = job.await_held()
        killed_at = datetime.now(UTC)
        os.kill(victim, signal.SIGKILL)
    struck = wait_for(lambda: job.get(f"checkpoints/{under_way}"), f"checkpoint {under_way}")
    assert datetime.fromisoformat(struck["triggered_at"]) <= killed_at
    settled_at = struck["settled_at"]
    assert settled_at is None or datetime.fromisoformat(settled_at) > killed_at, struck
    return under_way


def test_kills_of_the_jobs_own_processes(plane: Plane, tmp_path: Path) -> None:
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    job.await_completed(beyond=2)
    victims: dict[str, Callable[[], int]] = {
        "worker process": lambda: job.worker_pid,
        "driver JVM": lambda: job.jvm.pid,
        "Python driver": lambda: job.python_driver.pid,
    }
    with one_driver_at_any_time(job, followed_by=2):
        for victim, pid in victims.items():
            attempts = len(job.get("attempts")["results"])
            under_way = kill_during_checkpoint(job, pid)
            wait_for(
                lambda attempts=attempts: len(job.get("attempts")["results"]) > attempts,
                f"another attempt after the kill of the {victim}",
            )
            job.await_completed(beyond=under_way)
            check_one_driver(job)
    assert len(job.get("drivers")["results"]) == 3
    *later, first = job.get("attempts")["results"]
    assert len({attempt["driver"] for attempt in later}) == 3
    assert all(attempt["restored_bytes"] > 0 for attempt in later)
    assert first["restored_bytes"] is None
    job.hurry_to_the_end()
    check_output(job, RECORDS)


def test_two_launchers_start_one_driver_each_time(plane: Plane, tmp_path: Path) -> None:
    """Both look every second for drivers to start; neither knows of the other."""
    with plane.another_launcher():
        jobs = [
            plane.submit(tmp_path / name, records=RECORDS, rate=RATE) for name in ("one", "other")
        ]
        for job in jobs:
            job.await_completed(beyond=0)
            check_one_driver(job)
        with one_driver_at_any_time(*jobs, followed_by=1):
            killed = kill_during_checkpoint(jobs[0], lambda: jobs[0].jvm.pid)
            jobs[0].await_completed(beyond=killed)
            check_one_driver(jobs[0])
        for job in jobs:
            job.hurry_to_the_end()
            check_output(job, RECORDS)
    assert [len(job.get("drivers")["results"]) for job in jobs] == [2, 1]


def test_kills_of_the_control_planes_processes(plane: Plane, tmp_path: Path) -> None:
    """The job must not even notice: one driver and one attempt from beginning to end."""
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    job.await_completed(beyond=2)
    driver = job.python_driver
    with one_driver_at_any_time(job):
        for victim in ("launcher", "worker", "beat", "web", "redis", "postgres"):
            service = plane.stack.process(victim)
            before = service.pid
            under_way = kill_during_checkpoint(job, lambda service=service: service.pid)
            wait_for(lambda s=service, b=before: s.running and s.pid != b, f"{victim} again")
            job.await_completed(beyond=under_way + 1)
            check_one_driver(job)
    assert driver.is_running()  # The same one all along.
    assert len(job.get("attempts")["results"]) == 1
    job.hurry_to_the_end()
    assert len(job.get("drivers")["results"]) == 1
    check_output(job, RECORDS)


def test_database_that_lost_its_newest_commits(plane: Plane, tmp_path: Path) -> None:
    """A standby takes over without the last seconds, in which the job was given another driver.

    The database does not know that driver, which is refused and ends, and would give its number to
    the next one. What that driver committed stays: the job goes on from the newest checkpoint in
    the storage.
    """
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    job.await_completed(beyond=2)
    server, data = plane.stack.process("postgres"), plane.stack.postgres.data
    earlier = data.with_name("earlier")
    server.stop()
    subprocess.run(["cp", "--archive", str(data), str(earlier)], check=True)
    server.start()
    known = wait_for(job.newest_completed, "the checkpoints that are known")
    under_way = kill_during_checkpoint(job, lambda: job.jvm.pid)
    job.await_completed(beyond=under_way + 1)
    unknown, lost = job.python_driver, job.newest_completed()
    assert lost > known
    rows_before = len(rows_of(job.output))
    server.stop()
    shutil.rmtree(data)
    earlier.rename(data)
    server.start()
    assert wait_for(job.newest_completed, "the checkpoints that are known") < lost
    wait_for(lambda: job.drivers_alive() and not unknown.is_running(), "the unknown driver's end")
    job.await_completed(beyond=lost)
    check_one_driver(job)
    assert [driver["number"] for driver in job.get("drivers")["results"]] == [3, 1]
    (attempt, *_) = job.get("attempts")["results"]
    assert attempt["restored_checkpoint"] > known
    assert len(rows_of(job.output)) > rows_before
    job.hurry_to_the_end()
    check_output(job, RECORDS)


def test_storage_that_is_not_mounted_when_the_next_driver_starts(
    plane: Plane, tmp_path: Path
) -> None:
    """An empty directory is in its place, as where a share is mounted late: the job waits."""
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    job.await_completed(beyond=2)
    storage = Path(job.get()["storage"]) / job.id
    aside = storage.with_name("aside")
    launcher = plane.stack.process("launcher")
    launcher.stop()
    under_way = kill_during_checkpoint(job, lambda: job.jvm.pid)
    wait_for(lambda: not job.drivers_alive(), "the end of the driver")
    # No driver is launched while the storage is to tell whether a manifest was written.
    wait_for(lambda: not job.checkpoints(status="finalizing"), "the checkpoint is settled")
    storage.rename(aside)
    launcher.start()
    refused = "none of the job's is there"
    wait_for(lambda: refused in job.get()["cause"], "a restore that is refused")

    def mount() -> bool:
        storage.rename(tmp_path / uuid.uuid4().hex)
        with suppress(OSError):  # The driver may just have claimed another attempt there.
            aside.rename(storage)
        return not aside.exists()

    wait_until(mount, "the storage in its place")
    job.await_completed(beyond=under_way)
    check_one_driver(job)
    assert {one["restored_checkpoint"] for one in job.get("attempts")["results"]} > {None}
    job.hurry_to_the_end()
    check_output(job, RECORDS)


def test_control_plane_away_for_longer_than_the_checkpoint_timeout(
    plane: Plane, tmp_path: Path
) -> None:
    """Web is stopped for twice the timeout: the job goes on, and no checkpoint counts as failed.

    Before that its process stands still for as long, and takes what waited for it when it goes on.
    """
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE, timeout_ms=4_000)
    job.await_completed(beyond=2)
    driver = job.python_driver.pid
    web = plane.stack.process("web")
    frozen = psutil.Process(web.pid)
    for leave, come_back in ((frozen.suspend, frozen.resume), (web.stop, web.start)):
        under_way = job.await_pending()
        leave()
        rows_before = len(rows_of(job.output))
        time.sleep(9.0)
        assert len(rows_of(job.output)) <= rows_before + _rows_of_two_checkpoints(RATE)
        come_back()
        job.await_completed(beyond=under_way)
    assert job.python_driver.pid == driver
    causes = [attempt["cause"] for attempt in job.get("attempts")["results"]]
    assert causes == [""]
    assert not job.checkpoints(status="failed")
    assert {c["reason"] for c in job.checkpoints(status="aborted")} <= {"control_plane_away"}
    job.hurry_to_the_end()
    check_output(job, RECORDS)


def _rows_of_two_checkpoints(rate: float) -> int:
    # What had been sealed when the line broke may still be committed: no more than that.
    return int(2 * 2 * rate)
