"""One subtask without sockets, threads or time: two input channels, one operator, one output."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.builders import subtask as subtask_id
from tests.claims import claim, unclaimed
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.gate_harness import FakeTransport, channel, records
from weir.common.batch import Batch
from weir.config import ChannelConfig, CheckpointConfig, CheckpointingMode, JobConfig
from weir.graph.exchanges import Exchange
from weir.graph.key_groups import key_group_range
from weir.graph.logical import Partitioning
from weir.ids import AttemptNumber, ChannelId, CheckpointId, JobId, OperatorId
from weir.operators.base import Operator, OperatorContext, Poll, SourceOperator
from weir.protocol.elements import CheckpointBarrier, Element, EndOfInput
from weir.protocol.messages import Acknowledged, Declined, SubtaskChanged
from weir.protocol.unaligned import make_handler
from weir.state.store import OperatorStateStore
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore
from weir.storage.writer import writer_factory
from weir.worker.chain_output import ChainedOperator, ChainOutput, Targets
from weir.worker.gates import InputGates, OutputGate
from weir.worker.partitioners import First
from weir.worker.ports import Call, InboxItem
from weir.worker.snapshotter import Snapshotter
from weir.worker.subtask import Progress, Subtask

JOB = JobId("job")
ATTEMPT = AttemptNumber(1)


class SnapshotQueue:
    """A snapshot thread that works when it is told; what it hands back is done at once."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], Any]] = deque()

    def submit(self, work: Callable[[], Any]) -> None:
        self.waiting.append(work)

    def put(self, item: InboxItem) -> None:
        assert isinstance(item, Call)
        item.function()

    def run(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


class Reports(list[Any]):
    """The reports, in order."""

    def report(self, report: Any) -> None:
        self.append(report)

    @property
    def statuses(self) -> list[str]:
        return [r.status.value for r in self if isinstance(r, SubtaskChanged)]

    @property
    def acknowledged(self) -> list[int]:
        return [r.checkpoint_id for r in self if isinstance(r, Acknowledged)]

    @property
    def declined(self) -> list[tuple[int, str]]:
        return [(r.checkpoint_id, r.reason.value) for r in self if isinstance(r, Declined)]


def context(
    output: ChainOutput, clock: ManualClock, *, checkpointing: bool = True, keyed: bool = False
) -> OperatorContext:
    groups = key_group_range(128, 1, 0)
    return OperatorContext(
        job_id=JOB,
        attempt=ATTEMPT,
        subtask=subtask_id("op-0"),
        name="op",
        parallelism=1,
        max_parallelism=128,
        key_groups=groups,
        output=output,
        state=OperatorStateStore(groups, 128, keyed=keyed, read=lambda handle: b""),
        clock=clock,
        parameters={},
        checkpointing=checkpointing,
        deliver=lambda checkpoint_id, rows: None,
    )


class Passing(Operator):
    """Passes records on, counts them in its state, and notes everything else it is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.pending = 0
        self.timer_ms: int | None = None

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self.seen = ctx.state.list_state("seen")

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.seen.add_all(batch.rows)
        self.ctx.output.emit(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        self.calls.append(("watermark", timestamp_ms))
        super().on_watermark(timestamp_ms)

    def on_idle(self) -> None:
        self.calls.append("idle")

    @property
    def has_pending(self) -> bool:
        return self.pending > 0

    def advance(self, records_max: int) -> int:
        self.pending -= 1
        self.calls.append("advance")
        return 1

    def next_timer_ms(self) -> int | None:
        return self.timer_ms

    def on_processing_time(self, now_ms: int) -> None:
        self.timer_ms = None
        self.calls.append(("timer", now_ms))

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        self.ctx.output.emit(Batch.of_rows([f"flushed for {checkpoint_id}"]))

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        self.calls.append(("completed", checkpoint_id))

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        self.calls.append(("aborted", checkpoint_id))

    def finish(self) -> None:
        self.calls.append("finish")

    def close(self) -> None:
        self.calls.append("close")


class Counting(SourceOperator):
    """Emits the numbers below ``end``, one per poll."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.next = 0

    def poll(self, records_max: int) -> Poll:
        if self.next == self.end:
            return Poll.END
        self.ctx.output.emit(Batch.of_rows([self.next]))
        self.next += 1
        return Poll.MORE


class SubtaskHarness:
    """A subtask and everything around it; ``source`` takes the operator's place and the inputs'.

    ``head`` takes the operator's place alone, on a keyed stream; ``behind`` follows in the chain,
    keyed if there is no ``head``.
    """

    def __init__(
        self,
        *,
        source: SourceOperator | None = None,
        head: Operator | None = None,
        behind: Operator | None = None,
        channels: int = 2,
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
        checkpointing: bool = True,
        store: CheckpointStore | None = None,
        inline_max_bytes: int = 20_000,
        alignment_timeout_ms: int | None = None,
        clock: ManualClock | None = None,
        credit_bytes: int = 1_000,
        partitionings: tuple[Partitioning, Partitioning] = (Partitioning.HASH, Partitioning.HASH),
    ) -> None:
        """Prepare; ``partitionings``: of the input and of the output."""
        self.clock = clock or ManualClock()
        self.granted = 0
        self.reports = Reports()
        self.snapshots = SnapshotQueue()
        self.store = store or MemoryStore()
        claim(self.store, JOB, ATTEMPT)
        self.inputs_transport, self.transport = FakeTransport(), FakeTransport()
        checkpoints = CheckpointConfig(
            interval_ms=1_000 if checkpointing else None,
            mode=mode,
            inline_max_bytes=inline_max_bytes,
            alignment_timeout_ms=alignment_timeout_ms,
        )
        bounds = ChannelConfig(credit_bytes=credit_bytes, batch_credit_bytes=0)
        config = JobConfig(checkpoints=checkpoints, channels=bounds)
        self.operator = Passing()
        operator: Operator = source or head or self.operator
        exchanges = [
            Exchange(f"{source}>{target}.0/0", OperatorId(source), OperatorId(target), partitioning)
            for source, target, partitioning in zip(
                ("up", "op"), ("op", "down"), partitionings, strict=True
            )
        ]
        gate = OutputGate([channel(100)], First(), self.transport, config.channels, exchanges[1])
        output = ChainOutput(Targets(gates=[gate]))
        ctx = context(output, self.clock, checkpointing=checkpointing, keyed=head is not None)
        chain = [ChainedOperator(ctx.subtask, operator, ctx.state)]
        if behind is not None:
            next_ctx = replace(
                context(output, self.clock, checkpointing=checkpointing, keyed=head is None),
                subtask=subtask_id("behind-0"),
            )
            chain.append(ChainedOperator(next_ctx.subtask, behind, next_ctx.state))
            behind.open(next_ctx)
            ctx.output = output = ChainOutput(Targets(chained=[(behind, 0)]))
        operator.open(ctx)
        ends = [] if source else [[channel(i) for i in range(channels)]]
        inputs = InputGates(ends, self.inputs_transport, config.channels, exchanges[: len(ends)])
        in_order = () if exchanges[0].may_be_overtaken else tuple(inputs.channels)
        self.subtask = Subtask(
            ctx.subtask,
            ATTEMPT,
            chain,
            inputs,
            [0],
            [gate],
            output,
            None
            if source
            else make_handler(tuple(inputs.channels), mode, alignment_timeout_ms, in_order),
            config=config,
            clock=self.clock,
            reporter=self.reports,
            snapshotter=Snapshotter(
                ATTEMPT,
                writer_factory(self.store, JOB, ATTEMPT, checkpoints, durable=True),
                self.snapshots,
                inbox=self.snapshots,
                reporter=self.reports,
                clock=self.clock,
            ),
        )
        self.subtask.start({})

    def files(self) -> list[str]:
        """The state files in the job's storage."""
        return unclaimed(self.store)

    def give(self, channel_index: int, *elements: Element | str) -> None:
        """Let elements arrive and process all that may be processed; text stands for a record."""
        for element in elements:
            self.bring(channel_index, element)
        self.settle()

    def bring(self, channel_index: int, *elements: Element | str) -> None:
        """Let elements arrive, and process nothing."""
        for element in elements:
            arriving = records(element) if isinstance(element, str) else element
            self.subtask.deliver(ChannelId(channel_index), arriving)
            if self.subtask.is_overtaken and isinstance(arriving, CheckpointBarrier | EndOfInput):
                self.subtask.announce(ChannelId(channel_index), arriving)

    def settle(self) -> None:
        while self.subtask.step() is Progress.WORKED:
            pass

    def write(self) -> None:
        """Let the snapshot thread work."""
        self.snapshots.run()

    def emitted(self) -> list[Any]:
        """The output since the last call; records as rows, batches joined."""
        taken: list[Any] = []
        for what in self.transport.taken(100):
            taken += what if isinstance(what, list) else [what]
        return taken

    def exhaust_credit(self) -> int:
        """Send so much that the output has no credit; the bytes to grant for it."""
        gate = self.subtask.outputs[0]
        gate.emit(Batch.of_rows(["x" * 2_000]))
        gate.emit(Batch.of_rows(["waits"]))
        return gate.channels[0].bytes_out

    def grant(self, size: int) -> None:
        self.granted += size
        self.subtask.outputs[0].granted(0, size)

    def grant_all(self) -> None:
        """Give back the credit for everything sent."""
        if owed := self.subtask.outputs[0].channels[0].bytes_out - self.granted:
            self.grant(owed)
