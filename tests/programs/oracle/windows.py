"""Windows of event time: their contents, when they fire, and what comes too late for them."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.programs.oracle.aggregates import aggregated
from tests.programs.oracle.calls import Refused, result_of, yielded
from tests.programs.oracle.declared_types import Type, applied
from tests.programs.oracle.events import FIRST_MS, LAST_MS, Event, Mark
from tests.programs.oracle.state import State
from tests.programs.oracle.streams import Stream, without_sides
from tests.programs.oracle.timers import Timers
from weir.datastream import OutputTag, TimeWindow
from weir.datastream.functions import AggregateFunction, Function, ReduceFunction, WindowFunction
from weir.operators.windows.window_assigners import TumblingWindows


@dataclass
class WindowContext:
    """The context of a window function."""

    current: TimeWindow
    state: State

    def window(self) -> TimeWindow:
        return self.current

    def global_state(self) -> State:
        return self.state


class WindowedStream:
    """Stands in for ``WindowedStream``.

    ``by_key`` gives identity, key and event of the stream, again and again; ``columns`` are the
    names of the key's fields, if it has any.
    """

    def __init__(
        self,
        stream: Stream,
        by_key: Callable[[], Iterator[tuple[Any, Any, Event]]],
        columns: Sequence[str] | None,
        windows: TumblingWindows,
    ) -> None:
        self._stream = stream
        self._by_key = by_key
        self._columns = columns
        self._windows = windows
        self._lateness = 0
        self._tag: OutputTag | None = None

    def allowed_lateness(self, ms: int) -> "WindowedStream":
        self._lateness = ms
        return self

    def side_output_late_data(self, tag: OutputTag) -> "WindowedStream":
        self._tag = tag
        return self

    def reduce(self, func: Any, window_function: Any = None, output_type: Any = None) -> Stream:
        call = func.reduce if isinstance(func, ReduceFunction) else func

        def add(kept: Any, row: Any) -> Any:
            return row if kept is None else result_of(call, kept, row)

        return self._made(add, lambda kept: [kept], window_function, output_type)

    def aggregate(
        self,
        func: AggregateFunction[Any, Any, Any],
        window_function: Any = None,
        accumulator_type: Type | None = None,
        output_type: Type | None = None,
    ) -> Stream:
        def add(kept: Any, row: Any) -> Any:
            kept = func.create_accumulator() if kept is None else kept
            return applied(accumulator_type, result_of(func.add, row, kept))

        return self._made(add, lambda kept: [func.get_result(kept)], window_function, output_type)

    def apply(self, func: Any, output_type: Type | None = None) -> Stream:
        return self._made(lambda kept, row: [*(kept or []), row], list, func, output_type)

    process = apply

    def aggregate_batches(self, **aggregates: tuple[str, str]) -> Stream:
        columns, size = self._columns, self._windows.size_ms

        class Aggregating(WindowFunction[Any, Any, Any, Any]):
            def apply(self, key: Any, window: TimeWindow, inputs: Any) -> list[Any]:
                bounds = {"window_start": window.start, "window_end": window.start + size}
                return [aggregated(columns, key, list(inputs), bounds, aggregates)]

        return self.apply(Aggregating())

    def _made(
        self,
        add: Callable[[Any, Any], Any],
        elements_of: Callable[[Any], list[Any]],
        function: Any,
        kind: Type | None,
    ) -> Stream:
        sides: dict[str, list[Event]] = {}
        size, lateness, tag = self._windows.size_ms, self._lateness, self._tag

        def make() -> Iterator[Event]:
            state, timers = State(), Timers()
            kept: dict[tuple[Any, int], Any] = {}
            now = FIRST_MS
            if isinstance(function, Function):
                function.open(state)

            def emitted(key: Any, shown: Any, start: int) -> Iterator[Event]:
                if (key, start) not in kept:
                    return
                window = TimeWindow(start, start + size)
                made: Iterable[Any] = elements_of(copy.deepcopy(kept[key, start]))
                state.key = key
                if isinstance(function, WindowFunction):
                    made = yielded(function.apply, shown, window, made)
                elif function is not None:
                    made = yielded(function.process, shown, WindowContext(window, state), made)
                yield from without_sides(made, start + size - 1, kind, sides)

            def fired(until: int) -> Iterator[Event]:
                for at, key, start, shown in timers.due(until):
                    if at == start + size - 1:
                        yield from emitted(key, shown, start)
                    if at == start + size - 1 + lateness:
                        kept.pop((key, start), None)

            for key, shown, event in self._by_key():
                if isinstance(event, Mark):
                    now = max(now, event.ms)
                    yield from fired(now)
                    continue
                if event.at is None:
                    raise Refused("a record without event time in a window")
                start = self._windows.start_of(event.at)
                last = start + size - 1
                if last + lateness <= now:
                    if tag is not None:
                        sides.setdefault(tag.tag_id, []).append(event)
                    continue
                state.key = key
                before = copy.deepcopy(kept.get((key, start)))
                kept[key, start] = copy.deepcopy(add(before, event.value))
                if last <= now:
                    yield from emitted(key, shown, start)
                else:
                    timers.register(last, key, shown, start)
                timers.register(last + lateness, key, shown, start)
            yield from fired(LAST_MS)

        return self._stream.with_sides(make, kind, sides)
