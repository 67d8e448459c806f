"""Function classes that users derive from, and the contexts that their methods receive.

Names and meaning are PyFlink's. A function travels to the slots pickled; ``open`` is called once in
each subtask before the first record, ``close`` once at the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy.typing as npt
import pyarrow as pa

from weir.common.missing_names import MissingNames
from weir.errors import UserError
from weir.operators.base import OperatorContext
from weir.operators.output_tag import OutputTag
from weir.secrets.job_secrets import chosen

if TYPE_CHECKING:
    from weir.state.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
ACC = TypeVar("ACC")
W = TypeVar("W")  # The class of windows: TimeWindow.
W2 = TypeVar("W2")  # The same, in the classes of contexts.


class TimeDomain(Enum):
    """The time domain of a timer: event time or processing time."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class RuntimeContext(MissingNames):
    """The subtask of a function, the job's parameters and the function's keyed state.

    Raises:
        UserError: From every ``get_*_state``, on a stream without a key.
    """

    def __init__(self, ctx: OperatorContext, *, keyed: bool) -> None:
        self._ctx = ctx
        self._keyed = keyed

    def get_task_name(self) -> str:
        """The operator's name."""
        return self._ctx.name

    def get_number_of_parallel_subtasks(self) -> int:
        """The operator's parallelism."""
        return self._ctx.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups, which is the operator's max parallelism."""
        return self._ctx.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """The index of this subtask, from 0 to the parallelism, excluded."""
        return self._ctx.subtask.index

    def get_attempt_number(self) -> int:
        """The number of restarts before this attempt: 0 in the first one."""
        return self._ctx.attempt - 1

    def get_task_name_with_subtasks(self) -> str:
        """The operator's name and the subtask, such as ``map (2/4)``: the second of four."""
        return f"{self._ctx.name} ({self._ctx.subtask.index + 1}/{self._ctx.parallelism})"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """The pipeline's argument ``key``, as given with ``--arg key=value``, or the default."""
        return self._ctx.parameters.get(key, default_value)

    def get_secret(self, name: str) -> str:
        """The value of one of the job's secrets; not in PyFlink.

        Raises:
            ConfigError: The job has no such secret; the message says how to set it.
        """
        return chosen(name, self._ctx.secrets)

    def get_state(self, state_descriptor: "ValueStateDescriptor") -> Any:
        """The state of one value per key."""
        return self._backend().get_state(state_descriptor)

    def get_list_state(self, state_descriptor: "ListStateDescriptor") -> Any:
        """The state of a list per key."""
        return self._backend().get_list_state(state_descriptor)

    def get_map_state(self, state_descriptor: "MapStateDescriptor") -> Any:
        """The state of a map per key."""
        return self._backend().get_map_state(state_descriptor)

    def get_reducing_state(self, state_descriptor: "ReducingStateDescriptor") -> Any:
        """The state of a value per key, into which added values are reduced."""
        return self._backend().get_reducing_state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: "AggregatingStateDescriptor") -> Any:
        """The state of an accumulator per key."""
        return self._backend().get_aggregating_state(state_descriptor)

    def _backend(self) -> Any:
        if not self._keyed:
            raise UserError(
                f"{self._ctx.label} asks for keyed state, but its stream has no key; call key_by "
                "before it"
            )
        return self._ctx.state.keyed


class Function:
    """Base of all user functions.

    A class that leaves out an abstract method is refused when its object is given to a stream.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare for the first record; obtain state from ``runtime_context`` here."""

    def close(self) -> None:
        """Release what ``open`` acquired; also after a failure."""


class MapFunction(Function):
    """Makes one record from each record."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record that ``value`` becomes."""


