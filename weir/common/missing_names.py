"""Names that Weir lacks, with what it has instead: for imports and for attributes.

``from weir.datastream import ConnectedStreams`` and ``stream.connect(other)`` raise an error that
says what to write. Most are PyFlink's; some are methods that another kind of stream has. Other
names are Python's own errors, but for attributes that are nearly right. A name that Weir gets is
deleted here; a test holds that none of these exists.
"""

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from weir.errors import UserError


class MissingNameError(UserError, ImportError):
    """A name of PyFlink's that cannot be imported, since Weir has something else instead."""


class MissingAttributeError(UserError, AttributeError):
    """An attribute that Weir's class lacks: PyFlink's, another class's, or a misspelt one."""


_TUMBLING = (
    "windows are TumblingEventTimeWindows and TumblingProcessingTimeWindows; for others keep the "
    "records in state and fire them by timers, in a KeyedProcessFunction"
)
_TRIGGER = (
    "a window fires when its time has come, and again for records within allowed_lateness(...); "
    "for others fire timers in a KeyedProcessFunction"
)
_CONNECT = (
    "map both streams to records of one form, such as ('left', record), join them with union, then "
    "key_by and process them in one function"
)
_BROADCAST = f"{_CONNECT}; stream.broadcast() sends each record to every subtask"
_ALL = "give all records one key: stream.key_by(lambda record: 0).window(...)"
_ASYNC = "call the service for whole slices of records, in process_batches or map_batches"
_BACKEND = "env.set_state_backend(HashMapStateBackend() or EmbeddedRocksDBStateBackend())"
_CHANGELOG = "leave it out: snapshots are written beside the stream"
_STORAGE = "give the directory itself: env.get_checkpoint_config().set_checkpoint_storage(path)"
_SLOTS = "each slot hosts a subtask of every operator, as one Spark task"
_FORMAT = "read lines with FileSource or SplitReader, and parse them in map; write with an Encoder"
_CONNECTOR = "write a Source with a SplitReader (weir.datastream.connectors), or files"
_JAVA = "no JVM code is needed: sources and sinks are Python (weir.datastream.connectors)"
_CHARACTERISTIC = "leave it out: window assigners and timers say which time they go by"
_TABLE = "there is no Table API; map_batches and aggregate_batches work on Arrow columns"

_DATASTREAM: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "SlidingEventTimeWindows",
            "SlidingProcessingTimeWindows",
            "EventTimeSessionWindows",
            "ProcessingTimeSessionWindows",
            "DynamicEventTimeSessionWindows",
            "DynamicProcessingTimeSessionWindows",
            "SessionWindowTimeGapExtractor",
            "CountTumblingWindowAssigner",
            "CountSlidingWindowAssigner",
            "CountWindow",
            "GlobalWindow",
            "GlobalWindows",
            "WindowAssigner",
            "MergingWindowAssigner",
            "WindowOperationDescriptor",
            "TimeWindowSerializer",
            "CountWindowSerializer",
            "GlobalWindowSerializer",
        ),
        _TUMBLING,
    ),
    "Window": "the class of windows is TimeWindow",
    **dict.fromkeys(
        (
            "Trigger",
            "TriggerResult",
            "EventTimeTrigger",
            "ContinuousEventTimeTrigger",
            "ProcessingTimeTrigger",
            "ContinuousProcessingTimeTrigger",
            "PurgingTrigger",
            "CountTrigger",
            "NeverTrigger",
        ),
        _TRIGGER,
    ),
    **dict.fromkeys(
        (
            "ConnectedStreams",
            "CoMapFunction",
            "CoFlatMapFunction",
            "CoProcessFunction",
            "KeyedCoProcessFunction",
        ),
        _CONNECT,
    ),
    **dict.fromkeys(
        (
            "BroadcastStream",
            "BroadcastConnectedStream",
            "BaseBroadcastProcessFunction",
            "BroadcastProcessFunction",
            "KeyedBroadcastProcessFunction",
            "BroadcastState",
            "ReadOnlyBroadcastState",
            "OperatorStateStore",
        ),
        _BROADCAST,
    ),
    **dict.fromkeys(
        (
            "AllWindowedStream",
            "AllWindowFunction",
            "ProcessAllWindowFunction",
            "PassThroughAllWindowFunction",
        ),
        _ALL,
    ),
    "PassThroughWindowFunction": "derive from WindowFunction and yield the inputs",
    **dict.fromkeys(
        (
            "AsyncDataStream",
            "AsyncFunction",
            "AsyncFunctionDescriptor",
            "AsyncRetryStrategy",
            "AsyncRetryPredicate",
        ),
        _ASYNC,
    ),
    **dict.fromkeys(
        (
            "RocksDBStateBackend",
            "MemoryStateBackend",
            "FsStateBackend",
            "PredefinedOptions",
            "CustomStateBackend",
        ),
        _BACKEND,
    ),
    **dict.fromkeys(
        (
            "CheckpointStorage",
            "JobManagerCheckpointStorage",
            "FileSystemCheckpointStorage",
            "CustomCheckpointStorage",
        ),
        _STORAGE,
    ),
    **dict.fromkeys(("SlotSharingGroup", "MemorySize"), _SLOTS),
    **dict.fromkeys(("SourceFunction", "SinkFunction", "JavaFunctionWrapper"), _JAVA),
    "FunctionWrapper": "give the function itself to the stream",
    "NullByteKeySelector": "stream.key_by(lambda record: 0)",
    "CachedDataStream": "write the stream to files and read them in the next pipeline",
    "TimeCharacteristic": _CHARACTERISTIC,
    "ExternalizedCheckpointCleanup": "it is ExternalizedCheckpointRetention",
    "KeyedStateStore": "functions get keyed state from RuntimeContext",
}

