"""Record batches, made of records and made into records."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tests.programs.oracle.calls import Refused
from weir.common.row import rows_of


def rows_of_columns(columns: pa.RecordBatch) -> list[Any]:
    """A batch's rows, with names."""
    values = zip(*(column.to_pylist() for column in columns.columns), strict=True)
    return list(rows_of(columns.schema.names, values))


def columns_of(rows: Sequence[Any]) -> pa.RecordBatch:
    """The batch of records that have names.

    Raises:
        Refused: Their fields differ.
    """
    dicts = [row if isinstance(row, dict) else row.as_dict() for row in rows]
    if any(row.keys() != dicts[0].keys() for row in dicts):
        raise Refused("records whose fields differ cannot become columns")
    return pa.RecordBatch.from_pylist(dicts)
