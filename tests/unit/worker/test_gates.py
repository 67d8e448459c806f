"""Input and output gates: turns, blocking, credit and what waits for it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.builders import barrier
from tests.unit.worker.gate_harness import FakeTransport, channel, records
from weir.common.batch import Batch
from weir.config import ChannelConfig
from weir.errors import ChannelError
from weir.graph.exchanges import Exchange
from weir.graph.logical import Partitioning
from weir.ids import ChannelId, CheckpointId, OperatorId
from weir.protocol.elements import EndOfInput, Records, Watermark
from weir.worker.gates import InputGates, OutputGate
from weir.worker.partitioners import Broadcast, First, RoundRobin

A, B = ChannelId(0), ChannelId(1)
SMALL = ChannelConfig(
    batch_rows_max=4, frame_bytes_max=1_000_000, credit_bytes=100, batch_credit_bytes=0
)


def input_gates(
    channels: int = 2, config: ChannelConfig = SMALL
) -> tuple[InputGates, FakeTransport]:
    transport = FakeTransport()
    gates = InputGates([[channel(i) for i in range(channels)]], transport, config)
    return gates, transport


def output_gate(
    channels: int = 1, config: ChannelConfig = SMALL
) -> tuple[OutputGate, FakeTransport]:
    transport = FakeTransport()
    partitioner = First() if channels == 1 else Broadcast(channels)
    ends = [channel(i) for i in range(channels)]
    return OutputGate(ends, partitioner, transport, config), transport


def polled(gates: InputGates, rows_max: int = 10) -> list[tuple[ChannelId, object]]:
    """Everything that can be taken now, as ``(channel, rows or element)``."""
    taken: list[tuple[ChannelId, object]] = []
    while (item := gates.poll(rows_max)) is not None:
        from_channel, element = item
        what = element.payload.rows if isinstance(element, Records) else element
        taken.append((from_channel.id, what))
    return taken


def test_channels_take_turns_and_keep_their_own_order() -> None:
    gates, _ = input_gates()
    for row in (1, 2):
        gates.deliver(A, records(f"a{row}"))
    gates.deliver(B, records("b1"))
    assert polled(gates) == [(A, ["a1"]), (B, ["b1"]), (A, ["a2"])]


def test_a_blocked_channel_keeps_what_arrives_until_it_is_unblocked() -> None:
    gates, _ = input_gates()
    gates.deliver(A, records("before"))
    gates.block(A)
    gates.deliver(A, records("behind"))
    gates.deliver(B, records("b"))
    assert polled(gates) == [(B, ["b"])]
    gates.unblock([A])
    assert polled(gates) == [(A, ["before"]), (A, ["behind"])]


def test_the_rest_of_a_sliced_batch_stays_at_the_head_of_its_channel() -> None:
    gates, _ = input_gates()
    gates.deliver(A, records(1, 2, 3))
    gates.deliver(A, EndOfInput())
    assert polled(gates, rows_max=2) == [(A, [1, 2]), (A, [3]), (A, EndOfInput())]


def test_a_slice_is_what_is_blocked_between_not_the_whole_batch() -> None:
    gates, _ = input_gates()
    gates.deliver(A, records(1, 2, 3))
    assert gates.poll(2) is not None
    gates.block(A)
    assert polled(gates) == []
    gates.unblock([A])
    assert polled(gates) == [(A, [3])]


def test_all_the_credit_comes_back_however_a_batch_was_sliced() -> None:
    gates, transport = input_gates(1)
    gates.deliver(A, records(*range(7), size=99))
    for rows_max in (1, 2, 3, 1):
        gates.poll(rows_max)
    gates.deliver(A, records("rest", size=60))
    gates.poll(10)
    assert sum(size for _, size in transport.granted) == 159
    assert gates.channels[A].credit.held_bytes == 0


def test_tiny_batches_are_bounded_in_number_and_all_arrive() -> None:
    config = replace(SMALL, credit_bytes=10_000, batch_credit_bytes=1_000)
    sending, wire = output_gate(config=config)
    gates, transport = input_gates(1, config)
    for row in range(0, 200, 2):
        sending.emit(Batch.of_rows([row, row + 1]))
        sending.broadcast(Watermark(row))  # So that those that wait cannot be joined.
    arrived: list[tuple[ChannelId, object]] = []
    under_way = []
    while wire.sent:
        sent, wire.sent = wire.sent, []
        under_way.append(sum(isinstance(element, Records) for _, element in sent))
        for _, element in sent:
            gates.deliver(A, element)
        arrived += polled(gates, rows_max=1)  # Cut up on the way.
        granted, transport.granted = transport.granted, []
        for _, size in granted:
            sending.granted(0, size)
    assert under_way[0] == max(under_way) == 10
    rows = [what for _, what in arrived if isinstance(what, list)]
    assert rows == [[row] for row in range(200)]


def test_a_sender_without_credit_is_refused() -> None:
    gates, _ = input_gates(1)
    gates.deliver(A, records("x", size=100))
    with pytest.raises(ChannelError, match="without credit"):
        gates.deliver(A, records("y"))


def test_the_watermark_is_the_least_of_the_channels_that_are_live_and_active() -> None:
    gates, _ = input_gates(3)
    for channel_id, mark in ((0, 30), (1, 10), (2, 20)):
        gates.channels[ChannelId(channel_id)].watermark_ms = mark
    assert gates.watermark() == 10
    gates.end(gates.channels[B])
    assert gates.watermark() == 20
    gates.channels[ChannelId(2)].idle = True
    assert gates.watermark() == 30


def test_an_ended_channel_does_not_end_event_time_while_the_others_are_idle() -> None:
    gates, _ = input_gates()
    gates.end(gates.channels[A])
    gates.channels[B].idle = True
    assert gates.watermark() is None
    gates.channels[B].idle = False
    gates.channels[B].watermark_ms = 5
    assert gates.watermark() == 5
    assert not gates.all_ended


def test_records_beyond_the_credit_wait_and_hold_the_subtask() -> None:
    gate, transport = output_gate()
    gate.emit(Batch.of_rows(["x" * 150]))  # May overdraw.
    assert not gate.has_overdraft
    gate.emit(Batch.of_rows(["waits"]))
    assert gate.has_overdraft
    assert transport.taken(0) == [["x" * 150]]
    gate.granted(0, gate.channels[0].bytes_out)
    assert not gate.has_overdraft
    assert transport.taken(0) == [["waits"]]


def test_bytes_sent_are_counted_also_of_what_waited() -> None:
    gate, transport = output_gate()
    gate.emit(Batch.of_rows(["x" * 150]))
    before = gate.channels[0].bytes_out
    gate.emit(Batch.of_rows(["waits"]))
    gate.granted(0, before)
    sent = [element for _, element in transport.sent if isinstance(element, Records)]
    assert gate.channels[0].bytes_out == sum(one.size for one in sent) > before


def test_control_elements_need_no_credit_but_pass_no_record() -> None:
    gate, transport = output_gate()
    gate.emit(Batch.of_rows(["x" * 150]))
    gate.broadcast(Watermark(1))
    gate.emit(Batch.of_rows(["waits"]))
    gate.broadcast(barrier(1))
    assert transport.taken(0) == [["x" * 150], Watermark(1)]
    gate.granted(0, gate.channels[0].bytes_out)
    assert transport.taken(0) == [["waits"], barrier(1)]


def test_small_batches_that_waited_go_as_one_but_never_across_a_barrier() -> None:
    gate, transport = output_gate()
    gate.emit(Batch.of_rows(["x" * 150]))
    for row in (1, 2, 3):
        gate.emit(Batch.of_rows([row]))
    gate.broadcast(barrier(1))
    gate.emit(Batch.of_rows([4]))
    transport.taken(0)
    gate.granted(0, gate.channels[0].bytes_out)
    assert transport.taken(0) == [[1, 2, 3], barrier(1), [4]]
    assert not gate.has_overdraft
    assert gate.records_out == 5


def test_joined_batches_stay_within_the_bound_of_a_slice() -> None:
    gate, transport = output_gate()
    gate.emit(Batch.of_rows(["x" * 150]))
    for row in range(6):
        gate.emit(Batch.of_rows([row]))
    transport.taken(0)
    gate.granted(0, gate.channels[0].bytes_out)
    assert transport.taken(0) == [[0, 1, 2, 3], [4, 5]]


def test_joined_batches_stay_within_the_bound_of_a_frame() -> None:
    config = ChannelConfig(
        batch_rows_max=100, frame_bytes_max=1_000, credit_bytes=1_000, batch_credit_bytes=0
    )
    gate, transport = output_gate(config=config)
    rows = [f"{row}" * 300 for row in range(9)]
    for row in rows:
        gate.emit(Batch.of_rows([row]))
    taken: list[Records] = []
    while transport.sent:
        sent, transport.sent = [one for _, one in transport.sent if isinstance(one, Records)], []
        taken += sent
        gate.granted(0, sum(one.size for one in sent))
    assert [row for one in taken for row in one.payload.rows] == rows
    assert max(one.size for one in taken) <= 1_000
    assert max(one.count for one in taken) > 1, "nothing was joined"


def test_one_channel_without_credit_does_not_hold_back_the_others() -> None:
    gate, transport = output_gate(2)
    gate.emit(Batch.of_rows(["x" * 150]))
    gate.granted(1, gate.channels[1].bytes_out)
    gate.emit(Batch.of_rows(["next"]))
    assert transport.taken(0) == [["x" * 150]]
    assert transport.taken(1) == [["x" * 150], ["next"]]


def test_a_batch_is_cut_to_the_bounds_of_a_frame_without_losing_a_row() -> None:
    config = ChannelConfig(batch_rows_max=4, frame_bytes_max=80, credit_bytes=1 << 20)
    gate, transport = output_gate(config=config)
    columns = pa.RecordBatch.from_pydict({"value": np.arange(23)})
    gate.emit(Batch.of_columns(columns))
    pieces = transport.taken(0)
    assert all(len(piece) <= 4 for piece in pieces)
    assert [row[0] for piece in pieces for row in piece] == list(range(23))


def test_a_single_record_larger_than_a_frame_still_goes() -> None:
    config = ChannelConfig(frame_bytes_max=80, credit_bytes=1 << 20)
    gate, transport = output_gate(config=config)
    gate.emit(Batch.of_rows(["y" * 1_000]))
    assert transport.taken(0) == [["y" * 1_000]]


# Barriers that overtake, and records that were restored.


def overtakable_gate(channels: int) -> tuple[OutputGate, FakeTransport]:
    transport = FakeTransport()
    ends = [channel(i) for i in range(channels)]
    exchange = Exchange("a>b.0/0", OperatorId("a"), OperatorId("b"), Partitioning.REBALANCE)
    return OutputGate(ends, RoundRobin(channels, 0), transport, SMALL, exchange), transport


def test_a_barrier_passes_all_that_waits_for_credit() -> None:
    gate, transport = overtakable_gate(2)
    for row in range(6):
        gate.emit(Batch.of_rows(["x" * 200 if row < 2 else row]))
    passed = gate.overtake(barrier(1))
    assert [[one.payload.rows for one in of_channel] for of_channel in passed] == [
        [[2], [4]],
        [[3], [5]],
    ]
    assert transport.taken(0)[1:] == [barrier(1)]
    assert transport.taken(1)[1:] == [barrier(1)]
    gate.granted(0, gate.channels[0].bytes_out)
    assert transport.taken(0) == [[2, 4]]  # Joined, behind the barrier.


def test_a_barrier_that_waits_leaves_its_place_and_passes_only_what_is_before_it() -> None:
    """On the channel that has credit it is gone already, and is not sent again."""
    gate, transport = overtakable_gate(2)
    for row in ("x" * 200, 1, 2):
        gate.emit(Batch.of_rows([row]))
    gate.broadcast(barrier(1))
    gate.emit(Batch.of_rows([3]))
    gate.emit(Batch.of_rows([4]))
    assert gate.is_waiting(CheckpointId(1))
    assert transport.taken(1) == [[1], barrier(1), [3]]
    passed = gate.overtake(barrier(1))
    assert [[one.payload.rows for one in of_channel] for of_channel in passed] == [[[2]], []]
    assert transport.taken(0)[1:] == [barrier(1)]
    assert transport.taken(1) == []
    assert not gate.is_waiting(CheckpointId(1))
    gate.granted(0, gate.channels[0].bytes_out)
    assert transport.taken(0) == [[2, 4]]


def test_a_barrier_no_longer_waits_once_it_is_sent() -> None:
    gate, transport = overtakable_gate(1)
    gate.emit(Batch.of_rows(["x" * 200]))
    gate.emit(Batch.of_rows([1]))
    gate.broadcast(barrier(1))
    gate.broadcast(barrier(2))
    assert gate.is_waiting(CheckpointId(1))
    gate.granted(0, gate.channels[0].bytes_out)
    assert transport.taken(0)[1:] == [[1], barrier(1), barrier(2)]
    assert not gate.is_waiting(CheckpointId(1))
    assert not gate.is_waiting(CheckpointId(2))


def test_restored_records_come_in_order_and_in_slices_before_all_others() -> None:
    transport = FakeTransport()
    gates = InputGates([[channel(0)], [channel(1)]], transport, SMALL)
    gates.restore(1, [records(1, 2, 3), records(4)])
    gates.restore(0, [records(5)])
    gates.deliver(A, records("new"))
    assert [one.payload.rows for one in gates.backlog_of(0)] == [[5]]
    assert polled(gates, rows_max=2) == [
        (B, [1, 2]), (B, [3]), (B, [4]), (A, [5]), (A, ["new"]),
    ]  # fmt: skip
    assert not gates.has_backlog
