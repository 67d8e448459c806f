"""Watermarks between the records of a batch, on their way through gates and subtasks.

Every part that carries a batch with watermarks delivers what it would of the batch cut there.
"""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import barrier
from tests.unit.worker.gate_harness import FakeTransport, channel
from tests.unit.worker.subtask_harness import Passing, SubtaskHarness
from tests.unit.worker.test_outputs import Behind, Noting
from weir.common.batch import Batch, concat
from weir.common.watermarks import Watermarks
from weir.config import ChannelConfig
from weir.ids import ChannelId
from weir.operators.base import Operator
from weir.protocol.elements import EndOfInput, Records, Watermark, WatermarkIdle
from weir.worker.gates import InputGates, OutputGate
from weir.worker.partitioners import (
    Broadcast,
    Custom,
    First,
    Partitioner,
    RoundRobin,
    Shuffle,
)

SMALL = ChannelConfig(
    batch_rows_max=4, frame_bytes_max=1_000_000, credit_bytes=1_000_000, batch_credit_bytes=7
)
Marks = list[tuple[int, int]]


def batch_of(rows: list[int], marks: Marks) -> Batch:
    places, times = zip(*marks, strict=True) if marks else ((), ())
    watermarks = Watermarks(np.array(places, np.int64), np.array(times, np.int64))
    return Batch.of_rows(rows, watermarks=watermarks if marks else None)


def records_of(batch: Batch) -> Records:
    return Records(batch, len(batch), 10 * len(batch))


# Slices of one channel: numbers of rows, and how far each watermark between them rises.
_slice_of = {
    count: st.tuples(
        st.just(count),
        st.lists(
            st.tuples(st.integers(0, count), st.integers(1, 9)),
            max_size=5,
            unique_by=lambda pair: pair[0],
        ).map(sorted),
    )
    for count in range(1, 10)
}
slices = st.lists(st.integers(1, 9).flatmap(_slice_of.__getitem__), min_size=1, max_size=5)


def batches_of(drawn: list[tuple[int, Marks]], first_row: int = 0) -> list[Batch]:
    """Numbered rows, with watermarks that rise over all slices."""
    made: list[Batch] = []
    row, reached_ms = first_row, 0
    for count, rises in drawn:
        times = np.cumsum([reached_ms, *(rise for _, rise in rises)])[1:].tolist()
        marks = list(zip([place for place, _ in rises], times, strict=True))
        made.append(batch_of(list(range(row, row + count)), marks))
        row, reached_ms = row + count, times[-1] if times else reached_ms
    return made


def told(elements: Iterable[Any]) -> list[Any]:
    """Records one by one, and of the watermarks between two records the last that rises."""
    out: list[Any] = []
    reached_ms = -(1 << 63)
    for element in elements:
        batches = [(element, None)] if not isinstance(element, Records) else element.payload.cut()
        for records, watermark_ms in batches:
            mark = records if isinstance(records, Watermark) else None
            if isinstance(records, Batch):
                out += records.rows
                mark = None if watermark_ms is None else Watermark(watermark_ms)
            elif mark is None:
                out.append(records)
            if mark is not None and mark.timestamp_ms > reached_ms:
                reached_ms = mark.timestamp_ms
                if out and isinstance(out[-1], Watermark):
                    out.pop()
                out.append(mark)
    return out


# Batches ---------------------------------------------------------------------------------------


@given(slices, st.data())
def test_slices_joined_again_are_the_batch(
    drawn: list[tuple[int, Marks]], data: st.DataObject
) -> None:
    whole = concat(batches_of(drawn))
    edges = sorted(data.draw(st.sets(st.integers(1, len(whole)), max_size=4)) | {0, len(whole)})
    parts = [whole.slice(a, b) for a, b in itertools.pairwise(edges)]
    assert told(map(records_of, parts)) == told([records_of(whole)])
    again = concat(parts)
    assert again.rows == whole.rows
    assert _marks(again) == _marks(whole)


def _marks(batch: Batch) -> Marks | None:
    if batch.watermarks is None:
        return None
    behind, times = batch.watermarks.behind.tolist(), batch.watermarks.times_ms.tolist()
    return list(zip(behind, times, strict=True))


def test_watermarks_belong_to_the_record_before_them() -> None:
    batch = batch_of([1, 2, 3], [(0, 4), (2, 5), (3, 6)])
    first, rest = batch.slice(0, 2), batch.slice(2, 3)
    assert (_marks(first), _marks(rest)) == ([(0, 4), (2, 5)], [(1, 6)])
    assert _marks(batch.take(np.array([0]))) is None
    assert _marks(batch.share(np.array([0, 2]))) == [(0, 4), (1, 5), (2, 6)]
    assert _marks(batch.share(np.array([1]))) == [(0, 4), (1, 6)]
    assert _marks(Batch.of_rows([[1]], watermarks=batch.watermarks).copied()) == _marks(batch)


