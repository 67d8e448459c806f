"""Sources for ``env.from_source`` and sinks for ``stream.sink_to``.

A user's own source derives from ``Source`` and ``SplitReader``. ``Sink`` is the base of the sinks
here; its interface for sinks of users is not settled yet.
"""

from typing import TYPE_CHECKING

from weir.common.missing_names import package_attribute
from weir.operators.sinks import (
    BlackHoleSink,
    BucketAssigner,
    CollectSink,
    FileSink,
    OutputFileConfig,
    ParquetSink,
    PrintSink,
    RollingPolicy,
    Sink,
)
from weir.operators.sources import (
    CollectionSource,
    DataGeneratorSource,
    NumberSequenceSource,
    Source,
    SplitReader,
)
from weir.operators.sources.file_source import FileSource, StreamFormat
from weir.operators.sources.parquet_source import ParquetSource

__all__ = [
    "CollectionSource",
    "DataGeneratorSource",
    "NumberSequenceSource",
    "ParquetSource",
    "FileSource",
    "StreamFormat",
    "Source",
    "SplitReader",
    "BlackHoleSink",
    "CollectSink",
    "FileSink",
    "OutputFileConfig",
    "RollingPolicy",
    "BucketAssigner",
    "ParquetSink",
    "PrintSink",
    "Sink",
]

if not TYPE_CHECKING:
    __getattr__ = package_attribute(__name__)
