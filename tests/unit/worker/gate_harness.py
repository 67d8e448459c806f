"""Gates without a network: channels as values, and a transport that keeps what it is given."""

from typing import Any

from weir.common.batch import Batch
from weir.graph.physical import Channel
from weir.ids import ChannelId, OperatorId, SubtaskId
from weir.protocol.elements import Element, Records


def channel(index: int, *, edge_index: int = 0) -> Channel:
    """Channel ``index``, from ``up-<index>`` to ``down-0``."""
    return Channel(
        id=ChannelId(index),
        edge_index=edge_index,
        sender=SubtaskId(OperatorId("up"), index),
        receiver=SubtaskId(OperatorId("down"), 0),
        sender_index=0,
        receiver_index=index,
    )


def records(*rows: Any, size: int | None = None) -> Records:
    """A batch of rows; each counts ten bytes unless told otherwise."""
    return Records(Batch.of_rows(list(rows)), len(rows), 10 * len(rows) if size is None else size)


class FakeTransport:
    """Keeps what was sent and granted, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[ChannelId, Element]] = []
        self.granted: list[tuple[ChannelId, int]] = []

    def send(self, channel: ChannelId, element: Element) -> None:
        self.sent.append((channel, element))

    def grant(self, channel: ChannelId, size: int) -> None:
        self.granted.append((channel, size))

    def taken(self, channel: int) -> list[Any]:
        """The elements sent on one channel since the last call; records as their rows."""
        mine = [element for to, element in self.sent if to == channel]
        self.sent = [(to, element) for to, element in self.sent if to != channel]
        return [e.payload.rows if isinstance(e, Records) else e for e in mine]
