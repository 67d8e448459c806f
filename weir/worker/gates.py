"""Input and output gates: the channels of a subtask, by edge.

An *input gate* joins the channels of one incoming edge; its channels are polled in turn, a blocked
channel is skipped and queues its elements. An *output gate* spreads batches over the channels of
one outgoing edge. A batch without credit waits in the channel's overdraft queue; as long as that is
not empty the subtask takes no input, so the queue is bounded by the output of one slice.

Records that were under way at an unaligned checkpoint are the *backlog* of the input gates after a
restore: all of it is taken before anything that a channel delivers. A barrier may *overtake* the
overdraft of an output gate; the caller then keeps the records that it passed.

All of this belongs to the loop thread.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from weir.channels.credit import ReceiverCredit, SenderCredit
from weir.common.batch import Batch, can_concat, concat
from weir.common.watermarks import Watermarks
from weir.config import ChannelConfig
from weir.graph.exchanges import Exchange
from weir.graph.physical import Channel
from weir.ids import ChannelId, CheckpointId
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    CheckpointBarrier,
    Element,
    Records,
    Watermark,
)
from weir.worker.partitioners import Partitioner
from weir.worker.ports import Transport


class InputChannel:
    """One input channel: the queue of its elements, its watermark and its credit."""

    __slots__ = (
        "blocked",
        "bytes_in",
        "credit",
        "ended",
        "gate_index",
        "id",
        "idle",
        "queue",
        "ready",
        "upstream",
        "watermark_ms",
    )

    def __init__(self, channel: Channel, gate_index: int, credit_bytes: int) -> None:
        self.id = channel.id
        self.gate_index = gate_index
        self.upstream = str(channel.sender)
        self.queue: deque[Element] = deque()
        self.blocked = False
        self.ended = False
        self.idle = False
        self.ready = False  # Whether it is in the gates' turn queue.
        self.watermark_ms = MIN_WATERMARK_MS
        self.bytes_in = 0
        self.credit = ReceiverCredit(credit_bytes)


class InputGates:
    """All input channels of one subtask, polled fairly."""

    def __init__(
        self,
        gates: Sequence[Sequence[Channel]],
        transport: Transport,
        config: ChannelConfig,
        exchanges: Sequence[Exchange] = (),
    ) -> None:
        """Prepare; ``exchanges``: those of the gates, without which no barrier overtakes."""
        self.exchanges = exchanges
        self.gates = [
            [InputChannel(channel, i, config.credit_bytes) for channel in channels]
            for i, channels in enumerate(gates)
        ]
        self.channels = {channel.id: channel for gate in self.gates for channel in gate}
        self._batch_bytes = config.batch_credit_bytes
        # Whether batches are cut at the watermarks between their records, which become elements.
        self.cuts_at_watermarks = True
        self._turn: deque[InputChannel] = deque()
        self._transport = transport
        self._live = len(self.channels)
        self._backlog: deque[tuple[InputChannel, Records]] = deque()

    @property
    def all_ended(self) -> bool:
        """Whether every channel reached its end."""
        return self._live == 0

    @property
    def has_ready(self) -> bool:
        """Whether an element can be taken now."""
        return bool(self._turn or self._backlog)

    @property
    def has_backlog(self) -> bool:
        """Whether restored records are left, which come before all that is delivered."""
        return bool(self._backlog)

    def restore(self, gate_index: int, records: Iterable[Records]) -> None:
        """Put records that were under way on a gate behind those that were restored before."""
        first = self.gates[gate_index][0]  # Which of its channels they came on says nothing more.
        self._backlog.extend((first, one) for one in records)

    def backlog_of(self, gate_index: int) -> list[Records]:
        """The restored records of a gate that were not taken yet, in order."""
        return [one for channel, one in self._backlog if channel.gate_index == gate_index]

    def queued_before(self, channel_id: ChannelId, checkpoint_id: CheckpointId) -> list[Records]:
        """The records that are queued on a channel before this barrier; without it, all."""
        queued: list[Records] = []
        for element in self.channels[channel_id].queue:
            if type(element) is Records:
                queued.append(element)
            elif type(element) is CheckpointBarrier and element.checkpoint_id == checkpoint_id:
                break
        return queued

    def holds_barrier(self, channel_id: ChannelId, checkpoint_id: CheckpointId) -> bool:
        """Whether the barrier of this checkpoint is queued on a channel."""
        return any(
            type(element) is CheckpointBarrier and element.checkpoint_id == checkpoint_id
            for element in self.channels[channel_id].queue
        )

    def deliver(self, channel_id: ChannelId, element: Element) -> None:
        """Queue an element that arrived."""
        channel = self.channels[channel_id]
        if type(element) is Records:
            channel.bytes_in += element.size
            channel.credit.on_delivered(element.size + self._batch_bytes)
        channel.queue.append(element)
        self._offer(channel)

    def poll(self, rows_max: int) -> tuple[InputChannel, Element] | None:
        """The next element of the channel whose turn it is; of a large batch, its first rows."""
        if self._backlog:
            return self._poll_backlog(rows_max)
        while self._turn:
            channel = self._turn.popleft()
            channel.ready = False
            if channel.blocked or not channel.queue:
                continue
            element = channel.queue.popleft()
            if type(element) is Records:
                element, *rest = _parts(element, rows_max, cuts=self.cuts_at_watermarks)
                channel.queue.extendleft(reversed(rest))
                if type(element) is Records:
                    # The batch's own charge is granted with its last records.
                    charge = 0 if rest and type(rest[-1]) is Records else self._batch_bytes
                    if grant := channel.credit.on_consumed(element.size + charge):
                        self._transport.grant(channel.id, grant)
            self._offer(channel)
            return channel, element
        return None

    def _poll_backlog(self, rows_max: int) -> tuple[InputChannel, Element]:
        channel, records = self._backlog.popleft()
        if records.count > rows_max:
            records, rest = _split(records, rows_max)
            self._backlog.appendleft((channel, rest))
        return channel, records

    def block(self, channel_id: ChannelId) -> None:
        """Take nothing more from this channel until it is unblocked."""
        self.channels[channel_id].blocked = True

    def unblock(self, channel_ids: Iterable[ChannelId]) -> None:
        """Take from these channels again."""
        for channel_id in channel_ids:
            channel = self.channels[channel_id]
            channel.blocked = False
            self._offer(channel)

    def end(self, channel: InputChannel) -> None:
        """The channel is complete; it holds back neither event time nor barriers."""
        channel.ended = True
        self._live -= 1

    def watermark(self) -> int | None:
        """The combined watermark: the least of all live, active channels; None if all are idle.

        Ended channels do not count: beside idle ones their watermark must not end all event time.
        """
        live = (c.watermark_ms for c in self.channels.values() if not c.ended and not c.idle)
        return min(live, default=None)

    def combined(
        self, channel: InputChannel, watermarks: Watermarks, above_ms: int
    ) -> Watermarks | None:
        """The combined watermarks at the places of those in a batch that the channel delivers.

        Only those above ``above_ms``, the combined watermark so far, each above the one before. The
        channel's own watermark is then the last of the batch.
        """
        own_ms = np.maximum.accumulate(np.maximum(watermarks.times_ms, channel.watermark_ms))
        channel.watermark_ms = int(own_ms[-1])
        others = (
            other.watermark_ms
            for other in self.channels.values()
            if other is not channel and not other.ended and not other.idle
        )
        return watermarks.risen(np.minimum(own_ms, min(others, default=MAX_WATERMARK_MS)), above_ms)

    def _offer(self, channel: InputChannel) -> None:
        if channel.queue and not channel.blocked and not channel.ready:
            channel.ready = True
            self._turn.append(channel)


def _parts(records: Records, rows_max: int, *, cuts: bool) -> list[Element]:
    """A batch as elements of which the first is due, and the others take its place in the queue.

    The first has at most ``rows_max`` records, and if ``cuts`` no watermark between them.
    """
    batch: Batch = records.payload
    watermarks = batch.watermarks if cuts else None
    if watermarks is None or (stop := int(watermarks.behind[0])) > rows_max:
        return [records] if records.count <= rows_max else [*_split(records, rows_max)]
    watermark = Watermark(int(watermarks.times_ms[0]))
    if not stop:
        rest = replace(records, payload=batch.marked(watermarks.rest))
        return [watermark, rest]
    if stop == records.count:
        return [replace(records, payload=batch.marked(None)), watermark]
    first, rest = _split(records, stop)
    return [replace(first, payload=first.payload.marked(None)), watermark, rest]


def _split(records: Records, rows: int) -> tuple[Records, Records]:
    batch: Batch = records.payload
    first_size = records.size * rows // records.count
    first = Records(batch.slice(0, rows), rows, first_size)
    rest = Records(
        batch.slice(rows, records.count), records.count - rows, records.size - first_size
    )
    return first, rest


class OutputChannel:
    """One output channel: its credit, and the elements that wait for it."""

    __slots__ = ("bytes_out", "credit", "id", "overdraft")

    def __init__(self, channel: Channel, credit_bytes: int) -> None:
        self.id = channel.id
        self.credit = SenderCredit(credit_bytes)
        self.overdraft: deque[Element] = deque()
        self.bytes_out = 0


class OutputGate:
    """Spreads batches and copies control elements over the channels of one edge."""

    def __init__(
        self,
        channels: Sequence[Channel],
        partitioner: Partitioner,
        transport: Transport,
        config: ChannelConfig,
        exchange: Exchange | None = None,
    ) -> None:
        """Prepare; ``exchange``: the gate's, without which no barrier overtakes."""
        self.channels = [OutputChannel(channel, config.credit_bytes) for channel in channels]
        self.exchange = exchange
        self.records_out = 0
        self._batches_waiting = 0  # In the overdraft queues of all channels.
        self._barriers_waiting: Counter[CheckpointId] = Counter()  # The same.
        self._partitioner = partitioner
        self._transport = transport
        self._rows_max = config.batch_rows_max
        self._bytes_max = config.frame_bytes_max
        self._batch_bytes = config.batch_credit_bytes

    @property
    def has_overdraft(self) -> bool:
        """Whether records wait for credit."""
        return self._batches_waiting > 0

    def emit(self, batch: Batch) -> None:
        """Send every channel its share of the batch, order kept, and all its watermarks."""
        self.records_out += len(batch)
        without_share = set() if batch.watermarks is None else set(range(len(self.channels)))
        for index, part in self._partitioner.split(batch):
            without_share.discard(index)
            channel = self.channels[index]
            for piece in _pieces(part, self._rows_max, self._bytes_max):
                channel.overdraft.append(piece)
                self._batches_waiting += 1
            self._flush(channel)
        if batch.watermarks is not None:
            for index in without_share:
                self._send(self.channels[index], Watermark(batch.watermarks.last_ms))

    def broadcast(self, element: Element) -> None:
        """Copy a control element to every channel, behind its waiting elements."""
        for channel in self.channels:
            self._send(channel, element)

    @property
    def may_be_overtaken(self) -> bool:
        """Whether a barrier may overtake the records of this gate."""
        return self.exchange is not None and self.exchange.may_be_overtaken

    def is_waiting(self, checkpoint_id: CheckpointId) -> bool:
        """Whether the barrier of this checkpoint waits behind records without credit."""
        return checkpoint_id in self._barriers_waiting

    def overtake(self, barrier: CheckpointBarrier) -> list[list[Records]]:
        """Send every channel the barrier now, or leave it where it has gone already.

        Shape: by channel, the waiting records that the barrier has passed. They stay in the queue
        and are sent behind it.
        """
        waits = self.is_waiting(barrier.checkpoint_id)
        return [self._pass(channel, barrier, waits=waits) for channel in self.channels]

    def _pass(
        self, channel: OutputChannel, barrier: CheckpointBarrier, *, waits: bool
    ) -> list[Records]:
        passed: list[Records] = []
        for place, element in enumerate(channel.overdraft):
            if type(element) is Records:
                passed.append(element)
            elif (
                type(element) is CheckpointBarrier
                and element.checkpoint_id == barrier.checkpoint_id
            ):
                del channel.overdraft[place]
                self._forget_waiting(element.checkpoint_id)
                break
        else:
            if waits:  # On other channels of the gate: this one had credit.
                return []
        self._transport.send(channel.id, barrier)
        return passed

    def _forget_waiting(self, checkpoint_id: CheckpointId) -> None:
        self._barriers_waiting[checkpoint_id] -= 1
        if not self._barriers_waiting[checkpoint_id]:
            del self._barriers_waiting[checkpoint_id]

    def _send(self, channel: OutputChannel, element: Element) -> None:
        if not channel.overdraft:
            self._transport.send(channel.id, element)
            return
        if type(element) is CheckpointBarrier:
            self._barriers_waiting[element.checkpoint_id] += 1
        channel.overdraft.append(element)

    def granted(self, channel_index: int, size: int) -> None:
        """Credit for ``size`` bytes more came from the receiver."""
        channel = self.channels[channel_index]
        channel.credit.grant(size)
        self._flush(channel)

    def _flush(self, channel: OutputChannel) -> None:
        queue = channel.overdraft
        while queue:
            element = queue[0]
            if type(element) is Records:
                if not channel.credit.can_send:
                    return
                element = self._joined(channel)
                channel.credit.consume(element.size + self._batch_bytes)
                channel.bytes_out += element.size
            else:
                queue.popleft()
                if type(element) is CheckpointBarrier:
                    self._forget_waiting(element.checkpoint_id)
            self._transport.send(channel.id, element)

    def _joined(self, channel: OutputChannel) -> Records:
        """Take the first batch joined with those behind it that fit into one frame."""
        queue = channel.overdraft
        first = queue.popleft()
        assert type(first) is Records
        self._batches_waiting -= 1
        taken, count, size = [first.payload], first.count, first.size
        while queue:
            following = queue[0]
            if (
                type(following) is not Records
                or count + following.count > self._rows_max
                or size + following.size > self._bytes_max
                or not can_concat(taken[0], following.payload)
            ):
                break
            queue.popleft()
            self._batches_waiting -= 1
            taken.append(following.payload)
            count += following.count
            size += following.size
        return first if len(taken) == 1 else Records(concat(taken), count, size)


def _pieces(batch: Batch, rows_max: int, bytes_max: int) -> list[Records]:
    """The batch cut so that no piece exceeds the bounds of a frame."""
    count, size = len(batch), batch.size
    if count <= rows_max and size <= bytes_max:
        return [Records(batch, count, size)]
    pieces = max(-(-count // rows_max), -(-size // bytes_max))
    step = max(1, count // pieces)
    cut = [batch.slice(start, min(start + step, count)) for start in range(0, count, step)]
    return [Records(piece, len(piece), piece.size) for piece in cut]
