"""The user's API: a pipeline is built here; ``env.execute()`` hands its graph to a runner.

Names and meaning are those of ``pyflink.datastream``; docstrings say where they differ. Beside
every per-record operator stands one over ``pyarrow.RecordBatch``, which PyFlink does not have.
Building a pipeline runs nothing of it.
"""

from typing import TYPE_CHECKING

from weir.common.missing_names import package_attribute
from weir.config import RestartConfig, RestartStrategyKind
from weir.datastream.checkpoint_config import (
    CheckpointConfig,
    CheckpointingMode,
    ExternalizedCheckpointRetention,
)
from weir.datastream.closeable_iterator import CloseableIterator
from weir.datastream.environment import StreamExecutionEnvironment
from weir.datastream.execution import ExecutionOptions, JobExecutionResult
from weir.datastream.execution_mode import RuntimeExecutionMode
from weir.datastream.functions import (
    AggregateFunction,
    BatchProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    TimeDomain,
    TimerService,
    WindowFunction,
)
from weir.datastream.keyed_stream import KeyedStream
from weir.datastream.output_tag import OutputTag
from weir.datastream.stream import DataStream, DataStreamSink
from weir.datastream.window import (
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from weir.datastream.windowed_stream import WindowedStream
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from weir.state.ttl import StateTtlConfig

__all__ = [
    "StreamExecutionEnvironment",
    "DataStream",
    "KeyedStream",
    "WindowedStream",
    "DataStreamSink",
    "CloseableIterator",
    "CheckpointConfig",
    "CheckpointingMode",
    "ExternalizedCheckpointRetention",
    "RuntimeExecutionMode",
    "RestartConfig",
    "RestartStrategyKind",
    "ExecutionOptions",
    "JobExecutionResult",
    "Function",
    "MapFunction",
    "FlatMapFunction",
    "FilterFunction",
    "ReduceFunction",
    "AggregateFunction",
    "KeySelector",
    "Partitioner",
    "ProcessFunction",
    "KeyedProcessFunction",
    "BatchProcessFunction",
    "WindowFunction",
    "ProcessWindowFunction",
    "RuntimeContext",
    "TimerService",
    "TimeDomain",
    "OutputTag",
    "TimeWindow",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "ValueStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReducingStateDescriptor",
    "AggregatingStateDescriptor",
    "StateTtlConfig",
]

if not TYPE_CHECKING:
    __getattr__ = package_attribute(__name__)
