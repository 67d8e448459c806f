"""Sinks: those that commit with checkpoints, and one that drops its records."""

from weir.operators.sinks.black_hole import BlackHoleSink
from weir.operators.sinks.collect_sink import CollectSink, PrintSink
from weir.operators.sinks.file_sink import (
    BucketAssigner,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from weir.operators.sinks.parquet_sink import ParquetSink
from weir.operators.sinks.pending_commits import Sink

__all__ = [
    "BlackHoleSink",
    "BucketAssigner",
    "CollectSink",
    "FileSink",
    "OutputFileConfig",
    "ParquetSink",
    "PrintSink",
    "RollingPolicy",
    "Sink",
]
