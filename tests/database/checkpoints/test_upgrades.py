"""Upgrades: the check before, the stop, the new pipeline, and the way back to the old one."""

from pathlib import Path
from typing import Any

import pytest

from checkpoints.models import Savepoint
from checkpoints.operations import requests, returns, upgrades
from checkpoints.retention import discards
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import Busy, Invalid, KeyReused, WrongState
from controlplane.base.ticks import Budget
from jobs import due_jobs, operations, uploads
from jobs import services as job_services
from jobs.models import Artifact, Job, Operation
from jobs.submissions import Pipeline
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.test_going_back import complete_next, fails, finish, options_of
from tests.database.checkpoints.test_savepoints import ended
from tests.database.jobs import builders as jobs
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import TriggerCheckpoint

pytestmark = pytest.mark.django_db

NEW = Pipeline("module", "shop.orders_v2")
FITS = {"would_restore": True, "problems": []}


@pytest.fixture
def line() -> Line:
    """A job that runs, with checkpoint 1."""
    line = Line.running()
    complete_next(line)
    return line


def answer(operation: Operation, result: dict[str, Any] = FITS) -> Operation:
    """The preview of an upgrade has an answer, and a tick takes it in."""
    operations.succeed(preview_of(operation), result)
    assert upgrades.check_due() == 1
    return ended(operation)


def preview_of(operation: Operation) -> Operation:
    return Operation.objects.get(pk=operation.parameters["preview"])


def stopped(line: Line, **given: Any) -> Operation:
    """An upgrade whose job has ended with its savepoint, checkpoint 2."""
    operation = upgrades.upgrade(None, line.job_id, **{"pipeline": NEW} | given)
    answer(operation)
    line.complete(2)
    finish(line)
    assert ended(operation).progress["phase"] == "launch_due"
    return operation


def launched(line: Line, **given: Any) -> Operation:
    """An upgrade whose new pipeline is being launched."""
    operation = stopped(line, **given)
    assert returns.launch_due() == 1
    settle()
    return operation


def settle() -> None:
    """The checkpoints that a job does not keep after its end are deleted, and it is launched."""
    discards.discard_due()
    due_jobs.relaunch_due()


def pipeline_of(job: Job) -> tuple[str, str, dict[str, Any]]:
    return job.pipeline_kind, job.pipeline_target, job.options


def runs(job: Job) -> str:
    return Path(job.pipeline_target).name


def pass_deadline(operation: Operation) -> int:
    Operation.objects.filter(pk=operation.pk).update(deadline_at=clock.now())
    return operations.expire_due()


def test_upgrade_goes_on_with_the_new_pipeline_from_a_savepoint(line: Line, operator: User) -> None:
    before = pipeline_of(line.job)
    operation = upgrades.upgrade(
        operator,
        line.job_id,
        pipeline=NEW,
        parallelism=3,
        parameters={"tariff": "night"},
        allow_non_restored_state=True,
    )
    assert operation.progress["phase"] == "checking"
    assert not line.triggered()
    preview = preview_of(operation)
    assert preview.parameters["pipeline"]["target"] == "shop.orders_v2"
    assert preview.parameters["options"]["allow_non_restored_state"] is True

    answer(operation)
    (trigger,) = [c for c in line.poll() if isinstance(c, TriggerCheckpoint)]
    savepoint = Savepoint.objects.get(operation=operation)
    assert trigger.barrier.options.kind is CheckpointKind.STOP_SUSPEND
    assert trigger.barrier.options.target == savepoint.location
    assert pipeline_of(line.job) == before  # A driver lost now comes back as it was.
    line.complete(2)
    assert ended(operation).progress["phase"] == "ending"
    assert returns.launch_due() == 0
    finish(line)

    assert returns.launch_due() == 1
    settle()
    job = line.job
    options = {
        "parallelism": 3,
        "parameters": {"tariff": "night"},
        "allow_non_restored_state": True,
    }
    assert pipeline_of(job) == ("module", "shop.orders_v2", options)
    assert Path(before[1]).name == "pipeline.py"
    assert (job.restore_uri, job.restore_number) == (savepoint.location, 2)
    assert (job.status, job.cause) == ("restarting", "upgraded to shop.orders_v2 by olga")
    assert options_of(job)["restore"] == savepoint.location
    Line.for_job(job).come_up(2, restored=2)
    assert ended(operation).status == "succeeded"
    assert returns.return_due() == returns.launch_due() == 0
    entry = AuditEntry.objects.get(action="job.upgrade")
    assert entry.after["runs"]["pipeline_target"] == "shop.orders_v2"


