"""What a program means: a second, plain reading of the user's API.

Everything is evaluated in one list per stream, record by record. A value is copied whenever it
changes hands: from an operator to each of its consumers, into state and out of it. A declared type
is applied where it is declared. There are no slices, no subtasks, no channels and no snapshots; the
only things taken over from Weir are values that mean nothing by themselves (rows, tags, window
assigners, watermark strategies).

A stream is a list of ``Record`` and ``Mark``. A mark is a watermark; there are marks only where the
watermark strategy has a resolution, so that it is known where they come.
"""

import copy
import datetime as dt
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from itertools import chain, count
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tests.programs.build import compiled, namespace
from weir.common import Row
from weir.common.row import rows_of
from weir.common.watermark import WatermarkStrategy
from weir.datastream import OutputTag, TimeDomain, TimeWindow
from weir.datastream.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeySelector,
    MapFunction,
    ReduceFunction,
    WindowFunction,
)
from weir.operators.window_assigners import TumblingWindows

LAST_MS = 2**63 - 1
FIRST_MS = -(2**63)
TIMERS_MAX = 2_000  # More than any program fires.


class Refused(Exception):
    """The program must fail; ``names`` is what the error must speak of."""

    def __init__(self, why: str, names: str = "") -> None:
        super().__init__(why)
        self.names = names


@dataclass(slots=True)
class Record:
    """A value with its event time."""

    value: Any
    at: int | None = None


@dataclass(slots=True)
class Mark:
    """A watermark."""

    ms: int


Event: TypeAlias = Record | Mark


def evaluate(text: str) -> dict[str, list[Any]]:
    """The records that each sink of a program must get, in one order that is right.

    Raises:
        Refused: The program must fail.
    """
    env = Environment()
    names = {**namespace(), **_STAND_INS, "env": env}
    try:
        exec(compiled(text), names)
    except Refused:
        raise
    return {
        sink.uid_: [copy.deepcopy(e.value) for e in sink.stream.events() if isinstance(e, Record)]
        for sink in env.sinks
    }


# Types ------------------------------------------------------------------------------------------


class Misfit(Exception):
    """A value does not fit a declared type."""


_INTEGERS = {"BYTE": 8, "SHORT": 16, "INT": 32, "LONG": 64}
_EXACTLY: dict[str, type] = {"BIG_INT": int, "BIG_DEC": Decimal}
_INSTANCES: dict[str, type] = {"STRING": str, "CHAR": str, "BYTES": bytes, "SQL_TIME": dt.time}


