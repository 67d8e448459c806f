"""Stop, rollback, rescale and fork: their steps, what fails in between, and what excludes what."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from django.forms.models import model_to_dict
from pytest_django import Settings

from checkpoints.catalog import locations
from checkpoints.coordinator import shell
from checkpoints.models import Savepoint
from checkpoints.operations import requests, returns, savepoints
from checkpoints.retention import discards, finalization
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import Busy, Invalid, KeyReused, NotFound, WrongState
from controlplane.secrets import services as secrets
from jobs import cluster_size, due_jobs, operations
from jobs import services as job_services
from jobs.drivers import driver_files
from jobs.models import Driver, DriverStatus, Job, Operation, OperationKind
from jobs.submissions import Pipeline
from tests import builders as protocol
from tests.database.checkpoints.line import Line, planned
from tests.database.checkpoints.storage import manifest
from tests.database.checkpoints.test_savepoints import ended, taken
from tests.database.jobs import builders as jobs
from weir.config import Retention
from weir.ids import CheckpointId
from weir.protocol import operations as steps
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointRequested,
    CheckpointsRestored,
    JobEnded,
    ManifestWritten,
    TriggerCheckpoint,
)
from weir.storage.manifest import dump

pytestmark = pytest.mark.django_db


def complete_next(line: Line, name: str = "") -> int:
    """One checkpoint that the driver asks for completes."""
    line.post(CheckpointRequested(name or uuid4().hex))
    (number,) = line.triggered()
    line.complete(number, line.state.attempt)
    line.poll()
    return number


def options_of(job: Job) -> dict[str, Any]:
    """The options that the job's next driver is given."""
    driver = jobs.driver_of(job)
    options: dict[str, Any] = driver_files.job_file(job, driver, "t", shipped=False)["options"]
    return options


def uri(line: Line, number: int) -> str:
    return locations.path_of(line.job, CheckpointId(number))


def finish(line: Line) -> None:
    line.post(jobs.changed(JobStatus.FINISHED))


# Stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drain", "kind"), [(False, CheckpointKind.STOP_SUSPEND), (True, CheckpointKind.STOP_DRAIN)]
)
def test_stop_takes_its_savepoint_and_succeeds_with_the_jobs_end(
    line: Line, operator: User, drain: bool, kind: CheckpointKind
) -> None:
    operation = requests.stop(operator, line.job_id, drain=drain, name="final")
    (trigger,) = [c for c in line.poll() if isinstance(c, TriggerCheckpoint)]
    savepoint = Savepoint.objects.get(operation=operation)
    assert trigger.barrier.options.kind is kind
    assert trigger.barrier.options.target == savepoint.location
    line.complete(1)
    (told,) = [c for c in line.poll() if isinstance(c, CheckpointCompleted)]
    assert told.final
    assert ended(operation).progress["phase"] == "ending"
    assert ended(operation).progress["saved"] == savepoint.location
    finish(line)
    assert ended(operation).status == "succeeded"
    result = ended(operation).result
    assert (result["savepoint"], result["path"]) == (str(savepoint.pk), savepoint.location)
    assert AuditEntry.objects.get(action="job.stop").after["drain"] is drain
    assert savepoints.delete(None, savepoint.pk).status == "running"


def test_stop_whose_savepoint_fails_leaves_the_job_running(line: Line) -> None:
    operation = requests.stop(None, line.job_id, drain=False)
    line.post(protocol.decline("source-0"))
    assert ended(operation).status == "failed"
    assert line.job.status == JobStatus.RUNNING
    assert not Savepoint.objects.exists()


def test_stop_is_completed_by_the_next_driver(line: Line) -> None:
    operation = requests.stop(None, line.job_id, drain=False)
    line.complete(1)
    jobs.lose(line.job)
    assert ended(operation).status == "running"
    savepoint = Savepoint.objects.get()
    with pytest.raises(WrongState, match="is being stopped with it"):
        savepoints.delete(None, savepoint.pk)
    again = Line.for_job(line.job)
    again.post(planned(), *jobs.coming_up(2))
    finish(again)
    assert ended(operation).status == "succeeded"


def test_stop_of_a_job_that_fails_keeps_its_savepoint_and_names_it(line: Line) -> None:
    operation = requests.stop(None, line.job_id, drain=True)
    line.complete(1)
    line.post(jobs.changed(JobStatus.FAILING, "out of memory"))
    line.post(jobs.changed(JobStatus.FAILED, "out of memory"))
    savepoint = Savepoint.objects.get()
    assert ended(operation).status == "failed"
    assert ended(operation).error == (
        f"the job is failed: out of memory; the savepoint was taken and is kept: "
        f"{savepoint.location}"
    )
    assert savepoint.checkpoint == line.checkpoint(1)


def test_stop_that_takes_too_long_expires_and_names_its_savepoint(line: Line) -> None:
    operation = requests.stop(None, line.job_id, drain=False)
    line.complete(1)
    jobs.pass_time(operation, 10_000, "deadline_at")
    assert operations.expire_due() == 1
    assert ended(operation).status == "expired"
    assert Savepoint.objects.get().location in ended(operation).error
    finish(line)
    assert ended(operation).status == "expired"


