"""Streams under a key: state, timers, running reductions and aggregates."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tests.programs.oracle.aggregates import aggregated
from tests.programs.oracle.calls import result_of, yielded
from tests.programs.oracle.declared_types import Type, applied
from tests.programs.oracle.events import LAST_MS, Event, Mark, Record
from tests.programs.oracle.keys import hashable, identity
from tests.programs.oracle.state import State
from tests.programs.oracle.streams import Stream, without_sides
from tests.programs.oracle.timers import Context, Timers
from tests.programs.oracle.tolerance import Tolerance
from tests.programs.oracle.windows import WindowedStream
from weir.datastream.functions import FilterFunction, FlatMapFunction, MapFunction, ReduceFunction
from weir.operators.windows.window_assigners import TumblingWindows


class KeyedStream(Stream):
    """Stands in for ``KeyedStream``; ``columns`` are the names of its key's fields, if any."""

    def __init__(
        self,
        stream: Stream,
        key: Callable[[Any], Any],
        key_type: Type | None,
        columns: Sequence[str] | None,
    ) -> None:
        super().__init__(stream.env, self._with_keys, stream.kind)
        self._stream = stream
        self._key = key
        self._key_type = key_type
        self._columns = columns

    def _with_keys(self) -> Iterator[Event]:
        """The events; a key that cannot be is refused, whether it is used or not."""
        return (event for _, _, event in self.by_key())

    def by_key(self) -> Iterator[tuple[Any, Any, Event]]:
        """Identity, key and event; a mark has neither."""
        for event in self._stream.events():
            if isinstance(event, Mark):
                yield None, None, event
                continue
            key = applied(self._key_type, result_of(self._key, copy.deepcopy(event.value)))
            yield identity(hashable(key)), hashable(key), event

    def _under_key(
        self, func: Any, kind: Type | None, made_of: Callable[[Any], Iterable[Any]]
    ) -> Stream:
        sides: dict[str, list[Event]] = {}
        tolerance = Tolerance(sides)

        def make() -> Iterator[Event]:
            state = State()
            func.open(state)
            for state.key, _, event in self.by_key():
                if isinstance(event, Mark):
                    yield event
                    continue
                named = repr(event.value)
                for value in tolerance.results(
                    event, partial(made_of, event.value), state.as_it_is()
                ):
                    yield Record(applied(kind, value, named), event.at)

        return Stream(self.env, make, kind, sides, tolerance)

    def map(self, func: Any, output_type: Type | None = None) -> Stream:
        if not isinstance(func, MapFunction):
            return super().map(func, output_type)
        return self._under_key(func, output_type, lambda row: [result_of(func.map, row)])

    def flat_map(self, func: Any, output_type: Type | None = None) -> Stream:
        if not isinstance(func, FlatMapFunction):
            return super().flat_map(func, output_type)
        return self._under_key(func, output_type, lambda row: yielded(func.flat_map, row))

    def filter(self, func: Any) -> Stream:
        if not isinstance(func, FilterFunction):
            return super().filter(func)

        def kept(row: Any) -> list[Any]:
            given = copy.deepcopy(row)
            return [given] if result_of(func.filter, row) else []

        return self._under_key(func, self.kind, kept)

    def process(self, func: Any, output_type: Type | None = None) -> Stream:
        sides: dict[str, list[Event]] = {}
        tolerance = Tolerance(sides)

        def make() -> Iterator[Event]:
            state, timers = State(), Timers()
            context = Context(timers)
            func.open(state)

            def fired(until: int) -> Iterator[Event]:
                for at, key, _, shown in timers.due(until):
                    state.key = context.key = key
                    context.shown, context.at = shown, at
                    made = yielded(func.on_timer, at, context)
                    yield from without_sides(made, at, output_type, sides)

            for key, shown, event in self.by_key():
                if isinstance(event, Mark):
                    yield from fired(event.ms)
                    continue
                state.key = context.key = key
                context.shown, context.at = shown, event.at
                undo = state.as_it_is(), timers.as_they_are()
                made = tolerance.results(
                    event,
                    partial(yielded, func.process_element, event.value, context),
                    lambda undo=undo: [each() for each in undo],
                )
                yield from without_sides(made, event.at, output_type, sides)
            yield from fired(LAST_MS)

        return self.with_sides(make, output_type, sides, tolerance)

    def reduce(self, func: Any) -> Stream:
        call = func.reduce if isinstance(func, ReduceFunction) else func

        def make() -> Iterator[Event]:
            kept: dict[Any, Any] = {}
            for key, _, event in self.by_key():
                if isinstance(event, Mark):
                    yield event
                    continue
                value = event.value
                if key in kept:
                    value = result_of(call, copy.deepcopy(kept[key]), value)
                kept[key] = applied(self.kind, value)
                yield Record(copy.deepcopy(kept[key]), event.at)

        return Stream(self.env, make, self.kind)

    def sum(self, field: Any = 0) -> Stream:
        return self._field(field, lambda a, b: a + b)

    def min(self, field: Any = 0) -> Stream:
        return self._field(field, lambda a, b: b if b < a else a)

    def max(self, field: Any = 0) -> Stream:
        return self._field(field, lambda a, b: b if b > a else a)

    def _field(self, field: Any, merge: Callable[[Any, Any], Any]) -> Stream:
        def reduce(one: Any, other: Any) -> Any:
            value = merge(one[field], other[field])
            if isinstance(one, dict):
                return {**one, field: value}
            values = list(one)
            values[one.field_names.index(field) if isinstance(field, str) else field] = value
            return values if isinstance(one, list) else tuple.__new__(type(one), values)

        return self.reduce(reduce)

    def min_by(self, field: Any = 0) -> Stream:
        return self.reduce(lambda one, other: other if other[field] < one[field] else one)

    def max_by(self, field: Any = 0) -> Stream:
        return self.reduce(lambda one, other: other if other[field] > one[field] else one)

    def count(self) -> Stream:
        def make() -> Iterator[Event]:
            counts: dict[Any, int] = {}
            for key, shown, event in self.by_key():
                if isinstance(event, Record):
                    counts[key] = counts.get(key, 0) + 1
                    yield Record((shown, counts[key]), event.at)

        return Stream(self.env, make)

    def aggregate_batches(self, **aggregates: tuple[str, str]) -> Stream:
        """After every record; only the last one of each key is defined."""

        def make() -> Iterator[Event]:
            groups: dict[Any, list[Any]] = {}
            for key, shown, event in self.by_key():
                if isinstance(event, Record):
                    rows = groups.setdefault(key, [])
                    rows.append(event.value)
                    yield Record(aggregated(self._columns, shown, rows, {}, aggregates))

        return Stream(self.env, make)

    def window(self, windows: TumblingWindows) -> WindowedStream:
        return WindowedStream(self, self.by_key, self._columns, windows)