# Gates -----------------------------------------------------------------------------------------


@given(slices, st.integers(1, 9), st.booleans())
def test_an_input_gate_cuts_batches_only_for_those_who_need_it(
    drawn: list[tuple[int, Marks]], rows_max: int, cuts: bool
) -> None:
    transport = FakeTransport()
    gates = InputGates(
        [[channel(0)]], transport, ChannelConfig(credit_bytes=1, batch_credit_bytes=7)
    )
    gates.cuts_at_watermarks = cuts
    given_elements = [records_of(batch) for batch in batches_of(drawn)]
    taken = []
    for element in given_elements:
        gates.deliver(ChannelId(0), element)
        while (polled := gates.poll(rows_max)) is not None:
            taken.append(polled[1])
    assert told(taken) == told(given_elements)
    batches = [element.payload for element in taken if isinstance(element, Records)]
    assert all(0 < len(batch) <= rows_max for batch in batches)
    if cuts:
        assert all(batch.watermarks is None for batch in batches)
    # Every batch's size and its own charge is granted once.
    assert sum(size for _, size in transport.granted) == sum(e.size + 7 for e in given_elements)


class OddRows:
    """A selector of channels: odd rows to the first, and none to the last."""

    column_names = None

    def partition(self, row: int, count: int) -> int:
        return row % 2


PARTITIONERS = {
    "first": lambda: First(),
    "broadcast": lambda: Broadcast(3),
    "round robin": lambda: RoundRobin(3, 0),
    "shuffle": lambda: Shuffle(3, 7),
    "custom": lambda: Custom(OddRows(), 3),
}


@pytest.mark.parametrize("name", PARTITIONERS)
@given(drawn=slices)
def test_every_channel_gets_its_records_and_all_watermarks(
    name: str, drawn: list[tuple[int, Marks]]
) -> None:
    channels = 1 if name == "first" else 3
    made = []
    for cuts in (False, True):
        transport = FakeTransport()
        partitioner: Partitioner = PARTITIONERS[name]()
        gate = OutputGate([channel(i) for i in range(channels)], partitioner, transport, SMALL)
        for batch in batches_of(drawn):
            _emit(gate, batch, cuts=cuts and name != "shuffle")
        made.append([told(_of(transport, i)) for i in range(channels)])
        assert gate.records_out == sum(count for count, _ in drawn)
    assert made[0] == made[1]


def _emit(gate: OutputGate, batch: Batch, *, cuts: bool) -> None:
    if not cuts:
        gate.emit(batch)
        return
    for records, watermark_ms in batch.cut():
        if len(records):
            gate.emit(records)
        if watermark_ms is not None:
            gate.broadcast(Watermark(watermark_ms))


def _of(transport: FakeTransport, index: int) -> list[Any]:
    return [element for to, element in transport.sent if to == index]


def test_batches_that_waited_for_credit_are_joined_with_their_watermarks() -> None:
    transport = FakeTransport()
    config = ChannelConfig(credit_bytes=1, batch_credit_bytes=0)
    gate = OutputGate([channel(0)], First(), transport, config)
    gate.emit(batch_of([0], []))
    gate.emit(batch_of([1, 2], [(1, 5), (2, 6)]))
    gate.emit(batch_of([3, 4], [(0, 7), (1, 8)]))
    assert len(transport.sent) == 1
    gate.granted(0, gate.channels[0].bytes_out)
    ((_, _), (_, joined)) = transport.sent
    assert isinstance(joined, Records)
    assert joined.payload.rows == [1, 2, 3, 4]
    assert _marks(joined.payload) == [(1, 5), (2, 7), (3, 8)]


# Chains ----------------------------------------------------------------------------------------


class Carrying(Noting):
    """Notes the batches that it gets, with the watermarks between their records."""

    @property
    def carries_watermarks(self) -> bool:
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.calls.append((batch.rows, _marks(batch)))


def test_a_chain_cuts_batches_only_for_operators_that_do_not_carry_watermarks() -> None:
    behind = Behind()
    behind.output.emit(batch_of([1, 2], [(1, 5)]))
    assert behind.chained.calls == [([1], 1), 5, ([2], 1)]
    assert _marks(behind.transport.sent[0][1].payload) == [(1, 5)]  # type: ignore[union-attr]
    carrying = Carrying()
    behind.output.main = type(behind.output.main)([(carrying, 0)])
    behind.output.emit(batch_of([1, 2], [(1, 5)]))
    assert carrying.calls == [([1, 2], [(1, 5)])]