_CONNECTORS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "KafkaSource",
            "KafkaSink",
            "FlinkKafkaConsumer",
            "FlinkKafkaProducer",
            "KafkaOffsetsInitializer",
            "KafkaRecordSerializationSchema",
            "DeliveryGuarantee",
            "PulsarSource",
            "PulsarSink",
            "RMQSource",
            "RMQSink",
            "RMQConnectionConfig",
            "FlinkKinesisConsumer",
            "KinesisStreamsSink",
            "JdbcSink",
            "JdbcConnectionOptions",
            "JdbcExecutionOptions",
            "CassandraSink",
            "Elasticsearch7SinkBuilder",
            "ElasticsearchSinkBuilder",
            "HybridSource",
        ),
        _CONNECTOR,
    ),
    "StreamingFileSink": "it is FileSink",
    "FileCompactor": "open files together with ParquetSource or FileSource",
    "FileCompactStrategy": "open files together with ParquetSource or FileSource",
    "FileEnumeratorProvider": "FileSource takes files, directories and globs",
    "FileSplitAssignerProvider": "files belong to subtasks in turn",
    "BulkFormat": "columnar files are read by ParquetSource",
    "BulkWriterFactory": "columnar files are written by ParquetSink",
    "DynamicKafkaSource": _CONNECTOR,
    "GeneratorFunction": "give DataGeneratorSource the function itself",
    "RateLimiterStrategy": "give DataGeneratorSource rows_per_second=",
}

_COMMON: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "SimpleStringSchema",
            "SerializationSchema",
            "DeserializationSchema",
            "BulkWriterFactory",
            "JsonRowSerializationSchema",
            "JsonRowDeserializationSchema",
            "CsvRowSerializationSchema",
            "CsvRowDeserializationSchema",
            "AvroRowSerializationSchema",
            "AvroRowDeserializationSchema",
            "AvroSchema",
        ),
        _FORMAT,
    ),
    "ExecutionMode": "pipelines run as streams: weir.datastream.RuntimeExecutionMode.STREAMING",
    "ExecutionConfig": "env.get_config() returns it",
    "RestartStrategyDescription": "restart strategies are RestartConfig or RestartStrategies",
    "RowKind": "records have no kind; make it a field",
    "Instant": "Types.INSTANT() holds a datetime with a zone",
    "CompletableFuture": "env.execute() returns when the job has ended",
    "JobClient": "weir savepoint, weir stop, and the REST API of the control plane",
    "JobID": "result.get_job_id() is text",
    "JobStatus": "the REST API of the control plane tells it",
    "JobExecutionResult": "it is weir.datastream.JobExecutionResult",
    "InputDependencyConstraint": "subtasks start together",
    "TypeSerializer": "types are declared with weir.common.Types",
    "AssignerWithPeriodicWatermarksWrapper": "WatermarkStrategy.with_timestamp_assigner",
    "ConfigOptions": "Configuration takes keys as text: Configuration().set(key, value)",
    "ConfigOption": "Configuration takes keys as text: Configuration().set(key, value)",
}

