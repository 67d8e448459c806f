"""Credit-based flow control of a channel, as arithmetic.

Credit is bytes, per channel. A sender starts with a *window* of it, spends the size of each batch
and may send as long as any is left, so that the last batch may overdraw and no batch is too large
to be sent. The receiver gives back the credit of batches that it took out of the channel, in
portions of half a window: often enough that a sender never runs dry while the receiver keeps up,
seldom enough to cost little. Control elements need no credit: a barrier waits only behind
the records before it.

A batch costs its size and a fixed charge: even a tiny one takes the receiver's time, and a barrier
waits behind all batches under way. By bytes alone a window would hold thousands of tiny batches,
seconds of work. Flink bounds that time as well, by measuring throughput (FLIP-183).

Both sides count the size that the sender states, never a measurement of their own.
"""

from weir.errors import ChannelError, ConfigError, ProtocolError


def _checked(window_bytes: int) -> int:
    if window_bytes < 1:
        raise ConfigError(f"channel credit is {window_bytes} bytes; at least 1")
    return window_bytes


class SenderCredit:
    """The credit of a channel's sender.

    At most the window and one batch more are under way: sent, and not granted back.
    """

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = _checked(window_bytes)
        self._available_bytes = window_bytes

    @property
    def available_bytes(self) -> int:
        """Credit left; below zero after a batch overdrew it."""
        return self._available_bytes

    @property
    def can_send(self) -> bool:
        """Whether one more batch, of any size, may go."""
        return self._available_bytes > 0

    def consume(self, size: int) -> None:
        """Spend the size of a batch that is sent.

        Raises:
            ProtocolError: There is no credit; the caller did not look at ``can_send``.
        """
        if not self.can_send:
            raise ProtocolError(f"a batch of {size} bytes was sent without credit")
        self._available_bytes -= size

    def grant(self, size: int) -> None:
        """Take credit that the receiver gave back.

        Raises:
            ChannelError: The receiver gave back more than it was sent.
        """
        if size < 1 or self._available_bytes + size > self._window_bytes:
            raise ChannelError(
                f"peer granted {size} bytes where {self._window_bytes - self._available_bytes} "
                "were under way"
            )
        self._available_bytes += size


class ReceiverCredit:
    """The bytes that a channel's receiver holds, and those that it owes the sender."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = _checked(window_bytes)
        self._held_bytes = 0  # Delivered and not consumed.
        self._owed_bytes = 0  # Consumed and not granted.

    @property
    def held_bytes(self) -> int:
        """The bytes that were delivered and wait in the channel."""
        return self._held_bytes

    def on_delivered(self, size: int) -> None:
        """Count a batch that came in.

        Raises:
            ChannelError: The sender had no credit left, so it would fill memory without bound.
        """
        if self._held_bytes + self._owed_bytes >= self._window_bytes:
            raise ChannelError(f"peer sent a batch of {size} bytes without credit")
        self._held_bytes += size

    def on_consumed(self, size: int) -> int:
        """Count a batch that was taken out; the bytes to grant now, 0 for none yet.

        Raises:
            ProtocolError: More was taken out than came in.
        """
        if size > self._held_bytes:
            raise ProtocolError(f"{size} bytes were consumed where {self._held_bytes} were held")
        self._held_bytes -= size
        self._owed_bytes += size
        if 2 * self._owed_bytes < self._window_bytes:
            return 0
        granted, self._owed_bytes = self._owed_bytes, 0
        return granted
