"""The rows of a table in the files of a snapshot (``weir.state.snapshot``)."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy.typing as npt
import pyarrow as pa

from weir.graph.key_groups import encode_key
from weir.state.codec import (
    SlotKey,
    key_of_slot,
    load_keys,
    slot_of,
    store_keys,
    stored_key_type,
)
from weir.state.columns.changed_rows import Slots
from weir.state.columns.table import CHUNK_ROWS, ColumnarTable, FrozenColumns
from weir.state.pieces import PIECE_OBJECTS
from weir.state.state_files import About, Content, arrow_to_wire, schema_of

_Rows: TypeAlias = slice | Slots  # As they lie, or by their numbers.


def table_content(frozen: FrozenColumns, of_changes: bool, canonical: bool) -> Content:
    """The rows of a table: all, in their order, or those that changed."""
    keys, groups = frozen.keys, frozen.groups
    first = 0 if frozen.has_null else 1  # Row 0 is the null key's.
    of_objects = pa.types.is_large_binary(keys.type)  # In canonical form.
    piece_rows = PIECE_OBJECTS if of_objects else CHUNK_ROWS

    def keys_at(rows: _Rows) -> pa.Array:
        if not isinstance(rows, slice):
            is_null = rows == 0 if rows[0] == 0 else None
            return keys.take(pa.array(rows - 1, mask=is_null))
        if rows.start == 0:
            return pa.concat_arrays([pa.nulls(1, keys.type), keys[: rows.stop - 1]])
        return keys[rows.start - 1 : rows.stop - 1]

    def slots(rows: _Rows) -> list[SlotKey]:
        return [None if key is None else slot_of(key) for key in keys_at(rows).to_pylist()]

    def stored_keys(rows: _Rows) -> pa.Array:
        if not of_objects:
            return keys_at(rows)
        if key_kind is not None:
            return store_keys(slots(rows), key_kind)
        return keys_at(rows).fill_null(encode_key(None))

    def changed() -> Iterator[Slots]:
        for rows in frozen.changed_rows():
            yield from (rows[span] for span in _spans(0, len(rows), piece_rows))

    def pieces() -> Iterator[tuple[_Rows, list[npt.NDArray[Any]]]]:
        if of_changes:
            for rows, values in frozen.changes():
                for span in _spans(0, len(rows), piece_rows):
                    yield rows[span], [column[span] for column in values]
            return
        for chunk, chunk_end, values in frozen.chunks():
            for span in _spans(max(chunk, first), chunk_end, piece_rows):
                own = slice(span.start - chunk, span.stop - chunk)
                yield span, [column[own] for column in values]

    key_kind: pa.DataType | None = keys.type
    if of_objects:
        # Columns are read once only, so the type must be right the first time.
        known = changed() if of_changes else _spans(first, frozen.rows, piece_rows)
        key_kind = None if canonical else stored_key_type(slots(rows) for rows in known)
    columns = {name: column.dtype for name, column in frozen.columns.items()}
    about = About(
        "table",
        frozen.name,
        frozen.max_parallelism,
        key_kind is None,
        {
            "key": None if frozen.key_type is None else arrow_to_wire(frozen.key_type),
            "columns": {name: dtype.str for name, dtype in columns.items()},
        },
    )
    kinds = {name: pa.from_numpy_dtype(dtype) for name, dtype in columns.items()}
    schema = schema_of(about, keys.type if key_kind is None else key_kind, kinds)

    def batches() -> Iterator[pa.RecordBatch]:
        for rows, values in pieces():
            # Of a slice the arrays are those that are there: no copy.
            arrays = [pa.array(groups[rows]), stored_keys(rows), *map(pa.array, values)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return Content(schema, batches(), of_objects)


def _spans(start: int, end: int, size: int) -> Iterator[slice]:
    """``start`` to ``end`` in spans of ``size`` at most."""
    return (slice(at, min(at + size, end)) for at in range(start, end, size))


def restore_rows(table: ColumnarTable, about: About, batches: Iterable[pa.RecordBatch]) -> None:
    """Put stored rows into a table that has their columns."""
    _, columns = about.table_types
    for batch in batches:
        keys = batch.column("key")
        if about.canonical_keys:
            slots = table.slots_of([key_of_slot(s) for s in load_keys(keys, canonical=True)])
        else:
            slots = table.slots_of(keys)
        for name in columns:
            values = batch.column(name).to_numpy(zero_copy_only=False)
            table.column(name).scatter(slots, values)
