"""The inferred schema of records without a declared type, where columns are needed of them.

It is the schema of the first records, and all later ones must have it, however they fall into
slices: every record has the same fields, and a field holds values of one class. A field that is
missing or new in some records is refused, since a column for it would have to be dropped or made
up. A declared ``output_type`` settles it: a field that a dict leaves out is null then.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from weir.common.row import Row, row_class
from weir.common.types.base import shown
from weir.errors import SchemaError

_ADVICE = (
    "declare output_type on the operator that makes them, e.g. "
    "output_type=Types.ROW_NAMED([...], [...])"
)


class InferredSchema:
    """The inferred schema of one stream; converts its undeclared records into columns."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None
        self._classes: dict[str, type] = {}
        self._types: dict[str, pa.DataType] = {}

    def columns(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """The records as columns, in the order of the first record's fields.

        Shape: n records -> n rows.

        Raises:
            SchemaError: The records have no field names, or not the same, or a field holds values
                of several classes.
        """
        if self._names is None and rows:
            self._names = _field_names(rows[0])
        names = self._names or ()
        if set(map(type, rows)) == {row_class(names)}:  # One class of rows has one set of names.
            columns = list(zip(*rows, strict=True))
        else:
            self._check_names(rows, names)
            columns = [tuple(row[name] for row in rows) for name in names]
        arrays = list(map(self._column, names, columns))
        return pa.RecordBatch.from_arrays(arrays, names=list(names))

    def _check_names(self, rows: Sequence[Any], names: tuple[str, ...]) -> None:
        fields = frozenset(names)
        for row in rows:
            if (own := _field_names(row)) != names and frozenset(own) != fields:
                raise SchemaError(
                    f"the record {shown(row)} has the fields {', '.join(own)}, but those before it "
                    f"have {', '.join(names)}; {_ADVICE} (fields that a dict leaves out are null)"
                )

    def _column(self, name: str, values: Sequence[Any]) -> pa.Array:
        classes = set(map(type, values)) - {type(None)}
        known = self._classes.get(name)
        if known is not None:
            classes.add(known)
        if len(classes) > 1:
            raise SchemaError(_two_classes(name, values, known))
        if not classes:
            return pa.nulls(len(values))
        (self._classes[name],) = classes
        try:
            return self._array(name, values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as error:
            raise SchemaError(f"the field {name!r} of records: {error}; {_ADVICE}") from error

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        known = self._types.get(name)
        if known is None or pa.types.is_nested(known):
            # Arrow would drop fields that a known struct lacks.
            array = pa.array(values)
        else:
            array = pa.array(values, known)
        if known is None and not pa.types.is_null(array.type):
            self._types[name] = array.type
        elif known is not None and array.type != known:
            raise SchemaError(
                f"the field {name!r} of records was {known} and is {array.type}; {_ADVICE}"
            )
        return array


def _two_classes(name: str, values: Sequence[Any], known: type | None) -> str:
    """The message about a field with values of several classes."""
    first = known or next(type(value) for value in values if value is not None)
    other = next(value for value in values if value is not None and type(value) is not first)
    listed = " and ".join(sorted((first.__name__, type(other).__name__)))
    return (
        f"the field {name!r} of records holds {listed}: {shown(other)} is of "
        f"{type(other).__name__}, and those before it are of {first.__name__}; {_ADVICE}"
    )


def _field_names(row: Any) -> tuple[str, ...]:
    names: Any = None
    if isinstance(row, Row):
        names = row.field_names
    elif isinstance(row, Mapping):
        names = tuple(row)
    if names is None or not all(isinstance(name, str) for name in names):
        raise SchemaError(
            f"the record {shown(row)} of type {type(row).__name__}, which has no field names, "
            f"cannot become columns; {_ADVICE}"
        )
    return tuple(names)
