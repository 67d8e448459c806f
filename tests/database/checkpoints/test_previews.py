"""Previews of restores and rollbacks, and comparisons of two outputs, as operations."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpoints.catalog import locations
from checkpoints.operations import previews, savepoints
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base.errors import Invalid, KeyReused, NotFound
from jobs import preview_processes
from jobs.models import Operation, Operator
from jobs.submissions import Pipeline
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import put_state
from tests.database.checkpoints.test_going_back import complete_next, uri
from tests.database.checkpoints.test_savepoints import ended, put_files, taken
from tests.database.jobs import builders as jobs
from tests.waiting import wait_until
from weir.ids import CheckpointId

pytestmark = pytest.mark.django_db

_PIPELINE = """
from weir.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1, 2, 3]).uid("numbers").print().uid("out")
env.execute("flights")
"""


def checkpoint(line: Line) -> int:
    """A checkpoint that completed, with its files."""
    number = complete_next(line)
    put_state(line.job, number)
    return number


def answered(operation: Operation) -> Operation:
    """The operation once a process has answered it."""

    def has_ended() -> bool:
        preview_processes.tick()
        return ended(operation).ended_at is not None

    wait_until(has_ended, "the question is answered")
    for child in preview_processes._children:
        child.wait(timeout=60)
    preview_processes._children.clear()
    return ended(operation)


# Restores --------------------------------------------------------------------------------------


def test_preview_of_a_restore_runs_the_pipeline_beside_the_job(
    line: Line, operator: User, storage: Path
) -> None:
    number = checkpoint(line)
    (storage.parent / "scripts" / "changed.py").write_text(_PIPELINE)
    operation = previews.restore(
        operator,
        line.job_id,
        restore=number,
        pipeline=Pipeline("script", "changed.py"),
        parallelism=2,
    )
    assert (operation.kind, operation.status) == ("preview", "pending")
    preview = answered(operation)
    assert preview.error == ""
    assert preview.result["checkpoint_id"] == number
    assert {o["uid"] for o in preview.result["operators"]} >= {"numbers", "out"}
    assert line.job.status == "running"
    assert AuditEntry.objects.get(action="job.preview").after["restore"] == uri(line, number)


def test_preview_names_what_it_would_restore_and_run(line: Line, tmp_path: Path) -> None:
    savepoint = taken(line, name="before")
    by_id = previews.restore(None, line.job_id, restore=savepoint.pk, parameters={"a": "b"})
    assert by_id.parameters["restore"] == savepoint.location
    assert by_id.parameters["origin"] == line.job_id
    assert by_id.parameters["pipeline"]["target"].endswith("scripts/pipeline.py")
    assert by_id.parameters["options"] == {"parameters": {"a": "b"}}
    by_uri = previews.restore(None, line.job_id, restore=str(tmp_path / "moved"))
    assert by_uri.parameters["restore"] == str(tmp_path / "moved")
    assert by_uri.parameters["origin"] is None


def test_preview_of_what_is_not_there_is_refused(line: Line) -> None:
    for target, error in [(7, NotFound), (uuid4(), NotFound), ("chk-7", Invalid)]:
        with pytest.raises(error):
            previews.restore(None, line.job_id, restore=target)  # type: ignore[arg-type]
    complete_next(line)
    with pytest.raises(Invalid):
        previews.restore(None, line.job_id, restore=1, pipeline=Pipeline("script", "../etc.py"))


def test_preview_repeated_with_its_key_is_one(line: Line, operator: User) -> None:
    complete_next(line)
    first = previews.restore(operator, line.job_id, restore=1, key="k")
    assert previews.restore(operator, line.job_id, restore=1, key="k") == first
    with pytest.raises(KeyReused):
        previews.rollback(operator, line.job_id, checkpoint=1, key="k")


# Rollbacks -------------------------------------------------------------------------------------


def test_preview_of_a_rollback_says_what_it_costs(line: Line) -> None:
    for _ in range(2):
        checkpoint(line)
    operation = previews.rollback(None, line.job_id, checkpoint=1)
    assert previews.answer_due() == 1
    preview = ended(operation)
    assert preview.error == ""
    assert (preview.status, preview.result["checkpoint_id"]) == ("succeeded", 1)
    assert preview.result["newest_id"] == 2
    assert preview.result["sentences"]
    assert line.job.restore_uri == ""
    assert previews.answer_due() == 0


def test_preview_of_a_rollback_to_a_savepoint(line: Line) -> None:
    savepoint = taken(line)
    put_files(savepoint)
    operation = previews.rollback(None, line.job_id, savepoint=savepoint.pk, rewind_output=False)
    previews.answer_due()
    assert ended(operation).error == ""
    assert ended(operation).result["rewinds_output"] is False


def test_preview_of_what_vanished_fails_and_says_so(line: Line) -> None:
    complete_next(line)  # Without files.
    operation = previews.rollback(None, line.job_id, checkpoint=1)
    previews.answer_due()
    assert ended(operation).status == "failed"
    assert ended(operation).error


def test_preview_of_a_killed_worker_is_worked_out_again(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(line)
    operation = previews.rollback(None, line.job_id, checkpoint=1)

    def die(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as killed:
        killed.setattr(previews, "_answer", die)
        with pytest.raises(SystemExit):
            previews.answer_due()
    assert previews.answer_due() == 0  # It has its lease.
    Operation.objects.filter(pk=operation.pk).update(
        progress={"until": "2020-01-01T00:00:00+00:00", "tries": 1}
    )
    assert previews.answer_due() == 1
    assert ended(operation).status == "succeeded"


# Comparisons -----------------------------------------------------------------------------------


def output(line: Line, directory: Path, rows: list[dict[str, Any]], uid: str = "sink") -> None:
    """The job's file sink has committed these rows."""
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), directory / f"part-{uid}-0-1-0.parquet")
    Operator.objects.filter(job=line.job_id, uid="sink").update(uid=uid, files=str(directory))