def test_upgrade_that_would_lose_state_is_refused_before_the_job_is_touched(line: Line) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    problem = "the state of 'count' is of no operator; allow non-restored state to drop it"
    answer(operation, {"would_restore": False, "problems": [problem]})
    assert ended(operation).status == "failed"
    assert ended(operation).error == (
        f"the new pipeline cannot restore checkpoint 1: {problem}. The job was not touched"
    )
    assert not line.triggered()
    assert not Savepoint.objects.exists()
    assert (line.job.status, runs(line.job)) == ("running", "pipeline.py")


def test_upgrade_to_what_raises_when_it_is_checked_is_refused(line: Line) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    said = 'Traceback (most recent call last):\n  File "v2.py", line 9\nKeyError: "night"'
    said += "\n\nweir: the pipeline raised this before its job started\n"
    operations.fail(preview_of(operation), said)
    assert upgrades.check_due() == 1
    assert ended(operation).error == (
        'the new pipeline could not be checked against checkpoint 1: KeyError: "night"; '
        "weir: the pipeline raised this before its job started. The job was not touched"
    )
    assert not line.triggered()


def test_upgrade_whose_preview_is_gone_is_refused(line: Line) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    preview_of(operation).delete()
    assert upgrades.check_due() == 1
    assert "its preview is gone" in ended(operation).error


def test_upgrade_waits_for_its_preview_and_for_the_job_to_run(line: Line) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    assert upgrades.check_due() == 0
    Job.objects.update(status=JobStatus.INITIALIZING)
    operations.succeed(preview_of(operation), FITS)
    assert upgrades.check_due() == 0
    assert ended(operation).progress["phase"] == "checking"
    Job.objects.update(status=JobStatus.RUNNING)
    assert upgrades.check_due() == 1
    assert line.triggered() == [2]


def test_job_whose_new_pipeline_fails_goes_on_with_the_old_one(line: Line) -> None:
    before = pipeline_of(line.job)
    operation = launched(line)
    again = fails(line, "it raised")
    assert returns.return_due() == 1
    savepoint = Savepoint.objects.get(operation=operation)
    assert pipeline_of(again.job) == before
    assert (again.job.restore_uri, again.job.restore_number) == (savepoint.location, 2)
    Line.for_job(line.job).come_up(3, restored=2)
    assert ended(operation).status == "failed"
    assert ended(operation).error == (
        "the job is failed: it raised; the job runs again as before; the savepoint was taken and "
        f"is kept: {savepoint.location}"
    )
    returned = AuditEntry.objects.get(action="job.return")
    assert returned.after["pipeline_target"] == before[1]


def test_new_pipeline_has_its_own_time_from_its_launch_on(line: Line) -> None:
    operation = stopped(line, run_within_s=40)
    assert ended(operation).deadline_at - clock.now() > clock.milliseconds(60_000)
    returns.launch_due()
    assert ended(operation).deadline_at - clock.now() <= clock.milliseconds(40_000)
    assert pass_deadline(operation) == 0
    assert ended(operation).progress["phase"] == "return_due"
    assert returns.return_due() == 1
    assert runs(line.job) == "pipeline.py"


def test_stop_that_completes_after_the_upgrades_time_does_not_leave_the_job_stopped(
    line: Line,
) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    answer(operation)
    assert pass_deadline(operation) == 0
    waiting = ended(operation)
    assert (waiting.status, waiting.progress["phase"]) == ("running", "saving")
    assert waiting.deadline_at > clock.now()
    line.complete(2)
    finish(line)
    assert returns.launch_due() == 0
    assert returns.return_due() == 1
    settle()
    assert runs(line.job) == "pipeline.py"
    Line.for_job(line.job).come_up(2, restored=2)
    assert "the job runs again as before" in ended(operation).error


def test_upgrade_whose_savepoint_fails_leaves_the_job_running(line: Line) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    answer(operation)
    line.post(protocol.decline("source-0", checkpoint_id=2))
    assert ended(operation).status == "failed"
    assert (line.job.status, runs(line.job)) == ("running", "pipeline.py")