def test_stop_that_expires_before_its_savepoint_is_withdrawn_and_the_job_runs_on(
    line: Line,
) -> None:
    operation = requests.stop(None, line.job_id, drain=False)
    (number,) = line.triggered()
    line.post(*protocol.acks(number)[:-1])  # One is missing.
    jobs.pass_time(operation, 10_000, "deadline_at")
    assert operations.expire_due() == 1
    assert ended(operation).status == "expired"
    assert [c for c in line.poll() if isinstance(c, CheckpointAborted)] == [
        CheckpointAborted(line.state.attempt, CheckpointId(number), None)
    ]
    row = line.checkpoint(number)
    assert (row.status, row.reason) == ("failed", "checkpoint_expired")
    assert str(operation.pk) in row.cause
    line.post(protocol.acks(number)[-1])  # Too late.
    assert line.checkpoint(number).status == "failed"
    assert not Savepoint.objects.filter(checkpoint__isnull=False).exists()
    assert line.job.status == JobStatus.RUNNING
    assert complete_next(line) == number + 1


def test_savepoint_that_waits_for_its_turn_is_not_taken_once_its_operation_has_expired() -> None:
    line = Line.running(alignment_timeout_ms=0)
    line.post(CheckpointRequested("first"))
    (first,) = line.triggered()
    operation = savepoints.take(None, line.job_id)
    assert [request.kind for request in line.state.queue] == [CheckpointKind.SAVEPOINT]
    jobs.pass_time(operation, 10_000, "deadline_at")
    assert operations.expire_due() == 1
    assert line.state.queue == ()
    assert ended(operation).status == "expired"
    line.complete(first)
    assert line.triggered() == []
    assert operations.expire_due() == 0


def test_savepoint_that_is_durable_a_moment_after_its_operation_expired_is_kept(
    line: Line,
) -> None:
    operation = savepoints.take(None, line.job_id)
    (number,) = line.triggered()
    line.post(*protocol.acks(number))
    jobs.pass_time(operation, 10_000, "deadline_at")
    assert operations.expire_due() == 1
    line.post(ManifestWritten(CheckpointId(number)))
    assert ended(operation).status == "expired"
    assert Savepoint.objects.get().checkpoint == line.checkpoint(number)
    assert line.checkpoint(number).status == "completed"


def test_stopped_job_is_taken_up_again_by_a_rollback(line: Line) -> None:
    requests.stop(None, line.job_id, drain=False)
    line.complete(1)
    finish(line)
    savepoint = Savepoint.objects.get()
    operation = requests.rollback(None, line.job_id, savepoint=savepoint.pk)
    assert options_of(line.job)["restore"] == savepoint.location
    again = Line.for_job(line.job)
    again.come_up(2, restored=1)
    assert ended(operation).status == "succeeded"
    assert line.job.status == JobStatus.RUNNING


# Rollback --------------------------------------------------------------------------------------


def test_rollback_begins_there_until_a_checkpoint_completes(line: Line, operator: User) -> None:
    for _ in range(3):
        complete_next(line)
    operation = requests.rollback(operator, line.job_id, checkpoint=1)
    job = line.job
    assert (job.restore_uri, job.restore_job, job.restore_number) == (uri(line, 1), job, 1)
    assert options_of(job)["restore"] == uri(line, 1)
    assert options_of(job)["rewinds_output"] is True
    assert Driver.objects.get(job=job, number=1).status == DriverStatus.ENDED
    assert ended(operation).progress["phase"] == "relaunching"

    again = Line.for_job(job)
    again.come_up(2, restored=1)
    assert ended(operation).status == "succeeded"
    assert again.job.restore_uri  # One that is lost now begins there again.
    assert complete_next(again) == 4
    job = again.job
    assert (job.restore_uri, job.restore_job, job.restore_number) == ("", None, None)
    assert "restore" not in options_of(job)
    entry = AuditEntry.objects.get(action="job.rollback")
    assert (entry.actor, entry.after["restore"]) == (operator, uri(line, 1))


def test_what_an_earlier_driver_completes_is_no_beginning(line: Line) -> None:
    """Its manifest was being written when the job was told to go back: the storage says that later,
    and the next driver goes back all the same."""
    complete_next(line)
    complete_next(line)
    line.post(CheckpointRequested("late"))
    line.post(*protocol.acks(3))
    requests.rollback(None, line.job_id, checkpoint=1)
    assert jobs.driver_of(line.job).number == 1  # None is launched before that is settled.
    key = locations.layout_of(line.job).manifest(CheckpointId(3))
    locations.store_of(line.job).put(key, dump(manifest(line.job_id, 3)))
    assert finalization.settle_driverless() == 1
    assert line.checkpoint(3).status == "completed"
    assert line.job.restore_uri == uri(line, 1)