def test_side_outputs_get_the_last_watermark() -> None:
    behind = Behind()
    behind.output.emit(batch_of([1, 2], [(1, 5), (2, 6)]))
    assert behind.late.calls == [6]
    behind.output.emit_side("late", batch_of([1, 2], [(1, 7)]))
    assert behind.late.calls == [6, ([1], 0), 7, ([2], 0)]


def test_of_a_batch_without_records_the_last_watermark_goes_everywhere() -> None:
    behind = Behind()
    behind.output.emit(batch_of([], [(0, 5)]))
    assert behind.chained.calls == behind.late.calls == [5]
    assert behind.transport.taken(0) == [Watermark(5)]


# Subtasks --------------------------------------------------------------------------------------


class Through(Passing):
    """Passes on records and the watermarks between them, and notes both."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Any] = []

    @property
    def carries_watermarks(self) -> bool:
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.noted.append(records_of(batch))
        self.ctx.output.emit(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        self.noted.append(Watermark(timestamp_ms))
        super().on_watermark(timestamp_ms)


class ThroughCut(Through):
    """The same, of batches that are cut."""

    @property
    def carries_watermarks(self) -> bool:
        return False


@given(
    slices,
    slices,
    st.lists(st.sampled_from(["a", "b", "a idle", "b idle", "a ends"]), min_size=1, max_size=14),
)
def test_watermarks_of_several_inputs_combine_at_their_places(
    first: list[tuple[int, Marks]], second: list[tuple[int, Marks]], order: list[str]
) -> None:
    noted = []
    for head in (Through(), ThroughCut()):
        harness = SubtaskHarness(head=head)
        waiting = {"a": batches_of(first), "b": batches_of(second, 1_000)}
        ended = False
        for turn in order:
            name, _, what = turn.partition(" ")
            index = "ab".index(name)
            if ended and name == "a":
                continue
            if what == "idle":
                harness.give(index, WatermarkIdle())
            elif what == "ends":
                ended = True
                harness.give(index, EndOfInput())
            elif waiting[name]:
                harness.give(index, records_of(waiting[name].pop(0)))
        noted.append((told(head.noted), harness.subtask.inputs.watermark()))
    assert noted[0] == noted[1]


def test_a_batch_carries_the_watermarks_that_all_inputs_have_reached() -> None:
    head = Through()
    harness = SubtaskHarness(head=head)
    harness.give(1, Watermark(6))
    harness.give(0, records_of(batch_of([1, 2, 3, 4], [(1, 3), (2, 5), (3, 7), (4, 9)])))
    (taken,) = (one for one in head.noted if isinstance(one, Records))
    assert _marks(taken.payload) == [(1, 3), (2, 5), (3, 6)]
    count = len(head.noted)
    harness.give(1, Watermark(6))
    assert len(head.noted) == count, "a watermark that all inputs have reached counts once"
    harness.give(1, Watermark(20))
    assert head.noted[-1] == Watermark(9)


class Pausing(Passing):
    """Has work at every watermark, to be done before the next record."""

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.calls.append(batch.rows)
        super().on_batch(batch, input_index)

    def on_watermark(self, timestamp_ms: int) -> None:
        super().on_watermark(timestamp_ms)
        self.pending = 1


PAUSES: list[Any] = [[1], ("watermark", 5), "advance", [2, 3], ("watermark", 7), "advance", [4]]


@pytest.mark.parametrize("place", ["head", "behind"])
def test_work_at_a_watermark_is_done_before_the_next_record(place: str) -> None:
    pausing = Pausing()
    ahead: Operator | None = None if place == "head" else Through()
    if place == "head":
        harness = SubtaskHarness(head=pausing, channels=1)
    else:
        harness = SubtaskHarness(head=ahead, behind=pausing, channels=1)
        pausing.ctx.output = harness.subtask._head_output  # Not used: nothing is behind it.
        pausing.ctx.output = _Nowhere()
    harness.give(0, records_of(batch_of([1, 2, 3, 4], [(1, 5), (3, 7)])))
    assert pausing.calls == PAUSES


class _Nowhere:
    def emit(self, batch: Batch) -> None: ...

    def emit_side(self, tag: str, batch: Batch) -> None: ...

    def emit_watermark(self, timestamp_ms: int) -> None: ...

    def emit_idle(self) -> None: ...


def test_a_barrier_stays_behind_a_batch_that_is_cut() -> None:
    head = ThroughCut()
    harness = SubtaskHarness(head=head, channels=1)
    harness.give(0)
    for element in (records_of(batch_of([1, 2], [(1, 5), (2, 6)])), barrier(1)):
        harness.subtask.inputs.deliver(ChannelId(0), element)
    harness.settle()
    assert harness.emitted() == [1, Watermark(5), 2, Watermark(6), "flushed for 1", barrier(1)]
