"""Records that an operator of a chain emits reach everything behind it."""

from typing import Any

from tests.unit.worker.gate_harness import FakeTransport, channel
from weir.common.batch import Batch
from weir.config import ChannelConfig
from weir.operators.base import Operator
from weir.protocol.elements import Watermark, WatermarkIdle
from weir.worker.chain_output import ChainOutput, Targets
from weir.worker.gates import OutputGate
from weir.worker.partitioners import First


class Noting(Operator):
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.calls.append((batch.rows, input_index))

    def on_watermark(self, timestamp_ms: int) -> None:
        self.calls.append(timestamp_ms)

    def on_idle(self) -> None:
        self.calls.append("idle")


class Behind:
    """A chained operator and a gate behind the main output, an operator behind a side output."""

    def __init__(self) -> None:
        self.chained, self.late = Noting(), Noting()
        self.transport = FakeTransport()
        gate = OutputGate([channel(0)], First(), self.transport, ChannelConfig())
        main, side = Targets([(self.chained, 1)], [gate]), Targets([(self.late, 0)])
        self.output = ChainOutput(main, {"late": side})


def test_records_go_to_every_target_of_the_main_output() -> None:
    behind = Behind()
    behind.output.emit(Batch.of_rows([1, 2]))
    assert behind.chained.calls == [([1, 2], 1)]
    assert behind.transport.taken(0) == [[1, 2]]
    assert behind.late.calls == []
    assert behind.output.records == 2


def test_side_output_goes_to_its_consumers_and_without_one_nowhere() -> None:
    behind = Behind()
    behind.output.emit_side("late", Batch.of_rows([1]))
    behind.output.emit_side("unread", Batch.of_rows([2]))
    assert behind.late.calls == [([1], 0)]
    assert behind.chained.calls == []
    assert behind.output.records == 0


def test_empty_batches_go_nowhere() -> None:
    behind = Behind()
    behind.output.emit(Batch.of_rows([]))
    behind.output.emit_side("late", Batch.of_rows([]))
    assert behind.chained.calls == behind.late.calls == behind.transport.sent == []


def test_watermarks_and_idleness_go_to_everything_behind() -> None:
    behind = Behind()
    behind.output.emit_watermark(5)
    behind.output.emit_idle()
    assert behind.chained.calls == behind.late.calls == [5, "idle"]
    assert behind.transport.taken(0) == [Watermark(5), WatermarkIdle()]
