"""Streams without a key: functions of records and of batches, event time and side outputs."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tests.programs.oracle.calls import result_of, yielded
from tests.programs.oracle.columns import columns_of, kept_by, rows_of_columns
from tests.programs.oracle.declared_types import Type, applied
from tests.programs.oracle.events import FIRST_MS, Event, Mark, Record
from tests.programs.oracle.state import State
from tests.programs.oracle.timers import Context
from tests.programs.oracle.tolerance import Tolerance
from weir.common.watermark import WatermarkStrategy
from weir.datastream import OutputTag
from weir.datastream.functions import FilterFunction, FlatMapFunction, Function, MapFunction


class Sink:
    """The end of a stream."""

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream
        self.uid_ = ""

    def uid(self, uid: str) -> "Sink":
        self.uid_ = uid
        return self

    def set_parallelism(self, _: int) -> "Sink":
        return self


class Pipeline(Protocol):
    """The environment as its streams need it: it has their sinks, and makes streams under a key."""

    sinks: list[Sink]

    def keyed(self, stream: "Stream", key: Any, key_type: Type | None) -> Any:
        """The stream under a key, which is a function or names columns."""


class Stream:
    """Stands in for ``DataStream``: ``make`` gives its events."""

    def __init__(
        self,
        env: Pipeline,
        make: Callable[[], Iterable[Event]],
        kind: Type | None = None,
        sides: dict[str, list[Event]] | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        self.env = env
        self._make = make
        self._events: list[Event] | None = None
        self.kind = kind
        self._sides = sides
        self._tolerance = tolerance

    def events(self) -> list[Event]:
        """All events; the records are the caller's own."""
        if self._events is None:
            self._events = list(self._make())
        return copy.deepcopy(self._events)

    def _then(
        self,
        make: Callable[[], Iterable[Event]],
        kind: Type | None = None,
        sides: dict[str, list[Event]] | None = None,
        tolerance: Tolerance | None = None,
    ) -> "Stream":
        return Stream(self.env, make, kind, sides, tolerance)

    # What does not matter to a result.

    def _same(self, *_: Any) -> "Stream":
        return self

    uid = name = start_new_chain = disable_chaining = _same
    forward = rebalance = rescale = shuffle = global_ = partition_custom = _same

    def set_parallelism(self, parallelism: int) -> "Stream":
        self.parallelism = parallelism
        return self

    def on_error(
        self,
        action: str | None = None,
        *,
        side_output: OutputTag | None = None,
        limit: int | None = None,
    ) -> "Stream":
        assert self._tolerance is not None
        self._tolerance.set(action, side_output)
        return self

    def broadcast(self) -> "Stream":
        """Every record as often as the operator behind it has subtasks."""
        return Broadcast(self)

    # Per record.

    def map(self, func: Any, output_type: Type | None = None) -> "Stream":
        call = func.map if isinstance(func, MapFunction) else func
        return self._mapped(func, output_type, lambda row: [result_of(call, row)])

    def flat_map(self, func: Any, output_type: Type | None = None) -> "Stream":
        call = func.flat_map if isinstance(func, FlatMapFunction) else func
        return self._mapped(func, output_type, lambda row: yielded(call, row))

    def filter(self, func: Any) -> "Stream":
        if isinstance(func, pc.Expression):
            return self.filter_batches(partial(kept_by, func))
        call = func.filter if isinstance(func, FilterFunction) else func

        def kept(row: Any) -> list[Any]:
            given = copy.deepcopy(row)
            return [given] if result_of(call, row) else []

        return self._mapped(func, self.kind, kept)

    def _mapped(
        self, func: Any, kind: Type | None, made_of: Callable[[Any], Iterable[Any]]
    ) -> "Stream":
        sides: dict[str, list[Event]] = {}
        tolerance = Tolerance(sides)

        def make() -> Iterator[Event]:
            self._open(func)
            for event in self.events():
                if isinstance(event, Mark):
                    yield event
                    for side in sides.values():
                        side.append(event)
                    continue
                named = repr(event.value)
                for value in tolerance.results(event, partial(made_of, event.value)):
                    yield Record(applied(kind, value, named), event.at)

        return self._then(make, kind, sides, tolerance)

    def _open(self, func: Any) -> None:
        if isinstance(func, Function):
            func.open(State())

    def process(self, func: Any, output_type: Type | None = None) -> "Stream":
        sides: dict[str, list[Event]] = {}
        tolerance = Tolerance(sides)

        def make() -> Iterator[Event]:
            self._open(func)
            context = Context()
            for event in self.events():
                if isinstance(event, Mark):
                    yield event
                    for side in sides.values():
                        side.append(event)
                    continue
                context.at = event.at
                call = partial(yielded, func.process_element, event.value, context)
                made = tolerance.results(event, call)
                yield from without_sides(made, event.at, output_type, sides)

        return self.with_sides(make, output_type, sides, tolerance)

    def with_sides(
        self,
        make: Callable[[], Iterable[Event]],
        kind: Type | None,
        sides: dict[str, list[Event]],
        tolerance: Tolerance | None = None,
    ) -> "Stream":
        """A stream; as its events are made, those of its side outputs get into ``sides``."""
        return Stream(self.env, make, kind, sides, tolerance)

    def get_side_output(self, tag: OutputTag) -> "Stream":
        def make() -> list[Event]:
            self.events()
            assert self._sides is not None
            return self._sides.get(tag.tag_id, [])

        return self._then(make)

    # Per batch: the user's function sees one batch of all rows.

    def map_batches(
        self, func: Any, output_type: Type | None = None, *, columns: list[str] | None = None
    ) -> "Stream":
        if columns is None:
            return self._batched(func, output_type, keeps_time=True)
        return self._batched(lambda b: func(b.select(columns)), output_type, keeps_time=True)

    def flat_map_batches(self, func: Any, output_type: Type | None = None) -> "Stream":
        return self._batched(func, output_type, keeps_time=False)

    def process_batches(self, func: Any, output_type: Type | None = None) -> "Stream":
        return self._batched(
            lambda batch: list(func.process_batch(batch, None)), output_type, keeps_time=False
        )

    def _batched(self, func: Any, kind: Type | None, *, keeps_time: bool) -> "Stream":
        def make() -> Iterator[Event]:
            records = [event for event in self.events() if isinstance(event, Record)]
            if not records:
                return
            made = result_of(func, columns_of([record.value for record in records], self.kind))
            batches = made if isinstance(made, list) else [made]
            rows = list(chain.from_iterable(rows_of_columns(batch) for batch in batches))
            times = [r.at for r in records] if keeps_time else [None] * len(rows)
            for row, at in zip(rows, times, strict=True):
                yield Record(applied(kind, row), at)

        return self._then(make, kind)

    def filter_batches(self, func: Any) -> "Stream":
        def make() -> Iterator[Event]:
            records = [event for event in self.events() if isinstance(event, Record)]
            if not records:
                return
            columns = columns_of([record.value for record in records], self.kind)
            keeps = result_of(func, columns)
            keeps = keeps.to_pylist() if isinstance(keeps, pa.Array) else list(keeps)
            for record, stays in zip(records, keeps, strict=True):
                if stays:
                    yield record

        return self._then(make, self.kind)

    # Event time, keys, other streams.

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> "Stream":
        def make() -> Iterator[Event]:
            highest = FIRST_MS
            mark = FIRST_MS
            for event in self.events():
                if isinstance(event, Mark):
                    continue
                at = self._time_of(event, strategy)
                yield Record(event.value, at)
                if at is None or strategy.bound_ms is None or strategy.resolution_ms is None:
                    continue
                highest = max(highest, at)
                reached = (highest - strategy.bound_ms) // strategy.resolution_ms
                if reached * strategy.resolution_ms - 1 > mark:
                    mark = reached * strategy.resolution_ms - 1
                    yield Mark(mark)

        return self._then(make, self.kind)

    def _time_of(self, event: Record, strategy: WatermarkStrategy) -> int | None:
        if strategy.column is not None:
            at = event.value[strategy.column]
            return None if at is None else int(at)
        if strategy.assign is None:
            return event.at
        assigned: int = result_of(
            strategy.assign, copy.deepcopy(event.value), FIRST_MS if event.at is None else event.at
        )
        return assigned

    def key_by(self, key: Any, key_type: Type | None = None) -> Any:
        return self.env.keyed(self, key, key_type)

    def union(self, *streams: "Stream") -> "Stream":
        all_of = [self, *streams]
        kinds = [stream.kind for stream in all_of]

        def make() -> Iterator[Event]:
            for stream in all_of:
                yield from (e for e in stream.events() if isinstance(e, Record))

        return self._then(make, kinds[0] if kinds.count(kinds[0]) == len(kinds) else None)

    def sink_to(self, sink: Any) -> Sink:
        made = Sink(self)
        self.env.sinks.append(made)
        return made


