"""Sinks that hand records to the driver: ``print`` and ``execute_and_collect``.

Rows are delivered once the checkpoint that covers them completed, under the id of the checkpoint
whose barrier closed their interval, even if that one was aborted. The rows under one id of one
subtask are therefore the same whenever they are delivered, and the driver, which drops ids it
already has, shows every row once. A new driver has no ids yet: when it restores a checkpoint, it
shows again the rows that waited for that one, unless that is the savepoint that the job was stopped
with: then they were shown. Without checkpoints rows are delivered at once.
"""

import base64
import pickle
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from weir.common.batch import Batch
from weir.common.row_codec import decode_rows, encode_rows
from weir.errors import CorruptStateError, RestoreError
from weir.ids import CheckpointId
from weir.operators.base import Operator, OperatorContext
from weir.operators.sinks.pending_commits import PendingCommits, Sink

if TYPE_CHECKING:
    from weir.state.store import OperatorStateStore

AT_ONCE = CheckpointId(0)  # Deliveries that no checkpoint confirms.


class PrintSink(Sink):
    """Prints every record on the driver, as text that the subtask makes."""

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = prefix or ""

    def create_operator_factory(self) -> Callable[[], Operator]:
        return partial(PrintOperator, self.prefix)


class CollectSink(Sink):
    """Delivers every record to the driver, as a Python value equal to it.

    Records travel, and wait in checkpoints, as data: reading them runs no code. A record that is
    none, such as an object of a class of the pipeline's, needs a job that allows pickles.
    """

    def create_operator_factory(self) -> Callable[[], Operator]:
        return CollectOperator


def is_print(factory: Any) -> bool:
    """Whether an operator's factory makes printing operators, which deliver lines of text."""
    return isinstance(factory, partial) and factory.func is PrintOperator


class DeliverOperator(Operator):
    """Keeps rows back until a checkpoint covers them, then delivers them."""

    def declare(self, state: "OperatorStateStore") -> None:
        self._state = state.list_state("undelivered", "split")

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._rows: list[Any] = []
        self._intervals: PendingCommits[tuple[list[Any], Any]] = (
            PendingCommits()
        )  # Rows, frozen rows.
        self.declare(ctx.state)
        # After rescaling there may be rows of several old subtasks under one id. They are delivered
        # together: the driver takes each id of a subtask once, and in order.
        restored: defaultdict[CheckpointId, list[Any]] = defaultdict(list)
        for item in self._state.get():
            if item["job"] == ctx.job_id:
                restored[CheckpointId(item["checkpoint"])] += self.thaw(item["rows"])
        for checkpoint_id in sorted(restored):
            ctx.deliver(checkpoint_id, restored[checkpoint_id])

    @abstractmethod
    def convert(self, batch: Batch) -> list[Any]:
        """The rows to deliver for a batch."""

    @abstractmethod
    def freeze(self, rows: list[Any]) -> Any:
        """The rows as JSON-able data."""

    @abstractmethod
    def thaw(self, frozen: Any) -> list[Any]:
        """The rows that ``freeze`` turned into ``frozen``."""

    @property
    def carries_watermarks(self) -> bool:
        return True

    def on_batch(self, batch: Batch, input_index: int) -> None:
        rows = self.convert(batch)
        if not self.ctx.checkpointing:
            self.ctx.deliver(AT_ONCE, rows)
        else:
            self._rows += rows

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        if self._rows:
            self._intervals.close(checkpoint_id, (self._rows, self.freeze(self._rows)))
            self._rows = []
        self._state.update(
            [
                {
                    "job": self.ctx.job_id,
                    "checkpoint": closed_by,
                    "rows": frozen,
                    "count": len(rows),  # For readers that cannot thaw the rows.
                }
                for closed_by, (rows, frozen) in self._intervals.waiting()
            ]
        )

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        for closed_by, (rows, _) in self._intervals.complete(checkpoint_id):
            self.ctx.deliver(closed_by, rows)


class PrintOperator(DeliverOperator):
    """Delivers lines ``prefix:subtask> record``; prefix and subtask only where there are any."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def open(self, ctx: OperatorContext) -> None:
        subtask = str(ctx.subtask.index + 1) if ctx.parallelism > 1 else ""
        named = ":".join(part for part in (self._prefix, subtask) if part)
        self._lead = f"{named}> " if named else ""
        super().open(ctx)

    def convert(self, batch: Batch) -> list[Any]:
        return [f"{self._lead}{row}" for row in batch.rows]

    def freeze(self, rows: list[Any]) -> Any:
        return rows

    def thaw(self, frozen: Any) -> list[Any]:
        return list(frozen)


class CollectOperator(DeliverOperator):
    """Delivers the records themselves."""

    def convert(self, batch: Batch) -> list[Any]:
        if self.ctx.checkpointing:  # A record that is no data fails here, and no later checkpoint.
            encode_rows(batch.rows, pickles=self.ctx.allows_pickles)
        return batch.rows

    def freeze(self, rows: list[Any]) -> Any:
        data = encode_rows(rows, pickles=self.ctx.allows_pickles)
        return {"encoded": base64.b64encode(data).decode("ascii")}

    def thaw(self, frozen: Any) -> list[Any]:
        if isinstance(frozen, str):
            return self._unpickled(frozen)
        try:
            data = base64.b64decode(frozen["encoded"], validate=True)
            return decode_rows(data, pickles=self.ctx.allows_pickles)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(f"{self.ctx.label}: waiting rows: {error}") from error

    def _unpickled(self, frozen: str) -> list[Any]:
        """Rows of a checkpoint that an earlier version of Weir wrote."""
        if not self.ctx.allows_pickles:
            raise RestoreError(
                f"{self.ctx.label}: the checkpoint holds collected rows as pickles, as an earlier "
                "version of Weir wrote them; reading them runs code from the checkpoint, which "
                "--allow-pickled-state permits"
            )
        rows: list[Any] = pickle.loads(base64.b64decode(frozen))
        return rows
