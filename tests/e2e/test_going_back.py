"""Savepoints, stop, rollback, fork and rescale of real jobs, each with a SIGKILL in its middle.

The sources hold a known number of records, so after any operations on the way, a job's final
files must hold each of them once: a rollback that took back too little, or a restore that lost
something, shows. Every kill is checked to have hit while the operation was under way.
"""

import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.plane import Plane, PlaneJob, wait_for
from tests.e2e.test_kills import RATE, RECORDS, check_one_driver, check_output
from tests.e2e.test_pages import Visitor
from tests.spark.harness import count, rows_of, wrong_numbers
from weir.examples.control_plane import RequestRefusedError


def kill_under_way(plane: Plane, operation: str, victim: Callable[[], int]) -> None:
    """SIGKILL a process while an operation is under way; fails if it had ended already."""
    pid = victim()
    killed_at = datetime.now(UTC)
    os.kill(pid, signal.SIGKILL)
    ended_at = plane.operation(operation)["ended_at"]
    is_hit = ended_at is None or datetime.fromisoformat(ended_at) > killed_at
    assert is_hit, "the operation ended before the kill"


def shown(visitor: Visitor, job: PlaneJob, operation: dict[str, Any]) -> str:
    """The text of an operation's page."""
    return unescape(visitor.page(f"/jobs/{job.id}/operations/{operation['id']}"))


def check_each_once(rows: Sequence[Sequence[Any]], records: int) -> None:
    """The same where subtasks changed meanwhile, so that order between two of them says nothing."""
    counted = count(rows, records)
    assert (counted.lost, counted.duplicated) == (0, 0)
    assert not wrong_numbers(rows)


def test_a_stopped_job_goes_on_from_its_savepoint_on_another_path(
    plane: Plane, tmp_path: Path
) -> None:
    """Taken while a worker dies, stopped while its driver dies, moved, and gone on from."""
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    newest = job.await_completed(beyond=1)

    worker = psutil.Process(job.worker_pid)
    worker.suspend()  # Without its acknowledgements the savepoint cannot end before the kill.
    operation = job.ask("savepoints", name="first", labels={"why": "test"})
    kill_under_way(plane, operation, lambda: worker.pid)
    ended = plane.await_end(operation)  # Either way: what matters is that it ends.
    assert ended["status"] in ("succeeded", "failed"), ended
    newest = job.await_completed(beyond=newest + 1)

    taken = plane.await_success(job.ask("savepoints", name="second", note="before the stop"))
    assert Path(taken["result"]["path"], "manifest").is_file()

    drivers = len(job.get("drivers")["results"])
    stopping = job.ask("stop", drain=False, name="last")
    kill_under_way(plane, stopping, lambda: job.python_driver.pid)
    ended = plane.await_end(stopping)
    if ended["status"] != "succeeded":  # The driver died before the savepoint was there.
        assert job.status in ("running", "restarting", "initializing"), ended
        wait_for(lambda: len(job.get("drivers")["results"]) > drivers, "another driver")
        job.await_status("running")
        ended = plane.await_success(job.ask("stop", drain=False, name="last-2"))
    job.await_status("finished")
    before = len(rows_of(job.output))
    assert 0 < before < 2 * RECORDS, "the input ended before the stop"
    assert {"second"} <= {one["name"] for one in job.get("savepoints")["results"]}

    elsewhere = tmp_path / "elsewhere"
    shutil.move(ended["result"]["path"], elsewhere)
    successor = plane.submit(tmp_path, records=RECORDS, rate=RATE, restore=str(elsewhere))
    successor.await_completed(beyond=0)
    successor.hurry_to_the_end()
    check_output(successor, RECORDS)


def test_rolled_back_and_forward_the_output_is_as_if_nothing_had_been(
    plane: Plane, tmp_path: Path
) -> None:
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    early = job.await_completed(beyond=2)
    plane.await_success(job.ask("savepoints", name="here"))
    late = job.await_completed(beyond=early + 4)
    rows_before = len(rows_of(job.output))

    preview = plane.await_success(
        job.ask("previews", kind="rollback", checkpoint=early, rewind_output=True)
    )
    sentences = preview["result"]["sentences"]
    assert any("read again" in sentence for sentence in sentences), sentences
    visitor = Visitor(plane)
    assert sentences[0][1:] in shown(visitor, job, preview)  # There it begins with a capital.
    restore = plane.await_success(
        job.ask("previews", kind="restore", checkpoint=early, parallelism=3)
    )
    assert restore["result"]["would_restore"], restore["result"]
    assert "numbering" in shown(visitor, job, restore)

    back = job.ask("rollback", checkpoint=early)
    kill_under_way(plane, back, lambda: plane.stack.process("launcher").pid)
    with pytest.raises(RequestRefusedError, match=back) as refused:
        job.ask("rescale", parallelism=3)
    assert refused.value.status == 409
    plane.await_success(back)
    check_one_driver(job)
    assert len(rows_of(job.output)) < rows_before, "nothing was taken back"
    job.await_completed(beyond=late)
    abandoned = {
        one["number"] for one in job.checkpoints(status="completed") if one["abandoned_at"]
    }
    assert late in abandoned

    forward = job.ask("rollback", checkpoint=late)
    kill_under_way(plane, forward, lambda: plane.stack.process("worker").pid)
    plane.await_success(forward)
    assert len(rows_of(job.output)) >= rows_before, "what was taken back did not come back"
    job.await_status("running")
    job.hurry_to_the_end()
    check_output(job, RECORDS)


