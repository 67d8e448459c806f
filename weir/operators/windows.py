"""Windows per record: what a window gathered goes through the user's functions when it ends.

Under each key a map state holds, by the start of the window, what was gathered: the list of
records, their reduction, or an accumulator. Two timers end a window: one at its last moment, which
fires it, and one as much later as lateness is allowed, which forgets it; without lateness they are
one. A record is late when its window's last moment plus the allowed lateness has passed; it is
counted and goes to the side output for late data, or nowhere. A late but allowed record fires its
window at once, again.

Source: Flink, WindowOperator and EventTimeTrigger.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir.common.batch import Batch
from weir.common.typeinfo import TypeInformation, Types
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
from weir.operators.keyed import TimerOperator
from weir.operators.keys import RowKeySelector
from weir.operators.output_tag import OutputTag
from weir.operators.user_code import failure_at, failure_in, short_repr
from weir.operators.window_aggregates import event_times
from weir.operators.window_assigners import TimeWindow, TumblingWindows
from weir.state.descriptors import MapStateDescriptor
from weir.state.timers import Timer

FIRED_AT_ONCE = 8_192  # Timers between two flushes when the input has ended.


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFactory:
    """Makes window operators; ``gather`` is None, a reduction or an ``AggregateFunction``."""

    selector: RowKeySelector
    windows: TumblingWindows
    gather: AggregateFunction[Any, Any, Any] | ReduceFunction | Callable[[Any, Any], Any] | None
    window_function: WindowFunction[Any, Any, Any] | ProcessWindowFunction[Any, Any, Any] | None
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
        self._lateness_ms = config.lateness_ms if config.windows.is_event_time else 0
        self._late_tag = config.late_tag
        self._gather_opened = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the functions and the state."""
        super().open(ctx)
        if isinstance(self._gather, Function):
            self._gather_opened = True
            self._gather.open(RuntimeContext(ctx, keyed=True))
        descriptor = MapStateDescriptor("windows", Types.LONG(), self._kept_type)
        self._kept = ctx.state.keyed.get_map_state(descriptor)
        self._global_state = RuntimeContext(ctx, keyed=True)

    def close(self) -> None:
        """Close the functions."""
        super().close()
        if self._gather_opened:
            self._gather_opened = False
            self._gather.close()

    def on_batch(self, batch: Batch, input_index: int) -> None:
        """Put a slice into its windows."""
        rows = batch.rows
        by_event_time = self._windows.is_event_time
        if by_event_time:
            starts = self._windows.starts_of(event_times(batch, self.ctx.name)).tolist()
        else:
            starts = [self._windows.start_of(self.ctx.clock.now_ms())] * len(rows)
        keys, groups = self._input.keys_of(batch)
        set_key, late = self._input.backend.set_current_key_and_group, []
        add = self._adder()
        left = iter(rows)
        try:
            for i, (row, start, key, group) in enumerate(
                zip(left, starts, keys, groups, strict=True)
            ):
                last = start + self._windows.size_ms - 1
                if by_event_time and last + self._lateness_ms <= self.watermark:
                    late.append(i)
                    continue
                set_key(key, group)
                kept = self._kept.get(start)
                self._kept.put(start, add(kept, row))
                if by_event_time and last <= self.watermark:
                    self._emit(key, start)
                elif kept is None:
                    self._register(last, key, group, start)
        except Exception as error:
            raise failure_at(self.ctx.name, rows, left, error) from error
        self.collector.flush()
        if late:
            self.ctx.late_records += len(late)
            if self._late_tag is not None:
                taken = batch.take(np.array(late, np.int64))
                self.ctx.output.emit_side(self._late_tag.tag_id, taken)

    def fire(self, timer: Timer, domain: TimeDomain) -> None:
        """A window ends, or is forgotten."""
        start = timer.namespace
        assert isinstance(start, int)
        last = start + self._windows.size_ms - 1
        if timer.timestamp_ms == last:
            self._emit(timer.key, start)
        if timer.timestamp_ms == last + self._lateness_ms:
            self._forget(timer.key, start)

    def finish(self) -> None:
        """Processing time ends with the input: fire what is open."""
        if self._windows.is_event_time:
            return
        queue = self.timers.processing_time
        while (next_ms := queue.next_ms()) is not None:
            self._fire_due(TimeDomain.PROCESSING_TIME, next_ms, FIRED_AT_ONCE)

    def _register(self, last: int, key: Any, group: int, start: int) -> None:
        queue = (
            self.timers.event_time if self._windows.is_event_time else self.timers.processing_time
        )
        queue.register(last, key, start, group=group)
        if self._lateness_ms:
            queue.register(last + self._lateness_ms, key, start, group=group)

    def _adder(self) -> Callable[[Any, Any], Any]:
        """What puts a record to those that its window has, which may be None."""
        gather = self._gather
        if gather is None:
            return _append
        if isinstance(gather, AggregateFunction):
            create, add = gather.create_accumulator, gather.add
            return lambda kept, row: add(row, create() if kept is None else kept)
        reduce = gather.reduce if isinstance(gather, ReduceFunction) else gather
        return lambda kept, row: row if kept is None else reduce(kept, row)

    def _emit(self, key: Any, start: int) -> None:
        kept = self._kept.get(start)
        if kept is None:
            return
        window = TimeWindow(start, start + self._windows.size_ms)
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
            raise failure_in(self.ctx.name, where, error) from error

    def _forget(self, key: Any, start: int) -> None:
        self._kept.remove(start)
        if isinstance(self.function, ProcessWindowFunction):
            window = TimeWindow(start, start + self._windows.size_ms)
            self.function.clear(_WindowContext(self, window))

    @property
    def global_state(self) -> RuntimeContext:
        """State per key, shared by all its windows."""
        return self._global_state


class _WindowContext(ProcessWindowFunction.Context):
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


def _append(kept: list[Any] | None, row: Any) -> list[Any]:
    if kept is None:
        return [row]
    kept.append(row)
    return kept
