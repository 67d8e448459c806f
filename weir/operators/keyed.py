"""Operators that work under a key, record by record: functions with state, reductions, timers.

The keys of a slice are computed once, all together, with their key groups; a record of a foreign
key group is refused, because it means that the key function gave another key where the record was
sent. Timers fire in slices: a timer that has fired has left the state, so a snapshot between two
slices holds exactly the timers still to fire; the watermark is passed on after the last firing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from weir.common.batch import Batch, Timestamps, builtin_name
from weir.common.typeinfo import TypeInformation, Types
from weir.common.types.dynamic import DYNAMIC
from weir.errors import BadRecordsError, GraphError, KeyTypeError, UserError
from weir.ids import CheckpointId
from weir.operators.base import Operator, OperatorContext
from weir.operators.collector import Collector, times_of
from weir.operators.event_time import WatermarkState
from weir.operators.functions import (
    KeyedProcessFunction,
    ReduceFunction,
    TimeDomain,
    TimerService,
)
from weir.operators.hand_over import HandOver
from weir.operators.keys import (
    KeyGroups,
    RowKeySelector,
    check_ownership,
    key_groups_of_keys,
    refused_key,
)
from weir.operators.stateless import (
    CallOperator,
    FilterOperator,
    FlatMapOperator,
    FunctionOperator,
    MapOperator,
)
from weir.operators.user_code import failure_at, failure_in, returning_records, short_repr
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.state.codec import SlotKey, slot_key
from weir.state.descriptors import ValueStateDescriptor
from weir.state.expiry import no_record
from weir.state.keyed_timers import KeyedTimers
from weir.state.timers import Timer

if TYPE_CHECKING:
    from weir.state.backend import KeyedStateBackend

# A slice of timers ends after this time: about twice what a slice is meant to take
# (``ChannelConfig.slice_target_ms``). Cheap timers before do not tell the cost of the next.
SLICE_MAX_NS = 10_000_000
_UNREAD = object()
_OWN_SLOTS = {int, str}  # Kinds of keys that tables look up by the key itself.
_EQUAL_MEANS_SAME = ({int}, {str}, {bytes})  # Kinds of keys that a dict distinguishes as Weir does.


class KeyedInput:
    """Computes the keys of each slice and sets them in the state backend."""

    def __init__(self, ctx: OperatorContext, selector: RowKeySelector) -> None:
        self._ctx = ctx
        self._selector = selector
        self.backend: KeyedStateBackend = ctx.state.keyed
        self._places: list[
            tuple[SlotKey, int]
        ] = []  # Of the records still to come, the last one first.
        self._timestamps: Timestamps | None = None  # Of all records of the slice.

    def keys_of(self, batch: Batch) -> tuple[list[Any], list[int]]:
        """Key and key group of every record.

        Raises:
            UserError: A key belongs to another subtask, or the key function failed.
            KeyTypeError: A key has no canonical encoding.
        """
        keys, groups = self._keyed(batch)
        return keys, groups.tolist()

    def places_of(self, batch: Batch) -> tuple[list[Any], list[SlotKey], list[int]]:
        """Key of every record, and the slot and group that the backend's cursor has under it.

        All checks are made for the slice as a whole, so that the cursor may be set without any.

        Raises:
            UserError: A key belongs to another subtask, or the key function failed.
            KeyTypeError: A key has no canonical encoding.
        """
        keys, groups = self._keyed(batch)
        slots = keys if set(map(type, keys)) <= _OWN_SLOTS else list(map(slot_key, keys))
        return keys, slots, (groups - self._ctx.key_groups.first).tolist()

    def _keyed(self, batch: Batch) -> tuple[list[Any], KeyGroups]:
        keys = self._selector.keys_of(batch)
        try:
            groups = key_groups_of_keys(keys, self._ctx.max_parallelism)
        except KeyTypeError as error:
            raise refused_key(self._selector, keys, batch.rows, error) from None
        check_ownership(self._ctx.label, keys, groups, self._ctx.key_groups)
        return keys, groups

    def begin(self, batch: Batch) -> None:
        """Compute the keys of a slice for ``under_key``."""
        _, slots, groups = self.places_of(batch)
        self._places = list(zip(slots, groups, strict=True))
        self._places.reverse()
        self._timestamps = batch.timestamps

    def under_key(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``function`` for record after record of the slice, each under its own key."""
        cursor = self.backend.cursor
        self.backend.time.record_ms = self._record_ms

        def call(row: Any) -> Any:
            cursor.slot, cursor.group = self._places.pop()
            return function(row)

        return call

    def _record_ms(self) -> int | None:
        """The event time of the record that ``under_key`` is at; None: it has none."""
        times = self._timestamps
        return None if times is None else int(times[len(times) - len(self._places) - 1])