class Broadcast(Stream):
    """A broadcast stream, before the operator that says how often."""

    def __init__(self, origin: Stream) -> None:
        super().__init__(origin.env, lambda: (), origin.kind)
        self._origin = origin
        self._readers: list[Stream] = []

    def _then(
        self,
        make: Callable[[], Iterable[Event]],
        kind: Type | None = None,
        sides: dict[str, list[Event]] | None = None,
        tolerance: Tolerance | None = None,
    ) -> Stream:
        reader = Stream(self.env, make, kind, sides, tolerance)
        self._readers.append(reader)
        return reader

    def events(self) -> list[Event]:
        """As often as its one reader has subtasks."""
        (reader,) = self._readers
        records = [e for e in self._origin.events() if isinstance(e, Record)]
        return [copy.deepcopy(e) for e in records for _ in range(reader.parallelism)]


def without_sides(
    made: Iterable[Any], at: int | None, kind: Type | None, sides: dict[str, list[Event]]
) -> Iterator[Event]:
    """The records that a function made; those with a tag get into ``sides``."""
    for value in made:
        if type(value) is tuple and len(value) == 2 and isinstance(value[0], OutputTag):
            tag = value[0]
            side = sides.setdefault(tag.tag_id, [])
            side.append(Record(applied(tag.type_info, value[1]), at))
        else:
            yield Record(applied(kind, value), at)
