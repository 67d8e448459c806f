"""Windows per record: the content of a window goes through the user's functions when it ends.

Under each key a map state holds the content by the window's start and end: the list of records,
their reduction, or an accumulator. A timer fires the window at its last moment; where lateness is
allowed, a second timer, registered when the first fires, drops the window that much later. Both
carry the window's bounds, so that a window restored into a program whose windows have another size,
or another lateness, still ends at its own end and is dropped once.

A record is late when its window's last moment plus the allowed lateness has passed; it is counted
and sent to the side output for late data, or dropped. A late but allowed record fires its window
again at once.

Source: Flink, WindowOperator and EventTimeTrigger.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from weir.common.batch import Batch
from weir.common.typeinfo import MapTypeInfo, TypeInformation, Types
from weir.common.types.dynamic import DYNAMIC
from weir.operators.base import Operator, OperatorContext
from weir.operators.functions import (
    AggregateFunction,
    Function,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    TimeDomain,
    WindowFunction,
)
from weir.operators.hand_over import HandOver
from weir.operators.keyed import TimerOperator
from weir.operators.keys import RowKeySelector
from weir.operators.output_tag import OutputTag
from weir.operators.user_code import failure_at, failure_in, short_repr
from weir.operators.windows.window_aggregates import event_times
from weir.operators.windows.window_assigners import Bounds, TimeWindow, TumblingWindows, old_layout
from weir.protocol.elements import MAX_WATERMARK_MS
from weir.state.descriptors import MapStateDescriptor
from weir.state.timers import Timer

_STATE = "windows"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFactory:
    """Makes window operators; ``gather`` is None, a reduction or an ``AggregateFunction``."""

    selector: RowKeySelector
    windows: TumblingWindows
    gather: AggregateFunction[Any, Any, Any] | ReduceFunction | Callable[[Any, Any], Any] | None
    window_function: (
        WindowFunction[Any, Any, Any, Any] | ProcessWindowFunction[Any, Any, Any, Any] | None
    )
    accumulator_type: TypeInformation | None = None
    lateness_ms: int = 0
    late_tag: OutputTag | None = None
    output_type: TypeInformation | None = None

    def __call__(self) -> Operator:
        """A new operator with functions of its own."""
        return WindowOperator(self)


class WindowOperator(TimerOperator):
    """Gathers records by key and window, and fires the windows that end."""

    def __init__(self, config: WindowFactory) -> None:
        super().__init__(config.selector, copy.deepcopy(config.window_function), config.output_type)
        self._windows = config.windows
        self._gather: Any = copy.deepcopy(config.gather)
        self._kept_type = config.accumulator_type or DYNAMIC
        if config.gather is None:
            self._kept_type = Types.LIST(DYNAMIC)
        self._lateness_ms = config.lateness_ms if config.windows.is_event_time else 0
        self._late_tag = config.late_tag
        self._gather_opened = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the functions and the state.

        Raises:
            RestoreError: The checkpoint's windows were stored without their end.
        """
        super().open(ctx)
        if isinstance(self._gather, Function):
            self._gather_opened = True
            self._gather.open(RuntimeContext(ctx, keyed=True))
        if any(
            isinstance(stored, MapTypeInfo) and stored.key_type == Types.LONG()
            for stored in ctx.state.keyed.stored_types(_STATE)
        ):
            raise old_layout(ctx.subtask.operator)
        descriptor = MapStateDescriptor(
            _STATE, Types.TUPLE([Types.LONG(), Types.LONG()]), self._kept_type
        )
        self._kept = ctx.state.keyed.get_map_state(descriptor)
        self._own = HandOver(ctx).own
        is_event_time = self._windows.is_event_time
        self._timers = self.timers.event_time if is_event_time else self.timers.processing_time
        self._global_state = RuntimeContext(ctx, keyed=True)

    def close(self) -> None:
        """Close the functions."""
        super().close()
        if self._gather_opened:
            self._gather_opened = False
            self._gather.close()

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Add the records of a slice to their windows."""
        rows = batch.rows
        by_event_time = self._windows.is_event_time
        if by_event_time:
            starts = self._windows.starts_of(event_times(batch, self.ctx.label)).tolist()
        else:
            starts = [self._windows.start_of(self.ctx.clock.now_ms())] * len(rows)
        size_ms, lateness_ms = self._windows.size_ms, self._lateness_ms
        keys, groups = self._input.keys_of(batch)
        set_key, late = self._input.backend.set_current_key_and_group, []
        add, state, watermark = self._adder(), self._kept, self.watermark
        # Made once for all records of a window, which share the bounds in state as well.
        windows = {start: _named((start, start + size_ms)) for start in set(starts)}
        left = iter(rows)
        try:
            for i, (row, start, key, group) in enumerate(
                zip(left, starts, keys, groups, strict=True)
            ):
                bounds, last, namespace = windows[start]
                if by_event_time and last + lateness_ms <= watermark:
                    late.append(i)
                    continue
                set_key(key, group)
                kept = state.get_normal(bounds)
                state.put_normal(bounds, add(kept, row))
                if by_event_time and last <= watermark:
                    self._emit(key, bounds)
                    if kept is None:  # The window has fired already, and is only to be dropped.
                        self._register(self._forgotten_ms(bounds), key, group, namespace)
                elif kept is None:
                    self._register(last, key, group, namespace)
        except Exception as error:
            raise failure_at(self.ctx.label, rows, left, error) from error
        self.collector.flush()
        if late:
            self.ctx.late_records += len(late)
            if self._late_tag is not None:
                taken = batch.take(np.array(late, np.int64))
                self.ctx.output.emit_side(self._late_tag.tag_id, taken)

    def fire(self, timer: Timer, domain: TimeDomain) -> None:
        """Fire a window at its end; drop it, or register the timer that will."""
        namespace = timer.namespace
        assert isinstance(namespace, str)
        bounds = _bounds(namespace)
        if timer.timestamp_ms == bounds[1] - 1:
            self._emit(timer.key, bounds)
        forgotten_ms = self._forgotten_ms(bounds)
        # A window has one timer at a time, perhaps from before a restore with another lateness: if
        # that was shorter, the window stays for the rest; if it was longer, it stayed that long.
        if timer.timestamp_ms >= forgotten_ms:
            self._forget(timer.key, bounds)
        else:
            self._register(forgotten_ms, timer.key, timer.group, namespace)

    def finish(self) -> None:
        """Processing time ends with the input: open windows fire in ``advance``."""
        if not self._windows.is_event_time:
            self.fire_processing_time()

    def _register(self, at_ms: int, key: Any, group: int, namespace: Any) -> None:
        self._timers.register(at_ms, key, namespace, group=group)

    def _forgotten_ms(self, bounds: Bounds) -> int:
        """The time from which the window takes no more records; at most the end of event time."""
        return min(bounds[1] - 1 + self._lateness_ms, MAX_WATERMARK_MS)

    def _adder(self) -> Callable[[Any, Any], Any]:
        """The function that adds a record to a window's content, which is None at first.

        It returns the content in the form that state holds, so the outcome does not depend on
        whether state was stored in between.
        """
        gather, normalise = self._gather, self._kept_type.normaliser()
        if gather is None:
            normalise_row = DYNAMIC.normaliser()

            def append(kept: list[Any] | None, row: Any) -> list[Any]:
                kept = [] if kept is None else kept
                kept.append(normalise_row(row))
                return kept

            return append
        if isinstance(gather, AggregateFunction):
            create, add = gather.create_accumulator, gather.add
            return lambda kept, row: normalise(add(row, create() if kept is None else kept))
        reduce = gather.reduce if isinstance(gather, ReduceFunction) else gather
        return lambda kept, row: normalise(row if kept is None else reduce(kept, row))

    def _emit(self, key: Any, bounds: Bounds) -> None:
        kept = self._kept.get_normal(bounds)
        if kept is None:
            return
        if self._lateness_ms and self._own is not None:
            kept = self._own(kept)  # A late record fires the window again, with this content.
        window = TimeWindow(*bounds)
        gather, function = self._gather, self.function
        try:
            if gather is None:
                elements = kept
            elif isinstance(gather, AggregateFunction):
                elements = [gather.get_result(kept)]
            else:
                elements = [kept]
            if function is None:
                made = elements
            elif isinstance(function, WindowFunction):
                made = function.apply(key, window, elements)
            else:
                made = function.process(key, _WindowContext(self, window), elements)
            if made is not None:
                self.collector.take(made, window.max_timestamp())
        except Exception as error:
            where = f"in the window {window.start} to {window.end} of the key {short_repr(key)}"
            raise failure_in(self.ctx.label, where, error) from error

    def _forget(self, key: Any, bounds: Bounds) -> None:
        self._kept.remove(bounds)
        if isinstance(self.function, ProcessWindowFunction):
            self.function.clear(_WindowContext(self, TimeWindow(*bounds)))

    @property
    def global_state(self) -> RuntimeContext:
        """The state of the key, shared by all its windows."""
        return self._global_state


class _WindowContext(ProcessWindowFunction.Context[TimeWindow]):
    def __init__(self, operator: WindowOperator, window: TimeWindow) -> None:
        self._operator = operator
        self._window = window

    def window(self) -> TimeWindow:
        return self._window

    def current_processing_time(self) -> int:
        return self._operator.ctx.clock.now_ms()

    def current_watermark(self) -> int:
        return self._operator.watermark

    def global_state(self) -> RuntimeContext:
        return self._operator.global_state


def _named(bounds: Bounds) -> tuple[Bounds, int, str]:
    """A window's bounds, its last moment, and the bounds as text, which its timers carry.

    Text needs no encoding for every timer.
    """
    start, end = bounds
    return bounds, end - 1, f"{start}/{end}"


@lru_cache(maxsize=1_024)  # The timers of a window fire one after the other.
def _bounds(namespace: str) -> Bounds:
    start, _, end = namespace.partition("/")
    return int(start), int(end)
