"""The streams under PyFlink's module name."""

from typing import TYPE_CHECKING

from weir.common.missing_names import module_attribute
from weir.datastream.closeable_iterator import CloseableIterator
from weir.datastream.keyed_stream import KeyedStream
from weir.datastream.stream import DataStream, DataStreamSink
from weir.datastream.windowed_stream import WindowedStream

__all__ = ["CloseableIterator", "DataStream", "DataStreamSink", "KeyedStream", "WindowedStream"]

if not TYPE_CHECKING:
    __getattr__ = module_attribute(__name__)
