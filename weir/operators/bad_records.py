"""Bad records: those on which an operator's function raises, and the policy for them.

Without a policy the error ends the attempt. With one the record is skipped, or goes to a side
output with its cause; nothing that the function made of it before it raised is emitted, and its
changes to keyed state and timers are undone. Only what the function itself raised counts: errors
of Weir, such as those of state and storage, and a lack of memory end the attempt with any policy.

The number of bad records is part of the operator's snapshot, so that each counts once against the
limit, however many attempts process it.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from weir.common.batch import Batch
from weir.common.ownership import own
from weir.common.row import Row
from weir.common.typeinfo import RowTypeInfo, TypeInformation, Types
from weir.errors import BadRecordsError, GraphError, WeirError
from weir.operators.base import OperatorContext
from weir.operators.collector import Collector, timestamps_of
from weir.operators.output_tag import OutputTag
from weir.operators.user_code import short_repr
from weir.protocol.restore import BAD_RECORDS_STATE

logger = logging.getLogger(__name__)

LOG_INTERVAL_NS = 10_000_000_000  # Between two lines of one operator.
MESSAGE_LENGTH_MAX = 1_000

_FIELDS = ("record", "error", "message", "operator", "event_time", "position")


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """The treatment of records on which an operator's function raises.

    ``limit`` is the most bad records that one subtask may have; None: any number.
    """

    action: Literal["fail", "skip", "divert"] = "fail"
    tag: OutputTag | None = None  # The side output that they are diverted to.
    limit: int | None = None
    record_type: TypeInformation | None = None  # Of the operator's input, where it is declared.


FAIL = ErrorPolicy()


def make_policy(
    action: str | None, side_output: OutputTag | None, limit: int | None
) -> ErrorPolicy:
    """The policy that a user asks for.

    Raises:
        GraphError: The arguments contradict each other, or are none that a policy can have.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise GraphError(f"the limit of bad records is {limit!r}; it is an int of at least 1")
    if side_output is not None:
        if action is not None:
            raise GraphError(
                f"on_error is given {action!r} and a side output; give one of them: what goes to a "
                "side output is skipped"
            )
        if not isinstance(side_output, OutputTag):
            raise GraphError(f"the side output of on_error is an OutputTag, not {side_output!r}")
        if side_output.type_info is not None:
            raise GraphError(
                f"OutputTag({side_output.tag_id!r}) has a type; bad records have one of their own "
                f"({', '.join(_FIELDS)}), so leave it out"
            )
        return ErrorPolicy("divert", side_output, limit)
    if action == "skip":
        return ErrorPolicy("skip", None, limit)
    if action != "fail":
        raise GraphError(
            f"on_error takes 'fail', 'skip' or side_output=OutputTag(...), not {action!r}"
        )
    if limit is not None:
        raise GraphError("on_error('fail') has no limit: the first bad record fails the job")
    return FAIL


def bad_record_type(record_type: TypeInformation | None) -> RowTypeInfo:
    """The type of bad records in a side output; without a type the record is text."""
    text = Types.STRING()
    kinds = [record_type or text, text, text, text, Types.LONG(), text]
    return Types.ROW_NAMED(list(_FIELDS), kinds)


