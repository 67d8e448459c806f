"""The lowest event time of a row group, from the statistics in the footer of its file.

Statistics hold a value as it is stored, in the unit of the file, while event time is the value that
a reader makes of it. So the stored value is cast to the column's type as read and converted by
``column_timestamps``, like all timestamps. That rounds, but never changes which of two values is
higher, and therefore the least value becomes the least time.
"""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.operators.watermarks import column_timestamps

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def lowest_time_ms(file: pq.ParquetFile, row_group: int, column: str) -> int | None:
    """The least time in a column of a row group, in milliseconds; None: it is not known.

    It is not known without statistics, without values, and for columns that hold no event time.
    """
    index = file.schema_arrow.get_field_index(column)
    statistics = _statistics(file.metadata.row_group(row_group), column)
    if index < 0 or statistics is None or not statistics.has_min_max:
        return None
    kind = file.schema_arrow.field(index).type
    try:
        lowest = _stored_lowest(statistics, kind)
        if lowest is None:
            return None
        batch = pa.RecordBatch.from_arrays([lowest.cast(kind, safe=False)], names=[column])
        return int(column_timestamps(batch, column)[0])
    except pa.ArrowInvalid:
        return None  # No int64 holds it; reading the column raises the error that says so.


def _statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    chunks = (group.column(i) for i in range(group.num_columns))
    return next((chunk.statistics for chunk in chunks if chunk.path_in_schema == column), None)


def _stored_lowest(statistics: pq.Statistics, kind: pa.DataType) -> Any:
    """The least value as it is stored, in an array of one; None: the column holds no time."""
    if pa.types.is_timestamp(kind):
        logical = json.loads(statistics.logical_type.to_json())
        unit = _UNITS.get(logical.get("timeUnit"))
        return unit and pa.array([statistics.min_raw], pa.timestamp(unit, kind.tz))
    if pa.types.is_date(kind):
        return pa.array([statistics.min_raw], pa.int32()).cast(pa.date32())
    if pa.types.is_integer(kind):
        return pa.array([statistics.min], kind)
    return None
