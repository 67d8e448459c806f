"""The classes a user derives from, and what they are given to work with.

Names and meaning are PyFlink's. A function travels to the slots pickled; ``open`` is called once in
each subtask before the first record, ``close`` once at the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy.typing as npt
import pyarrow as pa

from weir.errors import UserError
from weir.operators.base import OperatorContext
from weir.operators.output_tag import OutputTag

if TYPE_CHECKING:
    from weir.operators.windows.window_assigners import TimeWindow
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


class TimeDomain(Enum):
    """Which time a timer goes by."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class RuntimeContext:
    """What a function can learn about its subtask, and its keyed state."""

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
        """The number of key groups."""
        return self._ctx.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """From 0 to the parallelism, excluded."""
        return self._ctx.subtask.index

    def get_attempt_number(self) -> int:
        """How often the job was restarted before: 0 at first."""
        return self._ctx.attempt - 1

    def get_task_name_with_subtasks(self) -> str:
        """Like ``map (2/4)``: the second of four."""
        return f"{self._ctx.name} ({self._ctx.subtask.index + 1}/{self._ctx.parallelism})"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """The pipeline's argument ``key``, as given with ``--arg key=value``."""
        return self._ctx.parameters.get(key, default_value)

    def get_state(self, state_descriptor: "ValueStateDescriptor") -> Any:
        """One value per key."""
        return self._backend().get_state(state_descriptor)

    def get_list_state(self, state_descriptor: "ListStateDescriptor") -> Any:
        """A list per key."""
        return self._backend().get_list_state(state_descriptor)

    def get_map_state(self, state_descriptor: "MapStateDescriptor") -> Any:
        """A map per key."""
        return self._backend().get_map_state(state_descriptor)

    def get_reducing_state(self, state_descriptor: "ReducingStateDescriptor") -> Any:
        """A value per key that added values are reduced into."""
        return self._backend().get_reducing_state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: "AggregatingStateDescriptor") -> Any:
        """An accumulator per key."""
        return self._backend().get_aggregating_state(state_descriptor)

    def _backend(self) -> Any:
        if not self._keyed:
            raise UserError(
                f"{self._ctx.name!r} asks for keyed state, but its stream has no key; call key_by "
                "before it"
            )
        return self._ctx.state.keyed


class Function:
    """Base of all user functions.

    A class that leaves out an abstract method is refused when its object is given to a stream.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get ready; state is asked for here."""

    def close(self) -> None:
        """Release what ``open`` took."""


class MapFunction(Function):
    """One record from each."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record that ``value`` becomes."""


class FlatMapFunction(Function):
    """Any number of records from each."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """The records that ``value`` becomes; None for none."""


class FilterFunction(Function):
    """Keeps some records."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether ``value`` stays."""


class ReduceFunction(Function):
    """Two values into one, of the same type; must be associative."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Both values in one."""


class AggregateFunction(Function, Generic[IN, ACC, OUT]):
    """Values into an accumulator, and the accumulator into a result."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """An accumulator of nothing."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with ``value`` in it."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """What the accumulator amounts to."""

    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """Both accumulators in one; for windows that merge, of which there are none yet."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge")


class KeySelector(Function):
    """The key of a record: the same record must always have the same key."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key of ``value``."""


class Partitioner(Function):
    """Chooses the subtask a record goes to."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """From 0 to ``num_partitions``, excluded."""


class TimerService(ABC):
    """Time as one keyed record sees it, and timers that come back under its key.

    Timers fire one at a time, the earliest first: what ``on_timer`` registers or deletes counts at
    once. A timestamp is an int of milliseconds that fits into 64 bits; any other is refused.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The time of the job's clock, milliseconds since the epoch.

        It is the wall clock of the driver when that started, and what has passed since: setting
        a machine's clock moves it neither back nor ahead, so that a timer a minute from now is
        due in a minute. Flink reads the wall clock itself, and there a timer would wait for as
        long as it was set back. The next driver starts from the wall clock again.
        """

    @abstractmethod
    def current_watermark(self) -> int:
        """The event time reached, milliseconds; the smallest int64 at first.

        After a restore it goes on from the checkpoint's.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once the wall clock reaches ``timestamp``."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once the watermark reaches ``timestamp``."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Forget the timer, if there is one."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Forget the timer, if there is one."""


class ProcessFunction(Function):
    """Any number of records from each, to the main output and to side outputs."""

    class Context(ABC):
        """What is known about the record at hand."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time; timers need a key."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """The record's event time, None without one."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yield records, or ``(OutputTag, record)`` for a side output."""


class KeyedProcessFunction(Function):
    """A process function under a key, with state and timers."""

    class Context(ProcessFunction.Context):
        """What is known about the record at hand, its key included."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The record's key."""

    class OnTimerContext(Context):
        """What is known about the timer that fires."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which time the timer went by."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Yield records, or ``(OutputTag, record)`` for a side output."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """A timer fires; yield as in ``process_element``."""
        return None


class BatchProcessFunction(Function):
    """A process function over Arrow record batches."""

    class Context(ABC):
        """What is known about the batch at hand."""

        @abstractmethod
        def timestamps(self) -> npt.NDArray[Any] | None:
            """Event time of every row in milliseconds, None without."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The event time reached, milliseconds; the smallest int64 at first."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The time of the job's clock, milliseconds; setting a machine's clock moves it not."""

    @abstractmethod
    def process_batch(
        self, batch: pa.RecordBatch, ctx: Any
    ) -> Iterable[pa.RecordBatch | tuple[OutputTag, pa.RecordBatch]] | None:
        """Yield batches, or ``(OutputTag, batch)`` for a side output."""


class WindowFunction(Function, Generic[IN, OUT, KEY]):
    """All records of a window at once."""

    @abstractmethod
    def apply(self, key: KEY, window: "TimeWindow", inputs: Iterable[IN]) -> Iterable[OUT]:
        """The window's results."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY]):
    """All records of a window at once, with time and state."""

    class Context(ABC):
        """What is known about the window that fires."""

        @abstractmethod
        def window(self) -> "TimeWindow":
            """The window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The time of the job's clock, milliseconds; setting a machine's clock moves it not."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The event time reached, milliseconds."""

        @abstractmethod
        def global_state(self) -> RuntimeContext:
            """State per key, shared by all its windows."""

    @abstractmethod
    def process(self, key: KEY, context: Any, elements: Iterable[IN]) -> Iterable[OUT]:
        """The window's results; ``(OutputTag, record)`` goes to a side output."""

    def clear(self, context: Any) -> None:
        """The window is gone; remove what was kept for it in ``global_state``."""
