"""Output that a rewind took back goes with the last checkpoint to which it could be put back."""

from pathlib import Path

import pytest

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, CoordinatorRow
from checkpoints.operations import requests
from checkpoints.retention import discards, sweep
from jobs.models import Attempt, Operator
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import put_state
from tests.database.checkpoints.test_discards import aborted
from tests.database.checkpoints.test_going_back import complete_next
from tests.database.checkpoints.test_savepoints import put_files, taken
from tests.database.jobs import builders as jobs
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.lineage import AttemptBase
from weir.protocol.messages import CheckpointRequested
from weir.storage.attempt_bases import note_base

pytestmark = pytest.mark.django_db


def note(line: Line, attempt: int, next_id: int, restored: int | None = None) -> None:
    """Note an attempt's base, as its driver does."""
    base = AttemptBase(
        AttemptNumber(attempt),
        CheckpointId(next_id),
        None if restored is None else CheckpointId(restored),
        None if restored is None else AttemptNumber(attempt - 1),
    )
    note_base(locations.store_of(line.job), JobId(line.job_id), base)


def write_to(line: Line, directory: Path) -> None:
    """The job's sink commits its files there, as its plan has just said."""
    Operator.objects.filter(job=line.job_id, uid="sink").update(files=str(directory))


def rolled_back(line: Line, directory: Path) -> Line:
    """A job that went back from 4 to 1; output of 2 to 4 was taken back, and 2 let go before."""
    write_to(line, directory)
    note(line, 1, 1)
    for _ in range(4):
        put_state(line.job, complete_next(line))
    directory.mkdir()
    (directory / "part-sink-0-1-0.parquet").write_bytes(b"rows")
    return gone_back(line, directory, 2, 3, 4)


def gone_back(line: Line, directory: Path, *withdrawn: int) -> Line:
    """The driver of a job that had come to 4 and goes on from 1, with what that takes back."""
    requests.rollback(None, line.job_id, checkpoint=1)
    again = Line.for_job(line.job)
    again.come_up(2, restored=1, lineage=protocol.line((2, 5, 2**62), (1, 1, 1)))
    write_to(line, directory)
    note(line, 2, 5, 1)
    place = directory / "_withdrawn" / line.job_id / "1"  # Of any writer.
    place.mkdir(parents=True)
    for number in withdrawn:
        (place / f"part-sink-0-{number}-0.parquet").write_bytes(b"rows")
    return again


def let_go(line: Line, *numbers: int) -> None:
    """Discard abandoned checkpoints, as if their time had come."""
    state = line.state
    completed = tuple(c for c in state.completed if c.checkpoint_id not in numbers)
    row = line.job.coordinator
    row.state["completed"] = [
        value for value in row.state["completed"] if value["checkpoint_id"] not in numbers
    ]
    assert len(row.state["completed"]) == len(completed)
    row.save()
    rows = Checkpoint.objects.filter(job=line.job_id, number__in=numbers)
    rows.update(discard_due_at="2020-01-01T00:00:00Z")
    assert discards.discard_due() == len(numbers)


def files(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.rglob("*.parquet"))


def test_output_of_a_discarded_branch_goes_and_that_of_the_line_stays(
    line: Line, tmp_path: Path
) -> None:
    again = rolled_back(line, tmp_path / "out")
    let_go(again, 2, 3, 4)
    assert files(tmp_path / "out") == ["part-sink-0-1-0.parquet"]


def test_output_stays_while_something_later_on_its_branch_is_kept(
    line: Line, tmp_path: Path
) -> None:
    again = rolled_back(line, tmp_path / "out")
    let_go(again, 2, 3)
    assert len(files(tmp_path / "out")) == 4