def test_savepoint_is_kept_while_a_manifest_that_builds_on_it_is_being_settled(line: Line) -> None:
    """The attempt that restored it is over, and the job is to go on from another savepoint."""
    older, newer = taken(line), taken(line)
    requests.rollback(None, line.job_id, savepoint=older.pk)
    again = Line.for_job(line.job)
    again.come_up(2, restored=older.checkpoint.number)  # type: ignore[union-attr]
    again.post(CheckpointRequested("on top"))
    (number,) = again.triggered()
    again.post(*protocol.acks(number, attempt=2))
    requests.rollback(None, line.job_id, savepoint=newer.pk)
    (pending,) = again.state.pending
    assert pending.parent_id == older.checkpoint.number  # type: ignore[union-attr]
    with pytest.raises(WrongState, match="builds a checkpoint on it"):
        savepoints.delete(None, older.pk)
    key = locations.layout_of(line.job).manifest(CheckpointId(number))
    locations.store_of(line.job).put(key, dump(manifest(line.job_id, number)))
    assert finalization.settle_driverless() == 1
    assert savepoints.delete(None, older.pk).kind == OperationKind.DISCARD


def test_what_only_a_later_driver_finds_is_no_beginning(line: Line) -> None:
    """The fork's first checkpoint was given up, and was written all the same; its driver is lost.
    The next one was told to begin anew, and if it is lost as well so is the one after it."""
    complete_next(line)
    operation = requests.fork(None, line.job_id, name="trial", checkpoint=1)
    fork = Line.for_job(Job.objects.get(pk=operation.result["job"]))
    fork.come_up(1, restored=1)
    fork.post(CheckpointRequested("first"))
    (number,) = fork.triggered()
    fork.post(*protocol.acks(number), protocol.not_written(number, may_exist=True))
    jobs.lose(fork.job)
    again = Line.for_job(fork.job)
    restored = CheckpointsRestored((protocol.completed(number),), CheckpointId(number + 1))
    again.post(planned(), restored, *jobs.coming_up(2))
    assert again.job.restore_uri == uri(line, 1)


def test_savepoint_is_no_beginning(line: Line) -> None:
    complete_next(line)
    complete_next(line)
    requests.rollback(None, line.job_id, checkpoint=1)
    again = Line.for_job(line.job)
    again.come_up(2, restored=1)
    taken(again)
    assert again.job.restore_uri == uri(line, 1)


def test_rollback_without_rewinding_says_so(line: Line) -> None:
    complete_next(line)
    requests.rollback(
        None, line.job_id, checkpoint=1, rewind_output=False, allow_non_restored_state=True
    )
    options = options_of(line.job)
    assert (options["rewinds_output"], options["allow_non_restored_state"]) == (False, True)


def test_what_a_rollback_goes_to_is_not_let_go(db: None) -> None:
    line = Line.running(retained_max=1)
    complete_next(line)
    requests.rollback(None, line.job_id, checkpoint=1)
    again = Line.for_job(line.job)
    again.come_up(2, restored=1, retained_max=1)
    assert line.statuses() == {1: "completed"}


def test_failed_job_is_rolled_back_and_wanted_again(db: None) -> None:
    line = Line.running(retention=Retention.RETAIN_ON_CANCELLATION)
    complete_next(line)
    complete_next(line)
    line.post(jobs.changed(JobStatus.FAILING, "x"))
    line.post(jobs.changed(JobStatus.FAILED, "x"))
    line.post(JobEnded(JobStatus.FAILED))
    operation = requests.rollback(None, line.job_id, checkpoint=1)
    assert line.job.status == JobStatus.RESTARTING
    again = Line.for_job(line.job)
    again.come_up(2, restored=1, retention=Retention.RETAIN_ON_CANCELLATION)
    assert ended(operation).status == "succeeded"
    assert again.state.ended is None


def test_restart_waits_until_a_deleted_stop_savepoint_is_gone(line: Line) -> None:
    """Neither waits for the other: the savepoint is not kept to complete the stop with it."""
    complete_next(line)
    requests.stop(None, line.job_id, drain=False)
    line.complete(2)
    line.post(jobs.changed(JobStatus.FAILING, "x"), jobs.changed(JobStatus.FAILED, "x"))
    line.post(JobEnded(JobStatus.FAILED))
    savepoints.delete(None, Savepoint.objects.get().pk)
    job_services.restart(None, line.job_id)
    assert jobs.driver_of(line.job).number == 1
    assert discards.discard_due() >= 1
    assert line.checkpoint(2).status == "discarded"
    due_jobs.relaunch_due()
    assert jobs.driver_of(line.job).number == 2


def test_checkpoint_that_is_needed_holds_up_no_restart(db: None) -> None:
    """A cancelled job deletes its checkpoints, but for the one that it was to go on from."""
    line = Line.running(retention=Retention.DELETE_ON_CANCELLATION)
    complete_next(line)
    complete_next(line)
    requests.rollback(None, line.job_id, checkpoint=1)
    job_services.cancel(None, line.job_id)
    assert discards.discard_due() == 1
    assert line.statuses() == {1: "completed", 2: "discarded"}
    job_services.restart(None, line.job_id)
    assert jobs.driver_of(line.job).number == 3
    assert options_of(line.job)["restore"] == uri(line, 1)


def fails(line: Line, cause: str) -> Line:
    """The job's next driver does not come to run."""
    again = Line.for_job(line.job)
    again.post(planned(), jobs.changed(JobStatus.INITIALIZING))
    again.post(jobs.changed(JobStatus.FAILING, cause), jobs.changed(JobStatus.FAILED, cause))
    return again


