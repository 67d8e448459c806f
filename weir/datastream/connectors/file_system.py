"""Sources and sinks of text files under PyFlink's module name."""

from weir.operators.sinks.file_sink import (
    BucketAssigner,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from weir.operators.sources.file_source import FileSource, StreamFormat

__all__ = [
    "BucketAssigner",
    "FileSink",
    "FileSource",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]
