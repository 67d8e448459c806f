"""Plausible bugs of unaligned checkpoints, each of which the simulation must find."""

from collections import deque
from typing import Any

import pytest

from tests.simulation.catching import Show, caught_at
from weir.ids import ChannelId, CheckpointId
from weir.protocol.elements import CheckpointBarrier, Element, Records, Watermark
from weir.worker.gates import InputChannel, InputGates, OutputChannel, OutputGate
from weir.worker.in_flight import InFlight

pytestmark = pytest.mark.whole


def test_a_batch_that_is_kept_twice_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    production = InFlight.on_delivered

    def on_delivered(in_flight: InFlight, channel_id: ChannelId, records: Records) -> None:
        production(in_flight, channel_id, records)
        production(in_flight, channel_id, records)

    monkeypatch.setattr(InFlight, "on_delivered", on_delivered)
    caught_at("a batch is kept twice", show)


def test_a_batch_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    monkeypatch.setattr(InFlight, "on_delivered", lambda *_: None)
    caught_at("what comes in before the barrier is not kept", show)


def test_a_queue_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    production = InputGates.queued_before

    def queued_before(
        gates: InputGates, channel_id: ChannelId, checkpoint_id: CheckpointId
    ) -> list[Records]:
        return production(gates, channel_id, checkpoint_id)[1:]

    monkeypatch.setattr(InputGates, "queued_before", queued_before)
    caught_at("the first of what is queued is not kept", show)


def test_what_is_kept_beyond_the_barrier_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    def queued_before(
        gates: InputGates, channel_id: ChannelId, checkpoint_id: CheckpointId
    ) -> list[Records]:
        return [one for one in gates.channels[channel_id].queue if isinstance(one, Records)]

    monkeypatch.setattr(InputGates, "queued_before", queued_before)
    caught_at("what is queued behind the barrier is kept", show, first=20)


def test_output_that_is_overtaken_and_not_kept_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = InFlight.forward

    def forward(in_flight: InFlight, barrier: CheckpointBarrier) -> list[Any]:
        production(in_flight, barrier)
        return []

    monkeypatch.setattr(InFlight, "forward", forward)
    caught_at("overtaken output is not kept", show, first=7)


def test_output_that_is_overtaken_late_and_not_kept_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = OutputGate.overtake

    def overtake(gate: OutputGate, barrier: CheckpointBarrier) -> list[list[Records]]:
        waited = gate.is_waiting(barrier.checkpoint_id)
        passed = production(gate, barrier)
        return [[] for _ in passed] if waited else passed

    monkeypatch.setattr(OutputGate, "overtake", overtake)
    caught_at("output overtaken at the time-out is not kept", show, first=20)


def test_restored_records_that_come_after_new_input_are_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = InputGates.poll

    def poll(gates: InputGates, rows_max: int) -> tuple[InputChannel, Element] | None:
        backlog, gates._backlog = gates._backlog, deque()
        polled = production(gates, rows_max)
        gates._backlog = backlog
        return polled if polled is not None else production(gates, rows_max)

    monkeypatch.setattr(InputGates, "poll", poll)
    caught_at("restored after new input", show, first=20)


def test_restored_records_that_a_second_checkpoint_forgets_are_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(InputGates, "backlog_of", lambda *_: [])
    caught_at("what is left of a restore is not kept again", show, first=173)


def test_a_watermark_that_overtakes_its_records_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = OutputGate._pass

    def overtake(
        gate: OutputGate, channel: OutputChannel, barrier: CheckpointBarrier, *, waits: bool
    ) -> list[Records]:
        for element in [e for e in channel.overdraft if isinstance(e, Watermark)]:
            channel.overdraft.remove(element)
            gate._transport.send(channel.id, element)
        return production(gate, channel, barrier, waits=waits)

    monkeypatch.setattr(OutputGate, "_pass", overtake)
    failure = caught_at("a watermark overtakes with the barrier", show, first=35)
    assert "came to" in str(failure)


def test_an_acknowledgement_before_the_last_barrier_is_caught(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    production = InFlight.begin

    def begin(in_flight: InFlight, *args: Any, is_recording: bool) -> None:
        production(in_flight, *args, is_recording=False)

    monkeypatch.setattr(InFlight, "begin", begin)
    caught_at("acknowledged while records are still to come", show)