# Modules of PyFlink's that Weir does not have at all.
MODULES: Mapping[str, str] = {
    "weir.datastream.async_data_stream": _ASYNC,
    "weir.datastream.checkpoint_storage": _STORAGE,
    "weir.datastream.slot_sharing_group": _SLOTS,
    "weir.datastream.time_characteristic": _CHARACTERISTIC,
    "weir.datastream.formats": _FORMAT,
    "weir.datastream.utils": "Weir's functions take and return Python values",
    "weir.common.completable_future": _COMMON["CompletableFuture"],
    "weir.common.config_options": _COMMON["ConfigOptions"],
    "weir.common.execution_config": _COMMON["ExecutionConfig"],
    "weir.common.execution_mode": _COMMON["ExecutionMode"],
    "weir.common.job_client": _COMMON["JobClient"],
    "weir.common.job_execution_result": _COMMON["JobExecutionResult"],
    "weir.common.job_id": _COMMON["JobID"],
    "weir.common.job_status": _COMMON["JobStatus"],
    "weir.common.constants": "the constants are in the docstrings of weir.common",
    **{
        f"weir.datastream.connectors.{name}": _CONNECTOR
        for name in (
            "kafka",
            "pulsar",
            "rabbitmq",
            "kinesis",
            "jdbc",
            "cassandra",
            "elasticsearch",
            "hybrid_source",
            "dynamic_kafka",
        )
    },
    "weir.table": _TABLE,
    "weir.ml": "train outside, and apply a model to whole slices of records in map_batches",
    "weir.dataset": _TABLE,
    "weir.metrics": "/metrics of the control plane counts records, checkpoints and restarts",
}

# By package; a module of it has the same.
NAMES: Mapping[str, Mapping[str, str]] = {
    "weir.common": _COMMON,
    "weir.datastream": _DATASTREAM,
    "weir.datastream.connectors": _CONNECTORS,
}

_STREAM: Mapping[str, str] = {
    "connect": _CONNECT,
    "window_all": _ALL,
    "project": "map the record to the fields that are to stay",
    "add_sink": "sink_to(...) with a sink of weir.datastream.connectors",
    "cache": _DATASTREAM["CachedDataStream"],
    "get_type": "declare types with output_type=; they are not read back",
    "get_execution_config": "env.get_config()",
    "set_description": "name(...) is what pages show",
    "set_uid_hash": "uid(...) is what a restore goes by",
    "set_buffer_timeout": "records are sent after each slice, at the latest after some ms",
    "slot_sharing_group": _SLOTS,
    "force_non_parallel": "set_parallelism(1)",
    "set_resources": _SLOTS,
}
_KEYED_ONLY = "call key_by before it; by one key for all records: key_by(lambda record: 0)"
_OF_KEYED = {
    name: f"call key_by before it, since it works per key: stream.key_by(...).{name}(...)"
    for name in ("reduce", "sum", "min", "max", "min_by", "max_by", "count", "window")
}
_OF_WINDOWED = {
    name: f"it belongs to windows: stream.key_by(...).window(...).{name}(...)"
    for name in ("aggregate", "apply", "allowed_lateness", "side_output_late_data")
}
_WINDOWED: Mapping[str, str] = {
    **dict.fromkeys(
        ("print", "sink_to", "map", "flat_map", "filter", "map_batches", "key_by", "union", "uid"),
        "say first what becomes of each window, with reduce, aggregate, process or "
        "aggregate_batches",
    ),
    **dict.fromkeys(
        ("sum", "min", "max"),
        'aggregate_batches, as in aggregate_batches(total=("amount", "sum"))',
    ),
    "count": 'aggregate_batches(n=("*", "count"))',
    **dict.fromkeys(
        ("min_by", "max_by"), "reduce, with a function that returns one of two records"
    ),
    "trigger": _TRIGGER,
    "evictor": "leave records out in the window's function",
    "get_input_type": "declare types with output_type=; they are not read back",
}