class _UnderKey(CallOperator):
    """Gives a stateless operator's function the state of each record's key."""

    keyed = True

    def __init__(self, selector: RowKeySelector, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._selector = selector

    def open(self, ctx: OperatorContext) -> None:
        """Open the function, with state."""
        super().open(ctx)
        self._input = KeyedInput(ctx, self._selector)
        self.call = self._input.under_key(self.call)
        self._time = self._input.backend.time

    @property
    def carries_watermarks(self) -> bool:
        """Unless state expires by them."""
        return super().carries_watermarks and not self._time.is_event_time_used

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Process a slice."""
        self._input.begin(batch)
        super().on_batch(batch, input_index)
        if batch.watermarks is not None:
            self._time.on_watermark(batch.watermarks.last_ms)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Let state expire by event time."""
        self._time.on_watermark(timestamp_ms)
        super().on_watermark(timestamp_ms)


class KeyedMapOperator(_UnderKey, MapOperator):
    """Makes one record of each, with keyed state."""


class KeyedFilterOperator(_UnderKey, FilterOperator):
    """Keeps some of the records, with keyed state."""


class KeyedFlatMapOperator(_UnderKey, FlatMapOperator):
    """Makes any number of records of each, with keyed state."""


class ReduceOperator(FunctionOperator):
    """Emits, after every record, its key's reduction of all records so far."""

    keyed = True

    def __init__(
        self, selector: RowKeySelector, function: Any, value_type: TypeInformation | None = None
    ) -> None:
        super().__init__(function)
        own = self.function
        self._selector = selector
        self._value_type = value_type  # None: every value carries its own type.
        self._call = own.reduce if isinstance(own, ReduceFunction) else own

    def open(self, ctx: OperatorContext) -> None:
        """Open the function and the state."""
        super().open(ctx)
        self._input = KeyedInput(ctx, self._selector)
        kind = self._value_type or DYNAMIC
        self._reduced = ctx.state.keyed.get_state(ValueStateDescriptor("reduced", kind))
        self._normalise = kind.normaliser()
        self._own = HandOver(ctx).own

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Reduce a slice; state is read and written once per key where keys can share a dict.

        The value carried from record to record is the one that state would return, so the outcome
        does not depend on slices.
        """
        keys, groups = self._input.keys_of(batch)
        rows = batch.rows
        left = iter(rows)
        run = self._by_key if set(map(type, keys)) in _EQUAL_MEANS_SAME else self._one_by_one
        try:
            reduced = run(keys, groups, left)
        except Exception as error:
            raise failure_at(self.ctx.label, rows, left, error) from error
        self.ctx.output.emit(Batch.of_rows(reduced, self._value_type, batch.timestamps))

    def _by_key(self, keys: list[Any], groups: list[int], left: Iterator[Any]) -> list[Any]:
        reduce, state, normalise, own = self._call, self._reduced, self._normalise, self._own
        set_key = self._input.backend.set_current_key_and_group
        current: dict[Any, Any] = {}
        group_of = dict(zip(keys, groups, strict=True))
        out: list[Any] = []
        for key, row in zip(keys, left, strict=True):
            known = current.get(key, _UNREAD)
            if known is _UNREAD:
                set_key(key, group_of[key])
                known = state.value()
            value = row if known is None else reduce(known, row)
            current[key] = held = normalise(value)
            # The normal form of an immutable value is the value itself.
            out.append(held if held is value or own is None else own(held))
        for key, value in current.items():
            set_key(key, group_of[key])
            state.update(value)
        return out

    def _one_by_one(self, keys: list[Any], groups: list[int], left: Iterator[Any]) -> list[Any]:
        reduce, state, own = self._call, self._reduced, self._own
        set_key = self._input.backend.set_current_key_and_group
        out: list[Any] = []
        for key, group, row in zip(keys, groups, left, strict=True):
            set_key(key, group)
            known = state.value()
            state.update(row if known is None else reduce(known, row))
            held = state.value()
            out.append(held if own is None else own(held))
        return out


class CountOperator(Operator):
    """Emits, after every record, its key with the number of the key's records so far."""

    def __init__(self, selector: RowKeySelector) -> None:
        self._selector = selector

    def open(self, ctx: OperatorContext) -> None:
        """Open the state."""
        super().open(ctx)
        self._input = KeyedInput(ctx, self._selector)
        self._count = ctx.state.keyed.get_state(ValueStateDescriptor("count", Types.LONG()))

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Count a slice."""
        cursor, state = self._input.backend.cursor, self._count
        out: list[Any] = []
        for key, slot, group in zip(*self._input.places_of(batch), strict=True):
            cursor.slot, cursor.group = slot, group
            count = (state.value() or 0) + 1
            state.update(count)
            out.append((key, count))
        self.ctx.output.emit(Batch.of_rows(out, None, batch.timestamps))


class TimerOperator(FunctionOperator):
    """Fires the timers of both time domains in slices; ``fire`` is the effect of one timer.

    A function that keeps registering timers that are already due fires for ever, a slice at a time.
    """

    keyed = True

    def __init__(
        self, selector: RowKeySelector, function: Any, output_type: TypeInformation | None = None
    ) -> None:
        super().__init__(function)
        self._selector = selector
        self._output_type = output_type
        self.watermark = MIN_WATERMARK_MS
        self._firing_event_time = False  # The watermark is still to be passed on.
        self._firing_until_ms: int | None = None  # Processing time, while timers up to it are due.

    def open(self, ctx: OperatorContext) -> None:
        """Open the function, the timers and the collector."""
        self.collector = Collector(ctx, self._output_type)
        self.timers: KeyedTimers = ctx.state.timers
        self._saved_watermark = WatermarkState(ctx)
        self.watermark = self._saved_watermark.restored_ms
        self._firing_event_time = self._saved_watermark.was_firing
        self.time = ctx.state.keyed.time
        if not self._firing_event_time:  # Else the timers still to fire come first.
            self.time.on_watermark(self.watermark)
        super().open(ctx)
        self._input = KeyedInput(ctx, self._selector)

    def fire(self, timer: Timer, domain: TimeDomain) -> None:
        """Fire one timer, under its key."""
        raise NotImplementedError

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        """Keep the watermark in the snapshot."""
        super().prepare_snapshot(checkpoint_id)
        self._saved_watermark.save(self.watermark, is_firing=self._firing_event_time)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Note the watermark; pass it on at once if nothing fires."""
        self.watermark = max(self.watermark, timestamp_ms)
        next_ms = self.timers.event_time.next_ms()
        if next_ms is not None and next_ms <= self.watermark:
            self._firing_event_time = True
        elif not self._firing_event_time:
            self.time.on_watermark(self.watermark)
            self.ctx.output.emit_watermark(self.watermark)

    @property
    def has_pending(self) -> bool:
        """Whether timers are due."""
        return self._firing_event_time or self._firing_until_ms is not None

    def advance(self, records_max: int) -> int:
        """Fire some timers; after the last one the watermark is passed on."""
        fired = 0
        if self._firing_event_time:
            fired, is_done = self._fire_due(TimeDomain.EVENT_TIME, self.watermark, records_max)
            if is_done:
                self._firing_event_time = False
                self.time.on_watermark(self.watermark)
                self.ctx.output.emit_watermark(self.watermark)
        elif self._firing_until_ms is not None:
            fired, is_done = self._fire_due(
                TimeDomain.PROCESSING_TIME, self._firing_until_ms, records_max
            )
            if is_done:
                self._firing_until_ms = None
        return fired

    def next_timer_ms(self) -> int | None:
        """The next timer of processing time."""
        return None if self._firing_until_ms is not None else self.timers.processing_time.next_ms()

    def on_processing_time(self, now_ms: int) -> None:
        """Let ``advance`` fire the timers that are due by now."""
        next_ms = self.timers.processing_time.next_ms()
        if next_ms is not None and next_ms <= now_ms:
            self._firing_until_ms = now_ms

    def fire_processing_time(self) -> None:
        """Let ``advance`` fire all timers of processing time, even those that are not due."""
        if self.timers.processing_time.next_ms() is not None:
            self._firing_until_ms = MAX_WATERMARK_MS

    def _fire_due(self, domain: TimeDomain, until_ms: int, records_max: int) -> tuple[int, bool]:
        """Fire timers one after the other; returns their number, and whether no other is due.

        Each timer is taken when those before have fired: what they register and delete takes
        effect at once.
        """
        queue = self.timers.queues[domain.value]
        set_key = self._input.backend.set_current_key_and_group
        now_ns = self.ctx.clock.monotonic_ns
        ends_ns = now_ns() + SLICE_MAX_NS
        time = self.time
        time.record_ms = no_record
        # State that expires by event time does so in step with the timers.
        expires = time.is_event_time_used and domain is TimeDomain.EVENT_TIME
        fired = 0
        while fired < records_max and (timer := queue.poll(until_ms)) is not None:
            set_key(timer.key, timer.group)
            if expires:
                time.on_watermark(timer.timestamp_ms)
            self.fire(timer, domain)
            fired += 1
            if now_ns() >= ends_ns:
                break
        self.collector.flush()
        next_ms = queue.next_ms()
        return fired, next_ms is None or next_ms > until_ms


class KeyedProcessOperator(TimerOperator):
    """A keyed process function with its timers."""

    def open(self, ctx: OperatorContext) -> None:
        """Open the function."""
        super().open(ctx)
        self._context = _KeyedContext(self)
        self._process = returning_records(self.function.process_element)

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Process a slice, each record under its key."""
        places = zip(*self._input.places_of(batch), times_of(batch), strict=True)
        rows, process, take = batch.rows, self._process, self.collector.take
        cursor, context = self._input.backend.cursor, self._context
        self.time.record_ms = context.timestamp
        left = iter(rows)
        try:
            if self.bad is not None:
                each = self._under_keys(zip(left, places, strict=True))
                self.bad.process_each(each, lambda row: process(row, context), self.collector)
            else:
                for row, (key, cursor.slot, cursor.group, timestamp) in zip(
                    left, places, strict=True
                ):
                    context.key, context.now = key, timestamp
                    if (made := process(row, context)) is not None:
                        take(made, timestamp)
        except BadRecordsError:
            raise
        except Exception as error:
            raise failure_at(self.ctx.label, rows, left, error, timestamp=context.now) from error
        self.collector.flush()
        if self.bad is not None:
            self.bad.flush()

    def _under_keys(self, records: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, int | None]]:
        cursor, context = self._input.backend.cursor, self._context
        for row, (key, cursor.slot, cursor.group, timestamp) in records:
            context.key, context.now = key, timestamp
            yield row, timestamp

    def fire(self, timer: Timer, domain: TimeDomain) -> None:
        """Call ``on_timer``; the records of an event-time timer have the timer's time."""
        timestamp = timer.timestamp_ms
        context = self._context
        context.key, context.now, context.domain = timer.key, timestamp, domain
        try:
            if (made := self.function.on_timer(timestamp, context)) is not None:
                self.collector.take(made, timestamp if domain is TimeDomain.EVENT_TIME else None)
        except Exception as error:
            where = f"in the timer {timestamp} of the key {short_repr(timer.key)}"
            raise failure_in(self.ctx.label, where, error) from error
        if self.bad is not None:
            self.bad.keep()


class _KeyedContext(KeyedProcessFunction.OnTimerContext, TimerService):
    """The context of records and timers and the timer service, in one; reused for all of them."""

    def __init__(self, operator: TimerOperator) -> None:
        self._operator = operator
        self._event_time = operator.timers.event_time
        self._processing_time = operator.timers.processing_time
        self._backend: KeyedStateBackend = operator.ctx.state.keyed
        self.key: Any = None
        self.now: int | None = None
        self.domain = TimeDomain.EVENT_TIME

    def timer_service(self) -> TimerService:
        return self

    def timestamp(self) -> int | None:
        return self.now

    def get_current_key(self) -> Any:
        return self.key

    def time_domain(self) -> TimeDomain:
        return self.domain

    def current_processing_time(self) -> int:
        return self._operator.ctx.clock.now_ms()

    def current_watermark(self) -> int:
        return self._operator.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        at_ms = self._checked(timestamp, "registers")
        self._processing_time.register(at_ms, self.key, group=self._backend.current_group)

    def register_event_time_timer(self, timestamp: int) -> None:
        at_ms = self._checked(timestamp, "registers")
        self._event_time.register(at_ms, self.key, group=self._backend.current_group)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        at_ms = self._checked(timestamp, "deletes")
        self._processing_time.delete(at_ms, self.key, group=self._backend.current_group)

    def delete_event_time_timer(self, timestamp: int) -> None:
        at_ms = self._checked(timestamp, "deletes")
        self._event_time.delete(at_ms, self.key, group=self._backend.current_group)

    def _checked(self, timestamp: Any, does: str) -> int:
        """The timestamp as an int of 64 bits, which snapshots can hold.

        Raises:
            UserError: The value is no such timestamp.
        """
        if type(timestamp) is int and MIN_WATERMARK_MS <= timestamp <= MAX_WATERMARK_MS:
            return timestamp
        # NumPy's integers are integral as well; timers are made of ints only.
        if isinstance(timestamp, Integral) and not isinstance(timestamp, bool):
            at_ms = int(timestamp)
            if MIN_WATERMARK_MS <= at_ms <= MAX_WATERMARK_MS:
                return at_ms
        raise UserError(
            f"{self._operator.ctx.label} {does} a timer at {short_repr(timestamp)} "
            f"({builtin_name(timestamp)}), which is no timestamp: it must be an int of "
            "milliseconds since the epoch that fits into 64 bits, e.g. int(seconds * 1000)"
        )


@dataclass(frozen=True, slots=True)
class FieldReducer:
    """Reduces two records by a field: ``sum``, ``min`` and ``max`` replace that field in the first
    record, ``min_by`` and ``max_by`` choose one of the records, the first when they are equal.

    A record is a tuple, Row, list or dict; any other value is its own field 0.
    """

    kind: str
    field: int | str

    def __call__(self, one: Any, other: Any) -> Any:
        """The reduction of both."""
        if not isinstance(one, tuple | list | dict):
            if self.field != 0:
                raise GraphError(
                    f"{self.kind}({self.field!r}) needs records with fields, but a record is "
                    f"{short_repr(one)}; for plain values leave the field out"
                )
            return self._reduced(one, other, one, other)
        try:
            a, b = one[self.field], other[self.field]  # type: ignore[index]
        except (IndexError, KeyError, TypeError) as error:
            raise GraphError(
                f"{self.kind}({self.field!r}) found no such field in the {builtin_name(one)} "
                f"{short_repr(one)}"
            ) from error
        value = self._reduced(one, other, a, b)
        if self.kind not in _VALUES:
            return value
        if isinstance(one, dict):
            return {**one, self.field: value}
        changed = list(one)
        if isinstance(self.field, str):
            changed[one.field_names.index(self.field)] = value  # type: ignore[union-attr]
        else:
            changed[self.field] = value
        return changed if isinstance(one, list) else tuple.__new__(type(one), changed)

    def _reduced(self, one: Any, other: Any, a: Any, b: Any) -> Any:
        """The combined value of both fields, or the chosen record."""
        if self.kind in _VALUES:
            return _VALUES[self.kind](a, b)
        return other if (b < a if self.kind == "min_by" else b > a) else one


_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if b > a else a,
}


def field_reducer(kind: str, field: int | str) -> FieldReducer:
    """The reducer of this kind over a field, given by position or name.

    Raises:
        GraphError: ``field`` is neither an int nor a name.
    """
    if isinstance(field, bool) or not isinstance(field, int | str):
        raise GraphError(f"{kind} takes the position or the name of a field, not {field!r}")
    return FieldReducer(kind, field)
