"""Taps: the next records that pass the main output of an operator, as text, for one request.

An output without a tap costs one comparison a batch. With one, the loop keeps slices of what passes
(of columns without a copy, of Python objects with copies of the few that are shown) until there are
enough, or the time is over. The texts are made outside of the loop, since a record's ``repr`` is
user code. A tap never fails its job.

Values of the job's secrets are masked before a value is cut, so that no beginning of one is left.
"""

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from functools import partial
from typing import Any

from weir.common.batch import Batch
from weir.common.clock import Clock
from weir.common.row import Row
from weir.protocol.inspection import (
    COLUMNS_MAX,
    RECORDS_LENGTH_MAX,
    RECORDS_MAX,
    TAP_MS,
    VALUE_LENGTH_MAX,
    Inspected,
    InspectSubtask,
    TappedRecord,
    TappedRecords,
)
from weir.protocol.lifecycle import SubtaskStatus
from weir.secrets import job_secrets
from weir.worker.chain_output import ChainOutput
from weir.worker.ports import Reporter
from weir.worker.subtask import Subtask

OPEN_MAX = 8  # Of a worker.
COPYING_NS = 5_000_000  # Of one batch, on the loop: a slice of work lasts about as long.
READ_MAX = 8 << 10  # Characters of a value that are looked at before it is cut.
# Of nested collections: more is never seen, and reading it would take long.
ENTRIES_MAX, LEVELS_MAX = 20, 4
ELLIPSIS = "…"
ONLY_COLUMN = "record"

Aside = Callable[[Callable[[], None]], None]


@dataclass(slots=True)
class Tap:
    """An open tap."""

    command: InspectSubtask
    subtask: Subtask
    output: ChainOutput
    due_ns: int
    parts: list[Batch] = field(default_factory=list)
    count: int = 0

    def take(self, batch: Batch, clock: Clock) -> bool:
        """Keep the first records of a batch that passes; whether there is room for more.

        Columns are kept as a slice. Python objects that may change are copied, one by one as long
        as that is quick.
        """
        part = batch.marked(None).slice(0, RECORDS_MAX - self.count)
        if part.is_columnar:
            self.parts.append(part.copied())  # Of columns, which does not copy them.
            self.count += len(part)
            return self.count < RECORDS_MAX
        until_ns = clock.monotonic_ns() + COPYING_NS
        for at in range(len(part)):
            self.parts.append(part.slice(at, at + 1).copied())
            self.count += 1
            if clock.monotonic_ns() > until_ns:
                return False  # They are large: enough of them.
        return self.count < RECORDS_MAX


class Taps:
    """The open taps of a worker. All methods run on its loop."""

    def __init__(self, reporter: Reporter, clock: Clock, aside: Aside) -> None:
        """``aside`` runs the making of texts on another thread."""
        self._reporter = reporter
        self._clock = clock
        self._aside = aside
        self._open: list[Tap] = []

    def open(
        self, command: InspectSubtask, subtasks: Sequence[Subtask], *, is_allowed: bool
    ) -> None:
        """Open a tap, or answer why there is none."""
        place = _place_of(command, subtasks)
        if not is_allowed:
            self._report(command, cause="this job forbids that its records are shown")
        elif place is None:
            self._report(command, cause="this worker does not run the operator")
        elif place[1].tap is not None or len(self._open) >= OPEN_MAX:
            self._report(command, cause="another request looks at its records; try again")
        else:
            subtask, output = place
            due_ns = self._clock.monotonic_ns() + TAP_MS * 1_000_000
            tap = Tap(command, subtask, output, due_ns)
            self._open.append(tap)
            output.tap = partial(self._take, tap)

    @property
    def due_ns(self) -> int | None:
        """The time at which ``close_due`` has a tap to close; None: none is open."""
        return min(tap.due_ns for tap in self._open) if self._open else None

    def close_due(self, now_ns: int) -> None:
        """Answer with what has passed by now, where the time is over."""
        for tap in [tap for tap in self._open if now_ns >= tap.due_ns]:
            self._close(tap)

    def _take(self, tap: Tap, batch: Batch) -> None:
        try:
            has_room = tap.take(batch, self._clock)
        except Exception as error:  # An object that cannot be copied: the job does not need to.
            self._close(tap, cause=f"a record cannot be copied: {_name(error)}")
            return
        if not has_room:
            self._close(tap)

    def _close(self, tap: Tap, cause: str = "") -> None:
        tap.output.tap = None
        self._open.remove(tap)
        parts = tap.parts
        if cause or not parts:
            self._report(tap.command, cause=cause or _why_none(tap.subtask))
            return

        def answer() -> None:
            try:
                records = shown(parts)
            except Exception as error:
                self._report(tap.command, cause=f"a record cannot be shown: {_name(error)}")
            else:
                self._report(tap.command, records=records)

        self._aside(answer)

    def _report(
        self, command: InspectSubtask, *, cause: str = "", records: TappedRecords | None = None
    ) -> None:
        self._reporter.report(
            Inspected(command.attempt, command.request_id, command.index, cause, records=records)
        )


