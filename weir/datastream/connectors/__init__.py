"""Sources for ``env.from_source`` and sinks for ``stream.sink_to``.

A user's own source derives from ``Source`` and ``SplitReader``. A user's own sink derives from
``Sink`` and has an ``Operator`` (``weir.operators.base``), both of which may change between
versions.
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
    FileSource,
    NumberSequenceSource,
    ParquetSource,
    Source,
    SplitReader,
    StreamFormat,
)

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