def test_comparison_holds_outputs_and_jobs_side_by_side(line: Line, tmp_path: Path) -> None:
    other = Line.running()
    output(line, tmp_path / "a", [{"key": "x", "n": 1}, {"key": "y", "n": 2}])
    output(other, tmp_path / "b", [{"key": "x", "n": 1}, {"key": "y", "n": 3}])
    complete_next(line)
    operation = previews.compare(None, line.job_id, other_job_id=other.job_id, keys=["key"])
    comparison = answered(operation)
    assert comparison.error == ""
    (one,) = comparison.result["outputs"]
    assert (one["operator"], one["equal"], one["different"]) == ("sink", 1, 1)
    assert [side["job"] for side in comparison.result["jobs"]] == [line.job_id, other.job_id]
    assert comparison.result["jobs"][0]["checkpoint"] == 1
    assert len(comparison.result["sentences"]) == 2


def test_comparison_needs_keys_and_outputs_that_belong_together(line: Line, tmp_path: Path) -> None:
    other = Line.running()
    with pytest.raises(Invalid, match="no output in files"):
        previews.compare(None, line.job_id, other_job_id=other.job_id, keys=["key"])
    output(line, tmp_path / "a", [{"key": "x"}])
    output(other, tmp_path / "b", [{"key": "x"}], uid="another")
    only = previews.compare(None, line.job_id, other_job_id=other.job_id, keys=["key"])
    assert [pair["right"] for pair in only.parameters["outputs"]] == [str(tmp_path / "b")]
    with pytest.raises(Invalid) as refused:
        previews.compare(None, line.job_id, other_job_id=other.job_id, keys=[])
    assert list(refused.value.extra["errors"]) == ["keys"]
    with pytest.raises(NotFound):
        previews.compare(None, line.job_id, other_job_id="unknown", keys=["key"])


def test_previews_get_along_with_everything(line: Line) -> None:
    complete_next(line)
    savepoints.take(None, line.job_id)
    previews.rollback(None, line.job_id, checkpoint=1)
    previews.restore(None, line.job_id, restore=1)
    assert locations.path_of(line.job, CheckpointId(1)) == uri(line, 1)
    assert [kind for kind, _ in jobs.statuses(line.job)].count("preview") == 2