def test_failed_job_is_upgraded_from_its_newest_checkpoint(line: Line) -> None:
    line.post(jobs.changed(JobStatus.FAILING, "a bug"), jobs.changed(JobStatus.FAILED, "a bug"))
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    answer(operation)
    assert ended(operation).progress["phase"] == "relaunching"
    assert line.job.pipeline_target == "shop.orders_v2"
    assert "restore" not in options_of(line.job)
    assert not Savepoint.objects.exists()
    fails(line, "another bug")
    assert ended(operation).error == "the job is failed: another bug"
    assert returns.return_due() == 0


def test_job_that_waits_for_its_driver_is_taken_back_as_well(line: Line) -> None:
    jobs.lose(line.job)
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    answer(operation)
    assert line.job.pipeline_target == "shop.orders_v2"
    fails(line, "a bug")
    assert returns.return_due() == 1
    assert runs(line.job) == "pipeline.py"
    Line.for_job(line.job).come_up(3, restored=1)
    assert ended(operation).error.endswith("the job runs again as before")


def test_job_that_never_completed_a_checkpoint_is_upgraded_unchecked_unless_it_runs() -> None:
    line = Line.running()
    with pytest.raises(WrongState, match=r"no completed checkpoint .* take one first"):
        upgrades.upgrade(None, line.job_id, pipeline=NEW)
    line.post(jobs.changed(JobStatus.FAILING, "a bug"), jobs.changed(JobStatus.FAILED, "a bug"))
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    assert operation.progress["phase"] == "relaunching"
    assert line.job.pipeline_target == "shop.orders_v2"


def test_upload_of_the_old_pipeline_stays_while_the_job_may_go_back_to_it(
    line: Line, settings: Any, tmp_path: Any
) -> None:
    settings.WEIR_UPLOADS = tmp_path
    old, new = (uploads.store(None, f"v{n}.py", [b"print(%d)" % n]) for n in (1, 2))
    Job.objects.update(pipeline_kind="upload", pipeline_target="v1.py", artifact=old)
    operation = launched(line, pipeline=Pipeline("upload", artifact_digest=new.pk))
    assert (line.job.artifact_id, line.job.pipeline_target) == (new.pk, "v2.py")
    assert uploads.remove_unused(clock.now(), None, Budget(60.0)) == 0
    fails(line, "it raised")
    returns.return_due()
    assert (line.job.artifact_id, line.job.pipeline_target) == (old.pk, "v1.py")
    assert Artifact.objects.count() == 2
    assert ended(operation).status == "running"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"pipeline": Pipeline("module", "no module")}, "pipeline_target"),
        ({"pipeline": Pipeline("upload", artifact_digest="0" * 64)}, "artifact_digest"),
        ({"parallelism": 0}, "options.parallelism"),
        ({"secrets": ["NONE_SUCH"]}, "options.secrets"),
        ({"run_within_s": 0}, "run_within_s"),
        ({"run_within_s": 86_401}, "run_within_s"),
        ({"run_within_s": True}, "run_within_s"),
    ],
)
def test_what_cannot_run_is_refused_at_once(line: Line, given: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        upgrades.upgrade(None, line.job_id, **given)
    assert list(refused.value.extra["errors"]) == [field]
    assert not Operation.objects.filter(kind__in=("upgrade", "preview")).exists()


def test_finished_job_is_not_upgraded(line: Line) -> None:
    finish(line)
    with pytest.raises(WrongState, match="the job is finished and cannot be upgraded"):
        upgrades.upgrade(None, line.job_id, pipeline=NEW)


def test_upgrade_excludes_other_changes_and_a_cancellation_overtakes_it(line: Line) -> None:
    operation = upgrades.upgrade(None, line.job_id, pipeline=NEW)
    with pytest.raises(Busy, match=f"upgrade {operation.pk}"):
        requests.rescale(None, line.job_id, parallelism=2)
    with pytest.raises(Busy, match=f"upgrade {operation.pk}"):
        upgrades.upgrade(None, line.job_id, pipeline=NEW)
    answer(operation)
    line.complete(2)
    job_services.cancel(None, line.job_id)
    assert ended(operation).status == "cancelled"
    finish(line)
    assert returns.launch_due() == returns.return_due() == 0


def test_equal_key_gives_the_same_upgrade_and_one_preview(line: Line, operator: User) -> None:
    first = upgrades.upgrade(operator, line.job_id, pipeline=NEW, key="k")
    assert upgrades.upgrade(operator, line.job_id, pipeline=NEW, key="k") == first
    assert Operation.objects.filter(kind="preview").count() == 1
    with pytest.raises(KeyReused):
        upgrades.upgrade(operator, line.job_id, pipeline=NEW, parallelism=2, key="k")
