"""Checks of a stream's other ends: collections, sources, sinks, strategies, other streams."""

from collections.abc import Iterable, Sequence
from typing import Any

from weir.common.watermark import WatermarkStrategy
from weir.errors import GraphError
from weir.operators.user_code import short_repr

_TABLES = {  # By the class's name: none of these libraries need be installed.
    "DataFrame": "frame.to_dict('records') of a pandas DataFrame, or [row.asDict() for row in "
    "frame.collect()] of a Spark one",
    "Series": "series.tolist()",
    "Table": "table.to_pylist()",
    "RecordBatch": "batch.to_pylist()",
}


def elements_of(collection: Any) -> list[Any]:
    """The elements of a collection that ``from_collection`` was given.

    Raises:
        GraphError: It has none, or iterating it would give something else than its records.
    """
    kind = type(collection).__name__
    if isinstance(collection, str | bytes):
        raise GraphError(
            f"from_collection got the text {short_repr(collection)}, whose elements are single "
            "characters: put it in a list, from_collection([text]), or split it"
        )
    if isinstance(collection, dict):
        raise GraphError(
            "from_collection got a dict, whose elements are its keys: give it "
            "list(d.items()) for pairs, or [d] for one record"
        )
    if (advice := _TABLES.get(kind)) is not None:
        raise GraphError(f"from_collection takes a list of records, not a {kind}: give it {advice}")
    if not isinstance(collection, Iterable):
        raise GraphError(
            f"from_collection takes a list of records, not {short_repr(collection)} ({kind})"
        )
    return list(collection)


def check_source(source: Any, strategy: Any) -> None:
    """Check the source and the strategy that ``from_source`` was given.

    Raises:
        GraphError: One of both is none.
    """
    if isinstance(source, type) or not hasattr(source, "create_operator_factory"):
        raise GraphError(
            f"{_class_or_value(source)} is not a source{_source_hint(source)}; use one of "
            "weir.datastream.connectors, env.from_collection, or an object with "
            "create_operator_factory(parallelism)"
        )
    if not isinstance(strategy, WatermarkStrategy):
        raise GraphError(
            f"from_source takes a WatermarkStrategy second, not {short_repr(strategy)}: without "
            "event time write WatermarkStrategy.no_watermarks()"
        )


def check_sink(sink: Any) -> None:
    """Check that ``sink_to`` was given a sink.

    Raises:
        GraphError: It is none.
    """
    if not isinstance(sink, type) and hasattr(sink, "create_operator_factory"):
        return
    hint = ""
    if isinstance(sink, type):
        hint = f": write sink_to({sink.__name__}(...))"
    elif isinstance(sink, str):
        hint = f": for Parquet files write sink_to(ParquetSink({sink!r}))"
    raise GraphError(
        f"{_class_or_value(sink)} is not a sink{hint}; use one of weir.datastream.connectors or an "
        "object with create_operator_factory()"
    )


def check_strategy(strategy: Any) -> None:
    """Check that ``assign_timestamps_and_watermarks`` was given a strategy.

    Raises:
        GraphError: It was not.
    """
    if not isinstance(strategy, WatermarkStrategy):
        raise GraphError(
            f"assign_timestamps_and_watermarks takes a WatermarkStrategy, not {strategy!r}: write "
            "WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(...), say"
        )


def check_stream(given: Any, kind: type) -> None:
    """Check that ``union`` was given a stream, one of the class ``kind``.

    Raises:
        GraphError: It was not.
    """
    if not isinstance(given, kind):
        hint = ": write union(*streams)" if isinstance(given, list | tuple) else ""
        raise GraphError(f"union takes streams, one by one, not {given!r}{hint}")


def check_no_broadcast_state(descriptors: Sequence[Any]) -> None:
    """Check that ``broadcast`` was given no descriptors of state.

    Raises:
        GraphError: It was.
    """
    if descriptors:
        raise GraphError(
            "broadcast takes no state descriptor: Weir has no broadcast state. broadcast() sends "
            "every record to all subtasks; a function that needs a small table can load it in "
            "open()"
        )


def _source_hint(source: Any) -> str:
    if isinstance(source, type):
        return f": write {source.__name__}(...)"
    if isinstance(source, str):
        return f": for Parquet files write ParquetSource({source!r})"
    if isinstance(source, list | tuple | set | range):
        return ": give it to env.from_collection"
    return ""


def _class_or_value(given: Any) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else short_repr(given)
