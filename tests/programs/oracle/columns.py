"""Record batches, made of records and made into records."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.programs.oracle.calls import Refused
from tests.programs.oracle.declared_types import Type
from weir.common.row import rows_of


def rows_of_columns(columns: pa.RecordBatch) -> list[Any]:
    """A batch's rows, with names."""
    values = zip(*(column.to_pylist() for column in columns.columns), strict=True)
    return list(rows_of(columns.schema.names, values))


def columns_of(rows: Sequence[Any], kind: Type | None) -> pa.RecordBatch:
    """The batch of records that have names; a number of unlimited size is text in a column.

    Raises:
        Refused: Their fields differ.
    """
    dicts = [row if isinstance(row, dict) else row.as_dict() for row in rows]
    if any(row.keys() != dicts[0].keys() for row in dicts):
        raise Refused("records whose fields differ cannot become columns")
    fields = zip(kind.fields or (), kind.inner, strict=False) if kind is not None else ()
    as_text = {name for name, inner in fields if inner.name in ("BIG_INT", "BIG_DEC")}
    return pa.RecordBatch.from_pylist(
        [
            {name: str(v) if name in as_text and v is not None else v for name, v in row.items()}
            for row in dicts
        ]
    )


def kept_by(expression: pc.Expression, columns: pa.RecordBatch) -> list[bool]:
    """Whether each row stays: those for which an expression is true, in Arrow's own reading."""
    numbered = pa.Table.from_batches([columns]).append_column("#", [range(len(columns))])
    stay = set(numbered.filter(expression).column("#").to_pylist())
    return [i in stay for i in range(len(columns))]