@dataclass(frozen=True)
class Type:
    """A type of ``Types``."""

    name: str
    inner: tuple["Type", ...] = ()
    fields: tuple[str, ...] | None = None

    def put(self, value: Any) -> Any:
        """The value as this type has it.

        Raises:
            Misfit: It does not fit.
        """
        if value is None:
            return None
        put = getattr(self, f"_put_{self.name.lower()}", None)
        return self._put_basic(value) if put is None else put(value)

    def _demand(self, fits: bool, value: Any) -> None:
        if not fits:
            raise Misfit(f"{value!r} does not fit {self.name}")

    def _put_basic(self, value: Any) -> Any:
        if self.name in _INTEGERS:
            bits = _INTEGERS[self.name]
            self._demand(isinstance(value, int | np.integer) and type(value) is not bool, value)
            self._demand(-(1 << (bits - 1)) <= value < 1 << (bits - 1), value)
            return int(value)
        if self.name in ("FLOAT", "DOUBLE"):
            self._demand(isinstance(value, float | int | np.number), value)
            self._demand(type(value) is not bool, value)
            return float(np.float32(value)) if self.name == "FLOAT" else float(value)
        if self.name in _EXACTLY:
            self._demand(type(value) is _EXACTLY[self.name], value)
            return value
        self._demand(isinstance(value, _INSTANCES[self.name]), value)
        self._demand(self.name != "CHAR" or len(value) == 1, value)
        return value

    def _put_boolean(self, value: Any) -> bool:
        self._demand(isinstance(value, bool | np.bool_), value)
        return bool(value)

    def _put_sql_date(self, value: Any) -> Any:
        self._demand(isinstance(value, dt.date) and not isinstance(value, dt.datetime), value)
        return value

    def _put_sql_timestamp(self, value: Any) -> Any:
        self._demand(isinstance(value, dt.datetime) and value.utcoffset() is None, value)
        return value

    def _put_instant(self, value: Any) -> Any:
        self._demand(isinstance(value, dt.datetime) and value.utcoffset() is not None, value)
        return value.astimezone(dt.UTC)

    def _put_pickled_byte_array(self, value: Any) -> Any:
        return value

    def _put_list(self, value: Any) -> list[Any]:
        self._demand(isinstance(value, list | tuple), value)
        return [self.inner[0].put(item) for item in value]

    def _put_map(self, value: Any) -> dict[Any, Any]:
        self._demand(isinstance(value, Mapping), value)
        self._demand(None not in value, value)
        keys, values = self.inner
        return {keys.put(key): values.put(item) for key, item in value.items()}

    def _put_tuple(self, value: Any) -> Any:
        return self._row(value)

    def _put_row(self, value: Any) -> Any:
        return self._row(value)

    def _put_row_named(self, value: Any) -> Any:
        return self._row(value)

    def _row(self, value: Any) -> Any:
        own = None
        if isinstance(value, Mapping):
            own, value = tuple(value), tuple(value.values())
        elif isinstance(value, Row):
            own = value.field_names
        self._demand(isinstance(value, tuple | list), value)
        self._demand(len(value) == len(self.inner), value)
        if own is not None and self.fields is not None and own != self.fields:
            self._demand(set(own) == set(self.fields), value)
            value = [value[own.index(name)] for name in self.fields]
        values = tuple(kind.put(item) for kind, item in zip(self.inner, value, strict=True))
        if self.name == "TUPLE":
            return values
        return Row(*values) if self.fields is None else rows_of(self.fields, [values])[0]


class Types:
    """Stands in for ``weir.common.Types``."""

    LIST = staticmethod(lambda item: Type("LIST", (item,)))
    PRIMITIVE_ARRAY = staticmethod(
        lambda item: Type("BYTES") if item.name == "BYTE" else Type("LIST", (item,))
    )
    MAP = staticmethod(lambda key, value: Type("MAP", (key, value)))
    TUPLE = staticmethod(lambda kinds: Type("TUPLE", tuple(kinds)))
    ROW = staticmethod(lambda kinds: Type("ROW", tuple(kinds)))
    ROW_NAMED = staticmethod(lambda names, kinds: Type("ROW_NAMED", tuple(kinds), tuple(names)))


