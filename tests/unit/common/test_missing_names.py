"""Names that Weir lacks: an import or an attribute says what Weir has instead."""

import ast
import importlib
import pickle
import re
from pathlib import Path

import pytest

import weir.common
import weir.datastream
import weir.datastream.connectors
from weir.common import WatermarkStrategy
from weir.common.missing_names import (
    ATTRIBUTES,
    MODULES,
    NAMES,
    MissingAttributeError,
    MissingNameError,
)
from weir.datastream import StreamExecutionEnvironment, TumblingEventTimeWindows
from weir.datastream.checkpoint_config import CheckpointConfig
from weir.datastream.execution_config import ExecutionConfig
from weir.datastream.functions import RuntimeContext
from weir.datastream.keyed_stream import KeyedStream
from weir.datastream.stream import DataStream, DataStreamSink
from weir.datastream.windowed_stream import WindowedStream
from weir.errors import UserError

CLASSES = {
    kind.__name__: kind
    for kind in (
        CheckpointConfig,
        DataStream,
        DataStreamSink,
        ExecutionConfig,
        KeyedStream,
        RuntimeContext,
        StreamExecutionEnvironment,
        WindowedStream,
    )
}


def environment() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.mark.parametrize("package", NAMES)
def test_no_name_of_the_table_exists(package: str) -> None:
    holder = importlib.import_module(package)
    assert [name for name in NAMES[package] if hasattr(holder, name)] == []
    for name, instead in NAMES[package].items():
        with pytest.raises(MissingNameError, match=re.escape(f"has no {name}; instead: {instead}")):
            exec(f"from {package} import {name}")


@pytest.mark.parametrize("module", MODULES)
def test_no_module_of_the_table_exists(module: str) -> None:
    with pytest.raises(MissingNameError, match=re.escape(f"; instead: {MODULES[module]}")):
        exec(f"from {module} import anything")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_no_attribute_of_the_table_exists(name: str) -> None:
    assert [each for each in ATTRIBUTES[name] if hasattr(CLASSES[name], each)] == []


def test_modules_refuse_what_their_packages_lack() -> None:
    with pytest.raises(MissingNameError, match=r"weir\.datastream\.window has no SlidingEventTime"):
        exec("from weir.datastream.window import SlidingEventTimeWindows")
    with pytest.raises(
        MissingNameError, match=r"functions has no CoMapFunction; instead: map both"
    ):
        exec("from weir.datastream.functions import CoMapFunction")
    with pytest.raises(
        MissingNameError, match=r"file_system has no StreamingFileSink; instead: it"
    ):
        exec("from weir.datastream.connectors.file_system import StreamingFileSink")


@pytest.mark.parametrize(
    "code",
    [
        "from weir.datastream import KeyedProcessFunktion",
        "from weir.datastream.window import TumblingWindow",
        "from weir.common import Tipes",
        "import weir.datastream.windows",
    ],
)
def test_names_that_pyflink_lacks_too_are_pythons_own_errors(code: str) -> None:
    with pytest.raises(ImportError, match=r"cannot import name|No module named") as raised:
        exec(code)
    assert not isinstance(raised.value, UserError)


def test_the_attribute_of_a_package_is_refused_in_the_same_words() -> None:
    with pytest.raises(MissingAttributeError, match="has no ConnectedStreams; instead: map both"):
        _ = weir.datastream.ConnectedStreams  # type: ignore[attr-defined]
    assert not hasattr(weir.datastream, "ConnectedStreams")
    assert not hasattr(weir.common, "anything")


def test_streams_and_environment_say_what_they_have_instead() -> None:
    env = environment()
    numbers = env.from_collection([1])
    keyed = numbers.key_by(lambda n: n)
    windowed = keyed.window(TumblingEventTimeWindows.of(1))
    for call, told in (
        (lambda: numbers.connect(numbers), "DataStream has no connect; instead: map both"),
        (lambda: numbers.count_window(3), "DataStream has no count_window; instead: call key_by"),
        (lambda: keyed.connect(numbers), "KeyedStream has no connect"),
        (lambda: keyed.count_window(3), "KeyedStream has no count_window; instead: count"),
        (lambda: numbers.print().set_description("x"), "DataStreamSink has no set_description"),
        (lambda: windowed.trigger(None), "WindowedStream has no trigger; instead: a window fires"),
        (lambda: numbers.sum(0), "has no sum; instead: call key_by before it, since it works per"),
        (lambda: keyed.apply(sum), r"it belongs to windows: stream\.key_by\(\.\.\.\)\.window"),
        (lambda: windowed.print(), "WindowedStream has no print; instead: say first what"),
        (
            lambda: windowed.sum("n"),
            r"WindowedStream has no sum; instead: .*aggregate_batches\(total=",
        ),
        (lambda: numbers.print().map(str), "instead: keep the stream in a variable"),
        (lambda: numbers.print().set_paralelism(1), "did you mean set_parallelism"),
        (lambda: numbers.mapp(str), "DataStream has no mapp; did you mean map"),
        (lambda: env.addSource(None), "has no addSource; instead: from_source"),
        (lambda: env.fromCollection([]), "has no fromCollection; did you mean from_collection"),
        (lambda: env.add_jars("x"), "StreamExecutionEnvironment has no add_jars; instead: no JVM"),
        (lambda: env.read_text_file("x"), "FileSource"),
        (
            lambda: env.get_checkpoint_config().set_checkpoint_storage_dir("x"),
            r"set_checkpoint_storage\(path\)",
        ),
        (lambda: env.get_config().set_global_job_parameters({}), "global-job-parameters"),
    ):
        with pytest.raises(MissingAttributeError, match=told):
            call()
    assert not hasattr(numbers, "connect")


