"""``KeyedStream``: a stream partitioned by key, whose functions keep state per key."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from weir.common.typeinfo import TypeInformation
from weir.datastream.checks.arguments import check_function, check_kind, check_result_names
from weir.datastream.keys import KeyArgument, Selector
from weir.datastream.stream import DataStream
from weir.datastream.transformation import (
    Always,
    ColumnUse,
    End,
    OperatorFactory,
    Transformation,
    aggregate_use,
)
from weir.datastream.windowed_stream import WindowedStream
from weir.errors import GraphError
from weir.graph.logical import Partitioning
from weir.operators.aggregates import (
    AggregateSpec,
    CombineFactory,
    RunningAggregateFactory,
    parse_aggregates,
)
from weir.operators.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from weir.operators.keyed import (
    CountOperator,
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    KeyedProcessOperator,
    ReduceOperator,
    field_reducer,
)
from weir.operators.keys import ColumnKeySelector
from weir.operators.windows.window_assigners import TumblingWindows

if TYPE_CHECKING:
    from weir.datastream.environment import StreamExecutionEnvironment


class KeyedStream(DataStream):
    """A stream partitioned by key: equal keys meet in one subtask, which keeps state per key."""

    def __init__(
        self, environment: "StreamExecutionEnvironment", raw: tuple[End, ...], selector: Selector
    ) -> None:
        super().__init__(environment, tuple(end.parted(Partitioning.HASH, selector) for end in raw))
        self._raw = raw
        self._selector = selector

    def key_by(
        self, key_selector: KeyArgument, key_type: TypeInformation | None = None
    ) -> "KeyedStream":
        """Partition by another key instead."""
        return DataStream(self._environment, self._raw).key_by(key_selector, key_type)

    def map(
        self,
        func: MapFunction | Callable[[Any], Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Each record becomes ``func(record)``; a MapFunction may keep state per key."""
        if not isinstance(func, MapFunction):
            return super().map(func, output_type)  # A plain function cannot ask for state.
        check_function(func, MapFunction, "map", "map")
        factory = partial(KeyedMapOperator, self._selector, func, output_type)
        return self._keyed("Map", factory, output_type, function=func)

    def flat_map(
        self,
        func: FlatMapFunction | Callable[[Any], Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Like ``DataStream.flat_map``; a FlatMapFunction may keep state per key."""
        if not isinstance(func, FlatMapFunction):
            return super().flat_map(func, output_type)
        check_function(func, FlatMapFunction, "flat_map", "flat_map")
        factory = partial(KeyedFlatMapOperator, self._selector, func, output_type)
        return self._keyed("Flat Map", factory, output_type, function=func)

    def filter(self, func: FilterFunction | Callable[[Any], bool] | pc.Expression) -> DataStream:
        """Like ``DataStream.filter``; a FilterFunction may keep state per key."""
        if not isinstance(func, FilterFunction):
            return super().filter(func)
        check_function(func, FilterFunction, "filter", "filter")
        factory = partial(KeyedFilterOperator, self._selector, func)
        return self._keyed("Filter", factory, self._type(), function=func)

    def process(  # type: ignore[override]  # As in PyFlink: another function under a key.
        self, func: KeyedProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Any number of records from each record, with state and timers per key."""
        advice = ""
        if isinstance(func, ProcessFunction):
            advice = f"derive {type(func).__name__} from KeyedProcessFunction"
        check_kind(func, KeyedProcessFunction, "process after key_by", advice)
        factory = partial(KeyedProcessOperator, self._selector, func, output_type)
        return self._keyed("Keyed Process", factory, output_type, function=func)

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """Per key, the reduction of all records so far, emitted after every record."""
        check_function(func, ReduceFunction, "reduce", "reduce", takes="two records", count=2)
        return self._reduce("Reduce", func)

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """Per key, the running sum of a field, given by position or name.

        With key columns and a column name: one row (key columns, sum) per key and slice of records.
        Otherwise one record after every record, in that record's form, as in PyFlink.
        """
        return self._running("sum", position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """Per key, the smallest value of a field so far; rows as for ``sum``."""
        return self._running("min", position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """Per key, the largest value of a field so far; rows as for ``sum``."""
        return self._running("max", position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """Per key, the record with a field's smallest value so far, emitted after every record."""
        return self._reduce("Min By", field_reducer("min_by", position_to_min_by))

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """Per key, the record with a field's largest value so far, emitted after every record."""
        return self._reduce("Max By", field_reducer("max_by", position_to_max_by))

    def count(self) -> DataStream:
        """Per key, the number of records so far; not in PyFlink.

        With key columns: one row (key columns, ``count``) per key and slice of records. Otherwise a
        pair (key, count) after every record.
        """
        if isinstance(self._selector, ColumnKeySelector):
            return self._aggregate("Count", parse_aggregates({"count": ("*", "count")}))
        return self._keyed("Count", partial(CountOperator, self._selector))

    def aggregate_batches(self, **aggregates: tuple[str, str]) -> DataStream:
        """Per key, running aggregates over columns: ``total=("amount", "sum"), n=("*", "count")``.

        One row per key and slice of records: the key columns, then one column per aggregate. The
        functions are sum, count, min, max and mean. Not in PyFlink.

        Raises:
            GraphError: ``key_by`` was not given column names, or an aggregate is malformed, or has
                the name of a key column.
        """
        return self._aggregate("Aggregate", parse_aggregates(aggregates))

    def window(self, window_assigner: TumblingWindows) -> WindowedStream:
        """Group the records of each key into windows of time.

        The size may change with a restore: windows that are open keep their bounds.
        """
        if not isinstance(window_assigner, TumblingWindows):
            raise GraphError(
                "window takes TumblingEventTimeWindows.of(...) or "
                f"TumblingProcessingTimeWindows.of(...), not {window_assigner!r}"
            )
        return WindowedStream(self, window_assigner)

    def _running(self, kind: str, position: int | str) -> DataStream:
        if isinstance(self._selector, ColumnKeySelector) and isinstance(position, str):
            return self._aggregate(kind.title(), parse_aggregates({position: (position, kind)}))
        return self._reduce(kind.title(), field_reducer(kind, position))

    def _aggregate(self, name: str, specs: tuple[AggregateSpec, ...]) -> DataStream:
        selector = self._columns()
        check_result_names(selector.column_names, specs)
        return self._combined(
            name,
            CombineFactory(selector, specs),
            RunningAggregateFactory(selector, specs),
            aggregate_use(selector, specs),
        )

    def _columns(self) -> ColumnKeySelector:
        if not isinstance(self._selector, ColumnKeySelector):
            raise GraphError(
                "aggregates over columns need key columns: key_by('name') or key_by(['a', 'b'])"
            )
        return self._selector

    def _keyed(
        self,
        name: str,
        factory: OperatorFactory,
        output_type: TypeInformation | None = None,
        *,
        function: Any = None,
    ) -> DataStream:
        return self._then(name, factory, output_type, keyed=True, function=function)

    def _reduce(
        self, name: str, function: ReduceFunction | Callable[[Any, Any], Any]
    ) -> DataStream:
        kind = self._type()
        return self._keyed(name, partial(ReduceOperator, self._selector, function, kind), kind)

    def _combined(
        self,
        name: str,
        combine: OperatorFactory | None,
        merge: OperatorFactory,
        uses: ColumnUse | None,
    ) -> DataStream:
        """Add an aggregate whose input is combined before it crosses the exchange.

        ``uses`` are the columns that either of both reads, the first one to see them.
        """
        final = Transformation(name, Always(merge), inputs=self._ends, keyed=True, uses=uses)
        if combine is not None:
            combiner = Transformation(
                f"{name}: combine",
                Always(combine),
                inputs=self._raw,
                companion_of=final,
                role="combine",
                uses=uses,
            )
            self._environment.add(combiner)
            final.inputs = (End(combiner).parted(Partitioning.HASH, self._selector),)
        self._environment.add(final)
        return DataStream(self._environment, (End(final),), final)