for _name in (
    *("STRING", "BYTE", "BOOLEAN", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR", "BIG_INT"),
    *("BIG_DEC", "INSTANT", "SQL_DATE", "SQL_TIME", "SQL_TIMESTAMP"),
    "PICKLED_BYTE_ARRAY",
):
    setattr(Types, _name, staticmethod(lambda name=_name: Type(name)))


def applied(kind: Type | None, value: Any, names: str = "") -> Any:
    """A copy of the value, of the declared type where one is declared.

    Raises:
        Refused: It does not fit.
    """
    if kind is None:
        return copy.deepcopy(value)
    try:
        return copy.deepcopy(kind.put(value))
    except Misfit as error:
        raise Refused(str(error), names) from error


# Keys -------------------------------------------------------------------------------------------


def identity(key: Any) -> Any:
    """What tells keys apart: 1, True, 1.0 and Decimal(1) are four of them.

    Raises:
        Refused: It cannot be a key.
    """
    kind = type(key)
    if kind is tuple:
        return tuple(identity(item) for item in key)
    if kind is float:
        if math.isnan(key):
            raise Refused("NaN cannot be a key")
        return ("float", 0.0 if key == 0 else key)
    if kind is Decimal:
        return ("Decimal", 0 if key == 0 else key.normalize())
    if kind is dt.datetime and key.utcoffset() is not None:
        return ("aware", key.astimezone(dt.UTC).isoformat())
    if not isinstance(key, type(None) | bool | int | str | bytes | dt.date | Enum) and (
        kind.__name__ != "UUID"
    ):
        raise Refused(f"{key!r} cannot be a key")
    return (kind.__name__, key)


# State ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descriptor:
    """Stands in for a state descriptor."""

    kind: str
    name: str
    type: Type
    key_type: Type | None = None
    function: Any = None


def value_descriptor(name: str, kind: Type) -> Descriptor:
    """Stands in for ``ValueStateDescriptor``."""
    return Descriptor("value", name, kind)


def list_descriptor(name: str, kind: Type) -> Descriptor:
    """Stands in for ``ListStateDescriptor``."""
    return Descriptor("list", name, kind)


def map_descriptor(name: str, key: Type, value: Type) -> Descriptor:
    """Stands in for ``MapStateDescriptor``."""
    return Descriptor("map", name, value, key)


def reducing_descriptor(name: str, function: Any, kind: Type) -> Descriptor:
    """Stands in for ``ReducingStateDescriptor``."""
    return Descriptor("reducing", name, kind, function=getattr(function, "reduce", function))


def aggregating_descriptor(name: str, function: Any, kind: Type) -> Descriptor:
    """Stands in for ``AggregatingStateDescriptor``."""
    return Descriptor("aggregating", name, kind, function=function)


class State:
    """All states of one function: values by name and key."""

    def __init__(self) -> None:
        self.key: Any = None
        self.values: dict[tuple[str, Any], Any] = {}

    def get_state(self, descriptor: Descriptor) -> "Kept":
        """The handle of a state."""
        return Kept(self, descriptor)

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state

    def get_index_of_this_subtask(self) -> int:
        """There is one."""
        return 0


class Kept:
    """One state of the current key, of any kind: what goes in and comes out is copied."""

    def __init__(self, state: State, descriptor: Descriptor) -> None:
        self._state = state
        self._of = descriptor

    @property
    def _slot(self) -> tuple[str, Any]:
        return self._of.name, self._state.key

    def _load(self, default: Any = None) -> Any:
        return copy.deepcopy(self._state.values.get(self._slot, default))

    def _store(self, value: Any) -> None:
        self._state.values[self._slot] = value

    def clear(self) -> None:
        self._state.values.pop(self._slot, None)

    # Value.

    def value(self) -> Any:
        return self._load()

    def update(self, value: Any) -> None:
        if self._of.kind == "list":
            value = [applied(self._of.type, item) for item in value] or None
        else:
            value = applied(self._of.type, value)
        if value is None:
            self.clear()
        else:
            self._store(value)

    # List, map.

    def get(self, key: Any = None) -> Any:
        match self._of.kind:
            case "list":
                return self._load([])
            case "map":
                return self._load({}).get(key)
            case "aggregating":
                kept = self._load()
                return None if kept is None else self._of.function.get_result(kept)
        return self._load()

    def add(self, value: Any) -> None:
        kept, function = self._load(), self._of.function
        match self._of.kind:
            case "list":
                self._store([*(kept or []), applied(self._of.type, value)])
            case "aggregating":
                kept = function.create_accumulator() if kept is None else kept
                self._store(applied(self._of.type, function.add(value, kept)))
            case "reducing":
                value = value if kept is None else function(kept, value)
                self._store(applied(self._of.type, value))

    def add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def put(self, key: Any, value: Any) -> None:
        assert self._of.key_type is not None
        kept = self._load({})
        kept[applied(self._of.key_type, key)] = applied(self._of.type, value)
        self._store(kept)

    def remove(self, key: Any) -> None:
        kept = self._load({})
        kept.pop(key, None)
        self._store(kept)

    def contains(self, key: Any) -> bool:
        return key in self._load({})

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._load({}).items())

    def keys(self) -> Iterator[Any]:
        return iter(self._load({}))

    def values(self) -> Iterator[Any]:
        return iter(self._load({}).values())

    def is_empty(self) -> bool:
        return not self._load({})


