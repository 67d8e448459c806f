"""Plausible bugs in going back, which the simulated operations must find."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.catching import Show, caught_at
from tests.simulation.pipelines import OutputLog
from weir.errors import StorageError
from weir.ids import CheckpointId
from weir.jobmaster import restore_choice
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.manifest_writer import ManifestWriter
from weir.protocol import coordinator, operations, retention
from weir.protocol.lifecycle import JobStatus
from weir.protocol.lineage import UNKNOWN, Lineage
from weir.protocol.messages import CheckpointingStarted
from weir.storage.layout import SAVEPOINT_MANIFEST
from weir.worker.subtask import Subtask

pytestmark = pytest.mark.whole


def test_a_branch_that_is_discarded_when_it_is_abandoned_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(
        retention, "discard_due_ms", lambda completed, config: completed.abandoned_at_ms
    )
    failure = caught_at("an abandoned branch is discarded at once", show, first=2, operations=True)
    assert "needs it" in str(failure)


def test_a_coordinator_that_counts_what_was_abandoned_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    """It retains the newest of all, so those of the line that the job is on go too early."""
    production = coordinator._start

    def start(state: Any, event: CheckpointingStarted, now_ms: int) -> Any:
        return production(state, replace(event, lineage=UNKNOWN), now_ms)

    monkeypatch.setattr(coordinator, "_start", start)
    caught_at("abandoned checkpoints count among those retained", show, first=2, operations=True)


def test_a_savepoint_whose_own_manifest_comes_after_the_key_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    """A driver that dies between the two leaves a savepoint that cannot be moved."""
    monkeypatch.setattr(ManifestWriter, "_write_own", lambda *_: None)
    production = CheckpointRunner._manifest_settled

    def settled(runner: CheckpointRunner, outcome: Any) -> None:
        record, writer = runner._checkpoints.get(outcome.checkpoint_id), runner._manifests
        path = writer._path(outcome.checkpoint_id)
        if record is not None and record.target is not None and writer._store.exists(path):
            with suppress(StorageError):
                own = writer._open_store(record.target)
                own.create_if_absent(SAVEPOINT_MANIFEST, writer._store.read(path))
        production(runner, outcome)

    monkeypatch.setattr(CheckpointRunner, "_manifest_settled", settled)
    failure = caught_at("a savepoint's own manifest comes after the key", show, operations=True)
    assert "/manifest is not there" in str(failure)


def test_an_upgrade_that_forgets_the_stop_it_asked_for_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    """Its time is over while the savepoint is taken, which then ends the job for good.

    Only where the savepoint is not withdrawn either, which guards against the same.
    """
    monkeypatch.setattr(operations, "_may_stop", lambda state: False)
    monkeypatch.setattr(coordinator, "WITHDRAWN_KINDS", frozenset())
    bug = "an upgrade out of time forgets its stop"
    failure = caught_at(bug, show, first=151, operations=True)
    assert "left the job stopped" in str(failure)


def test_an_upgrade_that_takes_its_old_pipeline_for_the_new_one_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    """The end of the job, which it asked for, counts as a run of the new pipeline."""
    production = operations._reached

    def reached(state: Any, status: JobStatus, cause: str) -> Any:
        if state.phase is operations.Phase.ENDING and status is JobStatus.FINISHED:
            return operations._succeed(state)
        return production(state, status, cause)

    monkeypatch.setattr(operations, "_reached", reached)
    failure = caught_at("an upgrade succeeds with its stop", show, first=13, operations=True)
    assert "left the job stopped" in str(failure)


def test_files_that_are_not_put_back_are_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = OutputLog.rewind

    def rewind(log: OutputLog, operator: str, attempt: int, is_mine: Any, lineage: Lineage) -> None:
        withdrawn, log.withdrawn = log.withdrawn, {}
        production(log, operator, attempt, is_mine, lineage)
        log.withdrawn = withdrawn | log.withdrawn

    monkeypatch.setattr(OutputLog, "rewind", rewind)
    failure = caught_at(
        "what is on the line again is not put back", show, first=125, operations=True
    )
    assert "lost" in str(failure)


def test_a_line_that_ends_too_late_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    """The job counts what it went back behind as its line: one checkpoint of it is enough."""
    production = restore_choice.lineage_of

    def lineage_of(attempt: Any, last: CheckpointId, bases: Any) -> Lineage:
        return production(attempt, CheckpointId(last + 1), bases)

    monkeypatch.setattr(restore_choice, "lineage_of", lineage_of)
    caught_at("the line ends one checkpoint too late", show, first=7, operations=True)


def test_a_stop_that_ends_though_a_subtask_did_not_commit_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = Subtask.on_completed

    def on_completed(subtask: Subtask, checkpoint_id: CheckpointId, *, final: bool) -> None:
        if final and subtask._suspended_by is not None and not subtask.outputs:
            operators, subtask._confirming = subtask._confirming, []
            production(subtask, checkpoint_id, final=final)
            subtask._confirming = operators
        else:
            production(subtask, checkpoint_id, final=final)

    monkeypatch.setattr(Subtask, "on_completed", on_completed)
    failure = caught_at("a stop ends though a sink did not commit", show, first=10, operations=True)
    assert "was not committed" in str(failure)
