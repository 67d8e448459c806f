"""Upgrades of real jobs: to a version that runs, to ones that cannot, and to one that raises.

The sources hold a known number of records, each row says which version wrote it, and each record is
numbered within its key by state: a version that began without the state, or a record that the
change lost or doubled, shows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.plane import Plane, PlaneJob, wait_for
from tests.e2e.test_going_back import kill_under_way, shown
from tests.e2e.test_kills import EXACT, RATE, RECORDS, check_one_driver, check_output
from tests.e2e.test_pages import Visitor
from tests.e2e.upgraded import VERSION
from tests.spark.harness import count, rows_of, wrong_numbers

NEW = {"kind": "module", "module": "tests.e2e.upgraded"}
BROKEN = {"kind": "module", "module": "tests.e2e.broken"}


def versions(rows: Sequence[Sequence[Any]]) -> list[bool]:
    """The versions that wrote the rows: whether it is the new one."""
    return sorted({writer >= VERSION for _, _, _, writer, _ in rows})


def settings_of(job: PlaneJob) -> dict[str, Any]:
    shown = job.get()
    return {name: shown[name] for name in ("id", "name", "pipeline", "options")}


def test_upgraded_job_goes_on_with_its_state_and_every_record_counts_once(
    plane: Plane, tmp_path: Path
) -> None:
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    newest = job.await_completed(beyond=1)
    attempts = len(job.get("attempts")["results"])

    refused = plane.await_end(job.ask("upgrade", pipeline=BROKEN))
    assert refused["status"] == "failed"
    assert "<night>" in refused["error"]
    assert "The job was not touched" in refused["error"]
    assert len(job.get("attempts")["results"]) == attempts, "the job noticed"
    newest = job.await_completed(beyond=newest)

    upgrading = job.ask("upgrade", pipeline=NEW)
    kill_under_way(plane, upgrading, lambda: plane.stack.process("worker").pid)
    ended = plane.await_success(upgrading)
    assert "The job is running tests.e2e.upgraded" in shown(Visitor(plane), job, ended)
    check_one_driver(job)
    assert versions(rows_of(job.output)) in ([False], [False, True]), "nothing was written before"
    assert len(job.get("attempts")["results"]) > attempts
    (savepoint,) = job.get("savepoints")["results"]
    assert savepoint["location"] == ended["saved"]
    job.await_completed(beyond=newest + 1)
    job.hurry_to_the_end()
    assert versions(rows_of(job.output)) == [False, True]
    rows = [(*row[:3], row[3] % VERSION, row[4]) for row in rows_of(job.output)]
    assert count(rows, RECORDS) == EXACT
    assert not wrong_numbers(rows)


def test_job_whose_new_version_raises_goes_on_as_before_and_every_record_counts_once(
    plane: Plane, tmp_path: Path
) -> None:
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    newest = job.await_completed(beyond=1)
    before = settings_of(job)
    marker = tmp_path / "raised"
    upgrading = job.ask("upgrade", pipeline=NEW, parameters={"raises": str(marker)})
    ended = plane.await_end(upgrading)
    assert ended["status"] == "failed"
    assert marker.exists(), "the new version did not come so far as to raise"
    assert "the new version has a bug" in ended["error"]
    assert "the job runs again as before" in ended["error"]
    assert "The job is taken back to how it was" in shown(Visitor(plane), job, ended)
    assert settings_of(job) == before
    check_one_driver(job)
    job.await_completed(beyond=newest + 1)
    wait_for(lambda: job.status == "running", "the job runs")
    job.hurry_to_the_end()
    assert versions(rows_of(job.output)) == [False]
    check_output(job, RECORDS)