# Timers -----------------------------------------------------------------------------------------


class Timers:
    """Timers of event time by key: one at a time, in the order of time, then of registration."""

    def __init__(self) -> None:
        self._numbers = count()
        self._heap: list[tuple[int, int, Any, Any, Any]] = []
        self._alive: dict[tuple[int, Any, Any], int] = {}

    def register(self, at: int, key: Any, shown: Any, namespace: Any = None) -> None:
        """Fire once the watermark is at ``at``."""
        name = (at, key, namespace)
        if name not in self._alive:
            self._alive[name] = number = next(self._numbers)
            heapq.heappush(self._heap, (at, number, key, namespace, shown))

    def delete(self, at: int, key: Any) -> None:
        """Do not fire."""
        self._alive.pop((at, key, None), None)

    def due(self, until: int) -> Iterator[tuple[int, Any, Any, Any]]:
        """Time, key, namespace and the key as it was, of one timer after the other."""
        for fired in count():
            while (
                self._heap
                and self._alive.get((self._heap[0][0], self._heap[0][2], self._heap[0][3]))
                != self._heap[0][1]
            ):
                heapq.heappop(self._heap)
            if not self._heap or self._heap[0][0] > until:
                return
            assert fired < TIMERS_MAX, "the program fires timers for ever"
            at, _, key, namespace, shown = heapq.heappop(self._heap)
            del self._alive[at, key, namespace]
            yield at, key, namespace, shown


class Context:
    """What a process function is given, and its timer service."""

    def __init__(self, timers: Timers | None = None) -> None:
        self._timers = timers
        self.key: Any = None
        self.shown: Any = None
        self.at: int | None = None

    def timer_service(self) -> "Context":
        return self

    def timestamp(self) -> int | None:
        return self.at

    def get_current_key(self) -> Any:
        return self.shown

    def time_domain(self) -> TimeDomain:
        return TimeDomain.EVENT_TIME

    def register_event_time_timer(self, at: int) -> None:
        assert self._timers is not None
        self._timers.register(at, self.key, self.shown)

    def delete_event_time_timer(self, at: int) -> None:
        assert self._timers is not None
        self._timers.delete(at, self.key)


@dataclass
class WindowContext:
    """What a window function is given."""

    current: TimeWindow
    state: State

    def window(self) -> TimeWindow:
        return self.current

    def global_state(self) -> State:
        return self.state


# Streams ----------------------------------------------------------------------------------------


class Environment:
    """Stands in for ``StreamExecutionEnvironment``."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def from_collection(self, rows: Iterable[Any], type_info: Type | None = None) -> "Stream":
        return Stream(self, Collection(rows, type_info).events, type_info)

    def from_source(self, source: Any, strategy: WatermarkStrategy, name: str) -> "Stream":
        stream = Stream(self, source.events, source.type_info)
        if strategy == WatermarkStrategy.no_watermarks():
            return stream
        return stream.assign_timestamps_and_watermarks(strategy)


class Collection:
    """Stands in for every source: its records in order."""

    def __init__(self, rows: Iterable[Any], type_info: Type | None = None) -> None:
        self.rows = list(rows)
        self.type_info = type_info

    def events(self) -> Iterator[Event]:
        for row in self.rows:
            yield Record(applied(self.type_info, row))


def generated(
    function: Callable[[Any], Any],
    count: int,
    *,
    vectorised: bool = False,
    type_info: Type | None = None,
) -> Collection:
    """Stands in for ``DataGeneratorSource``."""
    if vectorised:
        return Collection(_rows_of_columns(function(np.arange(count))), type_info)
    return Collection([copy.deepcopy(_user(function, i)) for i in range(count)], type_info)


def numbers(start: int, end: int) -> Collection:
    """Stands in for ``NumberSequenceSource``."""
    return Collection(range(start, end + 1))


def parquet(path: Any, columns: Any = None, *, split_by: str = "row_group") -> Collection:
    """Stands in for ``ParquetSource``."""
    import pyarrow.parquet as pq

    return Collection(
        chain.from_iterable(_rows_of_columns(b) for b in pq.read_table(path).to_batches())
    )


def _rows_of_columns(columns: pa.RecordBatch) -> list[Any]:
    values = zip(*(column.to_pylist() for column in columns.columns), strict=True)
    return list(rows_of(columns.schema.names, values))


def _user(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function, copied; what it yields is copied as it is yielded.

    Raises:
        Refused: It raised.
    """
    try:
        return function(*arguments)
    except Refused:
        raise
    except Exception as error:
        named = repr(arguments[0]) if arguments else ""
        raise Refused(f"{type(error).__name__}: {error}", named) from error


