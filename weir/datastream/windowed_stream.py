"""``WindowedStream``: the records of each key and window, between ``window`` and its function."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from weir.common.abstract import check_complete
from weir.common.missing_names import MissingNames
from weir.common.time import milliseconds_of
from weir.common.typeinfo import TypeInformation
from weir.common.watermark import Length
from weir.datastream.checks.arguments import (
    check_function,
    check_kind,
    check_result_names,
    check_tag,
)
from weir.datastream.transformation import aggregate_use
from weir.errors import GraphError
from weir.operators.aggregates import parse_aggregates
from weir.operators.functions import (
    AggregateFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from weir.operators.output_tag import OutputTag
from weir.operators.windows.window_aggregates import (
    WINDOW_END,
    WINDOW_START,
    WindowAggregateFactory,
    WindowCombineFactory,
)
from weir.operators.windows.window_assigners import TumblingWindows
from weir.operators.windows.window_operator import WindowFactory

if TYPE_CHECKING:
    from weir.datastream.environment import StreamExecutionEnvironment
    from weir.datastream.keyed_stream import KeyedStream
    from weir.datastream.stream import DataStream


class WindowedStream(MissingNames):
    """The records of each key and window, as ``KeyedStream.window`` groups them."""

    def __init__(self, keyed_stream: "KeyedStream", window_assigner: TumblingWindows) -> None:
        self._keyed_stream = keyed_stream
        self._windows = window_assigner
        self._lateness_ms = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        """The environment that the stream belongs to."""
        return self._keyed_stream.get_execution_environment()

    def allowed_lateness(self, time_ms: Length) -> Self:
        """Keep a window this long after its end; a late record in that time fires it again.

        The lateness may change with a restore: the new one decides from then on whether a record
        is late. A window that fired before may be kept for the old one, if that was longer.

        Units: an int is milliseconds.

        Raises:
            GraphError: The lateness is negative.
            ConfigError: ``time_ms`` is no length of time.
        """
        lateness_ms = milliseconds_of(time_ms)
        if lateness_ms < 0:
            raise GraphError(f"allowed lateness is {lateness_ms} ms; it cannot be negative")
        self._lateness_ms = lateness_ms
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send records behind the allowed lateness to a side output instead of dropping them."""
        check_tag(output_tag, "side_output_late_data")
        self._late_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: WindowFunction[Any, Any, Any, Any]
        | ProcessWindowFunction[Any, Any, Any, Any]
        | None = None,
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Per window, the reduction of its records, through ``window_function`` if given."""
        check_function(
            reduce_function, ReduceFunction, "reduce", "reduce", takes="two records", count=2
        )
        return self._then("Window Reduce", reduce_function, None, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction[Any, Any, Any],
        window_function: WindowFunction[Any, Any, Any, Any]
        | ProcessWindowFunction[Any, Any, Any, Any]
        | None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Per window, the result of an accumulator, through ``window_function`` if given."""
        check_kind(aggregate_function, AggregateFunction, "aggregate")
        return self._then(
            "Window Aggregate", aggregate_function, accumulator_type, window_function, output_type
        )

    def apply(
        self,
        window_function: WindowFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Per window, the results of a WindowFunction over all its records."""
        check_kind(window_function, WindowFunction, "apply")
        return self._then("Window Apply", None, None, window_function, output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Per window, the results of a ProcessWindowFunction, which also sees time and state."""
        check_kind(process_window_function, ProcessWindowFunction, "process")
        return self._then("Window Process", None, None, process_window_function, output_type)

    def aggregate_batches(self, **aggregates: tuple[str, str]) -> "DataStream":
        """Per key and window, aggregates over columns, as in ``KeyedStream.aggregate_batches``.

        One row when the window ends: the key columns, ``window_start`` and ``window_end`` in
        milliseconds, then one column per aggregate. Not in PyFlink.

        Raises:
            GraphError: ``key_by`` was not given column names, or an aggregate is malformed, or two
                columns of the result have one name.
        """
        specs = parse_aggregates(aggregates)
        selector = self._keyed_stream._columns()
        check_result_names(selector.column_names, specs, (WINDOW_START, WINDOW_END))
        # No combining with a late side output, since late records leave one by one, as they came;
        # nor in processing time, whose windows are those of the machine that keeps them.
        combine = (
            WindowCombineFactory(selector, specs, self._windows)
            if self._late_tag is None and self._windows.is_event_time
            else None
        )
        merge = WindowAggregateFactory(
            selector,
            specs,
            self._windows,
            self._lateness_ms,
            self._late_tag,
            combined=combine is not None,
        )
        # Late records leave whole.
        uses = aggregate_use(selector, specs) if self._late_tag is None else None
        return self._keyed_stream._combined("Window Aggregate", combine, merge, uses)

    def _then(
        self,
        name: str,
        gather: Any,
        accumulator_type: TypeInformation | None,
        window_function: Any,
        output_type: TypeInformation | None,
    ) -> "DataStream":
        if window_function is not None and not isinstance(
            window_function, WindowFunction | ProcessWindowFunction
        ):
            raise GraphError(
                f"a window function is a WindowFunction or a ProcessWindowFunction, not "
                f"{window_function!r}"
            )
        if window_function is not None:
            check_complete(window_function)
        stream = self._keyed_stream
        return stream._keyed(
            name,
            WindowFactory(
                selector=stream._selector,
                windows=self._windows,
                gather=gather,
                accumulator_type=accumulator_type,
                window_function=window_function,
                lateness_ms=self._lateness_ms,
                late_tag=self._late_tag,
                output_type=output_type,
            ),
            output_type,
        )
