"""Sources for ``env.from_source`` and sinks for ``stream.sink_to``.

A user's own source derives from ``Source`` and ``SplitReader``. ``Sink`` is the base of the sinks
here; its interface for sinks of users is not settled yet.
"""

from weir.operators.sinks import BlackHoleSink, CollectSink, ParquetSink, PrintSink, Sink
from weir.operators.sources import (
    CollectionSource,
    DataGeneratorSource,
    NumberSequenceSource,
    Source,
    SplitReader,
)
from weir.operators.sources.parquet_source import ParquetSource

__all__ = [
    "CollectionSource",
    "DataGeneratorSource",
    "NumberSequenceSource",
    "ParquetSource",
    "Source",
    "SplitReader",
    "BlackHoleSink",
    "CollectSink",
    "ParquetSink",
    "PrintSink",
    "Sink",
]