def test_a_fork_runs_beside_its_origin_and_both_count_once(plane: Plane, tmp_path: Path) -> None:
    origin = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    origin.await_completed(beyond=2)
    attempts = len(origin.get("attempts")["results"])
    output = tmp_path / "fork"
    forking = origin.ask("fork", name="the fork", parameters={"output": str(output)})
    kill_under_way(plane, forking, lambda: plane.stack.process("worker").pid)
    ended = plane.await_success(forking)
    fork = plane.job(ended["result"]["job"], output)
    fork.await_completed(beyond=0)
    os.kill(fork.worker_pid, signal.SIGKILL)
    wait_for(lambda: len(fork.get("attempts")["results"]) > 1, "another attempt")
    fork.await_completed(beyond=fork.newest_completed())
    assert fork.get()["origin"] == origin.id
    for job in (origin, fork):
        job.hurry_to_the_end()
    assert len(origin.get("drivers")["results"]) == 1, "the origin noticed"
    assert len(origin.get("attempts")["results"]) == attempts, "the origin noticed"
    check_output(origin, RECORDS)
    check_suffix(rows_of(fork.output), RECORDS)
    compared = plane.await_success(
        origin.ask("comparisons", other=fork.id, keys=["source", "position"])
    )
    (files,) = compared["result"]["outputs"]
    assert files["right"]["rows"] == len(rows_of(fork.output)), compared["result"]
    assert f"{2 * RECORDS:,}" in shown(Visitor(plane), origin, compared)


def check_suffix(rows: Sequence[Sequence[Any]], records: int) -> None:
    """All that came behind a consistent cut, once: of each reader a tail, of each key a tail."""
    positions: dict[tuple[str, int], list[int]] = defaultdict(list)
    numbers: dict[int, list[int]] = defaultdict(list)
    for source, position, reader, _, number in rows:
        positions[source, reader].append(position)
        numbers[position % 64].append(number)
    assert sum(map(len, positions.values())) < 2 * records, "the fork began from nothing"
    for (source, reader), read in positions.items():
        assert len(set(read)) == len(read), f"{source} {reader}: duplicated"
        # Of two subtasks, subtask i reads every second record from i on.
        tail = list(range(min(read), records, 2))
        assert sorted(read) == tail, f"{source} {reader}: {len(tail) - len(read)} lost"
    for key, sent in numbers.items():
        assert sent == list(range(sent[0], sent[0] + len(sent))), f"key {key}: {sent}"


def test_rescaled_up_and_down_every_record_counts_once(plane: Plane, tmp_path: Path) -> None:
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    newest = job.await_completed(beyond=1)
    for parallelism, victim in ((4, "worker"), (1, "launcher")):
        operation = job.ask("rescale", parallelism=parallelism)
        kill_under_way(plane, operation, lambda v=victim: plane.stack.process(v).pid)
        plane.await_success(operation)
        newest = job.await_completed(beyond=newest + 1)
        check_one_driver(job)
        sources = [op for op in job.get("graph")["operators"] if op["is_source"]]
        assert {op["parallelism"] for op in sources} == {parallelism}
    job.hurry_to_the_end()
    check_each_once(rows_of(job.output), RECORDS)


def test_what_cannot_be_done_leaves_a_job_as_it_was_and_a_drained_one_has_given_out_all_it_had(
    plane: Plane, tmp_path: Path
) -> None:
    job = plane.submit(tmp_path, records=RECORDS, rate=RATE)
    with pytest.raises(RequestRefusedError) as starting:
        job.ask("rollback", checkpoint=1)
    assert starting.value.status in (404, 409)
    job.await_completed(beyond=0)
    with pytest.raises(RequestRefusedError) as unknown:
        job.ask("rollback", checkpoint=999_999)
    assert unknown.value.status in (400, 404, 409)
    with pytest.raises(RequestRefusedError) as too_many:
        job.ask("rescale", parallelism=32_000)
    assert "max parallelism" in str(too_many.value)

    taken = plane.await_success(job.ask("savepoints", name="to-be-damaged"))
    manifest = Path(taken["result"]["path"], "manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b'"attempt"', b'"attemqt"', 1))
    newest = job.await_completed(beyond=0)
    back = plane.await_end(job.ask("rollback", savepoint=taken["result"]["savepoint"]))
    assert back["status"] == "failed"
    assert "manifest cannot be used" in back["error"]
    assert "the job runs again as before" in back["error"]
    job.await_completed(beyond=newest + 1)
    assert job.status == "running"

    plane.await_success(job.ask("stop", drain=True))
    job.await_status("finished")
    rows = rows_of(job.output)
    counted = count(rows, RECORDS)
    assert (counted.duplicated, counted.out_of_order) == (0, 0)
    assert not wrong_numbers(rows)
    assert counted.lost, "the input ended before the stop"

    heir = plane.submit(
        tmp_path / "heir", records=RECORDS, rate=RATE, restore=taken["result"]["path"]
    )
    heir.await_status("failed")
    assert "manifest cannot be used" in heir.get()["cause"]