class BadRecords:
    """The bad records of one operator subtask, which has a policy for them."""

    def __init__(self, ctx: OperatorContext, policy: ErrorPolicy, *, keyed: bool) -> None:
        """Take over the restored count; for a keyed operator before its states are declared."""
        self._ctx = ctx
        self._policy = policy
        self._saved = ctx.state.list_state(BAD_RECORDS_STATE)
        self._restored: int = sum(self._saved.get())  # Of several subtasks after a rescale.
        self._changes = ctx.state.record_changes() if keyed else None
        self._type = bad_record_type(policy.record_type)
        self._rows: list[Row] = []
        self._times: list[int | None] = []
        self._logged_ns: int | None = None
        kind = policy.record_type
        # A function may change its record before it raises; the one in the side output is as it
        # came.
        self._copies = policy.tag is not None and kind is not None and kind.is_mutable

    @property
    def total(self) -> int:
        """The number of bad records, those before the restored checkpoint included."""
        return self._restored + self._ctx.bad_records

    def original(self, record: Any) -> Any:
        """The record to ``take`` if the function raises on it; called before the function is."""
        return own(record) if self._copies else record

    def keep(self) -> None:
        """Keep the changes that the last record, or a timer, made to keyed state."""
        if self._changes is not None:
            self._changes.keep()

    def take(self, record: Any, timestamp: int | None, error: Exception) -> None:
        """Count a record on which the function raised, and undo its changes to keyed state.

        Raises:
            BadRecordsError: It is one more than the limit allows.
            Exception: The error, if it is none of the function's own.
        """
        if isinstance(error, WeirError | MemoryError):
            raise error
        if self._changes is not None:
            self._changes.undo()
        self._ctx.bad_records += 1
        kind, message = type(error).__name__, _message(error)
        cause = f"{kind}: {message}"
        limit = self._policy.limit
        if limit is not None and self.total > limit:
            raise BadRecordsError(
                f"{self._ctx.label} failed on {self.total:,} records in subtask "
                f"{self._ctx.subtask}, more than its limit of {limit:,}; the last one is "
                f"{short_repr(record)}, {self._ctx.position}: {cause}"
            ) from error
        self._log(record, cause)
        if self._policy.tag is not None:
            shown = record if self._policy.record_type is not None else _text(short_repr(record))
            uid = str(self._ctx.subtask.operator)
            self._rows.append(
                Row(
                    record=shown, error=_text(kind), message=message, operator=uid,
                    event_time=timestamp, position=str(self._ctx.position),
                )
            )  # fmt: skip
            self._times.append(timestamp)

    def process_each(
        self,
        records: Iterable[tuple[Any, int | None]],
        process: Callable[[Any], Iterable[Any] | None],
        collector: Collector,
    ) -> None:
        """Process records with their event times, past those on which ``process`` raises."""
        for row, timestamp in records:
            original, mark = self.original(row), collector.mark()
            try:
                if (made := process(row)) is not None:
                    collector.take(made, timestamp)
            except Exception as error:
                collector.withdraw(mark)
                self.take(original, timestamp, error)
            else:
                self.keep()

    def flush(self) -> None:
        """Emit the bad records of a slice to the side output."""
        if self._rows:
            assert self._policy.tag is not None
            rows, times = self._rows, self._times
            self._rows, self._times = [], []
            batch = Batch.of_rows(self._type.normalise_all(rows), self._type, timestamps_of(times))
            self._ctx.output.emit_side(self._policy.tag.tag_id, batch)

    def save(self) -> None:
        """Keep the count for the snapshot that follows."""
        self._saved.update([self.total])

    def _log(self, record: Any, cause: str) -> None:
        now_ns = self._ctx.clock.monotonic_ns()
        if self._logged_ns is not None and now_ns - self._logged_ns < LOG_INTERVAL_NS:
            return
        self._logged_ns = now_ns
        logger.warning(
            "%s, subtask %s, %s the record %s, which is bad record %d of this attempt, %s: %s",
            self._ctx.label,
            self._ctx.subtask,
            "skipped" if self._policy.tag is None else "diverted",
            short_repr(record),
            self._ctx.bad_records,
            self._ctx.position,
            cause,
        )


def _message(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # Of the class of the user's exception.
        return "its message cannot be shown"
    return _text(text if len(text) <= MESSAGE_LENGTH_MAX else f"{text[:MESSAGE_LENGTH_MAX]}…")


def _text(text: str) -> str:
    """The text in a form that columns can hold: a lone surrogate is escaped."""
    return text.encode(errors="backslashreplace").decode()
