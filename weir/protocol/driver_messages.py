"""Messages between a job's driver and the control plane.

The driver posts *events* in batches: the job's own stream (``events.JobEvent``) and the events of
the checkpoint coordinator (``messages.CoordinatorEvent``), in the order in which they happened.
Events are numbered from 1 per driver, posted at least once and applied once: the control plane
remembers the number of the last event it applied and skips those up to it. A batch, an empty one
too, is also the driver's sign of life.

The control plane answers a long poll with *commands*, numbered per job. The driver asks for those
after the last command it took, which also acknowledges all commands up to that one; it drops a
command that it has already.

A driver whose token is not that of the job's newest driver is *fenced*: the control plane refuses
it with 409 and the reason, and the driver ends without committing anything more.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from weir.bounds import (
    COUNT_MAX,
    Between,
    Count,
    DelayMs,
    Index,
    Length,
    MeasuredMs,
    Number,
    Parallelism,
    PointMs,
    Prose,
    Word,
)
from weir.config import CheckpointConfig, RestartConfig
from weir.ids import OperatorId
from weir.protocol.deployment import Versions
from weir.protocol.events import JobEvent
from weir.protocol.inspection import Inspected, InspectSubtask
from weir.protocol.messages import CoordinatorCommand, CoordinatorEvent

# A batch is at most this many events and, unless a single one is larger, this many bytes.
BATCH_EVENTS_MAX = 1_000
BATCH_BYTES_MAX = 4 << 20
COMMANDS_MAX = 500  # In one answer to a long poll.


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """One operator of the submitted graph, without its code."""

    uid: OperatorId
    name: Word
    parallelism: Parallelism
    max_parallelism: Parallelism | None
    chain: OperatorId  # The head of the chain that runs it; its own uid where it is the head.
    is_source: bool
    is_sink: bool
    is_keyed: bool
    files: Word | None = None  # The directory that a file sink commits its output to.


@dataclass(frozen=True, slots=True)
class EdgeDescription:
    """One edge of the submitted graph."""

    source: OperatorId
    target: OperatorId
    partitioning: Word
    input_index: Index
    side_tag: Word | None


@dataclass(frozen=True, slots=True)
class JobPlanned:
    """The pipeline built its graph; sent once by each driver, before anything else of the job."""

    at_ms: PointMs
    name: Word
    operators: tuple[OperatorDescription, ...]
    edges: tuple[EdgeDescription, ...]
    checkpoints: CheckpointConfig
    restart: RestartConfig
    slot_count: Number
    versions: Versions
    spark_application: Word  # Spark's own id of it.
    settings: dict[str, Any] = field(default_factory=dict)  # The rest of the job's settings.


@dataclass(frozen=True, slots=True)
class PipelineFailed:
    """The script raised, or ended, without running its job; nothing ran and no retry helps."""

    at_ms: PointMs
    cause: Prose  # The traceback, or advice on what to change.


@dataclass(frozen=True, slots=True)
class DriverLost:
    """The driver ends although its job is not over, because the cluster took its slots away."""

    at_ms: PointMs
    cause: Prose


@dataclass(frozen=True, slots=True)
class CancelJob:
    """End the job without a savepoint."""

    reason: Prose


DriverEvent: TypeAlias = (
    JobPlanned | PipelineFailed | DriverLost | Inspected | JobEvent | CoordinatorEvent
)
DriverCommand: TypeAlias = CancelJob | InspectSubtask | CoordinatorCommand


@dataclass(frozen=True, slots=True)
class DriverLoad:
    """The driver's threads over the last seconds: their work, and their wait for a processor."""

    window_ms: MeasuredMs
    ran_ms: MeasuredMs  # Of all threads together, as is the wait.
    waited_ms: MeasuredMs  # Ready to run while every processor was taken.
    stood_ms: MeasuredMs = 0  # The longest time in which none of them ran Python, nor waited.


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Consecutive events of one driver, the first of which has ``first_number``."""

    first_number: Annotated[int, Between(1, COUNT_MAX)]
    events: Annotated[tuple[DriverEvent, ...], Length(BATCH_EVENTS_MAX)]
    away_ms: DelayMs = 0  # How long the control plane was unreachable before this batch.
    load: DriverLoad | None = None  # None: not known.
    # By the control plane's clock: its newest answer's ``at_ms``, and the time since then by the
    # driver's own. None: no answer named a time yet.
    sent_at_ms: PointMs | None = None


@dataclass(frozen=True, slots=True)
class BatchApplied:
    """Events up to ``up_to`` are applied; the driver drops them and continues with the next."""

    up_to: Count
    at_ms: PointMs | None = None  # The control plane's clock, when it applied them.


@dataclass(frozen=True, slots=True)
class NumberedCommand:
    """A command and its number; numbers of a job grow, with gaps."""

    number: Count
    command: DriverCommand


@dataclass(frozen=True, slots=True)
class CommandBatch:
    """Commands in the order of their execution; none where the long poll timed out."""

    commands: tuple[NumberedCommand, ...]
    # The control plane's clock when this batch was sent, by which a trigger's age is computed: the
    # driver's clock may differ. None where there is no command.
    sent_at_ms: PointMs | None = None
