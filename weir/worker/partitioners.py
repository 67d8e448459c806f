"""Partitioners, which choose the channel of an output gate for each record.

Every partitioner turns a batch into ``(channel index, batch)`` pairs: each record goes to exactly
one channel (to all of them under broadcast), and records for one channel keep their order, and the
watermarks between them.
"""

from collections.abc import Iterator
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from weir.common.batch import Batch
from weir.errors import KeyTypeError, UserError
from weir.graph.logical import Edge, Partitioning
from weir.operators.keys import key_groups_of_keys, refused_key
from weir.operators.partition import key_groups_of, partition_indices
from weir.operators.user_code import failure_at, short_repr


class Partitioner(Protocol):
    """Splits a batch over the channels of a gate."""

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Each channel's share, empty shares left out."""


def make_partitioner(
    edge: Edge, channel_count: int, max_parallelism: int, seed: int
) -> Partitioner:
    """The partitioner of an edge; ``seed`` sets where round robin and shuffle begin."""
    match edge.partitioning:
        case Partitioning.FORWARD | Partitioning.GLOBAL:
            return First()
        case Partitioning.HASH:
            return ByKey(edge.selector, max_parallelism, channel_count)
        case Partitioning.REBALANCE | Partitioning.RESCALE:
            return RoundRobin(channel_count, seed)
        case Partitioning.SHUFFLE:
            return Shuffle(channel_count, seed)
        case Partitioning.BROADCAST:
            return Broadcast(channel_count)
        case Partitioning.CUSTOM:
            return Custom(edge.selector, channel_count)


class First:
    """Everything to channel 0: forward edges have no other, global ones use no other."""

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """The whole batch."""
        yield 0, batch


class Broadcast:
    """Everything to every channel."""

    def __init__(self, channel_count: int) -> None:
        self._channels = range(channel_count)

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """The whole batch, once per channel, with records of its own."""
        copies = [batch, *(batch.copied() for _ in self._channels[1:])]
        return zip(self._channels, copies, strict=True)


class RoundRobin:
    """Record by record to the next channel."""

    def __init__(self, channel_count: int, start: int) -> None:
        self._channel_count = channel_count
        self._next = start % channel_count

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Every n-th record for each of n channels."""
        count, n = len(batch), self._channel_count
        if n == 1 or count == 1:
            yield self._next, batch
            self._next = (self._next + count) % n
            return
        for offset in range(min(n, count)):
            yield (self._next + offset) % n, batch.share(np.arange(offset, count, n))
        self._next = (self._next + count) % n


class Shuffle:
    """Each record to a channel drawn uniformly."""

    def __init__(self, channel_count: int, seed: int) -> None:
        self._channel_count = channel_count
        self._random = np.random.default_rng(seed)

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """A random share for each channel."""
        return _by_target(batch, self._random.integers(self._channel_count, size=len(batch)))


class ByKey:
    """Each record to the subtask that owns its key group."""

    def __init__(self, selector: Any, max_parallelism: int, parallelism: int) -> None:
        self._selector = selector
        self._max_parallelism = max_parallelism
        self._parallelism = parallelism

    @property
    def label(self) -> str:
        """The selector as errors name it."""
        label: str = self._selector.label
        return label

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """The records of each subtask's key groups."""
        selector = self._selector
        if self._parallelism == 1 and selector.column_names is not None:
            yield 0, batch
            return
        if selector.column_names is not None and batch.is_columnar:
            groups = key_groups_of(selector.columns_of(batch), self._max_parallelism)
        else:
            keys = selector.keys_of_rows(batch.rows)
            try:
                groups = key_groups_of_keys(keys, self._max_parallelism)
            except KeyTypeError as error:
                raise refused_key(selector, keys, batch.rows, error) from None
        shares = partition_indices(groups, self._max_parallelism, self._parallelism)
        for target, indices in enumerate(shares):
            if len(indices):
                yield target, batch if len(indices) == len(batch) else batch.share(indices)


class Custom:
    """The channel that the user's partitioner returns: ``partition(key, channel count)``."""

    def __init__(self, selector: Any, channel_count: int) -> None:
        self._selector = selector
        self._channel_count = channel_count

    @property
    def label(self) -> str:
        """The partitioner as errors name it."""
        label: str = self._selector.label
        return label

    def split(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """The records of each channel.

        Raises:
            UserError: The partitioner returned a channel that does not exist.
        """
        partition, count, rows = self._selector.partition, self._channel_count, batch.rows
        left = iter(rows)
        try:
            chosen = [partition(row, count) for row in left]
        except Exception as error:
            raise failure_at(self._selector.label, rows, left, error) from error
        wrong = (i for i, target in enumerate(chosen) if not _is_channel(target, count))
        if (bad := next(wrong, None)) is not None:
            raise UserError(
                f"{self._selector.label} sends the record {short_repr(rows[bad])} to the subtask "
                f"{short_repr(chosen[bad])}; it must return an int from 0 to {count - 1}"
            )
        return _by_target(batch, np.array(chosen, dtype=np.int64))


def _is_channel(target: Any, count: int) -> bool:
    return isinstance(target, Integral) and 0 <= int(target) < count


def _by_target(batch: Batch, targets: "np.typing.NDArray[np.int64]") -> Iterator[tuple[int, Batch]]:
    present = np.unique(targets)
    if len(present) == 1:
        yield int(present[0]), batch
        return
    for target in present.tolist():
        yield target, batch.share(np.flatnonzero(targets == target))
