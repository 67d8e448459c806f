"""Messages of an inspection: a user looks into a running subtask, and its worker answers.

A request goes down with the control plane's other commands and up with its driver's other events.
Nothing depends on either: a request that is lost on the way is answered by a deadline of its
reader. The bounds here are those of an answer: what is beyond them is counted, or cut.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeAlias

from weir.bounds import NAME_LENGTH_MAX, Count, EventTimeMs, Index, Length, MeasuredMs, Prose, Word
from weir.ids import AttemptNumber, OperatorId

STACKS_MAX = 200  # Different ones, those of most samples; each is some hundred bytes.
FRAMES_MAX = 1_000  # Different ones, in all stacks.
DEPTH_MAX = 64  # Frames of a stack, the innermost are left out beyond.
STACKS_SPAN_MS = 60_000  # How far samples reach back.

RECORDS_MAX = 50
COLUMNS_MAX = 50
VALUE_LENGTH_MAX = 200  # Characters; the last one is an ellipsis where a value was cut.
RECORDS_LENGTH_MAX = 64 << 10  # Characters of all values.
TAP_MS = 3_000  # How long a tap waits for records.

Text: TypeAlias = Annotated[str, Length(NAME_LENGTH_MAX)]


class InspectionKind(StrEnum):
    """The question that an inspection asks."""

    STACKS = "stacks"  # Where the loop's time goes.
    RECORDS = "records"  # The records that pass the operator's main output: a tap.


@dataclass(frozen=True, slots=True)
class InspectSubtask:
    """Inspect one subtask of an operator, and report it with ``Inspected``."""

    attempt: AttemptNumber
    request_id: Word  # Chosen by the requester; several subtasks may have the same.
    kind: InspectionKind
    operator: OperatorId
    index: Index


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A call on sampled stacks."""

    operator: Text  # Uid of the operator in which it lies; empty: around the operators.
    function: Text
    file: Text  # The end of its path.
    line: Count


@dataclass(frozen=True, slots=True)
class SampledStack:
    """A stack that samples met, outermost frame first, as positions in the table of frames."""

    frames: Annotated[tuple[Index, ...], Length(DEPTH_MAX)]
    count: Count


@dataclass(frozen=True, slots=True)
class SampledStacks:
    """Samples of the loop of a subtask's slot over the last minute.

    Shape: the counts of stacks and ``left_out`` are the samples that met this subtask at work; with
    ``others``, ``runtime`` and ``waiting`` they are all samples.
    """

    span_ms: MeasuredMs  # From the oldest of them until now.
    frames: Annotated[tuple[StackFrame, ...], Length(FRAMES_MAX)] = ()
    stacks: Annotated[tuple[SampledStack, ...], Length(STACKS_MAX)] = ()
    left_out: Count = 0  # Of stacks beyond the bounds.
    others: Count = 0  # In other subtasks of the slot, which share the loop.
    runtime: Count = 0  # Between the calls of subtasks: connections, reports.
    waiting: Count = 0  # Asleep: no subtask of the slot had anything to do.


@dataclass(frozen=True, slots=True)
class TappedRecord:
    """One record, as text."""

    values: Annotated[tuple[Text, ...], Length(COLUMNS_MAX)]
    at_ms: EventTimeMs | None = None  # Its event time.


@dataclass(frozen=True, slots=True)
class TappedRecords:
    """The records that passed while a tap was open, up to the bounds."""

    columns: Annotated[tuple[Text, ...], Length(COLUMNS_MAX)]
    records: Annotated[tuple[TappedRecord, ...], Length(RECORDS_MAX)]
    is_cut: bool = False  # Values, columns or records are missing for the bounds' sake.


@dataclass(frozen=True, slots=True)
class Inspected:
    """The answer to ``InspectSubtask``."""

    attempt: AttemptNumber
    request_id: Word
    index: Index
    cause: Prose = ""  # Why there is nothing to show.
    stacks: SampledStacks | None = None
    records: TappedRecords | None = None