def test_rollback_of_a_job_that_did_not_run_fails_with_it(line: Line) -> None:
    complete_next(line)
    jobs.lose(line.job)
    operation = requests.rollback(None, line.job_id, checkpoint=1)
    fails(line, "damaged")
    assert ended(operation).status == "failed"
    assert ended(operation).error == "the job is failed: damaged"
    assert returns.return_due() == 0


def test_job_whose_rollback_fails_is_taken_back_to_its_newest_checkpoint(line: Line) -> None:
    numbers = [complete_next(line) for _ in range(3)]
    operation = requests.rollback(None, line.job_id, checkpoint=numbers[0])
    again = fails(line, "damaged")
    assert ended(operation).progress["phase"] == "return_due"
    assert (ended(operation).status, again.job.status) == ("running", JobStatus.FAILED)
    assert returns.return_due() == 1
    assert again.job.status == JobStatus.RESTARTING
    options = options_of(again.job)
    assert (options["restore"], options["rewinds_output"]) == (uri(line, numbers[-1]), True)
    assert returns.return_due() == 0
    Line.for_job(line.job).come_up(3, restored=numbers[-1])
    error = "the job is failed: damaged; the job runs again as before"
    assert (ended(operation).status, ended(operation).error) == ("failed", error)
    assert again.job.status == JobStatus.RUNNING
    entry = AuditEntry.objects.get(action="job.return")
    assert entry.after["error"] == "the job is failed: damaged"


def test_job_that_cannot_be_taken_back_says_why(line: Line) -> None:
    numbers = [complete_next(line) for _ in range(2)]
    operation = requests.rollback(None, line.job_id, checkpoint=numbers[0])
    fails(line, "damaged")
    line.checkpoint(numbers[1]).delete()
    returns.return_due()
    assert ended(operation).status == "failed"
    assert "damaged; the job could not be taken back: " in ended(operation).error
    assert line.job.status == JobStatus.FAILED