class FlatMapFunction(Function):
    """Makes any number of records from each record."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """The records that ``value`` becomes; None for none."""


class FilterFunction(Function):
    """Keeps some records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether ``value`` stays."""


class ReduceFunction(Function):
    """Reduces two values to one of the same type; must be associative."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """The reduction of both values."""


class AggregateFunction(Function, Generic[IN, ACC, OUT]):
    """Adds values to an accumulator, and makes a result of it."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """A new accumulator, of no values."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with ``value`` added to it."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result of the accumulator."""

    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """Both accumulators merged; for merging windows, which Weir does not have yet."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge")


class KeySelector(Function):
    """Computes the key of a record; the same record must always have the same key."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key of ``value``."""


class Partitioner(Function):
    """Chooses the subtask that a record is sent to."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """The index of the subtask, from 0 to ``num_partitions``, excluded."""


class TimerService(ABC):
    """Time, and timers that fire under the key of the record that registered them.

    Timers fire one at a time, the earliest first: what ``on_timer`` registers or deletes takes
    effect at once.

    Units: a timestamp is an int of milliseconds since the epoch that fits into 64 bits.

    Raises:
        UserError: From the methods with a timestamp, for any other value.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The time of the job's clock, milliseconds since the epoch.

        The job's clock is the wall clock at the start of the driver, plus the time passed since:
        setting a machine's clock moves it neither back nor ahead, so that a timer a minute from
        now is due in a minute. Flink reads the wall clock itself, where a timer waits for as long
        as the clock was set back. The next driver starts from the wall clock again.
        """

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, that is, the event time reached, in milliseconds.

        The smallest int64 at first; after a restore it resumes from the checkpoint's.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once the job's clock reaches ``timestamp``."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once the watermark reaches ``timestamp``."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the timer at ``timestamp``, if there is one."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the timer at ``timestamp``, if there is one."""


class ProcessFunction(Function):
    """Makes any number of records from each, for the main output and side outputs."""

    class Context(ABC):
        """The context of the current record: its event time and the timer service."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """The current times; timers need a key (``KeyedProcessFunction``)."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """The record's event time in milliseconds; None: it has none."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yield records, or ``(OutputTag, record)`` for a side output."""


class KeyedProcessFunction(Function):
    """A process function under a key, with state and timers."""

    class Context(ProcessFunction.Context):
        """The context of the current record: its key, its event time, the timer service."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The key of the record, or of the timer that fires."""

    class OnTimerContext(Context):
        """The context of the timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """The time domain of the timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yield records, or ``(OutputTag, record)`` for a side output."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Called when a timer fires; yield as in ``process_element``."""
        return None


class BatchProcessFunction(Function):
    """A process function over Arrow record batches; not in PyFlink."""

    class Context(ABC):
        """The context of the current batch: event times and the current times."""

        @abstractmethod
        def timestamps(self) -> npt.NDArray[Any] | None:
            """The event time of every row in milliseconds; None: the rows have none."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The watermark in milliseconds; the smallest int64 at first."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The time of the job's clock, as ``TimerService.current_processing_time``."""

    @abstractmethod
    def process_batch(
        self, batch: pa.RecordBatch, ctx: Any
    ) -> Iterable[pa.RecordBatch | tuple[OutputTag, pa.RecordBatch]] | None:
        """Yield batches, or ``(OutputTag, batch)`` for a side output."""


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Processes all records of a window at once."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]:
        """The results of the window, which gathered ``inputs`` under ``key``."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    """Processes all records of a window at once, with time and state."""

    class Context(ABC, Generic[W2]):
        """The context of the window that fires."""

        @abstractmethod
        def window(self) -> W2:
            """The bounds of the window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The time of the job's clock, as ``TimerService.current_processing_time``."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The watermark in milliseconds."""

        @abstractmethod
        def global_state(self) -> RuntimeContext:
            """The state of the key, shared by all its windows."""

    @abstractmethod
    def process(self, key: KEY, context: Any, elements: Iterable[IN]) -> Iterable[OUT]:
        """The results of the window; ``(OutputTag, record)`` goes to a side output."""

    def clear(self, context: Any) -> None:
        """Called when the window is dropped; remove its values from ``global_state`` here."""
