"""Savepoints and stops of a job under a control plane."""

from pathlib import Path

import pytest

from tests.unit.jobmaster.managed_harness import Managed, managed
from weir.config import RestartConfig, RestartStrategyKind
from weir.ids import CheckpointId
from weir.jobmaster.remote_coordination import LOOK_AGAIN_MS
from weir.jobmaster.triggered_checkpoints import Stage
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointSettled
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    CheckpointGivenUp,
    CheckpointingStarted,
    CheckpointRequested,
    ManifestFailed,
    TriggerCheckpoint,
)
from weir.storage.manifest import Manifest, load


def asked(job: Managed, kind: CheckpointKind, target: Path) -> CheckpointId:
    """The control plane wants a savepoint, and the workers have its trigger."""
    job.go_up()
    job.control.fold(CheckpointRequested("r", kind, str(target)), job.clock.ms)
    job.go_down()
    return job.told(TriggerCheckpoint)[-1].barrier.checkpoint_id


@pytest.mark.parametrize("tells_records", [True, False])
def test_a_savepoint_is_written_for_the_control_plane_and_no_sink_commits_for_it(
    tells_records: bool, tmp_path: Path
) -> None:
    job = managed(tells_records=tells_records)
    number = asked(job, CheckpointKind.SAVEPOINT, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    decided = job.stored(number)
    assert isinstance(decided, Manifest)
    assert decided.location == str(tmp_path / "one")
    assert load((tmp_path / "one" / "manifest").read_bytes()) == decided
    assert job.completions == []
    (settled,) = job.happened(CheckpointSettled)
    assert (settled.checkpoint_id, settled.failure) == (number, None)
    assert job.master.next_due_ms() is not None
    assert job.master._checkpoints._checkpoints[number].stage is Stage.OVER


def test_a_savepoint_whose_place_is_taken_is_answered_and_the_job_goes_on(tmp_path: Path) -> None:
    job = managed()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "manifest").write_bytes(b"another")
    number = asked(job, CheckpointKind.SAVEPOINT, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    (failed,) = job.control.events_of(ManifestFailed)
    assert "holds a savepoint already" in failed.cause
    assert not failed.may_exist
    assert job.status is JobStatus.RUNNING
    assert (tmp_path / "one" / "manifest").read_bytes() == b"another"


@pytest.mark.parametrize("kind", [CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN])
def test_a_stop_is_announced_as_the_last_word_and_ends_the_job(
    kind: CheckpointKind, tmp_path: Path
) -> None:
    job = managed()
    number = asked(job, kind, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    assert job.completions == [(number, True)]
    job.subtasks(SubtaskStatus.FINISHED)
    job.settle()
    assert job.status is JobStatus.FINISHED
    assert isinstance(job.stored(number), Manifest)


def test_subtasks_that_ended_for_a_drain_ask_for_no_final_checkpoint(tmp_path: Path) -> None:
    job = managed()
    number = asked(job, CheckpointKind.STOP_DRAIN, tmp_path / "one")
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(number)
    job.settle()
    job.alive()
    job.wait(LOOK_AGAIN_MS)
    job.settle()
    assert job.control.events_of(CheckpointRequested) == []


def test_a_drain_given_up_here_fails_the_attempt_since_its_sources_have_ended(
    tmp_path: Path,
) -> None:
    job = managed(
        checkpoints={"timeout_ms": 500}, restart=RestartConfig(kind=RestartStrategyKind.FIXED_DELAY)
    )
    asked(job, CheckpointKind.STOP_DRAIN, tmp_path / "one")
    job.control.is_away = True
    job.alive()
    job.wait(500)
    assert job.status is JobStatus.RESTARTING
    assert [event.reason for event in job.control.events_of(CheckpointGivenUp)] == [
        FailureReason.CONTROL_PLANE_AWAY
    ]
    job.control.is_away = False
    job.settle()  # What the control plane says of it comes too late, and does no harm.
    assert job.status is JobStatus.RESTARTING


def test_a_stop_whose_attempt_failed_is_completed_by_the_next_without_checkpoints(
    tmp_path: Path,
) -> None:
    job = managed()
    number = asked(job, CheckpointKind.STOP_SUSPEND, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    job.fail_over()
    assert job.deploys[-1].completes_stop
    job.subtasks(SubtaskStatus.RUNNING)
    job.settle()
    assert [started.attempt for started in job.control.events_of(CheckpointingStarted)] == [1]
    job.subtasks(SubtaskStatus.FINISHED)
    job.settle()
    assert job.status is JobStatus.FINISHED
