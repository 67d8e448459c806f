"""Sources and sinks of text files under PyFlink's module name."""

from typing import TYPE_CHECKING

from weir.common.missing_names import module_attribute
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

if not TYPE_CHECKING:
    __getattr__ = module_attribute(__name__)
