"""The fit of a function's columns to their declared type.

The counterpart of a type's ``normaliser``, once per batch: the same values fit and the same are
refused. A column is cast where no value changes by it; floats alone are rounded to the declared
width.
"""

from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa

from weir.common.typeinfo import RowTypeInfo, TypeInformation
from weir.errors import SchemaError

_IsKind = Callable[[pa.DataType], bool]
# Casts from a type of the first group to one of the second that change no value that fits.
_CASTS: tuple[tuple[tuple[_IsKind, ...], tuple[_IsKind, ...]], ...] = (
    ((pa.types.is_integer,), (pa.types.is_integer, pa.types.is_floating)),
    ((pa.types.is_floating,), (pa.types.is_floating,)),
    (
        (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        (pa.types.is_string, pa.types.is_large_string),
    ),
    (
        (
            *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
            pa.types.is_fixed_size_binary,
        ),
        (pa.types.is_binary, pa.types.is_large_binary),
    ),
    ((pa.types.is_date,), (pa.types.is_date,)),
    ((pa.types.is_time,), (pa.types.is_time,)),
)


def fit_columns(columns: pa.RecordBatch, kind: TypeInformation) -> pa.RecordBatch:
    """The columns as the declared type stores them: its names, in its order.

    Shape: n rows -> n rows. A type that is no row type has one column, of any name.

    Raises:
        SchemaError: A column is missing, unexpected or has values that do not fit; it is named.
    """
    wanted = _schema(kind)
    if not isinstance(kind, RowTypeInfo) and columns.num_columns == 1:
        columns = columns.rename_columns(wanted.names)
    if columns.schema.equals(wanted):
        return columns
    if sorted(columns.schema.names) != sorted(wanted.names):
        raise SchemaError(
            f"it has the columns {', '.join(columns.schema.names)}, but declared are "
            f"{', '.join(wanted.names)}"
        )
    arrays = [_fit_column(columns.column(field.name), field) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


@lru_cache(maxsize=256)  # Asked for with every batch.
def _schema(kind: TypeInformation) -> pa.Schema:
    if isinstance(kind, RowTypeInfo):
        return pa.schema(list(kind.arrow_type))
    return pa.schema([("value", kind.arrow_type)])


def _fit_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if not _can_cast(column.type, field.type):
        raise SchemaError(f"column {field.name} is {column.type}, which does not fit {field.type}")
    try:
        # An unsafe cast rounds floats; of floats nothing else could be unsafe.
        return column.cast(field.type, safe=not pa.types.is_floating(column.type))
    except pa.ArrowInvalid as error:
        raise SchemaError(f"column {field.name} does not fit {field.type}: {error}") from error


def _can_cast(held: pa.DataType, wanted: pa.DataType) -> bool:
    if held == wanted or pa.types.is_null(held):
        return True
    if pa.types.is_dictionary(held):
        return _can_cast(held.value_type, wanted)
    if pa.types.is_timestamp(held) and pa.types.is_timestamp(wanted):
        return (held.tz is None) == (wanted.tz is None)
    if pa.types.is_list(wanted) and (pa.types.is_list(held) or pa.types.is_large_list(held)):
        return _can_cast(held.value_type, wanted.value_type)
    return any(
        any(is_kind(held) for is_kind in ones) and any(is_kind(wanted) for is_kind in others)
        for ones, others in _CASTS
    )
