"""Output that a rewind took back goes with the last checkpoint to which it could be put back."""

from pathlib import Path

import pytest

from checkpoints import discards, going_back, places
from checkpoints.models import Checkpoint
from jobs.models import Operator
from tests import builders as protocol
from tests.checkpoints.line import Line
from tests.checkpoints.storage import put_state
from tests.checkpoints.test_going_back import complete_next
from tests.checkpoints.test_savepoints import put_files, taken
from tests.jobs import builders as jobs
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.lineage import AttemptBase
from weir.storage.bases import note_base

pytestmark = pytest.mark.django_db


def note(line: Line, attempt: int, next_id: int, restored: int | None = None) -> None:
    """What an attempt went on from, as its driver notes it."""
    base = AttemptBase(
        AttemptNumber(attempt),
        CheckpointId(next_id),
        None if restored is None else CheckpointId(restored),
        None if restored is None else AttemptNumber(attempt - 1),
    )
    note_base(places.store_of(line.job), JobId(line.job_id), base)


def rolled_back(line: Line, directory: Path) -> Line:
    """A job that went back from 4 to 1; output of 2 to 4 was taken back, and 2 let go before."""
    Operator.objects.filter(job=line.job_id, uid="sink").update(files=str(directory))
    note(line, 1, 1)
    for _ in range(4):
        put_state(line.job, complete_next(line))
    going_back.rollback(None, line.job_id, checkpoint=1)
    again = Line.of(line.job)
    again.come_up(2, restored=1, lineage=protocol.line((2, 5, 2**62), (1, 1, 1)))
    Operator.objects.filter(job=line.job_id, uid="sink").update(files=str(directory))
    note(line, 2, 5, 1)
    withdrawn = directory / "_withdrawn" / line.job_id / "2"
    withdrawn.mkdir(parents=True)
    for number in (2, 3, 4):
        (withdrawn / f"part-sink-0-{number}-0.parquet").write_bytes(b"rows")
    (directory / "part-sink-0-1-0.parquet").write_bytes(b"rows")
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


def test_savepoint_on_a_branch_keeps_its_output(line: Line, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    Operator.objects.filter(job=line.job_id, uid="sink").update(files=str(directory))
    note(line, 1, 1)
    put_state(line.job, complete_next(line))
    put_state(line.job, complete_next(line))
    put_files(taken(line))
    put_state(line.job, complete_next(line))
    going_back.rollback(None, line.job_id, checkpoint=1)
    again = Line.of(line.job)
    again.come_up(2, restored=1, lineage=protocol.line((2, 5, 2**62), (1, 1, 1)))
    Operator.objects.filter(job=line.job_id, uid="sink").update(files=str(directory))
    note(line, 2, 5, 1)
    withdrawn = directory / "_withdrawn" / line.job_id / "2"
    withdrawn.mkdir(parents=True)
    for number in (2, 4):
        (withdrawn / f"part-sink-0-{number}-0.parquet").write_bytes(b"rows")
    let_go(again, 2, 4)
    assert files(directory) == ["part-sink-0-2-0.parquet"]
    assert jobs.driver_of(line.job).number == 2
