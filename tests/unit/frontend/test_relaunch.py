"""The phases of a launch or recovery on the job page, from rows that are in no database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from frontend.job.relaunch import relaunch_steps
from jobs.models import Attempt, Driver, DriverStatus, Job
from weir.protocol.lifecycle import JobStatus

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def driver(number: int, status: str, **columns: Any) -> Driver:
    return Driver(pk=number, number=number, status=status, created_at=at(-8), **columns)


def attempt(of: Driver, **columns: Any) -> Attempt:
    return Attempt(driver=of, number=3, started_at=at(-2), **columns)


def said(
    status: JobStatus,
    of: Driver,
    newest: Attempt | None = None,
    *,
    is_first: bool = True,
    **columns: Any,
) -> list[tuple[str, str, str]]:
    job = Job(status=status, slot_count=2, status_changed_at=at(-5), **columns)
    steps = relaunch_steps(job, of, newest, is_first=is_first, running=1, total=6, now=NOW)
    return [(step["state"], step["text"], step["took_ago"]) for step in steps]


def test_a_lost_driver_is_followed_by_its_delay_a_launch_slots_and_the_restore() -> None:
    lost = driver(1, DriverStatus.LOST, ended_at=at(-3))
    dead = attempt(lost, ended_at=at(-3))
    assert said(JobStatus.RESTARTING, lost, dead, restart_at=at(7)) == [
        ("current", "The restart delay passes: 10.0 s", "3 s"),
        ("ahead", "Driver 2 is launched", ""),
        ("ahead", "Slots register", ""),
        ("ahead", "Subtasks are deployed and their state is restored", ""),
    ]
    waits, starts = driver(2, DriverStatus.REQUESTED), driver(2, DriverStatus.STARTING)
    launched = "Driver 2 is launched, and its Spark application starts"
    assert said(JobStatus.RESTARTING, waits, dead)[0] == (
        "current", "Driver 2 waits for a launcher", "8 s"
    )  # fmt: skip
    assert said(JobStatus.RESTARTING, starts, dead)[0] == ("current", launched, "8 s")
    runs = driver(2, DriverStatus.RUNNING, slots={"0": {}})
    assert said(JobStatus.INITIALIZING, runs, dead)[:2] == [
        ("done", launched, ""),
        ("current", "Slots register: 1 of 2", ""),
    ]
    begins = attempt(runs, restored_checkpoint=41)  # Before its second slot has registered.
    assert said(JobStatus.INITIALIZING, runs, begins)[1] == (
        "current", "Slots register: 1 of 2", "2 s"
    )  # fmt: skip
    runs = driver(2, DriverStatus.RUNNING, slots={"0": {}, "1": {}})
    restores = attempt(runs, restored_checkpoint=41)
    assert [one[:2] for one in said(JobStatus.INITIALIZING, runs, restores)] == [
        ("done", launched),
        ("done", "Slots register: 2 of 2"),
        ("current", "Subtasks are deployed and restore checkpoint 41: 1 of 6 subtasks running"),
    ]


def test_a_driver_that_recovers_by_itself_is_not_launched_anew() -> None:
    own = driver(1, DriverStatus.RUNNING, slots={"0": {}, "1": {}})
    failed, again = attempt(own, ended_at=at(-5)), attempt(own)
    delay = "The failed attempt ends, and the restart delay passes"
    for status in (JobStatus.FAILING, JobStatus.RESTARTING):
        assert said(status, own, failed)[0] == ("current", delay, "5 s")
    assert said(JobStatus.FAILING, own, again)[0] == ("current", delay, "5 s")
    assert said(JobStatus.INITIALIZING, own, failed)[:2] == [
        ("done", delay, ""),
        ("current", "Slots register: 2 of 2", ""),
    ]
    assert said(JobStatus.INITIALIZING, own, again, is_first=False)[::2] == [
        ("done", delay, ""),
        (
            "current",
            "Subtasks are deployed and start from the beginning: 1 of 6 subtasks running",
            "2 s",
        ),
    ]


@pytest.mark.parametrize(
    "status", [JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.CANCELED, JobStatus.FAILED]
)
def test_nothing_is_on_its_way_in_other_states(status: JobStatus) -> None:
    own = driver(1, DriverStatus.RUNNING)
    assert said(status, own, attempt(own)) == []
    job = Job(status=JobStatus.RESTARTING)
    assert relaunch_steps(job, None, None, is_first=True, running=0, total=0, now=NOW) == []
