"""``DataStream``: each method adds one operator and returns the stream it makes.

A stream is one or several *ends* (outputs of operators, each with its partitioning). Only the
stream that an operator method returned can name or tune that operator: after ``union``,
``rebalance`` or ``key_by`` there is no operator to tune.

A method that is given an object of the wrong class raises ``GraphError``, as does one that tunes an
operator where there is none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import pyarrow.compute as pc

from weir.common.missing_names import MissingNames
from weir.common.typeinfo import TypeInformation
from weir.common.watermark import WatermarkStrategy
from weir.datastream.checks.arguments import (
    check_count,
    check_function,
    check_kind,
    check_parallelism,
    check_tag,
    check_text,
    check_type,
    column_names,
)
from weir.datastream.checks.inputs import (
    check_no_broadcast_state,
    check_sink,
    check_strategy,
    check_stream,
)
from weir.datastream.html import stream_html
from weir.datastream.keys import KeyArgument, row_partitioner, selector_of
from weir.datastream.transformation import (
    Always,
    ColumnUse,
    End,
    OperatorFactory,
    Transformation,
    caller_location,
    common_type,
    timed_use,
)
from weir.errors import GraphError
from weir.graph.logical import Chaining, Partitioning
from weir.ids import OperatorId
from weir.operators.bad_records import make_policy
from weir.operators.expressions import ExpressionMask, check_expression, names_in
from weir.operators.functions import (
    BatchProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
)
from weir.operators.output_tag import OutputTag
from weir.operators.sinks.collect_sink import CollectSink, PrintSink
from weir.operators.sinks.pending_commits import Sink
from weir.operators.stateless import (
    FilterBatchesOperator,
    FilterOperator,
    FlatMapBatchesOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
    ProcessBatchesOperator,
    ProcessOperator,
)
from weir.operators.watermarks import WatermarkFactory

if TYPE_CHECKING:
    from weir.datastream.environment import StreamExecutionEnvironment
    from weir.datastream.keyed_stream import KeyedStream

BatchFunction: TypeAlias = Callable[[Any], Any]

COLLECT_UID = OperatorId("execute-and-collect")


class DataStream(MissingNames):
    """A stream of records between operators."""

    def __init__(
        self,
        environment: "StreamExecutionEnvironment",
        ends: tuple[End, ...],
        owner: Transformation | None = None,
    ) -> None:
        self._environment = environment
        self._ends = ends
        self._owner = owner

    def __iter__(self) -> Any:
        raise GraphError(
            "a stream cannot be looped over: it has no records until the job runs. Call "
            "stream.execute_and_collect() and loop over that, or map a function over the stream"
        )

    def __reduce__(self) -> Any:
        raise GraphError(
            "a stream cannot be used inside a function: functions get records while the job runs, "
            "and streams are built before"
        )

    def __repr__(self) -> str:
        made_by = ", ".join(dict.fromkeys(end.of.label for end in self._ends))
        return f"<{type(self).__name__} of {made_by}>"

    def _repr_html_(self) -> str:
        return stream_html(type(self).__name__, self._ends)

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        """The environment that the stream belongs to."""
        return self._environment

    # The operator that made this stream ---------------------------------------------------------

    def get_name(self) -> str:
        """The name of the operator that made this stream."""
        return self._operator("get_name").name

    def name(self, name: str) -> Self:
        """Name the operator, for display only."""
        check_text(name, "name")
        self._operator("name").name = name
        return self

    def uid(self, uid: str) -> Self:
        """Set the operator's id, under which a restore finds its state, in a changed program too.

        Without it the id comes from the name and the order of operators in the program.
        """
        check_text(uid, "uid")
        self._operator("uid").uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Give the operator a parallelism of its own, at least 1."""
        check_parallelism(parallelism, "set_parallelism")
        self._operator("set_parallelism").parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Give the operator its own number of key groups: the highest parallelism it can have."""
        check_parallelism(max_parallelism, "set_max_parallelism")
        self._operator("set_max_parallelism").max_parallelism = max_parallelism
        return self

    def start_new_chain(self) -> Self:
        """Begin a chain with the operator: it shares no subtask with its input."""
        self._operator("start_new_chain").chaining = Chaining.HEAD
        return self

    def disable_chaining(self) -> Self:
        """Give the operator subtasks of its own, chained with neither input nor output."""
        self._operator("disable_chaining").chaining = Chaining.NEVER
        return self

    def on_error(
        self,
        action: Literal["fail", "skip"] | None = None,
        *,
        side_output: OutputTag | None = None,
        limit: int | None = None,
    ) -> Self:
        """Set the treatment of bad records: those on which the operator's function raises.

        ``"skip"`` leaves them out; ``side_output`` leaves them out and sends each there, as a Row
        of ``record``, ``error``, ``message``, ``operator`` and ``event_time``; ``"fail"`` fails the
        attempt. With ``limit`` the job fails when a subtask has more of them. Not in PyFlink.

        Raises:
            GraphError: The operator's function does not get one record at a time, or the arguments
                contradict each other.
        """
        owner = self._operator("on_error")
        if not owner.per_record:
            raise GraphError(
                f"{owner.name!r} cannot tell bad records apart: on_error belongs to map, flat_map, "
                "filter and process, whose functions get one record at a time. Of a batch that "
                "fails it is not known which record is bad: process it per record, or let the "
                "function sort bad records out"
            )
        owner.on_error = make_policy(action, side_output, limit)
        return self

    # Per record ---------------------------------------------------------------------------------

    def map(
        self,
        func: MapFunction | Callable[[Any], Any],
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Each record becomes ``func(record)``."""
        check_function(func, MapFunction, "map", "map")
        return self._then(
            "Map", partial(MapOperator, func, output_type), output_type, function=func
        )

    def flat_map(
        self,
        func: FlatMapFunction | Callable[[Any], Any],
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Each record becomes the records of the iterable ``func(record)``; None: no records."""
        check_function(func, FlatMapFunction, "flat_map", "flat_map")
        factory = partial(FlatMapOperator, func, output_type)
        return self._then("Flat Map", factory, output_type, function=func)

    def filter(self, func: FilterFunction | Callable[[Any], bool] | pc.Expression) -> "DataStream":
        """The records for which ``func(record)`` is true.

        ``func`` may be an Arrow expression over columns, which PyFlink has not: true of a row, not
        false or null. A Parquet source then passes over row groups whose statistics rule it out.

        Raises:
            GraphError: An expression names a column by its position.
        """
        if isinstance(func, pc.Expression):
            return self._filter_columns(func)
        check_function(func, FilterFunction, "filter", "filter")
        return self._then("Filter", partial(FilterOperator, func), self._type(), function=func)

    def process(
        self, func: ProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Any number of records from each record, to the main output and to side outputs."""
        if isinstance(func, KeyedProcessFunction):
            raise GraphError(
                "a KeyedProcessFunction needs a key: call key_by before process, or derive from "
                "ProcessFunction"
            )
        advice = "a function of one record belongs in map or flat_map" if callable(func) else ""
        check_kind(func, ProcessFunction, "process", advice)
        factory = partial(ProcessOperator, func, output_type)
        return self._then("Process", factory, output_type, function=func)

    # Per batch ----------------------------------------------------------------------------------

    def map_batches(
        self,
        func: MapFunction | BatchFunction,
        output_type: TypeInformation | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> "DataStream":
        """Each ``pyarrow.RecordBatch`` becomes one with as many rows; not in PyFlink.

        ``func`` is a function of the batch, or a MapFunction, whose ``map`` gets the batch: with
        ``columns`` these columns of it, in this order. A Parquet source decodes no columns that
        nothing behind it reads.

        Raises:
            GraphError: ``columns`` is no list of names, each once.
        """
        check_function(func, MapFunction, "map_batches", "map", takes="one batch")
        names = None if columns is None else column_names(columns, "map_batches")
        uses = None if names is None else ColumnUse(names)
        factory = partial(MapBatchesOperator, func, output_type, names)
        return self._then("Map Batches", factory, output_type, uses=uses)

    def filter_batches(self, func: FilterFunction | BatchFunction) -> "DataStream":
        """The rows for which the boolean array ``func(batch)`` is true; not in PyFlink.

        ``func`` is a function of the batch, or a FilterFunction, whose ``filter`` gets the batch.
        """
        check_function(func, FilterFunction, "filter_batches", "filter", takes="one batch")
        return self._then("Filter Batches", partial(FilterBatchesOperator, func), self._type())

    def flat_map_batches(
        self, func: FlatMapFunction | BatchFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Each batch becomes any number of rows, without event time; not in PyFlink.

        ``func`` is a function of the batch, or a FlatMapFunction, whose ``flat_map`` gets it.
        Event time has to be assigned anew with ``assign_timestamps_and_watermarks``.
        """
        check_function(func, FlatMapFunction, "flat_map_batches", "flat_map", takes="one batch")
        factory = partial(FlatMapBatchesOperator, func, output_type)
        return self._then("Flat Map Batches", factory, output_type)

    def process_batches(
        self, func: BatchProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Any number of batches from each batch, to the main output and to side outputs.

        Not in PyFlink.
        """
        check_kind(func, BatchProcessFunction, "process_batches")
        factory = partial(ProcessBatchesOperator, func, output_type)
        return self._then("Process Batches", factory, output_type)

    # Event time, keys, other streams ------------------------------------------------------------

    def assign_timestamps_and_watermarks(
        self, watermark_strategy: WatermarkStrategy
    ) -> "DataStream":
        """Give the records event time, and replace the watermarks from upstream."""
        check_strategy(watermark_strategy)
        factory = WatermarkFactory(watermark_strategy)
        uses = timed_use(watermark_strategy)
        return self._then("Timestamps/Watermarks", factory, self._type(), uses=uses)

    def key_by(
        self, key_selector: KeyArgument, key_type: TypeInformation | None = None
    ) -> "KeyedStream":
        """Partition by key, given by a function or by one or several column names.

        PyFlink takes no column names. ``key_type`` is for functions: columns have types already.
        """
        from weir.datastream.keyed_stream import KeyedStream  # A stream itself: it stands on this.

        ends = tuple(End(end.of, side_tag=end.side_tag) for end in self._ends)
        return KeyedStream(
            self._environment, ends, selector_of(key_selector, key_type, caller_location())
        )

    def union(self, *streams: "DataStream") -> "DataStream":
        """The records of this stream and of ``streams``, in no order between streams."""
        ends = self._ends
        for stream in streams:
            check_stream(stream, DataStream)
            if stream._environment is not self._environment:
                raise GraphError("streams of two environments cannot be joined by union")
            ends += stream._ends
        return DataStream(self._environment, ends)

    def get_side_output(self, output_tag: OutputTag) -> "DataStream":
        """The side output ``output_tag`` of the operator that made this stream."""
        check_tag(output_tag, "get_side_output")
        return DataStream(
            self._environment,
            (End(self._operator("get_side_output"), side_tag=output_tag.tag_id),),
        )

    # Where records go next ----------------------------------------------------------------------

    def forward(self) -> "DataStream":
        """Send records to the next operator's subtask of the same index."""
        return self._parted(Partitioning.FORWARD)

    def rebalance(self) -> "DataStream":
        """Send records round robin to all subtasks of the next operator."""
        return self._parted(Partitioning.REBALANCE)

    def rescale(self) -> "DataStream":
        """Send records round robin to a group of the next operator's subtasks."""
        return self._parted(Partitioning.RESCALE)

    def shuffle(self) -> "DataStream":
        """Send each record to a subtask of the next operator drawn at random."""
        return self._parted(Partitioning.SHUFFLE)

    def broadcast(self, *state_descriptors: Any) -> "DataStream":
        """Send every record to every subtask of the next operator.

        PyFlink also takes descriptors of broadcast state, which Weir does not have.

        Raises:
            GraphError: Descriptors were given.
        """
        check_no_broadcast_state(state_descriptors)
        return self._parted(Partitioning.BROADCAST)

    def global_(self) -> "DataStream":
        """Send every record to the first subtask of the next operator."""
        return self._parted(Partitioning.GLOBAL)

    def partition_custom(
        self,
        partitioner: Partitioner | Callable[[Any, int], int],
        key_selector: KeySelector | Callable[[Any], Any],
    ) -> "DataStream":
        """Send each record to the subtask ``partitioner(key, count)``, at least 0, below count."""
        return self._parted(
            Partitioning.CUSTOM, row_partitioner(partitioner, key_selector, caller_location())
        )

    # Ends ---------------------------------------------------------------------------------------

    def print(self, sink_identifier: str | None = None) -> "DataStreamSink":
        """Print every record on the driver's standard output, once its checkpoint has completed."""
        return self._sink("Print to Std. Out", PrintSink(sink_identifier or ""))

    def sink_to(self, sink: Any) -> "DataStreamSink":
        """Write the records to a sink, a ``Sink`` or any object with ``create_operator_factory()``.

        Raises:
            GraphError: ``sink`` is no sink.
        """
        check_sink(sink)
        return self._sink(getattr(sink, "name", None) or type(sink).__name__, sink)

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> Any:
        """Run the pipeline and return the records of this stream.

        With ``limit`` a list of at most that many, once the job has ended. Otherwise a
        ``CloseableIterator``, which yields them while the job runs: as checkpoints complete, or at
        once where there are none. Closing it ends the job.

        Raises:
            WeirError: As ``env.execute``.
        """
        if limit is not None:
            check_count(limit, "execute_and_collect(limit=...)")
        self._sink("Collect", CollectSink()).uid(COLLECT_UID)
        if limit is None:
            return self._environment.start(job_execution_name)
        result = self._environment.execute(job_execution_name, collect_limit=limit)
        return list(result.collected[:limit])

    # Building -----------------------------------------------------------------------------------

    def _operator(self, method: str) -> Transformation:
        if self._owner is None:
            raise GraphError(
                f"{method}() belongs to an operator, and this stream comes from none (it was made "
                "by key_by, union, get_side_output or a partitioning); call it right after the "
                "operator"
            )
        return self._owner

    def _parted(self, partitioning: Partitioning, selector: Any = None) -> "DataStream":
        return DataStream(
            self._environment, tuple(end.parted(partitioning, selector) for end in self._ends)
        )

    def _type(self) -> TypeInformation | None:
        """The declared type of the records, if all of them have the same."""
        return common_type(self._ends)

    def _then(
        self,
        name: str,
        factory: OperatorFactory,
        output_type: TypeInformation | None = None,
        *,
        keyed: bool = False,
        function: Any = None,
        uses: ColumnUse | None = None,
    ) -> "DataStream":
        check_type(output_type, "output_type")
        made = self._environment.add(
            Transformation(
                name,
                Always(factory),
                inputs=self._ends,
                keyed=keyed,
                per_record=function is not None,
                function=function,
                output_type=output_type,
                uses=uses,
            )
        )
        return DataStream(self._environment, (End(made),), made)

    def _filter_columns(self, expression: pc.Expression) -> "DataStream":
        check_expression(expression)
        uses = ColumnUse(partial(names_in, expression), passes_on=True)
        factory = partial(FilterBatchesOperator, ExpressionMask(expression))
        stream = self._then("Filter", factory, self._type(), uses=uses)
        stream._operator("filter").row_filter = expression
        return stream

    def _sink(self, name: str, sink: Any) -> "DataStreamSink":
        if isinstance(sink, Sink):
            sink = self._environment.placed(sink)
        made = Transformation(
            name,
            Always(sink.create_operator_factory()),
            inputs=self._ends,
            is_sink=True,
            files=sink.commits_to if isinstance(sink, Sink) else None,
        )
        return DataStreamSink(self._environment.add(made))


class DataStreamSink(MissingNames):
    """A sink at the end of a stream, to be named and tuned."""

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    def __repr__(self) -> str:
        return f"<DataStreamSink {self._transformation.label}>"

    def name(self, name: str) -> Self:
        """Name the sink, for display only."""
        check_text(name, "name")
        self._transformation.name = name
        return self

    def uid(self, uid: str) -> Self:
        """Set the sink's id, under which a restore finds its state."""
        check_text(uid, "uid")
        self._transformation.uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Give the sink a parallelism of its own, at least 1."""
        check_parallelism(parallelism, "set_parallelism")
        self._transformation.parallelism = parallelism
        return self

    def disable_chaining(self) -> Self:
        """Give the sink subtasks of its own, not chained with its input."""
        self._transformation.chaining = Chaining.NEVER
        return self
