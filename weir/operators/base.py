"""The contract between an operator and the subtask that runs it.

An operator is called by one thread only and never blocks. It gets batches, watermarks and time, and
emits through its context. Its state lies only in its context's store, or in the parts that its
``snapshot`` returns, so that the subtask can freeze all of it in one step at a barrier.

The order of calls: ``open``, then any of the ``on_*`` and ``advance``; at a barrier
``prepare_snapshot`` and ``snapshot`` without anything in between; ``finish`` when all input ended
(before the last snapshot); ``close`` always, also after a failure.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from weir.common.batch import Batch
from weir.common.clock import Clock
from weir.common.inferred_schema import InferredSchema
from weir.errors import SchemaError
from weir.ids import AttemptNumber, CheckpointId, JobId, KeyGroupRange, SubtaskId
from weir.operators.input_position import InputPosition
from weir.protocol.lineage import UNKNOWN, Lineage

if TYPE_CHECKING:
    from weir.operators.bad_records import ErrorPolicy
    from weir.state.store import OperatorStateStore, SnapshotPart


class Output(Protocol):
    """The outputs of an operator; order is kept within each target."""

    def emit(self, batch: Batch) -> None:
        """Send records to the main output, with the watermarks between them.

        Side outputs get the last of these watermarks. Of an empty batch only that is sent.
        """

    def emit_side(self, tag: str, batch: Batch) -> None:
        """Send records to the side output with this tag, with the watermarks between them.

        The main output has to get these watermarks, or a later one, as well.
        """

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Emit the watermark: no record at or below this event time follows."""

    def emit_idle(self) -> None:
        """Emit idleness: event time need not wait for this subtask until it emits again."""


@dataclass(slots=True)
class OperatorContext:
    """The operator's place in the job, its output, its state and its settings."""

    job_id: JobId
    attempt: AttemptNumber
    subtask: SubtaskId
    name: str
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    output: Output
    state: "OperatorStateStore"
    clock: Clock
    parameters: dict[str, str]
    # False: no checkpoint will confirm output, so commit at once, or when all input ended at the
    # latest. Set to True before ``finish`` of a drain, whose savepoint confirms the rest.
    checkpointing: bool
    # Hands committed output to the driver: (checkpoint id, rows). The rows of a checkpoint are
    # delivered again, equal, after a restore from it; the driver drops repetitions.
    deliver: Callable[[CheckpointId, list[Any]], None]
    # The lineage of the restored checkpoint: output committed off this line is produced again.
    lineage: Lineage = UNKNOWN  # Nothing was restored, or its lineage is not known.
    rewinds_output: bool = True  # Whether output off the line is withdrawn; else it stays.
    # Another job, whose output pending at the restored checkpoint this job commits in its stead.
    adopts: JobId | None = None
    late_records: int = 0  # Counted by operators that drop or divert late records.
    bad_records: int = 0  # Skipped or diverted, by what the operator's function raised.
    on_error: "ErrorPolicy | None" = None  # None: a record on which the function raises fails all.
    allows_pickles: bool = False  # Whether records may be pickled, which run code when read.
    object_reuse: bool = False  # Whether operators may hand on the very objects they hold.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # The job's, by name.
    location: str = ""  # File and line of the call that made the operator.
    position: InputPosition = field(default_factory=InputPosition)  # Of the chain's input.

    @property
    def label(self) -> str:
        """The operator as errors name it: ``'Map' (pipeline.py:12)``."""
        return f"{self.name!r} ({self.location})" if self.location else repr(self.name)


class ColumnReader:
    """Reads batches as columns; records without a declared type have one schema in all batches."""

    def __init__(self, label: str) -> None:
        self._label = label  # Of the operator that needs columns.
        self._inferred = InferredSchema()

    def __call__(self, batch: Batch) -> pa.RecordBatch:
        """The records as columns.

        Raises:
            SchemaError: The records do not fit the schema; the message names the operator.
        """
        try:
            return batch.columns_of(self._inferred)
        except SchemaError as error:
            raise SchemaError(f"{self._label} needs columns: {error}") from error


class Operator(ABC):
    """One operator of one subtask."""

    ctx: OperatorContext
    columns_of: ColumnReader
    # Declares the operator's states in a store, with no other effect: a preview restores states so,
    # where opening would touch an input or output. None: opening has no such effect.
    declare: "Callable[[OperatorStateStore], None] | None" = None

    def open(self, ctx: OperatorContext) -> None:
        """Prepare for the first batch; ``ctx.state`` already holds the restored state."""
        self.ctx = ctx
        self.columns_of = ColumnReader(ctx.label)

    @property
    def carries_watermarks(self) -> bool:
        """Whether ``on_batch`` takes batches with watermarks between their records.

        Such an operator decides by the watermark at each record's place, and passes all watermarks
        on, none before a record that came before it. To the others ``on_batch`` and
        ``on_watermark`` bring a batch cut at its watermarks.
        """
        return False

    @abstractmethod
    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Process one slice of records of one input."""

    def on_watermark(self, timestamp_ms: int) -> None:
        """Event time advanced on all inputs: fire timers and windows, and pass the watermark on.

        An operator that may have much to fire notes the watermark, fires in ``advance`` and
        passes the watermark on after the last firing.
        """
        self.ctx.output.emit_watermark(timestamp_ms)

    @property
    def own_watermark_ms(self) -> int | None:
        """The last watermark of the operator's own making; None: it makes none, or none yet."""
        return None

    def on_idle(self) -> None:
        """All inputs are idle: pass that on."""
        self.ctx.output.emit_idle()

    @property
    def has_pending(self) -> bool:
        """Whether ``advance`` has work left; the subtask takes no input until it is done."""
        return False

    def advance(self, records_max: int) -> int:
        """Do pending work worth about ``records_max`` records at most; returns the work done."""
        return 0

    def next_timer_ms(self) -> int | None:
        """The time at which ``on_processing_time`` is due next (by ``Clock.now_ms``), or None."""
        return None

    def on_processing_time(self, now_ms: int) -> None:
        """The clock has reached ``next_timer_ms``."""

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Emit everything held back: it belongs before the barrier."""

    def snapshot(self, checkpoint_id: CheckpointId) -> "Sequence[SnapshotPart]":
        """Freeze state that lies outside ``ctx.state``; must be quick, writing happens later."""
        return ()

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint and all before it are durable: commit everything up to it. Idempotent."""

    def on_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will never complete; the next one commits its output as well."""

    def finish(self) -> None:
        """All input ended: emit what is left, or do so in ``advance`` if it may be much.

        The operators of a chain finish from the head on, each after all pending work was done.
        """

    def close(self) -> None:
        """Release what the operator holds; called once, also after a failure."""


class Poll(Enum):
    """The answer of a source to ``poll``."""

    MORE = auto()  # Poll again as soon as possible.
    WAIT = auto()  # Nothing now; poll again at ``next_timer_ms``.
    END = auto()  # No record will ever follow.


class SourceOperator(Operator):
    """The head of a chain without inputs."""

    @abstractmethod
    def poll(self, records_max: int) -> Poll:
        """Emit up to ``records_max`` records that are available now; never block."""

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Never called: a source has no inputs."""
        raise NotImplementedError
