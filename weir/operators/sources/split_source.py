"""Sources made of splits: the contract of a source, and the operator that reads it.

A source cuts its input into *splits* once, on the driver: a file, some row groups, a range of
numbers. Split i belongs to subtask ``i % parallelism``, which reads its splits one after the other
(those of an endless source in turn; after rescaling see ``split_order``). A checkpoint keeps the
list of unfinished splits, each with the position of its next record and the watermark of the
records before; a restored subtask reads those splits and no others, so an input that grew or shrank
since the first start changes nothing.

A *position* is JSON-able data that identifies the next record; None is the start of the split.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from weir.common.batch import Batch
from weir.common.typeinfo import TypeInformation
from weir.common.watermark import WatermarkStrategy
from weir.errors import ConfigError
from weir.ids import CheckpointId
from weir.operators.base import OperatorContext, Poll, SourceOperator
from weir.operators.sources.split_order import SplitOrder, TrackedSplit
from weir.operators.sources.split_time import SplitEventTime
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

if TYPE_CHECKING:
    from weir.state.store import OperatorStateStore

EMPTY_WAIT_MS = 5  # Until readers that had no records are asked again.


class SplitReader(ABC):
    """Reads one split from a position to its end, in an order that never changes."""

    @property
    @abstractmethod
    def position(self) -> Any:
        """The position of the next record, as JSON-able data."""

    @abstractmethod
    def read(self, rows_max: int) -> Batch | None:
        """The next records, ``rows_max`` at most; an empty batch: none yet; None: the end.

        Never blocks: all subtasks of the slot wait for this call. When no reader of the subtask has
        records they are asked again after ``EMPTY_WAIT_MS``, but at once where the position went
        on, as behind records that the reader left out.
        """

    def close(self) -> None:
        """Release what the reader holds."""


class Source(ABC):
    """An input that can be read again from any position; travels pickled to the subtasks.

    ``rows_per_second`` limits all subtasks together; None: no limit.

    Raises:
        ConfigError: ``rows_per_second`` is not positive.
    """

    bounded: bool = True
    type_info: TypeInformation | None = None  # Of the records, where columns do not tell it.

    def __init__(self, rows_per_second: float | None = None) -> None:
        if rows_per_second is not None and rows_per_second <= 0:
            raise ConfigError(
                f"rows_per_second is {rows_per_second}; it must be positive, or None for no limit"
            )
        self.rows_per_second = rows_per_second

    @abstractmethod
    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        """All splits, as JSON-able data; called on the driver each time that the graph is built.

        A restored subtask reads the splits of its checkpoint, so new ones are not seen.

        Raises:
            UserError: The input does not exist, or is not what the pipeline declares.
        """

    @abstractmethod
    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        """A reader of ``split`` from ``position`` on; None: from its start.

        Raises:
            SourceChangedError: The input has changed since the split was made.
        """

    def discover_in_event_time(self, parallelism: int, column: str) -> list[dict[str, Any]]:
        """All splits, as from ``discover``, but in the order of event time if that is known.

        ``column`` holds the event time of the records. A source that knows the lowest event time
        of a split notes it in the split, for ``lowest_ms``.
        """
        return self.discover(parallelism)

    def lowest_ms(self, split: dict[str, Any], column: str) -> int | None:
        """The least event time in ``column`` of a split, or a lower bound; None: not known.

        Units: milliseconds since the epoch.
        """
        return None

    def narrowed(
        self,
        columns_read: Callable[[pa.Schema], frozenset[str] | None],
        filters: Sequence[pc.Expression] = (),
    ) -> "Source":
        """The same source, without what its consumers do not need; of any other, the source itself.

        ``columns_read`` gives the columns that are read of records of a schema; None: all. Records
        for which one of ``filters`` is not true may be left out.

        Raises:
            UserError: The input does not exist, or is not what the pipeline declares.
        """
        return self

    def create_operator_factory(self, parallelism: int) -> Callable[[], SourceOperator]:
        """Discover the splits and return the factory of the operator in each subtask.

        A subclass with operators of its own overrides this; the watermark operator then stands
        behind them. A sink's method of this name takes no parallelism.
        """
        return partial(SplitSourceOperator, self, self.discover(parallelism))

    def create_timed_operator_factory(
        self, parallelism: int, strategy: WatermarkStrategy
    ) -> Callable[[], SourceOperator]:
        """The same for operators that also assign event time, split by split."""
        if strategy.column is None:
            splits = self.discover(parallelism)
        else:
            splits = self.discover_in_event_time(parallelism, strategy.column)
        return partial(SplitSourceOperator, self, splits, strategy)


def tells_event_time(source: object) -> TypeGuard[Source]:
    """Whether ``SplitSourceOperator`` reads the source, and so can assign event time per split."""
    return (
        isinstance(source, Source)
        and type(source).create_operator_factory is Source.create_operator_factory
    )


class SplitSourceOperator(SourceOperator):
    """Reads the splits of one subtask; a snapshot is the unfinished splits and their positions.

    With a strategy it also gives the records event time, and emits watermarks.
    """

    def __init__(
        self,
        source: Source,
        splits: list[dict[str, Any]],
        strategy: WatermarkStrategy | None = None,
    ) -> None:
        self._source = source
        self._initial = splits
        self._strategy = strategy
        self._splits = SplitOrder([], is_endless=not source.bounded)
        self._time: SplitEventTime | None = None
        self._rate: RateLimit | None = None
        self._due_ms: int | None = None

    def declare(self, state: "OperatorStateStore") -> None:
        self._state = state.list_state("splits", "split")

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self.declare(ctx.state)
        strategy = self._strategy
        self._splits = SplitOrder(
            self._restored() if ctx.state.restored else self._assigned(),
            is_endless=not self._source.bounded,
            drift_ms=strategy.alignment.drift_ms if strategy and strategy.alignment else None,
        )
        if strategy is not None:
            self._time = SplitEventTime(strategy, self._splits, ctx)
        total = self._source.rows_per_second
        if total is not None:
            readers = max(1, min(ctx.parallelism, len(self._initial)))
            self._rate = RateLimit(total / readers, ctx.clock.monotonic_ns())

    def poll(self, records_max: int) -> Poll:
        self._due_ms = None
        if not self._splits:
            return Poll.END
        if self._rate is not None:
            allowed = self._rate.allowed(self.ctx.clock.monotonic_ns())
            if not allowed:
                self._wait(self._rate.wait_ms())
                return Poll.WAIT
            records_max = min(records_max, allowed)
        went_on = False
        for split in self._splits.readable():
            if split.reader is None:
                split.reader = self._source.open(split.split, split.position)
            at = self.ctx.position
            at.split, at.first, at.behind = split.split, split.position, None
            batch = split.reader.read(records_max)
            self._splits.took_turn(split)
            if batch is None:
                self._finish_split(split)
                return Poll.MORE if self._splits else Poll.END
            position = split.reader.position
            went_on |= position != split.position
            split.position = at.behind = position
            if len(batch):
                self._emit(split, batch)
                return Poll.MORE
            if self._time is not None:
                self._time.on_silence(split)
        if went_on:
            if self._time is not None:
                self._time.check_idle()
            return Poll.MORE
        self._wait(EMPTY_WAIT_MS)
        return Poll.WAIT

    def next_timer_ms(self) -> int | None:
        return self._due_ms

    @property
    def own_watermark_ms(self) -> int | None:
        return None if self._time is None else self._time.watermark_ms

    def on_watermark(self, timestamp_ms: int) -> None:
        """All splits have ended, or the job drains: event time ends as well."""
        if self._time is not None and timestamp_ms == MAX_WATERMARK_MS:
            self._time.end()
        else:
            super().on_watermark(timestamp_ms)

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        self._state.update([split.item for split in self._splits])

    def close(self) -> None:
        for split in self._splits:
            if split.reader is not None:
                split.reader.close()

    def _assigned(self) -> list[TrackedSplit]:
        """The subtask's share of the splits, in a job that was not restored."""
        lowest = list(map(self._watermark_before, self._initial))
        in_event_time = bool(lowest) and min(lowest) > MIN_WATERMARK_MS
        index, parallelism = self.ctx.subtask.index, self.ctx.parallelism
        lane = 0 if in_event_time else index
        return [
            TrackedSplit(self._initial[i], None, i, lane, lowest[i])
            for i in range(index, len(self._initial), parallelism)
        ]

    def _restored(self) -> list[TrackedSplit]:
        """The subtask's share of the splits in the restored checkpoint.

        Checkpoints of former versions hold splits and positions only. From these each begun split
        becomes a lane, so that none waits for another, and the fresh ones are one more lane, in the
        order in which the source discovers them now.
        """
        index, parallelism = self.ctx.subtask.index, self.ctx.parallelism
        items = self._state.get()
        if any("lane" not in item for item in items):
            items.sort(key=partial(_rank, self._initial))
        splits = []
        for i, item in enumerate(items):
            split, position = item["split"], item["position"]
            lane = index if position is None else index + (i + 1) * parallelism
            known_ms = item.get("watermark_ms", MIN_WATERMARK_MS)
            if position is None or known_ms == MIN_WATERMARK_MS:
                known_ms = self._watermark_before(split)
            splits.append(
                TrackedSplit(
                    split, position, item.get("order", i), item.get("lane", lane), known_ms
                )
            )
        return splits

    def _watermark_before(self, split: dict[str, Any]) -> int:
        """The watermark just below the records of a split, if its lowest time is known."""
        strategy = self._strategy
        if strategy is None or strategy.column is None or strategy.bound_ms is None:
            return MIN_WATERMARK_MS
        lowest_ms = self._source.lowest_ms(split, strategy.column)
        if lowest_ms is None:
            return MIN_WATERMARK_MS
        return max(MIN_WATERMARK_MS, lowest_ms - strategy.bound_ms - 1)

    def _emit(self, split: TrackedSplit, batch: Batch) -> None:
        if self._rate is not None:
            self._rate.take(len(batch))
        if self._time is None:
            self.ctx.output.emit(batch)
        else:
            self._time.emit(split, batch)

    def _finish_split(self, split: TrackedSplit) -> None:
        assert split.reader is not None
        split.reader.close()
        self._splits.finish(split)
        if self._time is not None:
            self._time.finish_split()

    def _wait(self, wait_ms: int) -> None:
        """Set the time of the next poll: ``wait_ms`` are over, or the subtask becomes idle."""
        self._due_ms = self.ctx.clock.now_ms() + wait_ms
        if self._time is not None:
            self._time.check_idle()
            idle_due_ms = self._time.idle_due_ms
            if idle_due_ms is not None:
                self._due_ms = min(self._due_ms, idle_due_ms)