ANY = "*"  # All other names of a class.

# By class.
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "DataStream": {
        **_STREAM,
        **_OF_KEYED,
        **_OF_WINDOWED,
        "count_window": _KEYED_ONLY,
    },
    "KeyedStream": {**_STREAM, "count_window": "count the records of a key in its state"},
    "DataStreamSink": {
        **{
            name: _STREAM[name]
            for name in ("set_description", "set_uid_hash", "slot_sharing_group", "set_resources")
        },
        ANY: "keep the stream in a variable, and call its methods before print or sink_to: nothing "
        "follows a sink",
    },
    "WindowedStream": _WINDOWED,
    "StreamExecutionEnvironment": {
        "add_source": f"from_source(...): {_JAVA}",
        "create_input": "from_source(...) with a source of weir.datastream.connectors",
        "read_text_file": "from_source(FileSource(StreamFormat.text_line_format(), path), ...)",
        "from_sequence": "from_source(NumberSequenceSource(first, last), ...)",
        "generate_sequence": "from_source(NumberSequenceSource(first, last), ...)",
        "from_elements": "from_collection([...])",
        "socket_text_stream": _CONNECTOR,
        "execute_async": "execute() returns when the job has ended; the control plane runs jobs in "
        "the background",
        "add_jars": _JAVA,
        "add_classpaths": _JAVA,
        "add_python_file": "modules beside the script are found where the file system is shared; "
        "else install them where workers start",
        "add_python_archive": "install packages in the Python that workers start with",
        "set_python_requirements": "install packages in the Python that workers start with",
        "set_python_executable": "Spark's setting spark.pyspark.python, or PYSPARK_PYTHON",
        "register_cached_file": "read the file in open() of a function, by a path that all "
        "machines reach",
        "register_slot_sharing_group": _SLOTS,
        "enable_changelog_state_backend": _CHANGELOG,
        "is_changelog_state_backend_enabled": _CHANGELOG,
        "set_default_savepoint_directory": "weir savepoint --to DIR",
        "get_default_savepoint_directory": "weir savepoint --to DIR",
        "set_buffer_timeout": _STREAM["set_buffer_timeout"],
        "get_buffer_timeout": _STREAM["set_buffer_timeout"],
        "set_stream_time_characteristic": _CHARACTERISTIC,
        "get_stream_time_characteristic": _CHARACTERISTIC,
        "get_default_local_parallelism": "get_parallelism()",
        "set_default_local_parallelism": "set_parallelism(...)",
        "get_checkpointing_consistency_mode": "get_checkpointing_mode()",
        "is_unaligned_checkpoints_enabled": "get_checkpoint_config()."
        "is_unaligned_checkpoints_enabled()",
        "is_force_unaligned_checkpoints": "edges over which a barrier may not overtake keep it in "
        "its place",
        "get_restart_strategy": "the strategy that set_restart_strategy was given",
        "is_chaining_of_operators_with_different_max_parallelism_enabled": "is_chaining_enabled()",
        "close": "the environment holds nothing open",
    },
    "CheckpointConfig": {
        "set_checkpoint_storage_dir": "set_checkpoint_storage(path)",
        "set_alignment_timeout": "set_aligned_checkpoint_timeout(...)",
        "get_alignment_timeout": "get_aligned_checkpoint_timeout()",
        "enable_externalized_checkpoints": "set_externalized_checkpoint_retention(...)",
        "set_externalized_checkpoint_cleanup": "set_externalized_checkpoint_retention(...)",
        "set_force_unaligned_checkpoints": "enable_unaligned_checkpoints(): edges over which a "
        "barrier may not overtake keep it in its place",
        "is_force_unaligned_checkpoints": "is_unaligned_checkpoints_enabled()",
        "set_fail_on_checkpointing_errors": "set_tolerable_checkpoint_failure_number(...)",
        "is_fail_on_checkpointing_errors": "get_tolerable_checkpoint_failure_number()",
    },
    "ExecutionConfig": {
        "set_parallelism": "env.set_parallelism(...)",
        "get_parallelism": "env.get_parallelism()",
        "set_max_parallelism": "env.set_max_parallelism(...)",
        "set_restart_strategy": "env.set_restart_strategy(...)",
        "set_global_job_parameters": "the key pipeline.global-job-parameters, or --arg key=value",
        "get_global_job_parameters": "env.get_job_parameter(key, default)",
        "set_execution_mode": "pipelines run as streams",
        "enable_closure_cleaner": "functions travel by cloudpickle",
        "disable_closure_cleaner": "functions travel by cloudpickle",
        "enable_force_kryo": "types are declared with weir.common.Types",
        "enable_force_avro": "types are declared with weir.common.Types",
        "disable_generic_types": "the key weir.state.allow-pickled refuses pickles, by default",
        "set_latency_tracking_interval": "/metrics of the control plane",
        "set_task_cancellation_interval": "the key heartbeat.timeout",
    },
    "RuntimeContext": {
        **dict.fromkeys(
            ("get_metrics_group", "get_metric_group"),
            "emit what is to be counted to a side output; records, checkpoints and restarts are "
            "counted at /metrics of the control plane",
        ),
        "get_broadcast_state": _BROADCAST,
        "get_distributed_cache": "read the file in open(), by a path that all machines reach",
    },
}


