"""Sources that are made of splits: what a source must offer, and the operator that reads it.

A source cuts its input into *splits* once, on the driver: a file, some row groups, a range of
numbers. Split i belongs to subtask ``i % parallelism``, which reads its splits one after the other
(those of an endless source in turn). What a checkpoint keeps is the list of unfinished splits, each
with the position of its next record; a restored subtask reads those and nothing else, so an input
that grew or shrank since the first start changes nothing.

A *position* is whatever finds the record again exactly, in JSON; None is the start of the split.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from weir.common.batch import Batch
from weir.common.typeinfo import TypeInformation
from weir.errors import ConfigError
from weir.ids import CheckpointId
from weir.operators.base import OperatorContext, Poll, SourceOperator

if TYPE_CHECKING:
    from weir.state.store import OperatorStateStore


class SplitReader(ABC):
    """Reads one split from a position to its end, in an order that never changes."""

    @property
    @abstractmethod
    def position(self) -> Any:
        """Where the next record will be read, as JSON-able data."""

    @abstractmethod
    def read(self, rows_max: int) -> Batch | None:
        """The next records, ``rows_max`` at most; an empty batch for none yet, None at the end."""

    def close(self) -> None:
        """Release what the reader holds."""


class Source(ABC):
    """An input that can be read again from any position; travels pickled to the subtasks.

    ``rows_per_second`` limits all subtasks together; None does not limit.
    """

    bounded: bool = True
    type_info: TypeInformation | None = None  # Of the records, where columns do not say it.

    def __init__(self, rows_per_second: float | None = None) -> None:
        if rows_per_second is not None and rows_per_second <= 0:
            raise ConfigError(
                f"rows_per_second is {rows_per_second}; it must be positive, or None for no limit"
            )
        self.rows_per_second = rows_per_second

    @abstractmethod
    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        """All splits, as JSON-able data; called once per job, on the driver.

        Raises:
            UserError: The input is not there or not what the pipeline says it is.
        """

    @abstractmethod
    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        """A reader of ``split`` from ``position`` on; None is its start.

        Raises:
            SourceChangedError: The input is no longer what it was when the split was made.
        """

    def create_operator_factory(self, parallelism: int) -> Callable[[], SourceOperator]:
        """Find the splits and return what makes the operator of each subtask."""
        return partial(SplitSourceOperator, self, self.discover(parallelism))


@dataclass(slots=True)
class _OpenSplit:
    """A split that has records left."""

    split: dict[str, Any]
    position: Any
    reader: SplitReader | None = None


class SplitSourceOperator(SourceOperator):
    """Reads the splits of one subtask; a snapshot is the unfinished ones and their positions."""

    def __init__(self, source: Source, splits: list[dict[str, Any]]) -> None:
        self._source = source
        self._initial = splits
        self._splits: deque[_OpenSplit] = deque()
        self._rate: RateLimit | None = None
        self._due_ms: int | None = None

    def declare(self, state: "OperatorStateStore") -> None:
        self._state = state.list_state("splits", "split")

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self.declare(ctx.state)
        if ctx.state.restored:
            self._splits.extend(
                _OpenSplit(item["split"], item["position"]) for item in self._state.get()
            )
        else:
            mine = self._initial[ctx.subtask.index :: ctx.parallelism]
            self._splits.extend(_OpenSplit(split, None) for split in mine)
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
                self._due_ms = self.ctx.clock.now_ms() + self._rate.wait_ms()
                return Poll.WAIT
            records_max = min(records_max, allowed)
        current = self._splits[0]
        if current.reader is None:
            current.reader = self._source.open(current.split, current.position)
        batch = current.reader.read(records_max)
        if batch is None:
            current.reader.close()
            self._splits.popleft()
            return Poll.MORE if self._splits else Poll.END
        current.position = current.reader.position
        if not self._source.bounded:
            self._splits.rotate(-1)  # The first endless split would starve the others.
        if len(batch):
            if self._rate is not None:
                self._rate.take(len(batch))
            self.ctx.output.emit(batch)
        return Poll.MORE

    def next_timer_ms(self) -> int | None:
        return self._due_ms

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        self._state.update([{"split": s.split, "position": s.position} for s in self._splits])

    def close(self) -> None:
        for split in self._splits:
            if split.reader is not None:
                split.reader.close()


class RateLimit:
    """Lets rows pass at a steady rate, in portions small enough to look like a flow.

    A bucket of tokens, one per row. Nothing passes before a portion's worth is in it, so that a
    limited source emits some sixty small batches a second and not thousands of single rows; and it
    holds a fifth of a second's worth at most, so that a source that was held up does not come back
    in one burst.

    Units: rows per second; time in monotonic nanoseconds.
    """

    PORTION_SECONDS = 0.015
    BURST_SECONDS = 0.2

    def __init__(self, rows_per_second: float, now_ns: int) -> None:
        self._rate = rows_per_second
        self._portion = max(1.0, rows_per_second * self.PORTION_SECONDS)
        self._capacity = max(self._portion, rows_per_second * self.BURST_SECONDS)
        self._tokens = 0.0
        self._filled_ns = now_ns

    def allowed(self, now_ns: int) -> int:
        """How many rows may pass now; 0 until a portion may."""
        gained = self._rate * (now_ns - self._filled_ns) / 1e9
        self._tokens = min(self._capacity, self._tokens + gained)
        self._filled_ns = now_ns
        return int(self._tokens) if self._tokens >= self._portion else 0

    def take(self, rows: int) -> None:
        """Count rows that passed."""
        self._tokens -= rows

    def wait_ms(self) -> int:
        """How long after the last ``allowed`` the next portion may pass; at least a millisecond."""
        missing = self._portion - self._tokens
        return max(1, -int(-missing * 1e3 // self._rate))