def _yielded(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """Every value that a user's function yields, copied at that moment."""
    made = iter(_user(function, *arguments) or ())
    while True:
        try:
            value = next(made)
        except StopIteration:
            return
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}", repr(arguments[0])) from error
        yield copy.deepcopy(value)


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


class Stream:
    """Stands in for ``DataStream``: ``make`` gives its events."""

    def __init__(
        self,
        env: Environment,
        make: Callable[[], Iterable[Event]],
        kind: Type | None = None,
        sides: dict[str, list[Event]] | None = None,
    ) -> None:
        self._env = env
        self._make = make
        self._events: list[Event] | None = None
        self.kind = kind
        self._sides = sides

    def events(self) -> list[Event]:
        """All events; the records are the caller's own."""
        if self._events is None:
            self._events = list(self._make())
        return copy.deepcopy(self._events)

    def _then(self, make: Callable[[], Iterable[Event]], kind: Type | None = None) -> "Stream":
        return Stream(self._env, make, kind)

    # What does not matter to a result.

    def _same(self, *_: Any) -> "Stream":
        return self

    uid = name = start_new_chain = disable_chaining = _same
    forward = rebalance = rescale = shuffle = global_ = partition_custom = _same
    copies = 1

    def set_parallelism(self, parallelism: int) -> "Stream":
        self.parallelism = parallelism
        return self

    def broadcast(self) -> "Stream":
        """Every record as often as the operator behind it has subtasks."""
        return Broadcast(self)

    # Per record.

    def map(self, func: Any, output_type: Type | None = None) -> "Stream":
        call = func.map if isinstance(func, MapFunction) else func
        return self._mapped(func, output_type, lambda row: [_user(call, row)])

    def flat_map(self, func: Any, output_type: Type | None = None) -> "Stream":
        call = func.flat_map if isinstance(func, FlatMapFunction) else func
        return self._mapped(func, output_type, lambda row: _yielded(call, row))

    def filter(self, func: Any) -> "Stream":
        call = func.filter if isinstance(func, FilterFunction) else func

        def kept(row: Any) -> list[Any]:
            given = copy.deepcopy(row)
            return [given] if _user(call, row) else []

        return self._mapped(func, self.kind, kept)

    def _mapped(
        self, func: Any, kind: Type | None, made_of: Callable[[Any], Iterable[Any]]
    ) -> "Stream":
        def make() -> Iterator[Event]:
            self._open(func)
            for event in self.events():
                if isinstance(event, Mark):
                    yield event
                    continue
                named = repr(event.value)
                for value in made_of(event.value):
                    yield Record(applied(kind, value, named), event.at)

        return self._then(make, kind)

    def _open(self, func: Any) -> None:
        if isinstance(func, Function):
            func.open(State())

    def process(self, func: Any, output_type: Type | None = None) -> "Stream":
        sides: dict[str, list[Event]] = {}

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
                made = _yielded(func.process_element, event.value, context)
                yield from _sorted_out(made, event.at, output_type, sides)

        return self._with_sides(make, output_type, sides)

    def _with_sides(
        self, make: Callable[[], Iterable[Event]], kind: Type | None, sides: dict[str, list[Event]]
    ) -> "Stream":
        return Stream(self._env, make, kind, sides)

    def get_side_output(self, tag: OutputTag) -> "Stream":
        def make() -> list[Event]:
            self.events()
            assert self._sides is not None
            return self._sides.get(tag.tag_id, [])

        return self._then(make)

    # Per batch: the user's function sees one batch of all rows.

    def map_batches(self, func: Any, output_type: Type | None = None) -> "Stream":
        return self._batched(func, output_type, keeps_time=True)

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
            made = _user(func, _columns_of([record.value for record in records]))
            batches = made if isinstance(made, list) else [made]
            rows = list(chain.from_iterable(_rows_of_columns(batch) for batch in batches))
            times = [r.at for r in records] if keeps_time else [None] * len(rows)
            for row, at in zip(rows, times, strict=True):
                yield Record(applied(kind, row), at)

        return self._then(make, kind)

    def filter_batches(self, func: Any) -> "Stream":
        def make() -> Iterator[Event]:
            records = [event for event in self.events() if isinstance(event, Record)]
            if not records:
                return
            columns = _columns_of([record.value for record in records])
            keeps = _user(func, columns)
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
        assigned: int = _user(
            strategy.assign, copy.deepcopy(event.value), FIRST_MS if event.at is None else event.at
        )
        return assigned

    def key_by(self, key: Any, key_type: Type | None = None) -> "KeyedStream":
        return KeyedStream(self, _key_function(key), key_type, key)

    def union(self, *streams: "Stream") -> "Stream":
        all_of = [self, *streams]
        kinds = [stream.kind for stream in all_of]

        def make() -> Iterator[Event]:
            for stream in all_of:
                yield from (e for e in stream.events() if isinstance(e, Record))

        return self._then(make, kinds[0] if kinds.count(kinds[0]) == len(kinds) else None)

    def sink_to(self, sink: Any) -> Sink:
        made = Sink(self)
        self._env.sinks.append(made)
        return made