@pytest.mark.usefixtures("standing_clock")
def test_output_goes_with_a_checkpoint_that_was_let_go_before_its_branch_was_abandoned(
    line: Line, tmp_path: Path
) -> None:
    """Attempt 2 restores checkpoint 2 and lets it go; it is kept while that attempt runs."""
    directory = tmp_path / "out"
    write_to(line, directory)
    note(line, 1, 1)
    put_files(taken(line))
    put_state(line.job, complete_next(line))
    jobs.lose(line.job)
    second = Line.for_job(line.job)
    second.come_up(2, restored=2, lineage=protocol.line((2, 3, 2**62), (1, 1, 2)), retained_max=1)
    write_to(line, directory)
    note(line, 2, 3, 2)
    Attempt.objects.filter(job=line.job_id, number=2).update(restored_checkpoint=2)
    put_state(line.job, complete_next(second), 2)
    assert line.statuses()[2] == "subsumed"
    assert discards.discard_due() == 0, "attempt 2 has restored it"

    savepoint = line.job.savepoints.get()
    requests.rollback(None, line.job_id, savepoint=savepoint.pk)
    third = Line.for_job(line.job)
    third.come_up(3, restored=1, lineage=protocol.line((3, 4, 2**62), (1, 1, 1)), retained_max=1)
    write_to(line, directory)
    base = AttemptBase(AttemptNumber(3), CheckpointId(4), CheckpointId(1), AttemptNumber(1))
    note_base(locations.store_of(line.job), JobId(line.job_id), base)
    place = directory / "_withdrawn" / line.job_id
    for attempt, number in ((1, 2), (2, 3)):
        (place / str(attempt)).mkdir(parents=True)
        (place / str(attempt) / f"part-sink-0-{number}-0.parquet").write_bytes(b"rows")
    let_go(third, 3)
    assert files(directory) == ["part-sink-0-2-0.parquet"]
    jobs.pass_time(line.checkpoint(2), discards.NEEDED_AGAIN_S, "discard_due_at")
    assert line.checkpoint(2).abandoned_at is None
    assert discards.discard_due() == 1
    assert files(directory) == []


def test_savepoint_on_a_branch_keeps_its_output(line: Line, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    write_to(line, directory)
    note(line, 1, 1)
    put_state(line.job, complete_next(line))
    put_state(line.job, complete_next(line))
    put_files(taken(line))
    put_state(line.job, complete_next(line))
    again = gone_back(line, directory, 2, 4)
    let_go(again, 2, 4)
    assert files(directory) == ["part-sink-0-2-0.parquet"]
    assert jobs.driver_of(line.job).number == 2


def test_stray_output_of_a_crash_goes_once_it_is_on_no_line(line: Line, tmp_path: Path) -> None:
    """A driver is lost with a whole file of 6, which was declined; its successor withdraws it."""
    directory = tmp_path / "out"
    again = rolled_back(line, directory)
    assert complete_next(again) == 5
    put_state(line.job, 5, 2)
    again.post(CheckpointRequested("declined"))
    again.post(protocol.decline("source-0", 6, attempt=2))
    stray = directory / "_withdrawn" / line.job_id / "2" / "part-sink-1-6-0.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"rows")
    sweep.clean_next()
    assert stray.exists(), "attempt 2 may complete a checkpoint that covers it"

    jobs.lose(line.job)
    third = Line.for_job(line.job)
    third.come_up(3, restored=5, lineage=protocol.line((3, 7, 2**62), (2, 5, 5), (1, 1, 1)))
    write_to(line, directory)
    note(line, 3, 7, 5)
    CoordinatorRow.objects.update(swept_at=None)
    sweep.clean_next()
    assert files(directory) == [f"part-sink-0-{number}-0.parquet" for number in (1, 2, 3, 4)]


def test_output_that_cannot_be_read_holds_up_no_sweep(line: Line, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    write_to(line, directory)
    withdrawn = directory / "_withdrawn" / line.job_id / "1"
    withdrawn.mkdir(parents=True)
    locations.store_of(line.job).put(
        locations.layout_of(line.job).base(AttemptNumber(1), None), b"{"
    )
    aborted(line, 1)
    assert sweep.clean_next() == line.job_id
    discards.discard_due()
    assert line.checkpoint(1).discarded_at is not None