class MissingNames:
    """A class whose missing attributes tell what to write instead, or what was meant."""

    if not TYPE_CHECKING:  # A type checker shall know the attributes that there are.

        def __getattr__(self, name: str) -> Any:
            if advice := _advice(type(self), name):
                raise MissingAttributeError(f"{type(self).__name__} has no {name}; {advice}")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )


def _advice(owner: type, name: str) -> str:
    """The advice for an attribute that a class does not have; empty: there is none."""
    tables = [ATTRIBUTES.get(kind.__name__, {}) for kind in owner.__mro__]
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    if instead := next((table[snake] for table in tables if snake in table), ""):
        return f"instead: {instead}"
    if name.startswith("_"):
        return ""
    names = [each for each in dir(owner) if not each.startswith("_")]
    if near := get_close_matches(snake, names, 1, 0.7):
        return f"did you mean {near[0]}?"
    instead = next((table[ANY] for table in tables if ANY in table), "")
    return f"instead: {instead}" if instead else ""


def package_attribute(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package; imports from it are refused by the finder."""

    def attribute(name: str) -> Any:
        if instead := NAMES[package].get(name):
            raise MissingAttributeError(f"{package} has no {name}; instead: {instead}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute


def module_attribute(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of such a package, by which Python imports from it."""
    names = NAMES[module.rpartition(".")[0]]

    def attribute(name: str) -> Any:
        if instead := names.get(name):
            # An AttributeError would end as "cannot import name", without these words.
            raise MissingNameError(f"{module} has no {name}; instead: {instead}", name=name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return attribute


class _MissingFinder(MetaPathFinder):
    """Finds nothing; asked last, for modules, and for names that a package does not have."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in MODULES:
            told = f"Weir has no {fullname.removeprefix('weir.')}; instead: {MODULES[fullname]}"
            raise MissingNameError(told, name=fullname)
        package, _, name = fullname.rpartition(".")
        if instead := NAMES.get(package, {}).get(name):
            raise MissingNameError(f"{package} has no {name}; instead: {instead}", name=name)


def refuse_missing_imports() -> None:
    """Let imports of these modules and names say what Weir has instead."""
    if not any(isinstance(finder, _MissingFinder) for finder in sys.meta_path):
        sys.meta_path.append(_MissingFinder())