class Broadcast(Stream):
    """A broadcast stream, before the operator that says how often."""

    def __init__(self, origin: Stream) -> None:
        super().__init__(origin._env, lambda: (), origin.kind)
        self._origin = origin
        self._readers: list[Stream] = []

    def _then(self, make: Callable[[], Iterable[Event]], kind: Type | None = None) -> Stream:
        reader = Stream(self._env, make, kind)
        self._readers.append(reader)
        return reader

    def events(self) -> list[Event]:
        """As often as its one reader has subtasks."""
        (reader,) = self._readers
        records = [e for e in self._origin.events() if isinstance(e, Record)]
        return [copy.deepcopy(e) for e in records for _ in range(reader.parallelism)]


def _sorted_out(
    made: Iterable[Any], at: int | None, kind: Type | None, sides: dict[str, list[Event]]
) -> Iterator[Event]:
    for value in made:
        if type(value) is tuple and len(value) == 2 and isinstance(value[0], OutputTag):
            tag = value[0]
            side = sides.setdefault(tag.tag_id, [])
            side.append(Record(applied(tag.type_info, value[1]), at))
        else:
            yield Record(applied(kind, value), at)


def _columns_of(rows: Sequence[Any]) -> pa.RecordBatch:
    dicts = [row if isinstance(row, dict) else row.as_dict() for row in rows]
    if any(row.keys() != dicts[0].keys() for row in dicts):
        raise Refused("records whose fields differ cannot become columns")
    return pa.RecordBatch.from_pylist(dicts)


def _key_function(key: Any) -> Callable[[Any], Any]:
    if isinstance(key, KeySelector):
        return key.get_key
    if callable(key):
        function: Callable[[Any], Any] = key
        return function
    names = (key,) if isinstance(key, str) else tuple(key)
    if len(names) == 1:
        return lambda row: row[names[0]]
    return lambda row: tuple(row[name] for name in names)


