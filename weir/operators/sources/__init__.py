"""Sources: splits, the order in which they are read, and their watermarks."""

from weir.operators.sources.file_source import FileSource, StreamFormat
from weir.operators.sources.generated import (
    CollectionSource,
    DataGeneratorSource,
    NumberSequenceSource,
)
from weir.operators.sources.parquet_source import ParquetSource
from weir.operators.sources.split_source import Source, SplitReader, SplitSourceOperator

__all__ = [
    "CollectionSource",
    "DataGeneratorSource",
    "FileSource",
    "NumberSequenceSource",
    "ParquetSource",
    "Source",
    "SplitReader",
    "SplitSourceOperator",
    "StreamFormat",
]
