"""The environment of a program, in which its text is evaluated."""

import copy
from collections.abc import Iterable
from typing import Any

from tests.programs.build import compiled, namespace
from tests.programs.oracle.declared_types import Type, Types
from tests.programs.oracle.events import Record
from tests.programs.oracle.keyed import KeyedStream
from tests.programs.oracle.keys import key_function
from tests.programs.oracle.sources import Collection, generated, numbers, parquet
from tests.programs.oracle.state import (
    aggregating_descriptor,
    list_descriptor,
    map_descriptor,
    reducing_descriptor,
    value_descriptor,
)
from tests.programs.oracle.streams import Sink, Stream
from weir.common.watermark import WatermarkStrategy


def evaluate(text: str) -> dict[str, list[Any]]:
    """The records that each sink of a program must get, in one order that is right.

    Raises:
        Refused: The program must fail.
    """
    env = Environment()
    names = {**namespace(), **_STAND_INS, "env": env}
    exec(compiled(text), names)
    return {
        sink.uid_: [copy.deepcopy(e.value) for e in sink.stream.events() if isinstance(e, Record)]
        for sink in env.sinks
    }


class Environment:
    """Stands in for ``StreamExecutionEnvironment``."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []

    def from_collection(self, rows: Iterable[Any], type_info: Type | None = None) -> Stream:
        return Stream(self, Collection(rows, type_info).events, type_info)

    def from_source(self, source: Any, strategy: WatermarkStrategy, name: str) -> Stream:
        stream = Stream(self, source.events, source.type_info)
        if strategy == WatermarkStrategy.no_watermarks():
            return stream
        return stream.assign_timestamps_and_watermarks(strategy)

    def keyed(self, stream: Stream, key: Any, key_type: Type | None) -> KeyedStream:
        """The stream under a key, which is a function or names columns."""
        columns = [key] if isinstance(key, str) else list(key) if isinstance(key, list) else None
        return KeyedStream(stream, key_function(key), key_type, columns)


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