def _rank(splits: list[dict[str, Any]], item: dict[str, Any]) -> int:
    """The index of a restored split among those discovered now; if it is gone, their number.

    A split discovered now may have more fields, such as a lowest time.
    """
    known = item["split"].items()
    ranks = (
        i for i, split in enumerate(splits) if all(split.get(key) == value for key, value in known)
    )
    return next(ranks, len(splits))


class RateLimit:
    """Lets rows pass at a steady rate, in portions small enough to look like a flow.

    A bucket of tokens, one per row. No row passes before the bucket holds a portion, so that a
    limited source emits some sixty small batches a second and not thousands of single rows. Batches
    of less than ``FEW_ROWS``, which cost as much as one of those, are up to three times as rare.
    The bucket holds a fifth of a second's rows at most, so that a source that was blocked does not
    catch up in one burst.

    Units: rows per second; time in monotonic nanoseconds.
    """

    PORTION_SECONDS = 0.015
    FEW_ROWS, FEW_SECONDS = 100, 0.05
    BURST_SECONDS = 0.2

    def __init__(self, rows_per_second: float, now_ns: int) -> None:
        self._rate = rows_per_second
        few = min(self.FEW_ROWS, rows_per_second * self.FEW_SECONDS)
        self._portion = max(1.0, few, rows_per_second * self.PORTION_SECONDS)
        self._capacity = max(self._portion, rows_per_second * self.BURST_SECONDS)
        self._tokens = 0.0
        self._filled_ns = now_ns

    def allowed(self, now_ns: int) -> int:
        """The number of rows that may pass now; 0 until a portion may."""
        gained = self._rate * (now_ns - self._filled_ns) / 1e9
        self._tokens = min(self._capacity, self._tokens + gained)
        self._filled_ns = now_ns
        return int(self._tokens) if self._tokens >= self._portion else 0

    def take(self, rows: int) -> None:
        """Take the tokens of rows that passed."""
        self._tokens -= rows

    def wait_ms(self) -> int:
        """Milliseconds from the last ``allowed`` until the next portion may pass; at least 1."""
        missing = self._portion - self._tokens
        return max(1, -int(-missing * 1e3 // self._rate))
