"""Plausible bugs, each of which the simulation must find.

A simulation that passes shows nothing unless it is known to fail. Every test here breaks one
production class in one place and demands that one of four hundred seeds notices.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.catching import Show, caught_at
from weir.ids import ChannelId, OperatorId, SubtaskId
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.coordination import LocalCoordination, RunnerCommand
from weir.jobmaster.job_master import JobMaster
from weir.jobmaster.manifest_writer import ManifestWriter
from weir.jobmaster.remote_coordination import RemoteCoordination
from weir.protocol import coordinator
from weir.protocol.alignment import Action, AlignedBarrierHandler, BlockChannel
from weir.protocol.elements import BarrierOptions, CheckpointBarrier, CheckpointKind, Element
from weir.protocol.messages import Acknowledged, CheckpointCompleted
from weir.worker.gates import InputGates, OutputGate
from weir.worker.ports import CreditGranted, InboxItem
from weir.worker.ready_queue import ReadyQueue
from weir.worker.subtask import Subtask
from weir.worker.worker import Worker

pytestmark = pytest.mark.whole


def test_a_channel_that_is_not_blocked_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = InputGates.block

    def block(gates: InputGates, channel_id: ChannelId) -> None:
        if channel_id != min(gates.channels):
            production(gates, channel_id)

    monkeypatch.setattr(InputGates, "block", block)
    caught_at("one channel is not blocked", show)


def test_a_record_between_barrier_and_freeze_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    take_snapshot, production = Subtask._take_snapshot, OutputGate.broadcast
    snapshotting: list[Subtask] = []

    def take(subtask: Subtask, barrier: CheckpointBarrier, *, unaligned: bool) -> None:
        snapshotting.append(subtask)
        try:
            take_snapshot(subtask, barrier, unaligned=unaligned)
        finally:
            snapshotting.pop()

    def broadcast(gate: OutputGate, element: Element) -> None:
        production(gate, element)
        if not snapshotting or not isinstance(element, CheckpointBarrier):
            return
        subtask = snapshotting[-1]
        if subtask._source is not None and gate is subtask.outputs[-1]:
            subtask._source.poll(1)
            subtask._source.prepare_snapshot(element.checkpoint_id)

    monkeypatch.setattr(Subtask, "_take_snapshot", take)
    monkeypatch.setattr(OutputGate, "broadcast", broadcast)
    failure = caught_at("a record between barrier and freeze", show)
    assert "no consistent cut" in str(failure)


def test_a_commit_before_the_manifest_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = CheckpointRunner._write_manifest

    def write(runner: CheckpointRunner, pending: Any, now: int) -> None:
        production(runner, pending, now)  # Which begins to write.
        is_final = pending.checkpoint_id == runner._final.checkpoint_id
        told = CheckpointCompleted(pending.attempt, pending.checkpoint_id, final=is_final)
        runner._send(told)

    monkeypatch.setattr(CheckpointRunner, "_write_manifest", write)
    failure = caught_at("commit before the manifest", show)
    assert "not durable" in str(failure)


def test_an_old_attempts_acknowledgement_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    """A worker outlives its driver; the next driver reuses the number of a checkpoint that left no
    trace, and takes the old worker's acknowledgement for its own."""
    production = JobMaster.on_worker

    def on_worker(master: JobMaster, slot_index: int, report: Any) -> None:
        coordination = master._checkpoints._coordination
        assert isinstance(coordination, LocalCoordination)
        state = coordination.state
        counts = isinstance(report, Acknowledged) and report.checkpoint_id < state.next_id
        if counts and state.plan is not None:
            report = replace(report, attempt=master._attempt.number)
        production(master, slot_index, report)

    monkeypatch.setattr(JobMaster, "on_worker", on_worker)
    monkeypatch.setattr(coordinator, "_is_stale", lambda state, attempt: False)
    caught_at("an old attempt's acknowledgement counts", show, first=76)


def test_a_settled_checkpoints_barrier_that_blocks_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = AlignedBarrierHandler.on_barrier

    def on_barrier(
        handler: AlignedBarrierHandler, channel: ChannelId, barrier: CheckpointBarrier
    ) -> list[Action]:
        was_settled = barrier.checkpoint_id <= handler._settled_id
        actions = production(handler, channel, barrier)
        return [BlockChannel(channel)] if was_settled else actions

    monkeypatch.setattr(AlignedBarrierHandler, "on_barrier", on_barrier)
    caught_at("a settled checkpoint's barrier blocks", show)


# The ready queue.


def test_a_sender_that_credit_does_not_wake_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = Worker.handle

    def handle(worker: Worker, item: InboxItem) -> None:
        if not isinstance(item, CreditGranted) or not worker._deployed:
            production(worker, item)
            return
        _, gate, index = worker._senders[item.channel]
        gate.granted(index, item.size)

    monkeypatch.setattr(Worker, "handle", handle)
    caught_at("credit wakes no sender", show)


def test_a_subtask_that_elements_do_not_wake_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(
        Worker,
        "_deliver",
        lambda worker, channel, element: worker._receivers[channel].inputs.deliver(
            channel, element
        ),
    )
    caught_at("elements wake no receiver", show)


def test_a_world_that_goes_on_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    is_stop = property(lambda options: options.kind is CheckpointKind.STOP_SUSPEND)
    monkeypatch.setattr(BarrierOptions, "pauses", is_stop)
    failure = caught_at("subtasks go on behind the barrier", show, first=4)
    assert "which stops the world" in str(failure)


def test_a_timer_that_is_lost_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    monkeypatch.setattr(ReadyQueue, "wait", lambda queue, subtask, timer_ms: None)
    failure = caught_at("a timer is lost", show)
    assert "waits for ever" in str(failure)


# Under a control plane.


def test_a_manifest_that_is_written_though_asked_for_too_late_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(RemoteCoordination, "_write", lambda _, command: (command,))
    caught_at("a manifest is written too late", show, first=37, remote=True)


def test_a_manifest_that_is_not_withheld_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(ManifestWriter, "withhold", lambda *_: False)
    caught_at("a manifest is not withheld", show, first=10, remote=True)


def test_a_checkpoint_given_up_though_everybody_acknowledged_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = RemoteCoordination._look

    def look(coordination: RemoteCoordination) -> Sequence[RunnerCommand]:
        for known in coordination._under_way.values():
            if not known.missing and not known.is_written:
                known.missing.add(SubtaskId(OperatorId("absent"), 0))
        return production(coordination)

    monkeypatch.setattr(RemoteCoordination, "_look", look)
    caught_at("a fully acknowledged checkpoint is given up", show, first=60, remote=True)