class KeyedStream(Stream):
    """Stands in for ``KeyedStream``."""

    def __init__(
        self, stream: Stream, key: Callable[[Any], Any], key_type: Type | None, given: Any
    ) -> None:
        super().__init__(stream._env, self._with_keys, stream.kind)
        self._stream = stream
        self._key = key
        self._key_type = key_type
        self._columns = (
            [given] if isinstance(given, str) else list(given) if isinstance(given, list) else None
        )

    def _with_keys(self) -> Iterator[Event]:
        """The events; a key that cannot be is refused, whether it is used or not."""
        return (event for _, _, event in self._keyed())

    def _keyed(self) -> Iterator[tuple[Any, Any, Event]]:
        """Identity, key and event; a mark has neither."""
        for event in self._stream.events():
            if isinstance(event, Mark):
                yield None, None, event
                continue
            key = applied(self._key_type, _user(self._key, copy.deepcopy(event.value)))
            yield identity(_hashable(key)), _hashable(key), event

    def _under_key(
        self, func: Any, kind: Type | None, made_of: Callable[[Any], Iterable[Any]]
    ) -> Stream:
        def make() -> Iterator[Event]:
            state = State()
            func.open(state)
            for state.key, _, event in self._keyed():
                if isinstance(event, Mark):
                    yield event
                    continue
                named = repr(event.value)
                for value in made_of(event.value):
                    yield Record(applied(kind, value, named), event.at)

        return Stream(self._env, make, kind)

    def map(self, func: Any, output_type: Type | None = None) -> Stream:
        if not isinstance(func, MapFunction):
            return super().map(func, output_type)
        return self._under_key(func, output_type, lambda row: [_user(func.map, row)])

    def flat_map(self, func: Any, output_type: Type | None = None) -> Stream:
        if not isinstance(func, FlatMapFunction):
            return super().flat_map(func, output_type)
        return self._under_key(func, output_type, lambda row: _yielded(func.flat_map, row))

    def filter(self, func: Any) -> Stream:
        if not isinstance(func, FilterFunction):
            return super().filter(func)

        def kept(row: Any) -> list[Any]:
            given = copy.deepcopy(row)
            return [given] if _user(func.filter, row) else []

        return self._under_key(func, self.kind, kept)

    def process(self, func: Any, output_type: Type | None = None) -> Stream:
        sides: dict[str, list[Event]] = {}

        def make() -> Iterator[Event]:
            state, timers = State(), Timers()
            context = Context(timers)
            func.open(state)

            def fired(until: int) -> Iterator[Event]:
                for at, key, _, shown in timers.due(until):
                    state.key = context.key = key
                    context.shown, context.at = shown, at
                    made = _yielded(func.on_timer, at, context)
                    yield from _sorted_out(made, at, output_type, sides)

            for key, shown, event in self._keyed():
                if isinstance(event, Mark):
                    yield from fired(event.ms)
                    continue
                state.key = context.key = key
                context.shown, context.at = shown, event.at
                made = _yielded(func.process_element, event.value, context)
                yield from _sorted_out(made, event.at, output_type, sides)
            yield from fired(LAST_MS)

        return self._with_sides(make, output_type, sides)

    def reduce(self, func: Any) -> Stream:
        call = func.reduce if isinstance(func, ReduceFunction) else func

        def make() -> Iterator[Event]:
            kept: dict[Any, Any] = {}
            for key, _, event in self._keyed():
                if isinstance(event, Mark):
                    yield event
                    continue
                value = event.value
                if key in kept:
                    value = _user(call, copy.deepcopy(kept[key]), value)
                kept[key] = applied(self.kind, value)
                yield Record(copy.deepcopy(kept[key]), event.at)

        return Stream(self._env, make, self.kind)

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
            for key, shown, event in self._keyed():
                if isinstance(event, Record):
                    counts[key] = counts.get(key, 0) + 1
                    yield Record((shown, counts[key]), event.at)

        return Stream(self._env, make)

    def aggregate_batches(self, **aggregates: tuple[str, str]) -> Stream:
        """After every record; only the last one of each key is defined."""

        def make() -> Iterator[Event]:
            groups: dict[Any, list[Any]] = {}
            for key, shown, event in self._keyed():
                if isinstance(event, Record):
                    rows = groups.setdefault(key, [])
                    rows.append(event.value)
                    yield Record(self._aggregated(shown, rows, {}, aggregates))

        return Stream(self._env, make)

    def _aggregated(
        self,
        key: Any,
        rows: list[Any],
        bounds: dict[str, int],
        aggregates: Mapping[str, tuple[str, str]],
    ) -> Any:
        assert self._columns is not None
        keys = (key,) if len(self._columns) == 1 else key
        named = dict(zip(self._columns, keys, strict=True)) | bounds
        for name, (column, function) in aggregates.items():
            if column == "*":
                named[name] = len(rows)
                continue
            values = [row[column] for row in rows if row[column] is not None]
            named[name] = _FUNCTIONS[function](values) if values or function == "count" else None
        return rows_of(tuple(named), [tuple(named.values())])[0]

    def window(self, windows: TumblingWindows) -> "WindowedStream":
        return WindowedStream(self, windows)


_FUNCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "count": len,
    "min": min,
    "max": max,
    "mean": lambda values: sum(values) / len(values),
}


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, Row | list) else value


class WindowedStream:
    """Stands in for ``WindowedStream``."""

    def __init__(self, stream: KeyedStream, windows: TumblingWindows) -> None:
        self._stream = stream
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
            return row if kept is None else _user(call, kept, row)

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
            return applied(accumulator_type, _user(func.add, row, kept))

        return self._made(add, lambda kept: [func.get_result(kept)], window_function, output_type)

    def apply(self, func: Any, output_type: Type | None = None) -> Stream:
        return self._made(lambda kept, row: [*(kept or []), row], list, func, output_type)

    process = apply

    def aggregate_batches(self, **aggregates: tuple[str, str]) -> Stream:
        stream, size = self._stream, self._windows.size_ms

        class Aggregating(WindowFunction[Any, Any, Any]):
            def apply(self, key: Any, window: TimeWindow, inputs: Any) -> list[Any]:
                bounds = {"window_start": window.start, "window_end": window.start + size}
                return [stream._aggregated(key, list(inputs), bounds, aggregates)]

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
            for gather in (function,):
                if isinstance(gather, Function):
                    gather.open(state)

            def emitted(key: Any, shown: Any, start: int) -> Iterator[Event]:
                if (key, start) not in kept:
                    return
                window = TimeWindow(start, start + size)
                made: Iterable[Any] = elements_of(copy.deepcopy(kept[key, start]))
                state.key = key
                if isinstance(function, WindowFunction):
                    made = _yielded(function.apply, shown, window, made)
                elif function is not None:
                    made = _yielded(function.process, shown, WindowContext(window, state), made)
                yield from _sorted_out(made, start + size - 1, kind, sides)

            def fired(until: int) -> Iterator[Event]:
                for at, key, start, shown in timers.due(until):
                    if at == start + size - 1:
                        yield from emitted(key, shown, start)
                    if at == start + size - 1 + lateness:
                        kept.pop((key, start), None)

            for key, shown, event in self._stream._keyed():
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

        return self._stream._with_sides(make, kind, sides)


_STAND_INS: dict[str, Any] = {
    "Types": Types,
    "ValueStateDescriptor": value_descriptor,
    "ListStateDescriptor": list_descriptor,
    "MapStateDescriptor": map_descriptor,
    "ReducingStateDescriptor": reducing_descriptor,
    "AggregatingStateDescriptor": aggregating_descriptor,
    "DataGeneratorSource": generated,
    "NumberSequenceSource": numbers,
    "ParquetSource": parquet,
    "CollectionSource": Collection,
}
