"""Filters as Arrow expressions: their masks, the columns that they name, and row groups.

Arrow tells neither the fields of an expression nor its mask without a table, so both are asked for
by evaluating it. An expression travels to the workers, as none can that names a column by position.

A row group is *ruled out* if its statistics prove that the filter is true of none of its rows. Only
columns whose statistics order them as the filter does are trusted with that: not floats, whose NaN
no statistics tell.

Arrow's engine and its data sets are imported with the first expression: they bring pandas along,
where that is installed, which is a quarter of a driver's start.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import GraphError, SchemaError

_ORDERED = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_large_string,
)


@dataclass(frozen=True, slots=True)
class ExpressionMask:
    """The mask of a filter: whether the expression is true of each row of a batch."""

    expression: pc.Expression

    def __call__(self, columns: pa.RecordBatch) -> pa.ChunkedArray:
        """One boolean per row; null where the expression is null.

        Raises:
            SchemaError: The columns lack one that the expression names.
        """
        try:
            return _evaluated(self.expression, pa.Table.from_batches([columns]))
        except pa.ArrowInvalid as error:
            if "FieldRef" not in str(error):
                raise
            raise SchemaError(
                f"the expression {self.expression} names a column that the records do not have; "
                f"they have {', '.join(columns.schema.names)}"
            ) from error


def check_expression(expression: pc.Expression) -> None:
    """Check that an expression can be sent to workers.

    Raises:
        GraphError: It cannot: it names a column by its position, or holds a value without a type
                that Arrow can write.
    """
    try:
        pickle.dumps(expression)
    except pa.ArrowException as error:
        raise GraphError(
            f"filter cannot use the expression {expression}: {error}. Name columns by their names, "
            'as in pc.field("amount")'
        ) from error


def names_in(expression: pc.Expression, schema: pa.Schema) -> frozenset[str] | None:
    """The columns of a schema that an expression names; None: it does not fit."""
    empty = schema.empty_table()
    if not _fits(expression, empty):
        return None
    return frozenset(
        name for name in schema.names if not _fits(expression, empty.drop_columns([name]))
    )


def can_rule_out(expression: pc.Expression, schema: pa.Schema) -> bool:
    """Whether statistics may be trusted with this filter over records of this schema."""
    names = names_in(expression, schema)
    return bool(names) and all(
        any(is_kind(schema.field(name).type) for is_kind in _ORDERED) for name in names or ()
    )


def ruled_out(path: str, row_groups: Sequence[int], filter: pc.Expression) -> frozenset[int]:
    """The row groups of a Parquet file that hold no row for which the filter is true."""
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    fragment = ds.ParquetFileFormat().make_fragment(
        path, LocalFileSystem(), row_groups=list(row_groups)
    )
    left = fragment.split_by_row_group(filter, schema=fragment.physical_schema)
    return frozenset(row_groups).difference(group.id for f in left for group in f.row_groups)


def _fits(expression: pc.Expression, table: pa.Table) -> bool:
    try:
        _evaluated(expression, table)
    except pa.ArrowException:
        return False
    return True


def _evaluated(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    import pyarrow.acero as acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["mask"]))
    made = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    return made.column("mask")