def test_objects_with_these_names_can_be_pickled_and_copied() -> None:
    config = environment().get_checkpoint_config().set_checkpoint_interval(500)
    assert pickle.loads(pickle.dumps(config)).get_checkpoint_interval() == 500


def test_a_type_checker_still_knows_the_names_that_there_are() -> None:
    """A ``__getattr__`` that mypy sees would accept any misspelt name."""
    for file in Path(weir.datastream.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            assert "__getattr__" not in [getattr(node, "name", None), *_targets(node)], file


def _targets(node: ast.stmt) -> list[str]:
    named = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in named if isinstance(target, ast.Name)]


# PyFlink's module paths, with the names that scripts import from them.
PATHS = {
    "weir.common": "Types WatermarkStrategy Row Encoder Time Duration Configuration",
    "weir.common.configuration": "Configuration",
    "weir.common.restart_strategy": "RestartStrategies",
    "weir.common.serialization": "Encoder",
    "weir.common.time": "Time Duration",
    "weir.common.typeinfo": "Types TypeInformation RowTypeInfo",
    "weir.common.types": "Row",
    "weir.common.watermark_strategy": "WatermarkStrategy TimestampAssigner",
    "weir.datastream": "StreamExecutionEnvironment RuntimeExecutionMode KeyedProcessFunction "
    "OutputTag CheckpointingMode DataStream KeyedStream WindowedStream RuntimeContext",
    "weir.datastream.checkpoint_config": "CheckpointConfig ExternalizedCheckpointRetention",
    "weir.datastream.checkpointing_mode": "CheckpointingMode",
    "weir.datastream.connectors": "FileSink FileSource NumberSequenceSource OutputFileConfig "
    "RollingPolicy StreamFormat",
    "weir.datastream.connectors.file_system": "FileSink FileSource StreamFormat OutputFileConfig "
    "RollingPolicy BucketAssigner",
    "weir.datastream.connectors.number_seq": "NumberSequenceSource",
    "weir.datastream.data_stream": "DataStream KeyedStream WindowedStream DataStreamSink",
    "weir.datastream.execution_mode": "RuntimeExecutionMode",
    "weir.datastream.externalized_checkpoint_retention": "ExternalizedCheckpointRetention",
    "weir.datastream.functions": "MapFunction FlatMapFunction FilterFunction ReduceFunction "
    "AggregateFunction KeySelector Partitioner ProcessFunction KeyedProcessFunction "
    "ProcessWindowFunction WindowFunction RuntimeContext",
    "weir.datastream.output_tag": "OutputTag",
    "weir.datastream.state": "ValueState ListState MapState ReducingState AggregatingState State "
    "ValueStateDescriptor ListStateDescriptor MapStateDescriptor ReducingStateDescriptor "
    "AggregatingStateDescriptor StateDescriptor",
    "weir.datastream.stream_execution_environment": "StreamExecutionEnvironment",
    "weir.datastream.time_domain": "TimeDomain",
    "weir.datastream.timerservice": "TimerService",
    "weir.datastream.window": "TimeWindow TumblingEventTimeWindows TumblingProcessingTimeWindows",
}


@pytest.mark.parametrize("module", PATHS)
def test_pyflinks_modules_have_their_names(module: str) -> None:
    imported = importlib.import_module(module)
    assert [name for name in PATHS[module].split() if not hasattr(imported, name)] == []


def test_a_name_is_one_object_by_all_paths() -> None:
    assert importlib.import_module("weir.common.watermark_strategy").WatermarkStrategy is (
        WatermarkStrategy
    )