def test_job_whose_end_is_not_settled_is_taken_back_later(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete_next(line)
    operation = requests.rollback(None, line.job_id, checkpoint=1)
    fails(line, "damaged")

    def unsettled(*_: Any) -> None:
        raise WrongState("still being settled", state="failed", allowed=[])

    with monkeypatch.context() as patch:
        patch.setattr(job_services, "relaunch", unsettled)
        assert returns.return_due() == 0
    assert ended(operation).progress["phase"] == "return_due"
    assert returns.return_due() == 1


@pytest.mark.parametrize("status", ["created", "initializing"])
def test_rollback_of_a_job_that_is_starting_is_refused(line: Line, status: str) -> None:
    complete_next(line)
    Job.objects.filter(pk=line.job_id).update(status=status)
    with pytest.raises(WrongState, match="wait until it runs") as refused:
        requests.rollback(None, line.job_id, checkpoint=1)
    assert refused.value.extra["state"] == status
    assert "running" in refused.value.extra["allowed"]


def test_rollback_of_a_job_being_cancelled_is_refused(line: Line) -> None:
    complete_next(line)
    job_services.cancel(None, line.job_id)
    with pytest.raises(WrongState) as refused:
        requests.rollback(None, line.job_id, checkpoint=1)
    assert refused.value.extra["state"] == "cancelling"


def test_rollback_to_what_is_not_there_is_refused(line: Line) -> None:
    complete_next(line)
    other = Line.running()
    foreign = taken(other)
    line.post(CheckpointRequested("x"))
    line.post(protocol.decline("source-0", 2))
    for target, error in [
        ({"checkpoint": 7}, NotFound),
        ({"checkpoint": 2}, Invalid),  # Aborted.
        ({"checkpoint": 2**70}, NotFound),
        ({"savepoint": uuid4()}, NotFound),
        ({"savepoint": foreign.pk}, Invalid),
        ({}, Invalid),
        ({"checkpoint": 1, "savepoint": foreign.pk}, Invalid),
    ]:
        with pytest.raises(error):
            requests.rollback(None, line.job_id, **target)  # type: ignore[arg-type]
    assert line.job.status == JobStatus.RUNNING


def test_rollback_repeated_with_its_key_is_one(line: Line, operator: User) -> None:
    complete_next(line)
    first = requests.rollback(operator, line.job_id, checkpoint=1, key="k")
    assert requests.rollback(operator, line.job_id, checkpoint=1, key="k") == first
    with pytest.raises(KeyReused):
        requests.rollback(operator, line.job_id, checkpoint=1, rewind_output=False, key="k")


# Rescale ---------------------------------------------------------------------------------------


def test_rescale_takes_a_checkpoint_and_goes_on_from_it(line: Line, operator: User) -> None:
    operation = requests.rescale(operator, line.job_id, parallelism=4)
    (trigger,) = [c for c in line.poll() if isinstance(c, TriggerCheckpoint)]
    assert trigger.barrier.options.kind is CheckpointKind.CHECKPOINT
    assert "parallelism" not in line.job.options  # A driver lost now comes back as it was.
    line.complete(1)
    job = line.job
    assert (options_of(job)["parallelism"], job.restore_uri) == (4, "")
    assert ended(operation).progress["saved"] == uri(line, 1)
    Line.for_job(job).come_up(2, restored=1)
    assert ended(operation).status == "succeeded"
    assert ended(operation).result["checkpoint"] == 1


@pytest.mark.parametrize(
    ("conf", "most"),
    [
        ({}, 6),
        ({"spark.cores.max": "5"}, 5),
        ({"spark.task.cpus": "4"}, 1),
        ({"spark.cores.max": "?"}, 6),
    ],
)
def test_more_slots_than_the_cluster_has_are_refused_before_the_job_is_touched(
    line: Line, conf: dict[str, str], most: int
) -> None:
    Job.objects.update(spark_master="local-cluster[2,3,512]", spark_conf=conf)
    before = line.job
    with pytest.raises(
        Invalid, match=f"hold {most} slots .*not touched.*wait_for_slots"
    ) as refused:
        requests.rescale(None, line.job_id, parallelism=most + 1)
    assert list(refused.value.extra["errors"]) == ["parallelism"]
    assert line.poll() == []
    assert model_to_dict(line.job) == model_to_dict(before)
    assert not Operation.objects.filter(kind=OperationKind.RESCALE).exists()
    assert requests.rescale(None, line.job_id, parallelism=most).status == "running"


def test_a_rescale_may_wait_for_slots_that_the_cluster_does_not_have_yet(line: Line) -> None:
    Job.objects.update(spark_master="local-cluster[1,1,512]")
    operation = requests.rescale(None, line.job_id, parallelism=4, wait_for_slots=True)
    line.complete(1)
    assert options_of(line.job)["parallelism"] == 4
    Line.for_job(line.job).come_up(2, restored=1)
    assert ended(operation).status == "succeeded"


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b"[1]", b'{"workers": [{"cores": "4", "state": 1}]}', None]
)
def test_nothing_is_refused_for_a_cluster_whose_size_is_not_known(
    line: Line,
    answer: bytes | None,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    master = "spark://127.0.0.1:7077"
    Job.objects.update(spark_master=master)
    settings.WEIR_SPARK_MASTER = master
    with answering(answer) as settings.WEIR_SPARK_MASTER_UI:
        assert requests.rescale(None, line.job_id, parallelism=100).status == "running"
    assert f"the size of the cluster {master} is not known" in caplog.text


def test_only_the_control_planes_own_master_is_asked(line: Line, settings: Settings) -> None:
    """The master of a job is named by a user, who could name any address."""
    Job.objects.update(spark_master="spark://elsewhere:7077")
    settings.WEIR_SPARK_MASTER = "spark://127.0.0.1:7077"
    asked: list[str] = []
    none = b'{"workers": []}'
    with answering(none, asked) as settings.WEIR_SPARK_MASTER_UI:
        requests.rescale(None, line.job_id, parallelism=100)
        assert asked == []
        settings.WEIR_SPARK_MASTER = "spark://elsewhere:7077"
        assert cluster_size.slots_max(line.job) == 0
        assert asked == ["/json/"]


@contextmanager
def answering(answer: bytes | None, asked: list[str] | None = None) -> Iterator[str]:
    """The address of a page that answers so; None: it answers with an error."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(500 if answer is None else 200)
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_rest_of_the_batch_that_ended_the_driver_is_dropped(line: Line) -> None:
    requests.rescale(None, line.job_id, parallelism=4)
    line.post(*protocol.acks(1))
    line.post(ManifestWritten(CheckpointId(1)), jobs.changed(JobStatus.FAILING, "too late"))
    assert line.job.status == JobStatus.RESTARTING
    assert line.driver.status == DriverStatus.ENDED


@pytest.mark.parametrize("parallelism", [None, 2])
def test_job_whose_rescale_fails_is_taken_back_to_its_parallelism(
    line: Line, parallelism: int | None
) -> None:
    given = {} if parallelism is None else {"parallelism": parallelism}
    Job.objects.update(options=given)
    operation = requests.rescale(None, line.job_id, parallelism=64)
    line.complete(1)
    assert options_of(line.job)["parallelism"] == 64
    again = fails(line, "4 of 64 slots registered")
    assert returns.return_due() == 1
    assert again.job.options == given
    assert "restore" not in options_of(again.job)  # Its newest checkpoint.
    Line.for_job(line.job).come_up(3, restored=1)
    assert ended(operation).status == "failed"
    kept = f"the checkpoint was taken and is kept: {uri(line, 1)}"
    error = f"the job is failed: 4 of 64 slots registered; the job runs again as before; {kept}"
    assert ended(operation).error == error


def test_job_that_does_not_come_to_run_in_time_is_taken_back(line: Line) -> None:
    operation = requests.rescale(None, line.job_id, parallelism=64)
    line.complete(1)
    Operation.objects.filter(pk=operation.pk).update(deadline_at=clock.now())
    assert operations.expire_due() == 0
    waiting = ended(operation)
    assert (waiting.status, waiting.progress["phase"]) == ("running", "return_due")
    assert waiting.deadline_at > clock.now()
    assert returns.return_due() == 1
    assert line.job.options == {}
    Operation.objects.filter(pk=operation.pk).update(deadline_at=clock.now())
    assert operations.expire_due() == 1
    assert ended(operation).status == "expired"
    assert "it was started again as before, and does not run yet" in ended(operation).error


def test_job_that_runs_before_it_is_taken_back_stays_as_it_is(line: Line) -> None:
    operation = requests.rescale(None, line.job_id, parallelism=4)
    line.complete(1)
    Operation.objects.filter(pk=operation.pk).update(deadline_at=clock.now())
    operations.expire_due()
    Line.for_job(line.job).come_up(2, restored=1)
    assert ended(operation).status == "succeeded"
    assert returns.return_due() == 0
    assert line.job.options == {"parallelism": 4}


def test_cancelled_job_is_not_taken_back(line: Line) -> None:
    operation = requests.rescale(None, line.job_id, parallelism=4)
    line.complete(1)
    Operation.objects.filter(pk=operation.pk).update(deadline_at=clock.now())
    operations.expire_due()
    job_services.cancel(None, line.job_id)
    assert ended(operation).status == "cancelled"
    assert returns.return_due() == 0


def test_rescale_whose_checkpoint_fails_changes_nothing(line: Line) -> None:
    operation = requests.rescale(None, line.job_id, parallelism=4)
    line.post(protocol.decline("source-0"))
    assert ended(operation).status == "failed"
    assert (line.job.status, line.job.options) == (JobStatus.RUNNING, {})


def test_rescale_of_a_waiting_job_goes_on_from_its_newest_checkpoint(line: Line) -> None:
    complete_next(line)
    jobs.lose(line.job)
    operation = requests.rescale(None, line.job_id, parallelism=3)
    assert ended(operation).progress["phase"] == "relaunching"
    assert options_of(line.job)["parallelism"] == 3
    assert "restore" not in options_of(line.job)


@pytest.mark.parametrize(
    ("parallelism", "why"),
    [
        (0, "from 1 to 32768"),
        (-1, "from 1 to 32768"),
        (129, "over 128 subtasks at most"),
        (40_000, "from 1 to 32768"),
    ],
)
def test_parallelism_that_cannot_be_is_refused_at_once(
    line: Line, parallelism: int, why: str
) -> None:
    with pytest.raises(Invalid) as refused:
        requests.rescale(None, line.job_id, parallelism=parallelism)
    assert list(refused.value.extra["errors"]) == ["parallelism"]
    assert why in refused.value.extra["errors"]["parallelism"][0]


def test_parallelism_may_be_as_large_as_the_state_can_be_spread(line: Line) -> None:
    operation = requests.rescale(None, line.job_id, parallelism=128)
    assert operation.parameters["parallelism"] == 128


# Fork ------------------------------------------------------------------------------------------


def test_fork_from_a_savepoint_is_a_job_of_its_own(line: Line, operator: User) -> None:
    savepoint = taken(line, name="before")
    operation = requests.fork(
        operator,
        line.job_id,
        name="trial",
        savepoint=savepoint.pk,
        parameters={"output": "/data/trial"},
        parallelism=3,
    )
    assert operation.status == "running"
    fork = Job.objects.get(pk=operation.result["job"])
    submit = Operation.objects.get(pk=operation.result["operation"])
    assert (submit.kind, submit.status, submit.job) == ("submit", "pending", fork)
    assert (fork.name, fork.origin, fork.origin_uri) == ("trial", line.job, savepoint.location)
    assert (fork.restore_job, fork.restore_number) == (line.job, 1)
    assert fork.options == {"parallelism": 3, "parameters": {"output": "/data/trial"}}
    assert options_of(fork)["restore"] == savepoint.location
    assert line.job.status == JobStatus.RUNNING
    assert list(line.job.forks.all()) == [fork]
    assert returns.forks_launched() == 0
    Line.for_job(fork).come_up(1, restored=1)
    assert ended(submit).status == "succeeded"
    assert returns.forks_launched() == 1
    succeeded = ended(operation)
    assert (succeeded.status, succeeded.result["job"]) == ("succeeded", fork.pk)


def test_fork_that_does_not_come_to_run_has_failed(line: Line) -> None:
    complete_next(line)
    operation = requests.fork(None, line.job_id, name="trial", checkpoint=1)
    fork = operation.result["job"]
    job_services.cancel(None, fork)
    assert returns.forks_launched() == 1
    failed = ended(operation)
    assert failed.status == "failed"
    assert failed.error.startswith(f"{fork} was submitted and does not run: ")


def test_fork_that_comes_to_run_holds_up_nothing_of_its_origin(line: Line) -> None:
    operation = requests.fork(None, line.job_id, name="trial")
    line.complete(1)
    assert ended(operation).progress["phase"] == "forking"
    job_services.restart(None, line.job_id)
    job_services.cancel(None, line.job_id)
    assert ended(operation).status == "running"
    Line.for_job(Job.objects.get(pk=ended(operation).result["job"])).come_up(1, restored=1)
    assert returns.forks_launched() == 1
    assert ended(operation).status == "succeeded"


@pytest.mark.parametrize(
    ("own_s", "given_s", "target_s"), [(None, None, None), (30, None, 30), (30, 5, 5), (None, 5, 5)]
)
def test_fork_takes_over_the_recovery_target_unless_it_has_its_own(
    line: Line, own_s: float | None, given_s: float | None, target_s: float | None
) -> None:
    complete_next(line)
    job_services.set_recovery_target(None, line.job_id, own_s)
    operation = requests.fork(
        None, line.job_id, name="trial", checkpoint=1, recovery_target_s=given_s
    )
    assert Job.objects.get(pk=operation.result["job"]).recovery_target_s == target_s
    assert Job.objects.get(pk=line.job_id).recovery_target_s == own_s


def test_fork_with_a_bad_recovery_target_is_refused_at_once(line: Line) -> None:
    complete_next(line)
    with pytest.raises(Invalid) as refused:
        requests.fork(None, line.job_id, name="trial", checkpoint=1, recovery_target_s=0)
    assert list(refused.value.extra["errors"]) == ["recovery_target_s"]
    assert not line.job.forks.exists()


def test_fork_keeps_its_lineage_once_it_has_begun(line: Line) -> None:
    complete_next(line)
    operation = requests.fork(None, line.job_id, name="trial", checkpoint=1)
    fork = Line.for_job(Job.objects.get(pk=operation.result["job"]))
    fork.come_up(1, restored=1)
    complete_next(fork)
    job = fork.job
    assert (job.restore_uri, job.restore_job) == ("", None)
    assert (job.origin, job.origin_uri) == (line.job, uri(line, 1))


def test_fork_whose_first_checkpoint_the_storage_settles_has_begun(line: Line) -> None:
    complete_next(line)
    operation = requests.fork(None, line.job_id, name="trial", checkpoint=1)
    fork = Line.for_job(Job.objects.get(pk=operation.result["job"]))
    fork.come_up(1, restored=1)
    fork.post(CheckpointRequested("first"))
    (number,) = fork.triggered()
    fork.post(*protocol.acks(number))
    jobs.lose(fork.job)
    key = locations.layout_of(fork.job).manifest(CheckpointId(number))
    locations.store_of(fork.job).put(key, dump(manifest(fork.job_id, number)))
    finalization.settle_driverless()
    assert fork.job.restore_uri == ""


def test_fork_takes_a_savepoint_where_none_is_named(line: Line, operator: User) -> None:
    operation = requests.fork(operator, line.job_id, name="trial run")
    savepoint = Savepoint.objects.get(operation=operation)
    assert savepoint.name.startswith("fork-trial-run-")
    assert operation.status == "running"
    line.complete(1)
    fork = Job.objects.get(pk=ended(operation).result["job"])
    assert (fork.restore_uri, fork.restore_number) == (savepoint.location, 1)
    Line.for_job(fork).come_up(1, restored=1)
    returns.forks_launched()
    finished = ended(operation)
    assert finished.status == "succeeded"
    assert finished.result["savepoint"] == str(savepoint.pk)


def test_fork_whose_savepoint_fails_is_not_submitted(line: Line) -> None:
    operation = requests.fork(None, line.job_id, name="trial")
    line.post(protocol.decline("source-0"))
    assert ended(operation).status == "failed"
    assert Job.objects.count() == 1


def test_fork_that_cannot_be_submitted_any_more_keeps_the_savepoint(
    line: Line, settings: Any
) -> None:
    operation = requests.fork(None, line.job_id, name="trial")
    settings.WEIR_SCRIPT_ROOTS = []
    line.complete(1)
    assert ended(operation).status == "failed"
    assert Savepoint.objects.get().location in ended(operation).error
    assert line.checkpoint(1).status == "completed"


def test_fork_runs_another_pipeline_where_one_is_named(line: Line) -> None:
    complete_next(line)
    pipeline = Pipeline("module", "shop.orders_v2")
    operation = requests.fork(None, line.job_id, name="v2", checkpoint=1, pipeline=pipeline)
    fork = Job.objects.get(pk=operation.result["job"])
    assert (fork.pipeline_kind, fork.pipeline_target) == ("module", "shop.orders_v2")
    with pytest.raises(Invalid):
        requests.fork(
            None, line.job_id, name="v3", checkpoint=1, pipeline=Pipeline("script", "nowhere.py")
        )


def test_all_ways_back_keep_the_jobs_secrets(line: Line) -> None:
    for name in ("A", "B"):
        secrets.store(None, name, "x")
    Job.objects.filter(pk=line.job_id).update(options={**line.job.options, "secrets": ["A"]})
    complete_next(line)

    def forked(name: str, **given: Any) -> list[str]:
        operation = requests.fork(None, line.job_id, name=name, checkpoint=1, **given)
        fork = Job.objects.get(pk=operation.result["job"])
        names: list[str] = options_of(fork)["secrets"]
        return names

    assert forked("same") == ["A"]
    assert forked("others", secrets=["B", "A"]) == ["A", "B"]
    assert forked("none", secrets=[]) == []
    with pytest.raises(Invalid) as refused:
        forked("gone", secrets=["GONE"])
    assert "There is no secret GONE" in refused.value.extra["errors"]["options.secrets"][0]
    requests.rollback(None, line.job_id, checkpoint=1)
    assert options_of(line.job)["secrets"] == ["A"]
    Line.for_job(line.job).come_up(2, restored=1)
    job_services.restart(None, line.job_id)
    assert options_of(line.job)["secrets"] == ["A"]


def test_failed_jobs_checkpoint_can_be_forked_while_it_is_over(line: Line) -> None:
    savepoint = taken(line)
    job_services.cancel(None, line.job_id)
    line.post(jobs.changed(JobStatus.CANCELED))
    operation = requests.fork(None, line.job_id, name="trial", savepoint=savepoint.pk)
    assert operation.status == "running"
    assert line.job.forks.count() == 1
    with pytest.raises(WrongState):
        requests.fork(None, line.job_id, name="trial")


# Two at once -----------------------------------------------------------------------------------


def begun(line: Line, kind: str) -> Operation:
    """An operation of this kind that is under way, of a job with checkpoint 1."""
    match kind:
        case "savepoint":
            return savepoints.take(None, line.job_id)
        case "stop":
            return requests.stop(None, line.job_id, drain=False)
        case "rescale":
            return requests.rescale(None, line.job_id, parallelism=4)
        case "fork":
            return requests.fork(None, line.job_id, name="trial")
        case "rollback":
            return requests.rollback(None, line.job_id, checkpoint=1)
        case "restart":
            return job_services.restart(None, line.job_id)
        case _:
            return savepoints.request_checkpoint(None, line.job_id)


_EXCLUSIVE = ("savepoint", "stop", "rescale", "fork", "rollback", "restart")


@pytest.mark.parametrize("second", _EXCLUSIVE)
@pytest.mark.parametrize("first", ["savepoint", "stop", "rescale", "fork"])
def test_second_of_two_is_refused_naming_the_first(line: Line, first: str, second: str) -> None:
    complete_next(line)
    operation = begun(line, first)
    with pytest.raises(Busy, match=f"{first} {operation.pk}") as refused:
        begun(line, second)
    assert refused.value.extra["operation"] == str(operation.pk)
    assert ended(operation).status == "running"


@pytest.mark.parametrize("second", ["rescale", "rollback", "restart"])
@pytest.mark.parametrize("first", ["rollback", "restart"])
def test_relaunch_under_way_refuses_another(line: Line, first: str, second: str) -> None:
    complete_next(line)
    operation = begun(line, first)
    with pytest.raises(Busy, match=f"{first} {operation.pk}"):
        begun(line, second)


@pytest.mark.parametrize("first", [*_EXCLUSIVE, "checkpoint"])
def test_cancellation_overtakes_everything(line: Line, first: str) -> None:
    complete_next(line)
    operation = begun(line, first)
    cancelling = job_services.cancel(None, line.job_id)
    assert ended(operation).status == "cancelled"
    assert f"cancel {cancelling.pk}" in ended(operation).error


def test_stop_that_is_overtaken_names_its_savepoint(line: Line) -> None:
    operation = requests.stop(None, line.job_id, drain=False)
    line.complete(1)
    job_services.cancel(None, line.job_id)
    assert Savepoint.objects.get().location in ended(operation).error


def test_checkpoint_runs_beside_a_savepoint_and_not_beside_a_stop(line: Line) -> None:
    begun(line, "savepoint")
    assert begun(line, "checkpoint").status == "running"
    line.complete(1)
    begun(line, "stop")
    with pytest.raises(Busy):
        begun(line, "checkpoint")


def test_two_at_the_same_moment_are_one_and_a_refusal(
    transactional_db: None,
) -> None:
    line = Line.running()
    job_id = line.job_id
    results = jobs.at_once(
        lambda: savepoints.take(None, job_id), lambda: requests.stop(None, job_id, drain=False)
    )
    assert sorted(type(result).__name__ for result in results) == ["Busy", "Operation"]


# What is never forgotten -----------------------------------------------------------------------


def test_deadline_leaves_time_for_the_checkpoint(line: Line) -> None:
    operation = savepoints.take(None, line.job_id)
    timeout_ms = shell.config_of(line.job).timeout_ms
    assert operation.deadline_at - clock.now() > clock.milliseconds(2 * timeout_ms)


def test_every_kind_of_several_steps_is_known_here() -> None:
    assert {kind.value for kind in steps.OperationKind} <= set(OperationKind.values)


def test_abandoned_checkpoints_are_marked_and_reclaimed(line: Line) -> None:
    for _ in range(3):
        complete_next(line)
    requests.rollback(None, line.job_id, checkpoint=1)
    again = Line.for_job(line.job)
    again.come_up(2, restored=1, lineage=protocol.line((2, 4, 2**62), (1, 1, 1)))
    assert [line.checkpoint(n).abandoned_at is None for n in (1, 2, 3)] == [True, False, False]
    complete_next(again)
    requests.rollback(None, line.job_id, checkpoint=3)
    third = Line.for_job(line.job)
    third.come_up(3, restored=3, lineage=protocol.line((3, 5, 2**62), (1, 1, 3)))
    assert [line.checkpoint(n).abandoned_at is None for n in (1, 2, 3, 4)] == [
        True,
        True,
        True,
        False,
    ]