def _name(error: Exception) -> str:
    """The class of a record's own error, whose text may raise in turn."""
    return type(error).__name__


def _place_of(
    command: InspectSubtask, subtasks: Sequence[Subtask]
) -> tuple[Subtask, ChainOutput] | None:
    for subtask in subtasks:
        for chained in subtask.operators:
            output = chained.operator.ctx.output
            if chained.subtask.operator == command.operator and isinstance(output, ChainOutput):
                return subtask, output
    return None


def _why_none(subtask: Subtask) -> str:
    seconds = f"{TAP_MS / 1_000:g} seconds"
    if subtask.status is not SubtaskStatus.RUNNING:
        return "it has ended, so no record passes any more"
    if subtask.held.is_on:
        return f"no record passed within {seconds}: back pressure holds it, see the operators after"
    return f"no record passed within {seconds}"


def shown(parts: Sequence[Batch]) -> TappedRecords:
    """The records of these batches as text, within the bounds of an answer."""
    columns: tuple[str, ...] = ()
    records: list[TappedRecord] = []
    length, is_cut = 0, False
    text = _Text()
    # One by one: at no time are the texts of more than one large record in memory.
    for one in (part.slice(at, at + 1) for part in parts for at in range(len(part))):
        names, row = _read(one.rows[0])
        if records and names != columns:
            is_cut = True  # An output of several types: those of the first are shown.
            continue
        columns = names
        values = tuple(text.of_value(value) for value in row[:COLUMNS_MAX])
        length += sum(map(len, values))
        if length > RECORDS_LENGTH_MAX:
            return TappedRecords(_headers(columns), tuple(records), is_cut=True)
        at_ms = None if one.timestamps is None else int(one.timestamps[0])
        records.append(TappedRecord(values, at_ms))
    is_cut |= text.has_cut or len(columns) > COLUMNS_MAX
    return TappedRecords(_headers(columns), tuple(records), is_cut)


def _headers(names: Sequence[str]) -> tuple[str, ...]:
    text = _Text()
    return tuple(text.of_value(name) for name in names[:COLUMNS_MAX])


def _read(record: Any) -> tuple[tuple[str, ...], Sequence[Any]]:
    """The names of a record's columns, and their values."""
    if isinstance(record, Row) and record.field_names is not None:
        return record.field_names, tuple(record)
    return (ONLY_COLUMN,), (record,)


class _Text(reprlib.Repr):
    """The text of a value: of large collections their beginning alone, secrets masked, cut."""

    def __init__(self) -> None:
        super().__init__()
        self.has_cut = False
        self.maxlevel = LEVELS_MAX
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = ENTRIES_MAX
        self.maxdeque = self.maxarray = ENTRIES_MAX
        self.maxother = self.maxlong = READ_MAX
        self._mask = job_secrets.masker().text

    def of_value(self, value: Any) -> str:
        """The value as text; texts and times as they are, all others as Python writes them."""
        if value is None:
            return "null"
        if isinstance(value, str):
            text = self._begin(value)
        elif isinstance(value, date | time):
            text = value.isoformat()
        else:
            text = self._mask(self.repr(value))
        if len(text) <= VALUE_LENGTH_MAX:
            return text
        self.has_cut = True
        return text[: VALUE_LENGTH_MAX - 1] + ELLIPSIS

    def repr_str(self, x: str, level: int) -> str:
        """A text within a collection."""
        return repr(self._begin(x))

    def repr_bytes(self, x: bytes, level: int) -> str:
        """Bytes, the first of them."""
        self.has_cut |= len(x) > READ_MAX
        return self._mask(repr(x[:READ_MAX]))

    def repr_instance(self, x: Any, level: int) -> str:
        """An object as its class writes it."""
        return self._begin(repr(x))

    def repr_int(self, x: int, level: int) -> str:
        """A whole number; one of thousands of digits by its size."""
        return repr(x) if x.bit_length() < READ_MAX else f"a number of {x.bit_length():,} bits"

    def _begin(self, text: str) -> str:
        self.has_cut |= len(text) > READ_MAX
        return self._mask(str(text[:READ_MAX]))
